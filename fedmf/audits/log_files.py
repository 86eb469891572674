"""The files of a participation log, CSV and Parquet: into a table of (client, round), or one sentence that says where they are wrong."""

import csv
import dataclasses
import os
import pathlib
import re
import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb

_PARQUET = b"PAR1"
_WHOLE_TYPES = {f"{sign}{size}INT" for sign in ("", "U") for size in ("TINY", "SMALL", "BIG", "HUGE")} | {
    "INTEGER",
    "UINTEGER",
}
# As a file must write them: one spelling for one number, so that equal clients are equal texts.
_WHOLE = re.compile(r"(?:0|-?[1-9][0-9]{0,17})")
_ROUND = re.compile(r"[0-9]{1,9}")
# Around a client. Regular expressions of DuckDB and of Python differ, so that each side has its own; see `_blank_around`.
_BLANK_AROUND = r"^[\pC\pZ]|[\pC\pZ]$"
_HEADER_BYTES = 1 << 20
_SNIFFED_ROWS = 1000


def log_file(path: pathlib.Path, client_column: str, round_column: str, rounds: range) -> "LogFile":
    """The reader for a file, by its first bytes.

    Args:
      path: an existing file.
      client_column, round_column: names of the two columns.
      rounds: that a row may have.

    Raises:
      ValueError: Parquet without its end.
    """
    kind = _ParquetFile if _is_parquet(path) else _CsvFile
    return kind(path, client_column, round_column, rounds)


def _is_parquet(path: pathlib.Path) -> bool:
    """Whether the file is Parquet; raises for one that is cut off."""
    with path.open("rb") as content:
        if content.read(len(_PARQUET)) != _PARQUET:
            return False
        content.seek(-len(_PARQUET), os.SEEK_END)
        if content.read() != _PARQUET:
            raise ValueError(f"log {path} is a Parquet file without its end: it was cut off, copy it again")
    return True


def _literal(path: pathlib.Path) -> str:
    """The path for DuckDB, which would read every file that it matches as a pattern."""
    return re.sub(r"([*?\[])", r"[\1]", str(path))


def _blank_around(client: str) -> bool:
    """Whether it begins or ends with a blank, a line end or another character that nobody sees."""
    return bool(client) and any(unicodedata.category(end)[0] in "CZ" for end in (client[0], client[-1]))


def _column(path: pathlib.Path, names: list[str], argument: str, wanted: str) -> None:
    if names.count(wanted) != 1:
        raise ValueError(
            f"log {path} has {'several columns' if wanted in names else 'no column'} {wanted!r} among {', '.join(map(repr, names))}: "
            f"name the right one with {argument}"
        )


@dataclasses.dataclass(frozen=True)
class LogFile:
    """A log on disk; `log_file` makes one."""

    path: pathlib.Path
    client_column: str
    round_column: str
    rounds: range

    def load(self, database: "duckdb.DuckDBPyConnection") -> int:
        """Fills the table `log` and returns its number of rows; raises for the first row that is none."""
        raise NotImplementedError

    def an_example(self, database: "duckdb.DuckDBPyConnection") -> str:
        """Where two equal rows are."""
        client, t = database.execute(
            "SELECT client, round FROM log GROUP BY client, round HAVING count(*) > 1 ORDER BY round, client LIMIT 1"
        ).fetchall()[0]
        return f"such as client {str(client)[:80]!r} in round {t}"

    def _must_be(self, value: str) -> str:
        """What is wrong with a round."""
        first, last = self.rounds[0], self.rounds[-1]
        hint = f"rounds are whole numbers from {first} to {last} in this plan"
        if first == 0 and value == str(last + 1):
            hint += "; where the log counts from 1, pass first_round=1"
        return f"has {self.round_column} {value[:80]!r}: {hint}"


