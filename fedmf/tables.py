"""Access to tables in CSV, JSON lines or Parquet by DuckDB, which can read and sort tables that do
not fit into memory.
"""

import codecs
import contextlib
import csv
import dataclasses
import os
import pathlib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from fedmf.identifiers import UNMARKED, skeleton

if TYPE_CHECKING:
    import duckdb

_HEADER_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 24
# Largest number of bytes in a line of CSV. DuckDB has the same limit for an object of JSON.
_LINE_BYTES = 16 << 20
# The keys of a file of JSON lines are collected from this many lines. A column that occurs in none
# of them is reported as missing.
_KEY_ROWS = 1000
_INTEGER_TYPE = re.compile(r"U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER")
# Replacements that escape a key for a JSON pointer inside a string of SQL.
_POINTER_ESCAPES = {"'": "''", "~": "~0", "/": "~1"}
# Regular expression of invisible characters: control characters that are not blanks, formats and
# joiners (Cf), and `identifiers.UNMARKED`.
_UNMARKED = "".join(f"\\x{{{first:X}}}-\\x{{{last:X}}}" for first, last in UNMARKED)
_INVISIBLE = rf"[\x00-\x08\x0e-\x1b\x7f-\x{{84}}\x{{86}}-\x{{9f}}\p{{Cf}}{_UNMARKED}]+"
# Regular expression of blanks of all kinds, including `identifiers.BLANK_CONTROLS`.
_BLANKS = r"[\p{Z}\x09-\x0d\x1c-\x1f\x{85}]+"


@contextlib.contextmanager
def database(scratch: str | os.PathLike[str], memory: int) -> "Iterator[duckdb.DuckDBPyConnection]":
    """Opens an empty DuckDB database, in whose SQL the function `identifiers.skeleton` can be
    called.

    Args:
      scratch: existing folder for the database and its temporary files, which the caller removes.
      memory: number of bytes that a sort may take in memory; it keeps the rest of its data on disk.

    Raises:
      KeyboardInterrupt: after Ctrl-C, which DuckDB reports as another error.
    """
    import duckdb

    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{memory}B",
        "temp_directory": os.path.join(scratch, "sort"),
        # The number of threads is limited, because every thread has its own buffers, and many
        # buffers may exceed the memory limit.
        "threads": min(4, os.cpu_count() or 1),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    try:
        with duckdb.connect(os.path.join(scratch, "table.duckdb"), config=settings) as connection:
            # DuckDB's progress bar would appear on standard output, in the middle of the JSON that
            # commands print with --json.
            connection.execute("SET enable_progress_bar = false")
            connection.create_function("skeleton", skeleton, ["VARCHAR"], "VARCHAR")
            yield connection
    except RuntimeError as error:
        if "interrupted" in str(error).lower():
            raise KeyboardInterrupt from error
        raise


def _quoted(path: pathlib.Path) -> str:
    """Returns a path as a string literal of SQL. Wildcards are escaped, because DuckDB would take
    the path for a pattern.
    """
    escaped = re.sub(r"([*?\[])", r"[\1]", str(path)).replace("'", "''")
    return f"'{escaped}'"


def visible_text_sql(column: str) -> str:
    """Returns a SQL expression that normalises the texts of a column to what people see, as
    `identifiers.visible_text` does in Python.
    """
    # Most ids consist of visible ASCII characters, which stay as they are. They skip the three
    # passes below, which would take half the time of an audit.
    is_visible_ascii = f"regexp_full_match({column}, '[!-~]*')"
    # Invisible characters are removed first, because two blanks with an invisible character between
    # them look like one blank.
    without_invisible = f"regexp_replace({column}, '{_INVISIBLE}', '', 'g')"
    with_single_blanks = f"regexp_replace({without_invisible}, '{_BLANKS}', ' ', 'g')"
    normalized = f"nfc_normalize({with_single_blanks})"
    return f"CASE WHEN {is_visible_ascii} THEN {column} ELSE {normalized} END"


def skeleton_sql(column: str) -> str:
    """Returns a SQL expression for the `identifiers.skeleton` of the texts of a column. It can be
    used in the databases that `database` opens.
    """
    is_ascii = f"regexp_full_match({column}, '[ -~]*')"
    return f"CASE WHEN {is_ascii} THEN {visible_text_sql(column)} ELSE skeleton({column}) END"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """SQL expressions that read the rows of a file.

    Attributes:
      table: the table function for a FROM clause.
      columns: an expression for each column, whose values are texts or, for Parquet, whole numbers;
        NULL if a row has no value or NaN.
      fault: an expression for a text that completes a sentence on what is wrong with a row; NULL if
        nothing is wrong.
    """

    table: str
    columns: list[str]
    fault: str = "NULL"


