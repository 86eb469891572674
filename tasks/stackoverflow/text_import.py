"""Import of a table of texts and their users as a data file in the format of TFF's
stackoverflow.sqlite.
"""

import dataclasses
import functools
import hashlib
import itertools
import operator
import os
import pathlib
import sqlite3
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fedmf import checks, fields, tables
from fedmf.files import expanded
from fedmf.tasks import data_file, example_proto
from fedmf.tasks.stackoverflow.sentences import split_sentences
from fedmf.terminal import progress_bar

if TYPE_CHECKING:
    import duckdb

# Largest memory, in bytes, in which DuckDB sorts. For more data it uses temporary files.
_MEMORY_BYTES = 10**9
_FETCHED_ROWS = 1000
# Features of a record that an import leaves empty. Every record needs them, because TFF's parser
# asks for them.
_OTHER_FEATURES: dict[str, bytes | int] = {
    "creation_date": b"",
    "score": 0,
    "tags": b"",
    "title": b"",
    "type": b"",
}


_seed = functools.partial(checks.integer, low=0, high=2**63 - 1, hint="pass a whole number")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportOptions(fields.Checked):
    """Options of an import, with the names of the columns, and how users are divided into splits.

    Attributes:
      user_column: name of the column of users.
      text_column: name of the column of texts.
      heldout_users: fraction of the users in the held-out split (StackOverflow: 0.066), which no
        command reads. By default there are none.
      test_users: fraction of the users in the test split (StackOverflow: 0.349), on which training
        validates and tests.
      seed: another seed puts other users into the splits.

    Raises:
      TypeError: an attribute has another type.
      ValueError: a fraction of users is not in [0, 1), both together are 1 or more, or a name is
        empty or the same as the other one.
    """

    user_column: str = fields.text("user", "Column of users.")
    text_column: str = fields.text("text", "Column of texts.")
    heldout_users: float = fields.positive_float(
        0.0,
        "Fraction of users for a split that no command reads, for programs of your own.",
        allow_zero=True,
        below=1,
    )
    test_users: float = fields.positive_float(
        0.35, "Fraction of users for validation and test.", allow_zero=True, below=1
    )
    seed: int = fields.option(0, "Another seed, other users in the splits.", _seed)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.user_column == self.text_column:
            raise ValueError(
                f"`user_column` and `text_column` are both {self.user_column!r}: name "
                "two columns of the file"
            )
        if self.heldout_users + self.test_users >= 1:
            raise ValueError(
                f"heldout_users={self.heldout_users} and test_users={self.test_users} leave nobody "
                "to train on: pass less than 1 together"
            )

    def split_of(self, user: str) -> str:
        """Returns the split of a user from a keyed hash, so that it does not depend on other
        users.
        """
        hash_key = self.seed.to_bytes(8, "big")
        user_digest = hashlib.blake2b(user.encode(), key=hash_key, digest_size=8).digest()
        uniform_number = int.from_bytes(user_digest, "big") / 2**64
        if uniform_number < self.test_users:
            return "test"
        if uniform_number < self.test_users + self.heldout_users:
            return "heldout"
        return "train"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportSummary:
    """Numbers of rows, users and sentences that were imported or left out.

    Attributes:
      path: the data file.
      rows: number of rows of the table.
      rows_without_user: rows left out since their user is missing or has no visible character.
      rows_without_text: rows left out since their text is missing, or has no word or sign.
      lookalike_users: users whose ids came in several spellings that look the same, each counted
        as one user.
      users, sentences: numbers by split.
    """

    path: str
    rows: int
    rows_without_user: int
    rows_without_text: int
    lookalike_users: int
    users: dict[str, int]
    sentences: dict[str, int]


def import_text(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: ImportOptions = ImportOptions(),
    *,
    overwrite: bool = False,
    progress: bool = True,
) -> ImportSummary:
    """Writes a data file from a table of texts. Memory is bounded for any length of the table.

    A row is one text of one user, and a user may have any number of rows in any order. Users are
    whole numbers or texts; ids that differ only in invisible characters, blanks, or how letters are
    composed are one user, as in the audit of logs: one person in two clients would have half the
    protection. Texts become sentences as `split_sentences` says, in the order of the rows. The file
    appears under its name when it is complete.

    Args:
      path: CSV (commas, a header line), JSON lines or Parquet, in UTF-8; its contents decide which.
      out: the data file to write; its folder must exist, and have room for the texts twice.
      options: columns and splits.
      overwrite: replace an existing file.
      progress: show a progress bar.

    Returns:
      The counts.

    Raises:
      FileNotFoundError, TypeError, ValueError: one sentence that names the argument, or the file
        and what is wrong in it.
    """
    path = expanded(path)
    out = expanded(out)
    if not path.is_file():
        path_fault = "is not a file" if path.exists() else "does not exist"
        raise FileNotFoundError(
            f"{path} {path_fault}: name a CSV, JSON lines or Parquet file of users and texts"
        )
    if out.exists() and out.samefile(path):
        raise ValueError(f"out={str(out)!r} is the file that is read: choose another name")
    with (
        data_file.create(out, data_file.IMPORTED, overwrite=overwrite) as connection,
        data_file.scratch_folder(out) as scratch,
        tables.database(scratch, _MEMORY_BYTES) as db,
        progress_bar.bar(desc=f"sorting {path.name}", unit="row", disable=not progress) as bar,
    ):
        rows, without_user, lookalikes = _load(db, path, options, scratch)
        bar.reset(total=rows - without_user)
        bar.set_description(f"importing {path.name}")
        users, sentences, without_text = _write(db, connection, options, bar)
        if not users.total():
            raise ValueError(f"{path} has no row with a user and a text among its {rows} rows")
        for split, least_sentences in (("train", 1), ("test", 2)):
            if sentences[split] < least_sentences:
                raise ValueError(
                    f"{path} has {users.total()} users, of whom {users[split]} with "
                    f"{sentences[split]} sentences fall into the {split} "
                    f"split, but training needs {least_sentences}: bring more users, or change "
                    f"test_users={options.test_users} or seed={options.seed}"
                )
    return ImportSummary(
        path=str(out),
        rows=rows,
        rows_without_user=without_user,
        rows_without_text=without_text,
        lookalike_users=lookalikes,
        users={split: users[split] for split in data_file.SPLITS},
        sentences={split: sentences[split] for split in data_file.SPLITS},
    )


