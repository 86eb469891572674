"""Participation logs from elsewhere: CSV, JSON lines or Parquet files of (client, round), of any
length, in bounded memory.

DuckDB reads the file into a temporary table on disk and sorts it out of core. What comes back are
counts (`fedmf.participation.stats`), never the log.
"""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmf import checks, fields, identifiers, tables
from fedmf.files import expanded
from fedmf.participation.clients import ClientRounds

if TYPE_CHECKING:
    import duckdb

DEFAULT_MEMORY = 10**9
_MIN_MEMORY_BYTES = 256 * 10**6
_MAX_ROUNDS = 10**9
# Rows that are counted at a time, if no client has more.
_BLOCK_ROWS = 2**19
_SKELETON = tables.skeleton_sql("client")
_CLIENT = (
    f"CASE WHEN NOT regexp_matches(client, '^[\\p{{Cc}}\\p{{Cf}}\\pZ]|[\\p{{Cc}}\\p{{Cf}}\\pZ]$') "
    f"THEN nullif({_SKELETON}, '') END"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogForm(fields.Checked):
    """How a log is written.

    Attributes:
      client_column, round_column: names of the columns.
      first_round: number of the run's first round, 1 where rounds are counted from 1.
      duplicates: two rows of one client in one round may be one participation written twice, which
        counts "once", or two contributions, which no plan covers: "refuse".

    Raises:
      TypeError, ValueError: naming the attribute, its value and what to do instead.
    """

    client_column: str = fields.text("client", "Column of clients: whole numbers or texts.")
    round_column: str = fields.text("round", "Column of rounds.")
    first_round: int = fields.whole_number(0, "Number of the first round.", low=0)
    duplicates: str = fields.choice(
        "refuse", "Rows that are there twice.", lambda: ("refuse", "once")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.client_column == self.round_column:
            raise ValueError(
                f"`client_column` and `round_column` are both {self.client_column!r}: name the "
                "two columns of the log"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParticipationLog:
    """What was read of a log.

    Attributes:
      name: of the file, without its folder.
      size: bytes.
      sha256: of the file's bytes, hexadecimal: says later which log was audited.
      rows: of the file, duplicates included.
      duplicates: rows left out because another has the same client and round.
      lookalikes: two clients that no reader can tell apart, and count as one;
        None where there are none.
      form: how it is written.
      rounds_run: rounds after which the run ended, as the audit was told; None for all of the
        plan's.
    """

    name: str
    size: int
    sha256: str
    rows: int
    duplicates: int
    lookalikes: tuple[str, str] | None
    form: LogForm
    rounds_run: int | None = None


class SortedLog:
    """A log that `sorted_log` holds on disk, by client and round.

    Attributes:
      description: of the file.
      first_round: number of the run's first round in the log.
      rounds: of the run, up to the last one in the log.
    """

    def __init__(
        self, db: "duckdb.DuckDBPyConnection", description: ParticipationLog, first_round: int
    ) -> None:
        self._db = db
        self.description = description
        self.first_round = first_round
        self.rounds = int(self._one("SELECT max(round) FROM log")) - first_round + 1

    def _one(self, query: str) -> Any:
        return self._db.execute(query).fetchall()[0][0]

    def cohort_sizes(self) -> np.ndarray:
        """Clients of each round, int64 (rounds,)."""
        t, sizes = np.array(
            self._db.execute("SELECT round, count(*) FROM log GROUP BY round").fetchall(), np.int64
        ).T
        cohort_sizes = np.zeros(self.rounds, np.int64)
        cohort_sizes[t - self.first_round] = sizes
        return cohort_sizes

    def clients(self) -> Iterator[ClientRounds]:
        """The rounds of all clients, counted from 0, block by block."""
        rows = int(self._one("SELECT count(*) FROM log"))
        block = _BLOCK_ROWS
        begin = 0
        while begin < rows:
            read = self._db.execute(
                f"""SELECT client IS DISTINCT FROM lag(client) OVER () AS other,
                  round - {self.first_round} AS round
                FROM log WHERE rowid >= {begin} AND rowid < {begin + block}"""
            ).fetchnumpy()
            starts = np.flatnonzero(read["other"])
            # The last client of a block goes on in the next one.
            end = len(read["round"]) if begin + block >= rows else int(starts[-1])
            if end:
                yield ClientRounds(
                    rounds=np.asarray(read["round"][:end]), starts=starts[starts < end]
                )
            else:
                block *= 2
            begin += end

    def client(self, row: int) -> int | str:
        """The client of a row, as the log writes it."""
        client: int | str = self._one(
            f"SELECT coalesce(spelling, client) FROM log WHERE rowid = {row}"
        )
        return client


def _is_unicode(path: pathlib.Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


@contextlib.contextmanager
def sorted_log(
    path: str | os.PathLike[str],
    *,
    rounds: int,
    memory: int = DEFAULT_MEMORY,
    folder: str | os.PathLike[str] | None = None,
    form: LogForm = LogForm(),
) -> Iterator[SortedLog]:
    """Reads CSV (commas, a header line), JSON lines or Parquet with a row for each participation;
    texts are UTF-8, all lines ended.

    Clients are whole numbers or texts, compared as they are written; texts that differ only in
    characters that leave no mark, in how letters are composed (NFC, NFD), or in the script of
    letters that look alike, are one client. Rounds
    are whole numbers. Other columns are ignored.

    Args:
      path: the file; its first bytes decide which of them it is.
      rounds: of the run; the log's rounds lie in first_round .. first_round + rounds - 1.
      memory: bytes that the sort may take, at least 256 MB; what does not fit goes
        to temporary files.
      folder: for the temporary files; None for the system's. They need about as much room as the
        log, text logs more. They are gone when the context ends.
      form: how the log is written.

    Raises:
      TypeError, ValueError: one sentence that names the argument, or the file
        and where it is wrong.
      OSError: the file cannot be read, or the temporary files cannot be written.
    """
    hint = "pass the number of rounds of the run"
    rounds = checks.integer("rounds", rounds, low=1, high=_MAX_ROUNDS, hint=hint)
    source = _Source(path=expanded(path), rounds=rounds, form=form)
    memory = checks.integer("memory", memory, low=_MIN_MEMORY_BYTES, hint="allow 256 MB or more")
    path = source.path
    if not path.is_file():
        wrong = "is not a file" if path.exists() else "does not exist"
        raise FileNotFoundError(
            f"log {path} {wrong}: name a CSV, JSON lines or Parquet file of clients and rounds"
        )
    if not _is_unicode(path):
        raise ValueError(
            f"log {str(path)!a} has a path that is no UTF-8, which the database that reads logs "
            "cannot open: rename it"
        )
    import duckdb

    scratch_folder = None if folder is None else expanded(folder)
    before = path.stat()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="fedmf-log-", dir=scratch_folder) as scratch,
            tables.database(scratch, memory) as db,
        ):
            db.execute("SET preserve_insertion_order = false")  # which takes memory
            rows, lookalikes = source.load(db, scratch)
            # Not while the file is read, which takes memory of its own.
            db.execute(
                "CREATE TABLE sorted AS SELECT client, spelling, round FROM log "
                "ORDER BY client, round"
            )
            db.execute("DROP TABLE log")
            db.execute("ALTER TABLE sorted RENAME TO log")
            repeated = source.drop_duplicates(db)
            with path.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
            after = path.stat()
            if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
                raise ValueError(
                    f"log {path} changed while it was read: audit a copy that nobody writes to"
                )
            db.execute("SET preserve_insertion_order = true")
            description = ParticipationLog(
                name=path.name,
                size=after.st_size,
                sha256=digest,
                rows=rows,
                duplicates=repeated,
                lookalikes=lookalikes,
                form=form,
            )
            yield SortedLog(db, description, form.first_round)
    except duckdb.OutOfMemoryException as error:
        raise ValueError(
            f"memory={memory} bytes do not suffice to sort log {path}: allow more"
        ) from error
    except duckdb.IOException as error:
        raise OSError(
            f"log {path} could not be sorted in temporary files ({str(error).splitlines()[0]}): "
            "name a folder with more room"
        ) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Source:
    """A log on disk, how it is written, and its way into DuckDB."""

    path: pathlib.Path
    rounds: int
    form: LogForm

    @property
    def _ends(self) -> tuple[int, int]:
        """The numbers of the run's first and last round."""
        return self.form.first_round, self.form.first_round + self.rounds - 1

    def load(
        self, db: "duckdb.DuckDBPyConnection", scratch: str
    ) -> tuple[int, tuple[str, str] | None]:
        """Fills the table log, sorted; raises for the first row that is wrong.

        Returns:
          Its number of rows, and two clients that look alike.
        """
        import duckdb

        form = self.form
        first, last = self._ends
        columns = {"client_column": form.client_column, "round_column": form.round_column}
        try:
            read = tables.scan_file(db, self.path, columns, scratch, ids=tuple(columns))
            self._check_end()
            client, t = read.columns
            db.execute(
                f"CREATE VIEW source AS SELECT row_number() OVER () AS row, {client} AS client, "
                f"{t}::VARCHAR AS round, {read.fault} AS fault FROM {read.table}"
            )
            text = db.execute("DESCRIBE source").fetchall()[1][1] == "VARCHAR"
            client, spelling = (
                (_CLIENT, f"nullif(client, {_SKELETON})") if text else ("client", "NULL")
            )
            number = (
                "CASE WHEN regexp_full_match(round, '[0-9]{1,9}') THEN CAST(round AS INTEGER) END"
            )
            t = f"CASE WHEN {number} BETWEEN {first} AND {last} AND fault IS NULL THEN {number} END"
            good = f"{client} IS NOT NULL AND {t} IS NOT NULL"
            db.execute(
                f"CREATE TABLE log AS SELECT {client} AS client, {spelling} AS spelling, "
                f"{t} AS round FROM source"
            )
        except (duckdb.OutOfMemoryException, duckdb.IOException):
            raise
        except duckdb.Error as error:
            raise ValueError(tables.describe_damage(f"log {self.path}", error)) from error
        rows, wrong = db.execute(
            "SELECT count(*), count(*) FILTER (client IS NULL OR round IS NULL) FROM log"
        ).fetchall()[0]
        if wrong:
            db.execute("SET preserve_insertion_order = true")
            row = db.execute(
                "SELECT row, client, round, fault FROM source WHERE NOT "
                f"({good}) ORDER BY row LIMIT 1"
            ).fetchall()[0]
            raise ValueError(self._fault(wrong, *row))
        if not rows:
            raise ValueError(
                f"log {self.path} holds no participation: an audit needs the rows of a run"
            )
        alike = db.execute(
            """
            SELECT min(coalesce(spelling, client)) AS one, max(coalesce(spelling, client)) AS other
            FROM log WHERE client IN (SELECT client FROM log WHERE spelling IS NOT NULL)
            GROUP BY client HAVING one <> other ORDER BY one LIMIT 1"""
        ).fetchone()
        return rows, alike

    def _fault(self, rows: int, row: int, client: Any, t: str | None, fault: str | None) -> str:
        """What is wrong with the first of so many rows."""
        first, last = self._ends
        shown = [value if value is None else ascii(str(value)[:80]) for value in (client, t)]
        where = (
            f"row {row} of log {self.path} has {self.form.client_column} {shown[0]} and "
            f"{self.form.round_column} {shown[1]}"
        )
        more = f" ({rows} rows are wrong, this is the first)" if rows > 1 else ""
        if fault is not None:
            return (
                f"{where}, and {fault[:200]}{more}: write each client and round once, as a "
                "text or a whole number"
            )
        who = identifiers.client_fault(None if client is None else str(client))
        if who is not None:
            return f"{where}: the client {who}{more}"
        when = identifiers.round_fault(t, first, last) or "is not a round"
        hint = (
            "; where the log counts from 1, pass first_round=1"
            if first == 0 and t == str(last + 1)
            else ""
        )
        return f"{where}: the round {when}{more}{hint}"

    def _check_end(self) -> None:
        """Refuses a text that ends within a line: a round that was cut off may be another one."""
        with self.path.open("rb") as content:
            parquet = content.read(4) == b"PAR1"
            content.seek(-1, os.SEEK_END)
            if not parquet and content.read() not in b"\r\n":
                raise ValueError(
                    f"the last line of log {self.path} has no line end, so that it may be cut off: "
                    "write the log again, or end the line if it is whole"
                )

    def drop_duplicates(self, db: "duckdb.DuckDBPyConnection") -> int:
        """Counts rows that are there twice once and returns how many were left out, or raises with
        one of them.
        """
        repeated, client, t = db.execute(
            """
            SELECT count(*), any_value(client), any_value(round) FROM (
              SELECT client, round, client IS NOT DISTINCT FROM lag(client) OVER ()
                AND round = lag(round) OVER () AS twice FROM log
            ) WHERE twice"""
        ).fetchall()[0]
        if repeated and self.form.duplicates == "refuse":
            spelling = "SELECT min(coalesce(spelling, client)) FROM log"
            where = "WHERE client = ? AND round = ?"
            client = db.execute(f"{spelling} {where}", [client, t]).fetchall()[0][0]
            raise ValueError(
                f"log {self.path} has {repeated} rows twice, such as client {str(client)[:80]!a} "
                f"in round {t}: two contributions of one client to one round are covered by no "
                "plan; if every such row is one participation written twice, pass "
                'duplicates="once"'
            )
        if repeated:
            db.execute(
                "CREATE OR REPLACE TABLE log AS SELECT client, min(spelling) AS spelling, round "
                "FROM log GROUP BY client, round ORDER BY client, round"
            )
        return int(repeated)