def scan_file(
    db: "duckdb.DuckDBPyConnection",
    path: pathlib.Path,
    columns: Mapping[str, str],
    scratch: str | os.PathLike[str],
    *,
    ids: Collection[str],
) -> Rows:
    """Returns the SQL expressions that read some columns of a file, after checking that the file
    has them.

    Args:
      db: a connection that `database` opened.
      path: a file in UTF-8: CSV with commas and a header line, JSON lines or Parquet. Its first
        bytes decide which.
      columns: name of the caller's argument -> name of the column.
      scratch: folder for a copy of a CSV with different line ends.
      ids: arguments whose columns identify rows, so that JSON must write equal values in one way.

    Raises:
      ValueError: the file is empty or in another format, or has no such column; the message names
        the argument. A wrong row raises a `duckdb.Error` on reading: see `describe_damage`.
    """
    with path.open("rb") as content:
        head = content.read(_HEADER_BYTES)
    if head.startswith(b"PAR1"):
        return _scan_parquet(db, path, columns)
    if head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{"):
        return _scan_json_lines(db, path, columns, ids)
    names = _csv_header(path, head)
    _check_columns(path, names, columns)
    # Columns are named by their index in SQL, because a header may contain any text.
    types = {f"column{i}": "VARCHAR" for i in range(len(names))}
    return Rows(
        table=f"read_csv({_quoted(_with_one_line_end(path, scratch))}, columns = {types}, header = "
        "true, auto_detect = false, delim = ',', quote = '\"', escape = '\"', strict_mode = true, "
        "null_padding = false, ignore_errors = false, "
        # DuckDB's default buffer of 16 lines would take a quarter of the memory that the audit of a
        # log has by default.
        f"max_line_size = {_LINE_BYTES}, buffer_size = {2 * _LINE_BYTES}, "
        "hive_partitioning = false)",
        columns=[f"column{names.index(name)}" for name in columns.values()],
    )


def _scan_parquet(
    db: "duckdb.DuckDBPyConnection", path: pathlib.Path, columns: Mapping[str, str]
) -> Rows:
    """Returns the SQL expressions that read some columns of a Parquet file, as in `scan_file`."""
    table = f"read_parquet({_quoted(path)}, hive_partitioning = false)"
    type_by_name = {
        name: kind for name, kind, *_ in db.execute(f"DESCRIBE FROM {table}").fetchall()
    }
    _check_columns(path, [*type_by_name], columns)
    column_sql = []
    for name in columns.values():
        kind = type_by_name[name]
        escaped_name = name.replace('"', '""')
        quoted_name = f'"{escaped_name}"'
        is_nested = kind.endswith((")", "]")) and not kind.startswith("DECIMAL")
        if kind == "BLOB" or is_nested:
            raise ValueError(
                f"{path} has a column {name!r} of type {kind}: write it as texts or whole numbers"
            )
        if kind in ("FLOAT", "DOUBLE"):
            column_sql.append(f"CASE WHEN NOT isnan({quoted_name}) THEN {quoted_name}::VARCHAR END")
        elif _INTEGER_TYPE.fullmatch(kind):
            column_sql.append(quoted_name)
        else:
            column_sql.append(f"{quoted_name}::VARCHAR")
    return Rows(table=table, columns=column_sql)


def _scan_json_lines(
    db: "duckdb.DuckDBPyConnection",
    path: pathlib.Path,
    columns: Mapping[str, str],
    ids: Collection[str],
) -> Rows:
    """Returns the SQL expressions that read some keys of a file of JSON lines, as in
    `scan_file`.
    """
    table = f"read_ndjson_objects({_quoted(path)})"
    keys = db.execute(
        f"SELECT DISTINCT unnest(json_keys(json)) FROM (FROM {table} LIMIT {_KEY_ROWS})"
    ).fetchall()
    _check_columns(path, sorted(key for (key,) in keys), columns)
    column_sql = []
    faults = []
    for argument, name in columns.items():
        escaped_key = re.sub("['~/]", lambda match: _POINTER_ESCAPES[match[0]], name)
        pointer = f"'/{escaped_key}'"
        escaped_name = name.replace("'", "''")
        literal = f"'{escaped_name}'"
        value = f"json ->> {pointer}"
        kind = f"json_type(json, {pointer})"
        column_sql.append(f"CASE WHEN {kind} NOT IN ('OBJECT', 'ARRAY') THEN {value} END")
        is_duplicate = f"len(list_filter(json_keys(json), lambda key: key = {literal})) > 1"
        faults.append(f"WHEN {is_duplicate} THEN 'has the key ' || {literal} || ' more than once'")
        if argument in ids:
            # JSON can write the same number as 1, 1.0 or 1e0, which would become different ids. So
            # only the first form is accepted.
            is_whole = f"{kind} <> 'DOUBLE' OR regexp_full_match({value}, '-?[0-9]+')"
            fault = (
                f"'has the ' || {literal} || ' ' || ({value}) || ', which is neither a text nor "
                "written as a whole number'"
            )
            faults.append(f"WHEN {kind} = 'BOOLEAN' OR NOT ({is_whole}) THEN {fault}")
    return Rows(table=table, columns=column_sql, fault=f"CASE {' '.join(faults)} END")


def _with_one_line_end(path: pathlib.Path, scratch: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the path of a CSV file in which all lines end in the same way: the file itself or, if
    its line ends differ, a copy.

    DuckDB cannot read a file with different line ends.
    """
    num_pairs = 0
    num_line_feeds = 0
    num_returns = 0
    for chunk in _chunks(path):
        pairs = chunk.count(b"\r\n")
        num_pairs += pairs
        num_line_feeds += chunk.count(b"\n") - pairs
        num_returns += chunk.count(b"\r") - pairs
    num_kinds = sum(count > 0 for count in (num_pairs, num_line_feeds, num_returns))
    if num_kinds < 2:
        return path
    copy = pathlib.Path(scratch) / "lines.csv"
    with copy.open("wb") as lines:
        for chunk in _chunks(path):
            lines.write(chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
    return copy


def _chunks(path: pathlib.Path) -> Iterator[bytes]:
    """Yields the bytes of a file in chunks. No chunk ends between a carriage return and a line
    feed, which together are one line end.
    """
    with path.open("rb") as content:
        while chunk := content.read(_CHUNK_BYTES):
            while chunk.endswith(b"\r"):
                next_byte = content.read(1)
                if not next_byte:
                    break
                chunk += next_byte
            yield chunk


def describe_damage(file: str, error: "duckdb.Error") -> str:
    """Translates an error of DuckDB to a sentence on what is wrong in a file.

    Args:
      file: name of the file in the sentence.
      error: the error that was raised when the rows of the file were read.
    """
    message = str(error)
    # DuckDB reports Ctrl-C during a call of `skeleton` as an error of its own.
    if "KeyboardInterrupt" in message:
        raise KeyboardInterrupt from error
    csv_line = re.search(r"on Line: (\d+)", message)
    if csv_line:
        if "utf-8" in message.lower():
            fault = "is not in UTF-8: convert the file, such as with `iconv -f LATIN1 -t UTF-8`"
        else:
            fault = (
                "has another number of columns than the header, or a quote that does not "
                "end: write the file again"
            )
        return f"line {csv_line[1]} of {file} {fault}"
    json_line = re.search(r"in line (\d+): (.*?)\.?\s*$", message)
    if json_line:
        line_number = int(json_line[1]) - 1  # DuckDB's message counts from 2 for the first line.
        return f"line {line_number} of {file} is not a JSON object in UTF-8: {json_line[2]}"
    return f"{file} cannot be read: {message.splitlines()[0]}"


def _csv_header(path: pathlib.Path, head: bytes) -> list[str]:
    """Returns the column names of a CSV file from its header line.

    Args:
      path: the file, for errors.
      head: its first bytes.
    """
    if not head.strip():
        raise ValueError(
            f"{path} is empty: it must be CSV with a header line, JSON lines or Parquet"
        )
    try:
        header = head.splitlines()[0].decode("utf-8-sig")
    except UnicodeDecodeError:
        header = "\0"
    if "\0" in header or header.startswith("["):
        raise ValueError(
            f"{path} is neither CSV with a header line, JSON lines nor Parquet, in UTF-8: "
            "convert it to one of them"
        )
    return next(csv.reader([header]), [])


def _check_columns(path: pathlib.Path, names: list[str], columns: Mapping[str, str]) -> None:
    """Raises ValueError if one of the wanted columns is missing in a file or occurs twice.

    Args:
      path: the file, for errors.
      names: names of the file's columns.
      columns: name of the caller's argument -> name of the wanted column.
    """
    for argument, column in columns.items():
        if names.count(column) != 1:
            problem = "several columns" if column in names else "no column"
            raise ValueError(
                f"{path} has {problem} {column!r} "
                f"among {', '.join(map(repr, names))}: name the right one with `{argument}`"
            )