def _load(
    db: "duckdb.DuckDBPyConnection",
    path: pathlib.Path,
    options: ImportOptions,
    scratch: str | os.PathLike[str],
) -> tuple[int, int, int]:
    """Loads a file of texts into the DuckDB table `texts`.

    Returns the numbers of rows, of rows without a user, and of users in several spellings.
    """
    import duckdb

    visible_sql = f"trim({tables.visible_text_sql('spelling')})"
    source_columns = {"user_column": options.user_column, "text_column": options.text_column}
    try:
        source_sql = tables.scan_file(db, path, source_columns, scratch, ids=("user_column",))
        user, text = source_sql.columns
        db.execute(
            f"CREATE TABLE texts AS SELECT nullif({visible_sql}, '') AS client, "
            f"nullif(spelling, {visible_sql}) AS spelling, text, fault FROM "
            f"(SELECT {user}::VARCHAR AS spelling, {text}::VARCHAR AS text, "
            f"{source_sql.fault} AS fault FROM {source_sql.table})"
        )
        faulty_row = db.execute(
            "SELECT rowid + 1, fault FROM texts WHERE fault IS NOT NULL ORDER BY rowid LIMIT 1"
        ).fetchone()
    except duckdb.OutOfMemoryException as error:
        raise ValueError(
            f"{path} has texts too long to sort in {_MEMORY_BYTES} bytes: cut them"
        ) from error
    # DuckDB raises this error if it cannot write a temporary file.
    except duckdb.IOException as error:
        raise OSError(str(error).splitlines()[0]) from error
    except duckdb.Error as error:
        raise ValueError(tables.describe_damage(str(path), error)) from error
    if faulty_row is not None:
        row_number, fault = faulty_row
        raise ValueError(
            f"row {row_number} of {path} {fault[:200]}: write each user and text once, a user as "
            "a text or a whole number"
        )
    rows, without_user = db.execute(
        "SELECT count(*), count(*) FILTER (client IS NULL) FROM texts"
    ).fetchall()[0]
    (lookalikes,) = db.execute(
        """
        SELECT count(*) FROM (
          SELECT client FROM texts
          WHERE client IN (SELECT client FROM texts WHERE spelling IS NOT NULL)
          GROUP BY client HAVING count(DISTINCT coalesce(spelling, client)) > 1)"""
    ).fetchall()[0]
    return rows, without_user, lookalikes


def _write(
    db: "duckdb.DuckDBPyConnection",
    connection: sqlite3.Connection,
    options: ImportOptions,
    bar: Any,
) -> tuple[Counter[str], Counter[str], int]:
    """Writes the rows of the table `texts` into the data file, user by user.

    Returns the numbers of users and of sentences by split, and of rows without a sentence.
    """
    users: Counter[str] = Counter()
    sentences: Counter[str] = Counter()
    without_text = 0

    def records(rows: Iterator[tuple[str, str | None]]) -> Iterator[bytes]:
        """Yields the serialized examples of one user's texts."""
        nonlocal without_text
        for _, text in rows:
            text_sentences = split_sentences(text or "")
            without_text += not text_sentences
            bar.update()
            for sentence in text_sentences:
                yield example_proto.encode_example(_OTHER_FEATURES | {"tokens": sentence.encode()})

    for user, rows in itertools.groupby(_sorted_rows(db), key=operator.itemgetter(0)):
        split = options.split_of(user)
        num_sentences = data_file.write_client(connection, user, split, records(rows))
        users[split] += num_sentences > 0
        sentences[split] += num_sentences
    return users, sentences, without_text


def _sorted_rows(db: "duckdb.DuckDBPyConnection") -> Iterator[tuple[str, str | None]]:
    """Yields the user and text of each row, sorted by user. A user's rows keep their order."""
    cursor = db.execute(
        "SELECT client, text FROM texts WHERE client IS NOT NULL ORDER BY client, rowid"
    )
    while rows := cursor.fetchmany(_FETCHED_ROWS):
        yield from rows
