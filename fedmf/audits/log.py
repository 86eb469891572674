"""Participation logs from elsewhere: CSV or Parquet files of (client, round), of any length, in bounded memory.

The rows are put into a temporary table on disk and sorted out of core by DuckDB, which keeps to the memory it is given; what comes
back are counts (`fedmf.participation.stats`), never the log.
"""

import dataclasses
import hashlib
import os
import pathlib
import tempfile
from typing import TYPE_CHECKING

import numpy as np

from fedmf import checks
from fedmf.audits.log_files import LogFile, log_file
from fedmf.participation.stats import ParticipationPattern

if TYPE_CHECKING:
    import duckdb

DEFAULT_MEMORY = 10**9
_LEAST_MEMORY = 256 * 10**6
_DUPLICATES = ("refuse", "once")
_MAX_ROUNDS = 10**9


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParticipationLog:
    """What was read of a log.

    Attributes:
      name: of the file, without its folder.
      size: bytes.
      sha256: of the file's bytes, hexadecimal: says later which log was audited.
      rows: of the file, duplicates included.
      duplicates: rows left out because another has the same client and round.
      pattern: what the log shows.
    """

    name: str
    size: int
    sha256: str
    rows: int
    duplicates: int
    pattern: ParticipationPattern


def read_log(
    path: str | os.PathLike[str],
    *,
    rounds: int,
    client_column: str = "client",
    round_column: str = "round",
    first_round: int = 0,
    duplicates: str = "refuse",
    memory: int = DEFAULT_MEMORY,
    folder: str | os.PathLike[str] | None = None,
) -> ParticipationLog:
    """Reads a CSV file (UTF-8, commas, a header line, every line ended) or a Parquet file with a row for each participation.

    Clients are whole numbers or texts, compared as they are written; rounds are whole numbers. Other columns are ignored.

    Args:
      path: the file; its contents decide which of the two it is.
      rounds: of the run; the log's rounds lie in first_round .. first_round + rounds - 1.
      client_column: name of the column of clients.
      round_column: name of the column of rounds.
      first_round: number of the run's first round in the log, 0 or, where rounds are counted from 1, 1.
      duplicates: two rows of one client in one round may be one participation written twice, or two contributions, which no plan
        covers: "refuse", or count them "once".
      memory: bytes that the sort may take, at least 256 MB; what does not fit goes to temporary files.
      folder: for the temporary files; None for the system's. They need about as much room as the log, text logs more.

    Raises:
      TypeError, ValueError: one sentence that names the argument, or the file and where it is wrong.
      OSError: the file cannot be read, or the temporary files cannot be written.
    """
    rounds = checks.integer("rounds", rounds, low=1, high=_MAX_ROUNDS, hint="pass the number of rounds of the run")
    first_round = checks.integer(
        "first_round", first_round, low=0, high=_MAX_ROUNDS, hint="pass the number of the log's first round, 0 or 1"
    )
    checks.one_of("duplicates", duplicates, _DUPLICATES)
    memory = checks.integer("memory", memory, low=_LEAST_MEMORY, hint="allow 256 MB or more")
    if client_column == round_column:
        raise ValueError(f"client_column and round_column are both {client_column!r}: name the two columns of the log")
    path = pathlib.Path(path)
    if not path.is_file():
        wrong = "is not a file" if path.exists() else "does not exist"
        raise FileNotFoundError(f"log {path} {wrong}: name a CSV or Parquet file of clients and rounds")
    import duckdb

    before = path.stat()
    source = log_file(path, client_column, round_column, range(first_round, first_round + rounds))
    try:
        rows, repeated, pattern = _counted(source, memory, folder, refuse=duplicates == "refuse")
    except duckdb.OutOfMemoryException as error:
        raise ValueError(f"memory={memory} bytes do not suffice to sort log {path}: allow more") from error
    except RuntimeError as error:
        # What DuckDB makes of Ctrl-C.
        if "interrupted" in str(error).lower():
            raise KeyboardInterrupt from error
        raise
    except duckdb.IOException as error:
        reason = str(error).splitlines()[0]
        raise OSError(
            f"log {path} could not be sorted in temporary files ({reason}): name a folder with more room"
        ) from error
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    after = path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ValueError(f"log {path} changed while it was read: audit a copy that nobody writes to")
    return ParticipationLog(
        name=path.name, size=after.st_size, sha256=digest, rows=rows, duplicates=repeated, pattern=pattern
    )


def _counted(
    source: LogFile, memory: int, folder: str | os.PathLike[str] | None, *, refuse: bool
) -> tuple[int, int, ParticipationPattern]:
    """Rows, those of them that repeat another, and the pattern of the others."""
    path = source.path
    with tempfile.TemporaryDirectory(prefix="fedmf-log-", dir=folder) as scratch, _connect(scratch, memory) as database:
        rows = source.load(database)
        if rows == 0:
            raise ValueError(f"log {path} holds no participation: an audit needs the rows of a run")
        pattern = _pattern(database, "log", source.rounds[0])
        repeated = pattern.separations.get(0, 0)
        if not repeated:
            return rows, 0, pattern
        if refuse:
            raise ValueError(f"log {path} has {repeated} rows twice, {source.an_example(database)}: {_TWICE}")
        database.execute(
            "CREATE TABLE distinct_rows AS SELECT client, round FROM log "
            "QUALIFY row_number() OVER (PARTITION BY client, round ORDER BY round) = 1"
        )
        return rows, repeated, _pattern(database, "distinct_rows", source.rounds[0])


_TWICE = (
    "two contributions of one client to one round are covered by no plan; if every such row is one participation written twice, "
    'pass duplicates="once"'
)


def _connect(scratch: str, memory: int) -> "duckdb.DuckDBPyConnection":
    import duckdb

    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{memory}B",
        "temp_directory": os.path.join(scratch, "sort"),
        # Each thread holds buffers of its own, so that many of them would not fit into little memory.
        "threads": min(4, os.cpu_count() or 1),
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    database = duckdb.connect(os.path.join(scratch, "log.duckdb"), config=settings)
    # It would be drawn on standard output, among the results of --json.
    database.execute("SET enable_progress_bar = false")
    return database


def _pattern(database: "duckdb.DuckDBPyConnection", table: str, first_round: int) -> ParticipationPattern:
    """Counts of a table of (client, round); a separation of 0 stands for two rows of one client in one round."""
    # One sort by client and round; windows spill to disk, where a hash table of many texts would not.
    gaps = database.execute(
        f"""
        SELECT gap, count(*), max(place), max(span) FROM (
          SELECT round - lag(round) OVER client_rounds AS gap,
            row_number() OVER client_rounds AS place,
            round - first_value(round) OVER client_rounds AS span
          FROM {table} WINDOW client_rounds AS (PARTITION BY client ORDER BY round)
        ) GROUP BY gap"""
    ).fetchall()
    sizes = database.execute(f"SELECT round, count(*) FROM {table} GROUP BY round").fetchall()
    cohort_sizes = np.zeros(max(t for t, _ in sizes) - first_round + 1, np.int64)
    for t, size in sizes:
        cohort_sizes[t - first_round] = size
    return ParticipationPattern(
        cohort_sizes=cohort_sizes,
        # Every client has one row without a row before it.
        clients=next(count for gap, count, *_ in gaps if gap is None),
        max_participations=max(place for *_, place, _ in gaps),
        separations={gap: count for gap, count, *_ in sorted(row for row in gaps if row[0] is not None)},
        longest_span=max(span for *_, span in gaps),
    )
