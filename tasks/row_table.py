"""Import of a table of rows with users as a data file: its options, the split of the users, and the
rows in a DuckDB table.
"""

import contextlib
import csv
import dataclasses
import functools
import hashlib
import os
import pathlib
import sqlite3
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fedmf import checks, fields, tables
from fedmf.files import expanded
from fedmf.tasks import data_file
from fedmf.terminal import progress_bar

if TYPE_CHECKING:
    import duckdb

# Largest memory, in bytes, in which DuckDB sorts. For more data it uses temporary files.
_MEMORY_BYTES = 10**9
_FETCHED_ROWS = 1000

_seed = functools.partial(checks.integer, low=0, high=2**63 - 1, hint="pass a whole number")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportOptions(fields.Checked):
    """Options of an import, with the names of the columns, and how rows are divided into splits.

    Without a label column, the file is for next-word prediction. With one, it is for
    classification: of numbers if there are number columns, and of texts otherwise.

    Attributes:
      user_column: name of the column of users.
      text_column: name of the column of texts.
      label_column: name of the column of labels, the classes of a classification.
      number_columns: names of the columns of numbers, as a line of CSV.
      time_column: name of a column of times. With it, all users train, and the last rows of each
        user are in the test split.
      heldout_users: fraction of the users in the held-out split (StackOverflow: 0.066), which no
        command reads. By default there are none.
      test_users: fraction of the users in the test split (StackOverflow: 0.349), on which training
        validates and tests.
      test_rows: with a time column, the fraction of each user's rows in the test split, rounded
        down to whole rows.
      seed: another seed puts other users into the splits.

    Raises:
      TypeError: an attribute has another type.
      ValueError: a fraction is not in [0, 1), both fractions of users are 1 or more together, a
        name is empty or occurs twice, or an attribute needs another one.
    """

    user_column: str = fields.text("user", "Column of users.")
    text_column: str = fields.text("text", "Column of texts.")
    label_column: str | None = fields.text(
        None, "Column of labels, for classification; without it the file is for next words."
    )
    number_columns: str | None = fields.text(
        None, "With labels: columns of numbers in place of texts, with commas between them."
    )
    time_column: str | None = fields.text(
        None,
        "With labels: column of times. The last rows of each user are for validation and test, "
        "and all users train.",
    )
    heldout_users: float = fields.positive_float(
        0.0,
        "Fraction of users for a split that no command reads, for programs of your own.",
        allow_zero=True,
        below=1,
    )
    test_users: float = fields.positive_float(
        0.35, "Fraction of users for validation and test.", allow_zero=True, below=1
    )
    test_rows: float = fields.positive_float(
        0.2,
        "With times: fraction of each user's rows for validation and test, rounded down.",
        below=1,
    )
    seed: int = fields.option(0, "Another seed, other users in the splits.", _seed)

    def __post_init__(self) -> None:
        super().__post_init__()
        has_labels = self.label_column is not None
        has_times = self.time_column is not None
        for name in ("number_columns", "time_column"):
            fields.require(self, name, needs="`label_column`", present=has_labels)
        is_text = self.number_columns is None
        fields.require(
            self, "text_column", needs="an import without `number_columns`", present=is_text
        )
        fields.require(self, "test_rows", needs="`time_column`", present=has_times)
        fields.require(
            self, "test_users", needs="an import without `time_column`", present=not has_times
        )
        argument_by_column: dict[str, str] = {}
        for argument, column in self.columns():
            if column in argument_by_column:
                raise ValueError(
                    f"`{argument_by_column[column]}` and `{argument}` are both {column!r}: name "
                    "two columns of the file"
                )
            argument_by_column[column] = argument
        if not has_times and self.heldout_users + self.test_users >= 1:
            raise ValueError(
                f"heldout_users={self.heldout_users} and test_users={self.test_users} leave nobody "
                "to train on: pass less than 1 together"
            )

    @property
    def numbers(self) -> list[str]:
        """Names of the columns of numbers; a name with a comma is written in quotes, as in CSV."""
        if self.number_columns is None:
            return []
        return next(csv.reader([self.number_columns], skipinitialspace=True))

    def columns(self) -> list[tuple[str, str]]:
        """Returns the columns of the file that are read, each after the argument that names it: the
        users, the labels, the times, and last the numbers or texts.
        """
        columns = [("user_column", self.user_column)]
        if self.label_column is not None:
            columns.append(("label_column", self.label_column))
        if self.time_column is not None:
            columns.append(("time_column", self.time_column))
        if self.number_columns is None:
            return [*columns, ("text_column", self.text_column)]
        return columns + [("number_columns", name) for name in self.numbers]

    def split_of(self, user: str) -> str:
        """Returns the split of a user from a keyed hash, so that it does not depend on other
        users. With a time column it is the split of the user's first rows.
        """
        hash_key = self.seed.to_bytes(8, "big")
        user_digest = hashlib.blake2b(user.encode(), key=hash_key, digest_size=8).digest()
        uniform_number = int.from_bytes(user_digest, "big") / 2**64
        test_users = self.test_users
        if self.time_column is not None:
            test_users = 0.0
        if uniform_number < test_users:
            return "test"
        if uniform_number < test_users + self.heldout_users:
            return "heldout"
        return "train"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableImport:
    """An import that is under way.

    Attributes:
      db: DuckDB database whose table `source_rows` has the rows of the table: client (NULL if
        missing), value_0, value_1 ... for the columns of
        `ImportOptions.columns` after that of users. A row's rowid
        is its position in the table.
      file: the data file, which takes its name when the import ends without an error.
      bar: progress bar for rows that have a user.
      rows: number of rows of the table.
      rows_without_user: rows whose user is missing or has no visible character.
      lookalike_users: users whose ids came in several spellings that look the same, each counted
        as one user.
    """

    db: "duckdb.DuckDBPyConnection"
    file: sqlite3.Connection
    bar: Any
    rows: int
    rows_without_user: int
    lookalike_users: int


