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
from collections.abc import Collection, Iterator, Sequence
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
# Regular expression of invisible characters, which are control characters that are not blanks,
# formats and joiners (Cf), and `identifiers.UNMARKED`.
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
    escaped_path = re.sub(r"([*?\[])", r"[\1]", str(path)).replace("'", "''")
    return f"'{escaped_path}'"


def visible_text_sql(column: str) -> str:
    """Returns a SQL expression that normalises the texts of a column as `identifiers.visible_text`
    does.
    """
    # Most ids consist of visible ASCII characters, which stay as they are. To save half the time of
    # an audit, they skip the three normalisations.
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
    columns: Sequence[tuple[str, str]],
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
      columns: the caller's argument and the name of the column, for each column.
      scratch: folder for a copy of a CSV with different line ends.
      ids: arguments whose columns identify rows, so that JSON must write equal values in one way.

    Raises:
      ValueError: the file is empty or in another format, or has no such column; the message names
        the argument. A wrong row raises a `duckdb.Error` on reading: see `describe_damage`.
    """
    with path.open("rb") as content:
        file_head = content.read(_HEADER_BYTES)
    if file_head.startswith(b"PAR1"):
        return _scan_parquet(db, path, columns)
    if file_head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{"):
        return _scan_json_lines(db, path, columns, ids)
    names = _csv_header(path, file_head)
    _check_columns(path, names, columns)
    # Columns are named by their index in SQL, because a header may contain any text.
    type_by_column = {f"column{i}": "VARCHAR" for i in range(len(names))}
    return Rows(
        table=f"read_csv({_quoted(_with_one_line_end(path, scratch))}, "
        f"columns = {type_by_column}, header = true, auto_detect = false, delim = ',', quote = "
        "'\"', escape = '\"', strict_mode = true, null_padding = false, ignore_errors = false, "
        # DuckDB's default buffer of 16 lines would take a quarter of the memory that the audit of a
        # log has by default.
        f"max_line_size = {_LINE_BYTES}, buffer_size = {2 * _LINE_BYTES}, "
        "hive_partitioning = false)",
        columns=[f"column{names.index(name)}" for _, name in columns],
    )


def _scan_parquet(
    db: "duckdb.DuckDBPyConnection", path: pathlib.Path, columns: Sequence[tuple[str, str]]
) -> Rows:
    """Returns the SQL expressions that read some columns of a Parquet file, as in `scan_file`."""
    table_sql = f"read_parquet({_quoted(path)}, hive_partitioning = false)"
    type_by_name = {
        name: column_type
        for name, column_type, *_ in db.execute(f"DESCRIBE FROM {table_sql}").fetchall()
    }
    _check_columns(path, [*type_by_name], columns)
    column_sql = []
    for _, name in columns:
        column_type = type_by_name[name]
        escaped_name = name.replace('"', '""')
        quoted_name = f'"{escaped_name}"'
        is_nested = column_type.endswith((")", "]")) and not column_type.startswith("DECIMAL")
        if column_type == "BLOB" or is_nested:
            raise ValueError(
                f"{path} has a column {name!r} of type {column_type}: write it as texts or whole "
                "numbers"
            )
        if column_type in ("FLOAT", "DOUBLE"):
            column_sql.append(f"CASE WHEN NOT isnan({quoted_name}) THEN {quoted_name}::VARCHAR END")
        elif _INTEGER_TYPE.fullmatch(column_type):
            column_sql.append(quoted_name)
        else:
            column_sql.append(f"{quoted_name}::VARCHAR")
    return Rows(table=table_sql, columns=column_sql)


def _scan_json_lines(
    db: "duckdb.DuckDBPyConnection",
    path: pathlib.Path,
    columns: Sequence[tuple[str, str]],
    ids: Collection[str],
) -> Rows:
    """Returns the SQL expressions that read some keys of a file of JSON lines, as in
    `scan_file`.
    """
    table_sql = f"read_ndjson_objects({_quoted(path)})"
    key_rows = db.execute(
        f"SELECT DISTINCT unnest(json_keys(json)) FROM (FROM {table_sql} LIMIT {_KEY_ROWS})"
    ).fetchall()
    _check_columns(path, sorted(key for (key,) in key_rows), columns)
    column_sql = []
    fault_cases = []
    for argument, name in columns:
        escaped_key = re.sub("['~/]", lambda match: _POINTER_ESCAPES[match[0]], name)
        json_pointer = f"'/{escaped_key}'"
        escaped_name = name.replace("'", "''")
        name_literal = f"'{escaped_name}'"
        value_sql = f"json ->> {json_pointer}"
        type_sql = f"json_type(json, {json_pointer})"
        column_sql.append(f"CASE WHEN {type_sql} NOT IN ('OBJECT', 'ARRAY') THEN {value_sql} END")
        is_duplicate = f"len(list_filter(json_keys(json), lambda key: key = {name_literal})) > 1"
        fault_cases.append(
            f"WHEN {is_duplicate} THEN 'has the key ' || {name_literal} || ' more than once'"
        )
        if argument in ids:
            # JSON can write the same number as 1, 1.0 or 1e0, which would become different ids. So
            # only the first form is accepted.
            is_whole = f"{type_sql} <> 'DOUBLE' OR regexp_full_match({value_sql}, '-?[0-9]+')"
            fault_sql = (
                f"'has the ' || {name_literal} || ' ' || ({value_sql}) || ', which is neither a "
                "text nor written as a whole number'"
            )
            fault_cases.append(f"WHEN {type_sql} = 'BOOLEAN' OR NOT ({is_whole}) THEN {fault_sql}")
    return Rows(table=table_sql, columns=column_sql, fault=f"CASE {' '.join(fault_cases)} END")


def _with_one_line_end(path: pathlib.Path, scratch: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the path of a CSV file in which all lines end in the same way, which is the file
    itself or, if its line ends differ, a copy.

    DuckDB cannot read a file with different line ends.
    """
    num_pairs = 0
    num_line_feeds = 0
    num_returns = 0
    for chunk in _chunks(path):
        num_pairs_in_chunk = chunk.count(b"\r\n")
        num_pairs += num_pairs_in_chunk
        num_line_feeds += chunk.count(b"\n") - num_pairs_in_chunk
        num_returns += chunk.count(b"\r") - num_pairs_in_chunk
    num_kinds = sum(count > 0 for count in (num_pairs, num_line_feeds, num_returns))
    if num_kinds < 2:
        return path
    copy_path = pathlib.Path(scratch) / "lines.csv"
    with copy_path.open("wb") as lines:
        for chunk in _chunks(path):
            lines.write(chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
    return copy_path


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
        # In DuckDB's message the first line has the number 2.
        line_number = int(json_line[1]) - 1
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


def _check_columns(
    path: pathlib.Path, names: list[str], columns: Sequence[tuple[str, str]]
) -> None:
    """Raises ValueError if one of the wanted columns is missing in a file or occurs twice.

    Args:
      path: the file, for errors.
      names: names of the file's columns.
      columns: the caller's argument and the name of the wanted column, for each column.
    """
    for argument, column in columns:
        if names.count(column) != 1:
            problem = "several columns" if column in names else "no column"
            raise ValueError(
                f"{path} has {problem} {column!r} "
                f"among {', '.join(map(repr, names))}: name the right one with `{argument}`"
            )
