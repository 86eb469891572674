"""Tables of any length: DuckDB reads CSV, JSON lines and Parquet, and sorts what does not fit into
memory on disk.
"""

import codecs
import collections
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
_LINE_BYTES = 16 << 20  # of CSV; the same is DuckDB's limit for an object of JSON
_KEY_ROWS = 1000  # in which every key of JSON lines must show
_WHOLE_TYPE = re.compile(r"U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER")
_IN_POINTER = {"'": "''", "~": "~0", "/": "~1"}
# Characters that leave no mark: controls that are no blanks, formats and joiners (Cf), and
# `identifiers.UNMARKED`.
_UNMARKED = "".join(f"\\x{{{first:X}}}-\\x{{{last:X}}}" for first, last in UNMARKED)
_INVISIBLE = rf"[\x00-\x08\x0e-\x1b\x7f-\x{{84}}\x{{86}}-\x{{9f}}\p{{Cf}}{_UNMARKED}]+"
# Blanks of all kinds, and `identifiers.BLANK_CONTROLS`.
_BLANKS = r"[\p{Z}\x09-\x0d\x1c-\x1f\x{85}]+"


@contextlib.contextmanager
def database(scratch: str | os.PathLike[str], memory: int) -> "Iterator[duckdb.DuckDBPyConnection]":
    """An empty DuckDB database in the folder `scratch`, where its temporary files go too; its SQL
    has `identifiers.skeleton`.

    Args:
      scratch: an existing folder, which the caller removes.
      memory: bytes that a sort may take.

    Raises:
      KeyboardInterrupt: for the error as which DuckDB reports Ctrl-C.
    """
    import duckdb

    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{memory}B",
        "temp_directory": os.path.join(scratch, "sort"),
        # Each thread holds buffers of its own: many of them would not fit into little memory.
        "threads": min(4, os.cpu_count() or 1),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    try:
        with duckdb.connect(os.path.join(scratch, "table.duckdb"), config=settings) as connection:
            # The bar would be drawn on standard output, among the results of --json.
            connection.execute("SET enable_progress_bar = false")
            connection.create_function("skeleton", skeleton, ["VARCHAR"], "VARCHAR")
            yield connection
    except RuntimeError as error:
        if "interrupted" in str(error).lower():
            raise KeyboardInterrupt from error
        raise


def _quoted(path: pathlib.Path) -> str:
    """The path as SQL. DuckDB would read every file that it matches as a pattern."""
    return "'" + re.sub(r"([*?\[])", r"[\1]", str(path)).replace("'", "''") + "'"


def visible_text_sql(column: str) -> str:
    """SQL for a text as people see it: one kind of blank, nothing invisible, letters composed in
    one way (NFC).

    `identifiers.visible_text` is the same in Python.
    """
    # Most ids are of visible ASCII, and the three passes over a text take half
    # the time of an audit.
    plain = f"regexp_full_match({column}, '[!-~]*')"
    return f"CASE WHEN {plain} THEN {column} ELSE {_composed(column)} END"


def skeleton_sql(column: str) -> str:
    """Returns SQL for `identifiers.skeleton` of a text, in a `database`."""
    is_ascii = f"regexp_full_match({column}, '[ -~]*')"
    return f"CASE WHEN {is_ascii} THEN {visible_text_sql(column)} ELSE skeleton({column}) END"