class _CsvFile(LogFile):
    def load(self, database: "duckdb.DuckDBPyConnection") -> int:
        names = self._header()
        if not self._sniffs_whole() or not self._loaded(database, names, whole=True):
            self._loaded(database, names, whole=False)
        return int(database.execute("SELECT count(*) FROM log").fetchall()[0][0])

    def _header(self) -> list[str]:
        path = self.path
        with path.open("rb") as content:
            head = content.read(_HEADER_BYTES)
            if not head:
                raise ValueError(f"log {path} is empty: it must be CSV with a header line, or Parquet")
            content.seek(-1, os.SEEK_END)
            ended = content.read() in b"\r\n"
        try:
            line = head.splitlines()[0].decode("utf-8-sig")
        except UnicodeDecodeError:
            line = "\0"
        if "\0" in line:
            raise ValueError(f"log {path} is neither Parquet nor CSV in UTF-8: convert it to one of them")
        names = next(csv.reader([line]), [])
        _column(path, names, "client_column", self.client_column)
        _column(path, names, "round_column", self.round_column)
        if not ended:
            raise ValueError(
                f"the last line of log {path} has no line end, so that it may be cut off: write the log again, or end the line if it is "
                "whole"
            )
        return names

    def _sniffs_whole(self) -> bool:
        """Whether the first clients are whole numbers, which take less room than texts."""
        for number, (_, client, _) in enumerate(self._rows()):
            if not _WHOLE.fullmatch(client):
                return False
            if number == _SNIFFED_ROWS:
                break
        return True

    def _loaded(self, database: "duckdb.DuckDBPyConnection", names: list[str], *, whole: bool) -> bool:
        """Makes the table, with clients as BIGINT or as texts; False if they are not all whole numbers."""
        import duckdb

        client = f"CASE WHEN regexp_full_match(client, '{_WHOLE.pattern}') THEN CAST(client AS BIGINT) END"
        text = f"CASE WHEN client <> '' AND NOT regexp_matches(client, '{_BLANK_AROUND}') THEN client END"
        # Named by place: a header may hold anything.
        columns = {f"column{i}": "VARCHAR" for i in range(len(names))}
        try:
            database.execute(
                f"""
                CREATE OR REPLACE TABLE log AS
                SELECT {client if whole else text} AS client,
                  CASE WHEN regexp_full_match(round, '{_ROUND.pattern}') THEN CAST(round AS INTEGER) END AS round
                FROM (SELECT column{names.index(self.client_column)} AS client, column{names.index(self.round_column)} AS round
                  FROM read_csv(?, columns = {columns}, header = true, auto_detect = false, delim = ',', quote = '"', escape = '"',
                    strict_mode = true, null_padding = false, ignore_errors = false, hive_partitioning = false))""",
                [_literal(self.path)],
            )
        except duckdb.InvalidInputException as error:
            self._refuse(len(names))
            reason = str(error).splitlines()[0]
            raise ValueError(f"log {self.path} is not the CSV that its header promises: {reason}") from error
        faults, texts = database.execute(
            f"""
            SELECT count(*) FILTER (round IS NULL OR round NOT BETWEEN {self.rounds[0]} AND {self.rounds[-1]}),
              count(*) FILTER (client IS NULL) FROM log"""
        ).fetchall()[0]
        if whole and texts and not faults:
            return False
        if faults or texts:
            self._refuse(len(names))
            raise ValueError(f"log {self.path} has {faults + texts} rows that are no participation: write it again")
        return True

    def _first_undecodable(self) -> int:
        """The first line that is not UTF-8, from 1; the decoder reads many at once and names none."""
        with self.path.open("rb") as content:
            for number, line in enumerate(content, 1):
                try:
                    line.decode()
                except UnicodeDecodeError:
                    return number
        return number

    def _rows(self) -> Iterator[tuple[int, str, str]]:
        """(line, client, round) of every row that is whole; raises at the first that is not."""
        with self.path.open(encoding="utf-8-sig", newline="") as content:
            reader = csv.reader(content, strict=True)
            try:
                names = next(reader)
                client, t = names.index(self.client_column), names.index(self.round_column)
                for row in reader:
                    if not row:
                        continue
                    if len(row) != len(names):
                        raise ValueError(
                            f"line {reader.line_num} of log {self.path} has {len(row)} of {len(names)} columns: "
                            "it is damaged or cut off, write the log again"
                        )
                    yield reader.line_num, row[client], row[t]
            except csv.Error as error:
                raise ValueError(
                    f"line {reader.line_num} of log {self.path} is not CSV ({error}): write the log again"
                ) from error
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"line {self._first_undecodable()} of log {self.path} is not text in UTF-8: convert it"
                ) from error

    def _refuse(self, columns: int) -> None:
        """Raises for the first row that is no participation; slower than DuckDB, and it knows the line."""
        for line, client, t in self._rows():
            where = f"line {line} of log {self.path}"
            if not client:
                raise ValueError(f"{where} has no {self.client_column}: every row needs a client and a round")
            if _blank_around(client):
                raise ValueError(
                    f"{where} has {self.client_column} {client[:80]!r} with blanks around it: one client must be written in one way"
                )
            if not _ROUND.fullmatch(t) or int(t) not in self.rounds:
                raise ValueError(
                    f"{where} {self._must_be(t)}" if t else f"{where} has no {self.round_column}: every row needs one"
                )

    def an_example(self, database: "duckdb.DuckDBPyConnection") -> str:
        where = super().an_example(database)
        client, t = database.execute(
            "SELECT client, round FROM log GROUP BY client, round HAVING count(*) > 1 ORDER BY round, client LIMIT 1"
        ).fetchall()[0]
        lines = [line for line, c, r in self._rows() if c == str(client) and int(r) == t][:2]
        return f"{where}, lines {lines[0]} and {lines[1]}"