@contextlib.contextmanager
def open_import(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: ImportOptions,
    *,
    application_id: int,
    overwrite: bool,
    progress: bool,
) -> Iterator[TableImport]:
    """Loads a table, and creates the data file, which appears under its name at the end of the
    block. Memory is bounded for any length of the table.

    Users are whole numbers or texts; ids that differ only in invisible characters, blanks, or how
    letters are composed are one user, as in the audit of logs: one person in two clients would have
    half the protection.

    Args:
      path: CSV (commas, a header line), JSON lines or Parquet, in UTF-8; its contents decide which.
      out: the data file to write; its folder must exist, and have room for the rows twice.
      options: columns and splits.
      application_id: see `data_file.create`.
      overwrite: replace an existing file.
      progress: show a progress bar.

    Raises:
      FileNotFoundError, TypeError, ValueError: one sentence that names the argument, or the file
        and what is wrong in it.
    """
    path = expanded(path)
    out = expanded(out)
    if not path.is_file():
        path_fault = "is not a file" if path.exists() else "does not exist"
        raise FileNotFoundError(
            f"{path} {path_fault}: name a CSV, JSON lines or Parquet file of users and their rows"
        )
    if out.exists() and out.samefile(path):
        raise ValueError(f"out={str(out)!r} is the file that is read: choose another name")
    with (
        data_file.create(out, application_id, overwrite=overwrite) as connection,
        data_file.scratch_folder(out) as scratch,
        tables.database(scratch, _MEMORY_BYTES) as db,
        progress_bar.bar(desc=f"sorting {path.name}", unit="row", disable=not progress) as bar,
    ):
        _load(db, path, options, scratch)
        rows, without_user = db.execute(
            "SELECT count(*), count(*) FILTER (client IS NULL) FROM source_rows"
        ).fetchall()[0]
        bar.reset(total=rows - without_user)
        bar.set_description(f"importing {path.name}")
        yield TableImport(
            db=db,
            file=connection,
            bar=bar,
            rows=rows,
            rows_without_user=without_user,
            lookalike_users=_num_lookalikes(db),
        )


def _load(
    db: "duckdb.DuckDBPyConnection",
    path: pathlib.Path,
    options: ImportOptions,
    scratch: str | os.PathLike[str],
) -> None:
    """Loads the columns of a file into the DuckDB table `source_rows`."""
    visible_sql = f"trim({tables.visible_text_sql('spelling')})"
    source_columns = options.columns()
    with duckdb_errors(path):
        source_sql = tables.scan_file(db, path, source_columns, scratch, ids=("user_column",))
        user_sql, *value_sqls = source_sql.columns
        values = "".join(f", {value_sqls[i]}::VARCHAR AS value_{i}" for i in range(len(value_sqls)))
        value_names = "".join(f", value_{i}" for i in range(len(value_sqls)))
        db.execute(
            f"CREATE TABLE source_rows AS SELECT nullif({visible_sql}, '') AS client, "
            f"nullif(spelling, {visible_sql}) AS spelling{value_names}, fault FROM "
            f"(SELECT {user_sql}::VARCHAR AS spelling{values}, "
            f"{source_sql.fault} AS fault FROM {source_sql.table})"
        )
        faulty_row = db.execute(
            "SELECT rowid + 1, fault FROM source_rows WHERE fault IS NOT NULL ORDER BY rowid LIMIT "
            "1"
        ).fetchone()
    if faulty_row is not None:
        row_number, fault = faulty_row
        raise ValueError(
            f"row {row_number} of {path} {fault[:200]}: write each user and value once, a user as "
            "a text or a whole number"
        )


@contextlib.contextmanager
def duckdb_errors(path: pathlib.Path) -> Iterator[None]:
    """Translates DuckDB's errors in the block to errors that say what is wrong in a file."""
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise ValueError(
            f"{path} has texts too long to sort in {_MEMORY_BYTES} bytes: cut them"
        ) from error
    # DuckDB raises this error if it cannot write a temporary file.
    except duckdb.IOException as error:
        raise OSError(str(error).splitlines()[0]) from error
    except duckdb.Error as error:
        raise ValueError(tables.describe_damage(str(path), error)) from error


def _num_lookalikes(db: "duckdb.DuckDBPyConnection") -> int:
    """Returns the number of users whose ids came in several spellings that look the same."""
    (num_users,) = db.execute(
        """
        SELECT count(*) FROM (
          SELECT client FROM source_rows
          WHERE client IN (SELECT client FROM source_rows WHERE spelling IS NOT NULL)
          GROUP BY client HAVING count(DISTINCT coalesce(spelling, client)) > 1)"""
    ).fetchall()[0]
    return int(num_users)


def fetched_rows(db: "duckdb.DuckDBPyConnection", query: str) -> Iterator[tuple[Any, ...]]:
    """Yields the rows of a query, without holding all of them in memory."""
    cursor = db.execute(query)
    while rows := cursor.fetchmany(_FETCHED_ROWS):
        yield from rows
