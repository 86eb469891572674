"""Participation logs from elsewhere: CSV or Parquet files of (client, round), of any length, in bounded memory.

DuckDB reads the file into a temporary table on disk and sorts it out of core. What comes back are counts
(`fedmf.participation.stats`), never the log.
"""

import csv
import dataclasses
import hashlib
import os
import pathlib
import re
import tempfile
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from fedmf import checks
from fedmf.participation.stats import ParticipationStats

if TYPE_CHECKING:
    import duckdb

DEFAULT_MEMORY = 10**9
_MIN_MEMORY_BYTES = 256 * 10**6
_MAX_ROUNDS = 10**9
_HEADER_BYTES = 1 << 20
_WHOLE_TYPE = re.compile(r"U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER")
# Characters that leave no mark: controls, formats and joiners (Cc, Cf), Unicode's other default ignorables, and the blank Braille pattern.
_INVISIBLE = (
    r"[\p{Cc}\p{Cf}\x{34F}\x{115F}\x{1160}\x{17B4}\x{17B5}\x{180B}-\x{180F}\x{2065}\x{2800}\x{3164}"
    r"\x{FE00}-\x{FE0F}\x{FFA0}\x{FFF0}-\x{FFF8}\x{E0000}-\x{E0FFF}]+"
)
# A client as people see it: one kind of blank, nothing invisible, letters composed in one way.
_AS_SEEN = f"nfc_normalize(regexp_replace(regexp_replace(client, '\\p{{Z}}+', ' ', 'g'), '{_INVISIBLE}', '', 'g'))"
_CLIENT = f"CASE WHEN NOT regexp_matches(client, '^[\\p{{Cc}}\\p{{Cf}}\\pZ]|[\\p{{Cc}}\\p{{Cf}}\\pZ]$') THEN nullif({_AS_SEEN}, '') END"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogForm:
    """How a log is written.

    Attributes:
      client_column: name of the column of clients.
      round_column: name of the column of rounds.
      first_round: number of the run's first round in the log, 0 or, where rounds are counted from 1, 1.
      duplicates: two rows of one client in one round may be one participation written twice, or two contributions, which no plan
        covers: "refuse", or count them "once".

    Raises:
      TypeError, ValueError: naming the argument.
    """

    client_column: str = "client"
    round_column: str = "round"
    first_round: int = 0
    duplicates: str = "refuse"

    def __post_init__(self) -> None:
        hint = "pass the number of the log's first round, 0 or 1"
        checks.integer("first_round", self.first_round, low=0, high=_MAX_ROUNDS, hint=hint)
        checks.one_of("duplicates", self.duplicates, ("refuse", "once"))
        if self.client_column == self.round_column:
            raise ValueError(
                f"client_column and round_column are both {self.client_column!r}: name the two columns of the log"
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
    cohort_size: int = 1,
    memory: int = DEFAULT_MEMORY,
    folder: str | os.PathLike[str] | None = None,
    **form: Any,
) -> ParticipationLog:
    """Reads a CSV file (UTF-8, commas, a header line, every line ended) or a Parquet file with a row for each participation.

    Clients are whole numbers or texts, compared as they are written; texts that differ only in characters that leave no mark, or in how
    letters are composed (NFC, NFD), are one client. Rounds are whole numbers. Other columns are ignored.

    Args:
      path: the file; its contents decide which of the two it is.
      rounds: of the run; the log's rounds lie in first_round .. first_round + rounds - 1.
      cohort_size: rounds with fewer clients are counted as short; by default those without any.
      memory: bytes that the sort may take, at least 256 MB; what does not fit goes to temporary files.
      folder: for the temporary files; None for the system's. They need about as much room as the log, text logs more.
      **form: client_column, round_column, first_round and duplicates of `LogForm`.

    Raises:
      TypeError, ValueError: one sentence that names the argument, or the file and where it is wrong.
      OSError: the file cannot be read, or the temporary files cannot be written.
    """
    rounds = checks.integer("rounds", rounds, low=1, high=_MAX_ROUNDS, hint="pass the number of rounds of the run")
    memory = checks.integer("memory", memory, low=_MIN_MEMORY_BYTES, hint="allow 256 MB or more")
    written = LogForm(**form)
    first_round = written.first_round
    path = pathlib.Path(path)
    if not path.is_file():
        wrong = "is not a file" if path.exists() else "does not exist"
        raise FileNotFoundError(f"log {path} {wrong}: name a CSV or Parquet file of clients and rounds")
    import duckdb

    before = path.stat()
    source = _Source(path, written.client_column, written.round_column, range(first_round, first_round + rounds))
    try:
        with tempfile.TemporaryDirectory(prefix="fedmf-log-", dir=folder) as scratch, _connect(scratch, memory) as db:
            rows, lookalikes = source.load(db)
            stats = _stats(db, first_round, cohort_size)
            repeated = stats.separations.get(0, 0)
            if repeated and written.duplicates == "refuse":
                source.refuse_duplicates(db, repeated)
            if repeated:
                db.execute("CREATE OR REPLACE TABLE log AS SELECT DISTINCT client, round FROM log")
                stats = _stats(db, first_round, cohort_size)
    except duckdb.OutOfMemoryException as error:
        raise ValueError(f"memory={memory} bytes do not suffice to sort log {path}: allow more") from error
    except duckdb.IOException as error:
        raise OSError(
            f"log {path} could not be sorted in temporary files ({str(error).splitlines()[0]}): name a folder with more room"
        ) from error
    except RuntimeError as error:
        if "interrupted" in str(error).lower():  # how DuckDB reports Ctrl-C
            raise KeyboardInterrupt from error
        raise
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


