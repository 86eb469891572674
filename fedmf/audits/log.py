"""Participation logs from elsewhere: CSV, JSON lines or Parquet files of (client, round), of any length, in bounded memory.

DuckDB reads the file into a temporary table on disk and sorts it out of core. What comes back are counts
(`fedmf.participation.stats`), never the log.
"""

import dataclasses
import hashlib
import os
import pathlib
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmf import checks, tables
from fedmf.participation.stats import ParticipationStats

if TYPE_CHECKING:
    import duckdb

DEFAULT_MEMORY = 10**9
_MIN_MEMORY_BYTES = 256 * 10**6
_MAX_ROUNDS = 10**9
_SEEN = tables.as_seen("client")
_CLIENT = f"CASE WHEN NOT regexp_matches(client, '^[\\p{{Cc}}\\p{{Cf}}\\pZ]|[\\p{{Cc}}\\p{{Cf}}\\pZ]$') THEN nullif({_SEEN}, '') END"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParticipationLog:
    """What was read of a log.

    Attributes:
      name: of the file, without its folder.
      size: bytes.
      sha256: of the file's bytes, hexadecimal: says later which log was audited.
      rows: of the file, duplicates included.
      duplicates: rows left out because another has the same client and round.
      lookalikes: two clients that no reader can tell apart, and count as one; None where there are none.
      stats: what the log shows.
    """

    name: str
    size: int
    sha256: str
    rows: int
    duplicates: int
    lookalikes: tuple[str, str] | None
    stats: ParticipationStats


def read_log(
    path: str | os.PathLike[str],
    *,
    rounds: int,
    memory: int = DEFAULT_MEMORY,
    folder: str | os.PathLike[str] | None = None,
    **form: Any,
) -> ParticipationLog:
    """Reads CSV (commas, a header line), JSON lines or Parquet with a row for each participation; texts are UTF-8, all lines ended.

    Clients are whole numbers or texts, compared as they are written; texts that differ only in characters that leave no mark, or in how
    letters are composed (NFC, NFD), are one client. Rounds are whole numbers. Other columns are ignored.

    Args:
      path: the file; its first bytes decide which of them it is.
      rounds: of the run; the log's rounds lie in first_round .. first_round + rounds - 1.
      memory: bytes that the sort may take, at least 256 MB; what does not fit goes to temporary files.
      folder: for the temporary files; None for the system's. They need about as much room as the log, text logs more.
      **form: how the log is written. client_column="client" and round_column="round" are the names of the columns; first_round=0 is the
        number of the run's first round, 1 where rounds are counted from 1; duplicates="refuse" or "once": two rows of one client in one
        round may be one participation written twice, which counts "once", or two contributions, which no plan covers.

    Raises:
      TypeError, ValueError: one sentence that names the argument, or the file and where it is wrong.
      OSError: the file cannot be read, or the temporary files cannot be written.
    """
    source = _Source(path=pathlib.Path(path), rounds=rounds, **form)
    memory = checks.integer("memory", memory, low=_MIN_MEMORY_BYTES, hint="allow 256 MB or more")
    path = source.path
    if not path.is_file():
        wrong = "is not a file" if path.exists() else "does not exist"
        raise FileNotFoundError(f"log {path} {wrong}: name a CSV, JSON lines or Parquet file of clients and rounds")
    import duckdb

    before = path.stat()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="fedmf-log-", dir=folder) as scratch,
            tables.database(scratch, memory) as db,
        ):
            db.execute("SET preserve_insertion_order = false")  # which takes memory
            rows, lookalikes = source.load(db)
            stats = _stats(db, source.first_round)
            repeated = stats.separations.get(0, 0)
            if repeated:
                source.drop_duplicates(db, repeated)
                stats = _stats(db, source.first_round)
    except duckdb.OutOfMemoryException as error:
        raise ValueError(f"memory={memory} bytes do not suffice to sort log {path}: allow more") from error
    except duckdb.IOException as error:
        raise OSError(
            f"log {path} could not be sorted in temporary files ({str(error).splitlines()[0]}): name a folder with more room"
        ) from error
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    after = path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ValueError(f"log {path} changed while it was read: audit a copy that nobody writes to")
    return ParticipationLog(
        name=path.name,
        size=after.st_size,
        sha256=digest,
        rows=rows,
        duplicates=repeated,
        lookalikes=lookalikes,
        stats=stats,
    )