class _ParquetFile(LogFile):
    def load(self, database: "duckdb.DuckDBPyConnection") -> int:
        import duckdb

        path, source = self.path, "read_parquet(?, hive_partitioning = false, file_row_number = true)"
        try:
            described = database.execute(
                "DESCRIBE SELECT * FROM read_parquet(?, hive_partitioning = false)", [_literal(path)]
            ).fetchall()
        except duckdb.Error as error:
            raise ValueError(f"log {path} is a damaged Parquet file: {str(error).splitlines()[0]}") from error
        types = {name: kind for name, kind, *_ in described}
        _column(self.path, list(types), "client_column", self.client_column)
        _column(self.path, list(types), "round_column", self.round_column)
        kind = types[self.round_column]
        if kind not in _WHOLE_TYPES:
            raise ValueError(
                f"log {path} has a column {self.round_column!r} of type {kind}: rounds are whole numbers, write them as INT"
            )
        if types[self.client_column] not in _WHOLE_TYPES | {"VARCHAR", "UUID"}:
            raise ValueError(
                f"log {path} has a column {self.client_column!r} of type {types[self.client_column]}: "
                "clients are whole numbers or texts"
            )
        client, t = (f'"{name.replace(chr(34), 2 * chr(34))}"' for name in (self.client_column, self.round_column))
        first, last = self.rounds[0], self.rounds[-1]
        broken = f"{t} IS NULL OR {t} NOT BETWEEN {first} AND {last} OR {client} IS NULL"
        if types[self.client_column] == "VARCHAR":
            broken += f" OR {client} = '' OR regexp_matches({client}, '{_BLANK_AROUND}')"
        try:
            fault = database.execute(
                f"SELECT file_row_number, {client}, {t} FROM {source} WHERE {broken} ORDER BY file_row_number LIMIT 1",
                [_literal(path)],
            ).fetchall()
            if fault:
                self._refuse(*fault[0])
            database.execute(
                f"CREATE TABLE log AS SELECT {client} AS client, CAST({t} AS INTEGER) AS round FROM {source}",
                [_literal(path)],
            )
        except duckdb.Error as error:
            raise ValueError(f"log {path} is a damaged Parquet file: {str(error).splitlines()[0]}") from error
        return int(database.execute("SELECT count(*) FROM log").fetchall()[0][0])

    def _refuse(self, row: int, client: Any, t: Any) -> None:
        where = f"row {row} (from 0) of log {self.path}"
        for column, value in ((self.client_column, client), (self.round_column, t)):
            if value is None or value == "":
                raise ValueError(f"{where} has no {column}: every row needs a client and a round")
        if t not in self.rounds:
            raise ValueError(f"{where} {self._must_be(str(t))}")
        raise ValueError(
            f"{where} has {self.client_column} {client[:80]!r} with blanks around it: one client must be written in one way"
        )
