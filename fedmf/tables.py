"""Tables of any length: DuckDB reads CSV, JSON lines and Parquet, and sorts what does not fit into memory on disk."""

import codecs
import contextlib
import csv
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

_HEADER_BYTES = 1 << 20
_LINE_BYTES = 16 << 20  # of CSV; the same is DuckDB's limit for an object of JSON
_KEY_ROWS = 1000  # in which every key of JSON lines must show
_WHOLE_TYPE = re.compile(r"U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER")
_IN_POINTER = {"'": "''", "~": "~0", "/": "~1"}
# Characters that leave no mark: controls, formats and joiners (Cc, Cf), Unicode's other default ignorables, and the blank Braille pattern.
_INVISIBLE = (
    r"[\p{Cc}\p{Cf}\x{34F}\x{115F}\x{1160}\x{17B4}\x{17B5}\x{180B}-\x{180F}\x{2065}\x{2800}\x{3164}"
    r"\x{FE00}-\x{FE0F}\x{FFA0}\x{FFF0}-\x{FFF8}\x{E0000}-\x{E0FFF}]+"
)


@contextlib.contextmanager
def database(scratch: str | os.PathLike[str], memory: int) -> "Iterator[duckdb.DuckDBPyConnection]":
    """An empty DuckDB database in the folder `scratch`, where its temporary files go too.

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
            yield connection
    except RuntimeError as error:
        if "interrupted" in str(error).lower():
            raise KeyboardInterrupt from error
        raise


def _quoted(path: pathlib.Path) -> str:
    """The path as SQL. DuckDB would read every file that it matches as a pattern."""
    return "'" + re.sub(r"([*?\[])", r"[\1]", str(path)).replace("'", "''") + "'"


def as_seen(column: str) -> str:
    """SQL for a text as people see it: one kind of blank, nothing invisible, letters composed in one way (NFC)."""
    return f"nfc_normalize(regexp_replace(regexp_replace({column}, '\\p{{Z}}+', ' ', 'g'), '{_INVISIBLE}', '', 'g'))"


def read(db: "duckdb.DuckDBPyConnection", path: pathlib.Path, columns: Mapping[str, str]) -> tuple[str, list[str]]:
    """A file's rows and these columns as SQL.

    Args:
      db: a `database`.
      path: CSV (commas, a header line), JSON lines or Parquet, in UTF-8; its first bytes decide which.
      columns: argument of the caller -> name of the column that it names.

    Returns:
      The file as what stands after FROM, and for each column a text, or a whole number of Parquet; NULL where a row has none.

    Raises:
      ValueError: an empty file, one of another kind, or no such column; errors name the argument. What is wrong in a row becomes a
        `duckdb.Error` when the rows are read: see `damage`.
    """
    with path.open("rb") as content:
        head = content.read(_HEADER_BYTES)
    if head.startswith(b"PAR1"):
        table = f"read_parquet({_quoted(path)}, hive_partitioning = false)"
        types = {name: kind for name, kind, *_ in db.execute(f"DESCRIBE FROM {table}").fetchall()}
        _check_columns(path, [*types], columns)
        for name in columns.values():
            if types[name] == "BLOB" or (types[name].endswith((")", "]")) and not types[name].startswith("DECIMAL")):
                raise ValueError(
                    f"{path} has a column {name!r} of type {types[name]}: write it as texts or whole numbers"
                )
        quoted = {name: f'"{name.replace(chr(34), 2 * chr(34))}"' for name in columns.values()}
        return table, [q if _WHOLE_TYPE.fullmatch(types[name]) else f"{q}::VARCHAR" for name, q in quoted.items()]
    if head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{"):
        table = f"read_ndjson_objects({_quoted(path)})"
        keys = db.execute(f"SELECT DISTINCT unnest(json_keys(json)) FROM (FROM {table} LIMIT {_KEY_ROWS})").fetchall()
        _check_columns(path, sorted(key for (key,) in keys), columns)
        pointers = ("'/" + re.sub("['~/]", lambda c: _IN_POINTER[c[0]], name) + "'" for name in columns.values())
        return table, [
            f"CASE WHEN json_type(json, {p}) NOT IN ('OBJECT', 'ARRAY') THEN json ->> {p} END" for p in pointers
        ]
    names = _csv_header(path, head)
    _check_columns(path, names, columns)
    # Columns are named by place: a header may hold anything.
    types = {f"column{i}": "VARCHAR" for i in range(len(names))}
    table = (
        f"read_csv({_quoted(path)}, columns = {types}, header = true, auto_detect = false, delim = ',', quote = '\"', escape = '\"', "
        f"strict_mode = true, null_padding = false, ignore_errors = false, max_line_size = {_LINE_BYTES}, hive_partitioning = false)"
    )
    return table, [f"column{names.index(name)}" for name in columns.values()]


def damage(file: str, error: "duckdb.Error") -> str:
    """A sentence for what DuckDB found wrong in the file of this name."""
    message = str(error)
    if csv_line := re.search(r"on Line: (\d+)", message):
        wrong = (
            "is not in UTF-8: convert the file, such as with `iconv -f LATIN1 -t UTF-8`"
            if "utf-8" in message.lower()
            else "has another number of columns than the header, or a quote that does not end: write the file again"
        )
        return f"line {csv_line[1]} of {file} {wrong}"
    if json_line := re.search(r"in line (\d+): (.*?)\.?\s*$", message):
        return f"line {int(json_line[1]) - 1} of {file} is not a JSON object in UTF-8: {json_line[2]}"  # DuckDB counts from 2
    return f"{file} cannot be read: {message.splitlines()[0]}"


def _csv_header(path: pathlib.Path, head: bytes) -> list[str]:
    if not head.strip():
        raise ValueError(f"{path} is empty: it must be CSV with a header line, JSON lines or Parquet")
    try:
        header = head.splitlines()[0].decode("utf-8-sig")
    except UnicodeDecodeError:
        header = "\0"
    if "\0" in header or header.startswith("["):
        raise ValueError(
            f"{path} is neither CSV with a header line, JSON lines nor Parquet, in UTF-8: convert it to one of them"
        )
    return next(csv.reader([header]), [])


def _check_columns(path: pathlib.Path, names: list[str], columns: Mapping[str, str]) -> None:
    for argument, wanted in columns.items():
        if names.count(wanted) != 1:
            raise ValueError(
                f"{path} has {'several columns' if wanted in names else 'no column'} {wanted!r} among {', '.join(map(repr, names))}: "
                f"name the right one with {argument}"
            )