def _stats(db: "duckdb.DuckDBPyConnection", first_round: int) -> ParticipationStats:
    """Counts of the table log; a separation of 0 stands for two rows of one client in one round."""
    # One sort by client and round; windows spill to disk, where a hash table of many texts would not.
    counted = db.execute(
        """
        SELECT gap, place, count(*), max(span) FROM (
          SELECT round - lag(round) OVER client_rounds AS gap, row_number() OVER client_rounds AS place,
            round - first_value(round) OVER client_rounds AS span
          FROM log WINDOW client_rounds AS (PARTITION BY client ORDER BY round)
        ) GROUP BY GROUPING SETS ((gap), (place)) ORDER BY gap, place"""
    ).fetchall()
    gaps = {gap: count for gap, place, count, _ in counted if gap is not None}
    # So many clients have a row at this place or a later one.
    reached = [count for _, place, count, _ in counted if place is not None]
    histogram = {k: here - after for k, (here, after) in enumerate(zip(reached, [*reached[1:], 0], strict=True), 1)}
    t, sizes = np.array(db.execute("SELECT round, count(*) FROM log GROUP BY round").fetchall(), np.int64).T
    cohort_sizes = np.zeros(t.max() - first_round + 1, np.int64)
    cohort_sizes[t - first_round] = sizes
    return ParticipationStats(
        cohort_sizes=cohort_sizes,
        histogram={k: clients for k, clients in histogram.items() if clients},
        separations=gaps,
        longest_span=max(span for *_, span in counted),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Source:
    """A log on disk, how it is written, and its way into DuckDB."""

    path: pathlib.Path
    rounds: int
    client_column: str = "client"
    round_column: str = "round"
    first_round: int = 0
    duplicates: str = "refuse"

    def __post_init__(self) -> None:
        checks.integer("rounds", self.rounds, low=1, high=_MAX_ROUNDS, hint="pass the number of rounds of the run")
        hint = "pass the number of the log's first round, 0 or 1"
        checks.integer("first_round", self.first_round, low=0, high=_MAX_ROUNDS, hint=hint)
        checks.one_of("duplicates", self.duplicates, ("refuse", "once"))
        if self.client_column == self.round_column:
            raise ValueError(
                f"client_column and round_column are both {self.client_column!r}: name the two columns of the log"
            )

    def load(self, db: "duckdb.DuckDBPyConnection") -> tuple[int, tuple[str, str] | None]:
        """Fills the table log and returns its number of rows and two clients that look alike; raises for the first row that is wrong."""
        import duckdb

        columns = {"client_column": self.client_column, "round_column": self.round_column}
        try:
            table, (client, t) = tables.read(db, self.path, columns)
            self._check_end()
            db.execute(
                f"CREATE VIEW source AS SELECT row_number() OVER () AS row, {client} AS client, {t}::VARCHAR AS round FROM {table}"
            )
            text = db.execute("DESCRIBE source").fetchall()[1][1] == "VARCHAR"
            client, spelling = (_CLIENT, f"nullif(client, {_SEEN})") if text else ("client", "NULL")
            first, last = self.first_round, self.first_round + self.rounds - 1
            number = "CASE WHEN regexp_full_match(round, '[0-9]{1,9}') THEN CAST(round AS INTEGER) END"
            t = f"CASE WHEN {number} BETWEEN {first} AND {last} THEN {number} END"
            db.execute(
                f"CREATE TABLE log AS SELECT {client} AS client, {spelling} AS spelling, {t} AS round FROM source"
            )
        except (duckdb.OutOfMemoryException, duckdb.IOException):
            raise
        except duckdb.Error as error:
            raise ValueError(tables.damage(f"log {self.path}", error)) from error
        rows, good = db.execute(
            "SELECT count(*), count(*) FILTER (client IS NOT NULL AND round IS NOT NULL) FROM log"
        ).fetchall()[0]
        if good < rows:
            db.execute("SET preserve_insertion_order = true")
            wrong = f"SELECT row, client, round FROM source WHERE {client} IS NULL OR {t} IS NULL ORDER BY row LIMIT 1"
            row, who, when = db.execute(wrong).fetchall()[0]
            raise ValueError(
                f"row {row} of log {self.path} has {self.client_column} {who and str(who)[:80]!r} and {self.round_column} "
                f"{when and when[:80]!r}: every row needs a client without blanks around it and a whole round from {first} to {last}; "
                "where the log counts from 1, pass first_round=1"
            )
        if not rows:
            raise ValueError(f"log {self.path} holds no participation: an audit needs the rows of a run")
        alike = db.execute(
            """
            SELECT min(coalesce(spelling, client)) AS one, max(coalesce(spelling, client)) AS other FROM log
            WHERE client IN (SELECT client FROM log WHERE spelling IS NOT NULL)
            GROUP BY client HAVING one <> other ORDER BY one LIMIT 1"""
        ).fetchone()
        return rows, alike

    def _check_end(self) -> None:
        """Refuses a text that ends within a line: a round that was cut off may be another one."""
        with self.path.open("rb") as content:
            parquet = content.read(4) == b"PAR1"
            content.seek(-1, os.SEEK_END)
            if not parquet and content.read() not in b"\r\n":
                raise ValueError(
                    f"the last line of log {self.path} has no line end, so that it may be cut off: write the log again, or end the line if "
                    "it is whole"
                )

    def drop_duplicates(self, db: "duckdb.DuckDBPyConnection", repeated: int) -> None:
        """Counts rows that are there twice once, or raises with one of them."""
        if self.duplicates == "refuse":
            client, t = db.execute(
                "SELECT client, round FROM log GROUP BY client, round HAVING count(*) > 1 ORDER BY round, client LIMIT 1"
            ).fetchall()[0]
            raise ValueError(
                f"log {self.path} has {repeated} rows twice, such as client {str(client)[:80]!r} in round {t}: two contributions of one "
                "client to one round are covered by no plan; if every such row is one participation written twice, pass "
                'duplicates="once"'
            )
        db.execute("CREATE OR REPLACE TABLE log AS SELECT DISTINCT client, round FROM log")
