"""Sorting of participation logs by client and round.

DuckDB reads a log of any length into a temporary table on disk and sorts it in bounded memory. The
audit reads the table block by block, so that the log is never held whole.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmf import checks, tables
from fedmf.audits.log_file import LogFile, LogForm, ParticipationLog
from fedmf.files import expanded
from fedmf.participation.clients import ClientRounds

if TYPE_CHECKING:
    import duckdb

DEFAULT_MEMORY = 10**9
_MIN_MEMORY_BYTES = 256 * 10**6
_MAX_ROUNDS = 10**9
# Number of rows of a participation log that are read at a time. A block is larger if a single
# client has more rows.
_BLOCK_ROWS = 2**19


class SortedLog:
    """Participation log in a temporary table on disk, sorted by client and round.

    Attributes:
      description: of the file.
      first_round: number of the run's first round in the log.
      rounds: number of rounds up to the last one in the log.
    """

    def __init__(
        self, db: "duckdb.DuckDBPyConnection", description: ParticipationLog, first_round: int
    ) -> None:
        self._db = db
        self.description = description
        self.first_round = first_round
        self.rounds = int(self._single_value("SELECT max(round) FROM log")) - first_round + 1

    def _single_value(self, query: str) -> Any:
        """Returns the single value in the result of a query that has one row and one column."""
        return self._db.execute(query).fetchall()[0][0]

    def cohort_sizes(self) -> np.ndarray:
        """Returns the number of clients in each round, an int64 array of shape (rounds,)."""
        size_rows = self._db.execute("SELECT round, count(*) FROM log GROUP BY round").fetchall()
        round_numbers, num_clients = np.array(size_rows, np.int64).T
        cohort_sizes = np.zeros(self.rounds, np.int64)
        cohort_sizes[round_numbers - self.first_round] = num_clients
        return cohort_sizes

    def clients(self) -> Iterator[ClientRounds]:
        """Yields the clients block by block, with their rounds numbered from 0."""
        num_rows = int(self._single_value("SELECT count(*) FROM log"))
        block_rows = _BLOCK_ROWS
        first_row = 0
        while first_row < num_rows:
            block_columns = self._db.execute(
                f"""SELECT client IS DISTINCT FROM lag(client) OVER () AS is_next_client,
                  round - {self.first_round} AS round
                FROM log WHERE rowid >= {first_row} AND rowid < {first_row + block_rows}"""
            ).fetchnumpy()
            client_starts = np.flatnonzero(block_columns["is_next_client"])
            num_block_rows = len(block_columns["round"])
            if first_row + block_rows < num_rows:
                # The last client of this block may have more rows in the log, so the next block
                # begins with the same client.
                num_block_rows = int(client_starts[-1])
            if num_block_rows:
                block_of_rounds = np.asarray(block_columns["round"][:num_block_rows])
                yield ClientRounds(
                    rounds=block_of_rounds, starts=client_starts[client_starts < num_block_rows]
                )
            else:
                block_rows *= 2
            first_row += num_block_rows

    def client(self, row: int) -> int | str:
        """Returns the client id of a row of the sorted log, as the log file writes it."""
        client: int | str = self._single_value(
            f"SELECT coalesce(spelling, client) FROM log WHERE rowid = {row}"
        )
        return client


@contextlib.contextmanager
def sorted_log(
    path: str | os.PathLike[str],
    *,
    rounds: int,
    memory: int = DEFAULT_MEMORY,
    folder: str | os.PathLike[str] | None = None,
    form: LogForm = LogForm(),  # noqa: B008  (frozen)
) -> Iterator[SortedLog]:
    """Reads a log into a temporary table on disk, sorted by client and round.

    The log is CSV (with commas and a header line), JSON lines or Parquet, with a row for each
    participation; texts are UTF-8, and every line has a line end. Clients are whole numbers or
    texts, compared as they are written. Texts that differ only in invisible characters, in how
    letters are composed (NFC, NFD) or in the script of letters that look alike are one client.
    Rounds are whole numbers. Other columns are ignored.

    Args:
      path: the file; its first bytes decide on its format.
      rounds: number of rounds of the run: the log's rounds must lie in
        first_round .. first_round + rounds - 1.
      memory: bytes for the sort, at least 256 MB; more data goes to temporary files.
      folder: for the temporary files; None for the system's. They take about as much space as the
        log, more for text, and are deleted when the context ends.
      form: columns of the log, and how its rows are counted.

    Raises:
      TypeError, ValueError: an argument of the wrong type or out of range, or a damaged file; the
        message names the line.
      OSError: the file cannot be read, or the temporary files cannot be written.
    """
    rounds_hint = "pass the number of rounds of the run"
    rounds = checks.integer("rounds", rounds, low=1, high=_MAX_ROUNDS, hint=rounds_hint)
    log_file = LogFile(path=expanded(path), rounds=rounds, form=form)
    memory = checks.integer("memory", memory, low=_MIN_MEMORY_BYTES, hint="allow 256 MB or more")
    log_file.check_path()
    import duckdb

    scratch_folder = None
    if folder is not None:
        scratch_folder = expanded(folder)
    path = log_file.path
    try:
        with (
            tempfile.TemporaryDirectory(prefix="fedmf-log-", dir=scratch_folder) as scratch,
            tables.database(scratch, memory) as db,
        ):
            log_description = log_file.read(db, scratch)
            yield SortedLog(db, log_description, form.first_round)
    except duckdb.OutOfMemoryException as error:
        raise ValueError(
            f"memory={memory} bytes do not suffice to sort log {path}: allow more"
        ) from error
    except duckdb.IOException as error:
        raise OSError(
            f"log {path} could not be sorted in temporary files ({str(error).splitlines()[0]}): "
            "name a folder with more room"
        ) from error