def _composed(column: str) -> str:
    # What is invisible goes first: blanks on both sides of it are one.
    return (
        f"nfc_normalize(regexp_replace(regexp_replace({column}, '{_INVISIBLE}', '', 'g'), "
        f"'{_BLANKS}', ' ', 'g'))"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of a file as SQL.

    Attributes:
      table: what stands after FROM.
      columns: SQL of each column: a text, or a whole number of Parquet; NULL where a row has none,
        or NaN.
      fault: SQL of a text, the end of a sentence, for what is wrong with a row as such; NULL where
        nothing is.
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
    """A file's rows and these columns as SQL.

    Args:
      db: a `database`.
      path: CSV (commas, a header line), JSON lines or Parquet, in UTF-8;
        its first bytes decide which.
      columns: argument of the caller -> name of the column that it names.
      scratch: folder for a copy of a CSV whose lines end in several ways.
      ids: the arguments whose columns tell rows apart, so that JSON must write them in one way.

    Raises:
      ValueError: an empty file, one of another kind, or no such column; errors name the argument.
        A wrong row raises a `duckdb.Error` when the rows are read: see `describe_damage`.
    """
    with path.open("rb") as content:
        head = content.read(_HEADER_BYTES)
    if head.startswith(b"PAR1"):
        return _parquet(db, path, columns)
    if head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{"):
        return _json_lines(db, path, columns, ids)
    names = _csv_header(path, head)
    _check_columns(path, names, columns)
    # Columns are named by place: a header may hold anything.
    types = {f"column{i}": "VARCHAR" for i in range(len(names))}
    return Rows(
        table=f"read_csv({_quoted(_with_one_line_end(path, scratch))}, columns = {types}, header = "
        "true, auto_detect = false, delim = ',', quote = '\"', escape = '\"', strict_mode = true, "
        "null_padding = false, ignore_errors = false, "
        # By default 16 lines: a quarter of the memory that a log may take by default, and more than
        # the least.
        f"max_line_size = {_LINE_BYTES}, buffer_size = {2 * _LINE_BYTES}, "
        "hive_partitioning = false)",
        columns=[f"column{names.index(name)}" for name in columns.values()],
    )


def _parquet(
    db: "duckdb.DuckDBPyConnection", path: pathlib.Path, columns: Mapping[str, str]
) -> Rows:
    table = f"read_parquet({_quoted(path)}, hive_partitioning = false)"
    types = {name: kind for name, kind, *_ in db.execute(f"DESCRIBE FROM {table}").fetchall()}
    _check_columns(path, [*types], columns)
    texts = []
    for name in columns.values():
        kind, quoted = types[name], f'"{name.replace(chr(34), 2 * chr(34))}"'
        if kind == "BLOB" or (kind.endswith((")", "]")) and not kind.startswith("DECIMAL")):
            raise ValueError(
                f"{path} has a column {name!r} of type {kind}: write it as texts or whole numbers"
            )
        if kind in ("FLOAT", "DOUBLE"):
            texts.append(f"CASE WHEN NOT isnan({quoted}) THEN {quoted}::VARCHAR END")
        else:
            texts.append(quoted if _WHOLE_TYPE.fullmatch(kind) else f"{quoted}::VARCHAR")
    return Rows(table=table, columns=texts)


def _json_lines(
    db: "duckdb.DuckDBPyConnection",
    path: pathlib.Path,
    columns: Mapping[str, str],
    ids: Collection[str],
) -> Rows:
    table = f"read_ndjson_objects({_quoted(path)})"
    keys = db.execute(
        f"SELECT DISTINCT unnest(json_keys(json)) FROM (FROM {table} LIMIT {_KEY_ROWS})"
    ).fetchall()
    _check_columns(path, sorted(key for (key,) in keys), columns)
    texts, faults = [], []
    for argument, name in columns.items():
        pointer = "'/" + re.sub("['~/]", lambda c: _IN_POINTER[c[0]], name) + "'"
        literal = "'" + name.replace("'", "''") + "'"
        value, kind = f"json ->> {pointer}", f"json_type(json, {pointer})"
        texts.append(f"CASE WHEN {kind} NOT IN ('OBJECT', 'ARRAY') THEN {value} END")
        twice = f"len(list_filter(json_keys(json), lambda key: key = {literal})) > 1"
        faults.append(f"WHEN {twice} THEN 'has the key ' || {literal} || ' more than once'")
        if argument in ids:
            # 1, 1.0 and 1e0 are one number in JSON and would be several ids: only one way of
            # writing it is read.
            whole = f"{kind} <> 'DOUBLE' OR regexp_full_match({value}, '-?[0-9]+')"
            what = (
                f"'has the ' || {literal} || ' ' || ({value}) || ', which is neither a text nor "
                "written as a whole number'"
            )
            faults.append(f"WHEN {kind} = 'BOOLEAN' OR NOT ({whole}) THEN {what}")
    return Rows(table=table, columns=texts, fault=f"CASE {' '.join(faults)} END")


def _with_one_line_end(path: pathlib.Path, scratch: str | os.PathLike[str]) -> pathlib.Path:
    """The file, or a copy of it with one kind of line end where it has several, which DuckDB does
    not read.
    """
    ends: collections.Counter[bytes] = collections.Counter()
    for chunk in _chunks(path):
        pairs = chunk.count(b"\r\n")
        ends.update(
            {b"\r\n": pairs, b"\n": chunk.count(b"\n") - pairs, b"\r": chunk.count(b"\r") - pairs}
        )
    if sum(count > 0 for count in ends.values()) < 2:
        return path
    copy = pathlib.Path(scratch) / "lines.csv"
    with copy.open("wb") as lines:
        for chunk in _chunks(path):
            lines.write(chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
    return copy


def _chunks(path: pathlib.Path) -> Iterator[bytes]:
    """The file's bytes, no piece of which ends between a carriage return and its line feed."""
    with path.open("rb") as content:
        while chunk := content.read(_CHUNK_BYTES):
            while chunk.endswith(b"\r") and (more := content.read(1)):
                chunk += more
            yield chunk


def describe_damage(file: str, error: "duckdb.Error") -> str:
    """A sentence for what DuckDB found wrong in the file of this name."""
    message = str(error)
    if "KeyboardInterrupt" in message:  # as which Ctrl-C in `skeleton` is reported
        raise KeyboardInterrupt from error
    if csv_line := re.search(r"on Line: (\d+)", message):
        wrong = (
            "is not in UTF-8: convert the file, such as with `iconv -f LATIN1 -t UTF-8`"
            if "utf-8" in message.lower()
            else "has another number of columns than the header, or a quote that does not "
            "end: write the file again"
        )
        return f"line {csv_line[1]} of {file} {wrong}"
    if json_line := re.search(r"in line (\d+): (.*?)\.?\s*$", message):
        # DuckDB counts from 2.
        return (
            f"line {int(json_line[1]) - 1} of {file} is not a JSON object in UTF-8: {json_line[2]}"
        )
    return f"{file} cannot be read: {message.splitlines()[0]}"


def _csv_header(path: pathlib.Path, head: bytes) -> list[str]:
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
    for argument, wanted in columns.items():
        if names.count(wanted) != 1:
            raise ValueError(
                f"{path} has {'several columns' if wanted in names else 'no column'} {wanted!r} "
                f"among {', '.join(map(repr, names))}: name the right one with `{argument}`"
            )