def _connect(scratch: str, memory: int) -> "duckdb.DuckDBPyConnection":
    import duckdb

    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{memory}B",
        "temp_directory": os.path.join(scratch, "sort"),
        # Each thread holds buffers of its own: many of them would not fit into little memory.
        "threads": min(4, os.cpu_count() or 1),
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    database = duckdb.connect(os.path.join(scratch, "log.duckdb"), config=settings)
    # The bar would be drawn on standard output, among the results of --json.
    database.execute("SET enable_progress_bar = false")
    return database


def _stats(db: "duckdb.DuckDBPyConnection", first_round: int, cohort_size: int) -> ParticipationStats:
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
        short_rounds=int((cohort_sizes < cohort_size).sum()),
        histogram={k: clients for k, clients in histogram.items() if clients},
        separations=gaps,
        longest_span=max(span for *_, span in counted),
    )


@dataclasses.dataclass(frozen=True)
class _Source:
    """A log on disk as a table of DuckDB."""

    path: pathlib.Path
    client_column: str
    round_column: str
    rounds: range

    def load(self, db: "duckdb.DuckDBPyConnection") -> tuple[int, tuple[str, str] | None]:
        """Fills the table log and returns its number of rows and two clients that look alike; raises for the first row that is wrong."""
        import duckdb

        with self.path.open("rb") as content:
            parquet = content.read(4) == b"PAR1"
        try:
            text = self._view_parquet(db) if parquet else self._view_csv(db)
            client, spelling = (
                (_CLIENT, f"CASE WHEN {_AS_SEEN} <> client THEN client END") if text else ("client", "NULL")
            )
            db.execute(
                f"CREATE TABLE log AS SELECT {client} AS client, {spelling} AS spelling, {self._round_read()} AS round FROM source"
            )
        except (duckdb.InvalidInputException, duckdb.ConversionException) as error:
            if parquet:
                raise ValueError(f"log {self.path} is a damaged Parquet file: {str(error).splitlines()[0]}") from error
            line = re.search(r"on Line: (\d+)", str(error))
            raise ValueError(
                f"{f'line {line[1]} of ' if line else ''}log {self.path} is not CSV in UTF-8 with as many columns as the header: it is "
                "damaged or cut off, write the log again"
            ) from error
        rows, faults = db.execute(
            "SELECT count(*), count(*) FILTER (client IS NULL OR round IS NULL) FROM log"
        ).fetchall()[0]
        if faults:
            self._refuse_row(db, client)
        if not rows:
            raise ValueError(f"log {self.path} holds no participation: an audit needs the rows of a run")
        alike = db.execute(
            """
            SELECT min(coalesce(spelling, client)) AS one, max(coalesce(spelling, client)) AS other FROM log
            WHERE client IN (SELECT client FROM log WHERE spelling IS NOT NULL)
            GROUP BY client HAVING one <> other ORDER BY one LIMIT 1"""
        ).fetchone()
        return rows, alike

    def _view_parquet(self, db: "duckdb.DuckDBPyConnection") -> bool:
        """Makes the view source of (row, client, round). True if clients are texts."""
        table = f"read_parquet({_quoted(self.path)}, hive_partitioning = false, file_row_number = true)"
        types = {name: kind for name, kind, *_ in db.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()}
        self._check_columns([*types][:-1])
        client, t = types[self.client_column], types[self.round_column]
        if not _WHOLE_TYPE.fullmatch(t):
            raise ValueError(
                f"log {self.path} has a column {self.round_column!r} of type {t}: rounds are whole numbers, write them as INT"
            )
        if client not in ("VARCHAR", "UUID") and not _WHOLE_TYPE.fullmatch(client):
            raise ValueError(
                f"log {self.path} has a column {self.client_column!r} of type {client}: clients are whole numbers or texts"
            )
        columns = (f'"{name.replace(chr(34), 2 * chr(34))}"' for name in (self.client_column, self.round_column))
        self._view(db, table, "file_row_number + 1", *columns)
        return client == "VARCHAR"

    def _view_csv(self, db: "duckdb.DuckDBPyConnection") -> bool:
        with self.path.open("rb") as content:
            head = content.read(_HEADER_BYTES)
            if not head:
                raise ValueError(f"log {self.path} is empty: it must be CSV with a header line, or Parquet")
            content.seek(-1, os.SEEK_END)
            ended = content.read() in b"\r\n"
        try:
            header = head.splitlines()[0].decode("utf-8-sig")
        except UnicodeDecodeError:
            header = "\0"
        if "\0" in header:
            raise ValueError(f"log {self.path} is neither Parquet nor CSV in UTF-8: convert it to one of them")
        names = next(csv.reader([header]), [])
        self._check_columns(names)
        if not ended:
            raise ValueError(
                f"the last line of log {self.path} has no line end, so that it may be cut off: write the log again, or end the line if it "
                "is whole"
            )
        # Columns are named by place: a header may hold anything.
        columns = {f"column{i}": "VARCHAR" for i in range(len(names))}
        table = (
            f"read_csv({_quoted(self.path)}, columns = {columns}, header = true, auto_detect = false, delim = ',', quote = '\"', "
            "escape = '\"', strict_mode = true, null_padding = false, ignore_errors = false, hive_partitioning = false)"
        )
        client, t = (f"column{names.index(name)}" for name in (self.client_column, self.round_column))
        self._view(db, table, "row_number() OVER ()", client, t)
        return True

    def _view(self, db: "duckdb.DuckDBPyConnection", table: str, row: str, client: str, t: str) -> None:
        db.execute(
            f"CREATE VIEW source AS SELECT {row} AS row, {client} AS client, CAST({t} AS VARCHAR) AS round FROM {table}"
        )

    def _check_columns(self, names: list[str]) -> None:
        for argument, wanted in (("client_column", self.client_column), ("round_column", self.round_column)):
            if names.count(wanted) != 1:
                raise ValueError(
                    f"log {self.path} has {'several columns' if wanted in names else 'no column'} {wanted!r} among "
                    f"{', '.join(map(repr, names))}: name the right one with {argument}"
                )

    def _round_read(self) -> str:
        """SQL for the round as a number; NULL where it is none of the run."""
        number = "CASE WHEN regexp_full_match(round, '[0-9]{1,9}') THEN CAST(round AS INTEGER) END"
        return f"CASE WHEN {number} BETWEEN {self.rounds[0]} AND {self.rounds[-1]} THEN {number} END"

    def _refuse_row(self, db: "duckdb.DuckDBPyConnection", client_read: str) -> NoReturn:
        db.execute("SET preserve_insertion_order = true")
        row, client, t = db.execute(
            f"SELECT row, client, round FROM source WHERE {client_read} IS NULL OR {self._round_read()} IS NULL ORDER BY row LIMIT 1"
        ).fetchall()[0]
        where = f"{self._line(row)} of log {self.path}"
        for column, value in ((self.client_column, client), (self.round_column, t)):
            if value is None or value == "":
                raise ValueError(f"{where} has no {column}: every row needs a client and a round")
        first, last = self.rounds[0], self.rounds[-1]
        if re.fullmatch("[0-9]{1,9}", t) and first <= int(t) <= last:
            raise ValueError(
                f"{where} has {self.client_column} {client[:80]!r} with blanks around it: one client must be written in one way"
            )
        hint = "; where the log counts from 1, pass first_round=1" if first == 0 and t == str(last + 1) else ""
        raise ValueError(
            f"{where} has {self.round_column} {t[:80]!r}: rounds are whole numbers from {first} to {last} in this plan{hint}"
        )

    def refuse_duplicates(self, db: "duckdb.DuckDBPyConnection", repeated: int) -> NoReturn:
        """Raises with the rows of one client that is there twice in a round."""
        db.execute("SET preserve_insertion_order = true")
        client, t = db.execute(
            "SELECT client, round FROM log GROUP BY client, round HAVING count(*) > 1 ORDER BY round, client LIMIT 1"
        ).fetchall()[0]
        seen = _AS_SEEN if isinstance(client, str) else "client"
        rows = db.execute(
            f"SELECT row FROM source WHERE {seen} = ? AND {self._round_read()} = ? ORDER BY row LIMIT 2", [client, t]
        ).fetchall()
        raise ValueError(
            f"log {self.path} has {repeated} rows twice, such as client {str(client)[:80]!r} in round {t}, "
            f"{' and '.join(self._line(row) for (row,) in rows)}: two contributions of one client to one round are covered by no plan; if "
            'every such row is one participation written twice, pass duplicates="once"'
        )

    def _line(self, row: int) -> str:
        """Where a row is, counted from 1: its line in a CSV file, in which a quoted text may span lines."""
        with self.path.open(encoding="utf-8-sig", errors="replace", newline="") as content:
            if content.read(4) == "PAR1":
                return f"row {row}"
            content.seek(0)
            reader = csv.reader(content)
            for _ in zip(range(row + 1), filter(None, reader), strict=False):
                pass
            return f"line {reader.line_num}"


def _quoted(path: pathlib.Path) -> str:
    """The path as SQL. DuckDB would read every file that it matches as a pattern."""
    return "'" + re.sub(r"([*?\[])", r"[\1]", str(path)).replace("'", "''") + "'"
