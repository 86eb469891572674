"""Import of a table of texts and their users as a data file in the format of TFF's
stackoverflow.sqlite.
"""

import dataclasses
import itertools
import operator
import os
from collections import Counter
from collections.abc import Iterator

from fedmf.files import expanded
from fedmf.tasks import data_file, example_proto
from fedmf.tasks.row_table import ImportOptions, TableImport, fetched_rows, open_import
from fedmf.tasks.stackoverflow.sentences import split_sentences

_DEFAULT_OPTIONS = ImportOptions()
# Features of a record that an import leaves empty. Every record needs them, because TFF's parser
# asks for them.
_OTHER_FEATURES: dict[str, bytes | int] = {
    "creation_date": b"",
    "score": 0,
    "tags": b"",
    "title": b"",
    "type": b"",
}


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
    options: ImportOptions = _DEFAULT_OPTIONS,
    *,
    overwrite: bool = False,
    progress: bool = True,
) -> ImportSummary:
    """Writes a data file from a table of texts.

    A row is one text of one user, and a user may have any number of rows in any order. Texts become
    sentences as `split_sentences` says, in the order of the rows. Arguments are those of
    `open_import`.

    Returns:
      The counts.

    Raises:
      FileNotFoundError, TypeError, ValueError: one sentence that names the argument, or the file
        and what is wrong in it.
    """
    path = expanded(path)
    with open_import(
        path,
        out,
        options,
        application_id=data_file.IMPORTED,
        overwrite=overwrite,
        progress=progress,
    ) as table:
        users, sentences, without_text = _write(table, options)
        if not users.total():
            raise ValueError(
                f"{path} has no row with a user and a text among its {table.rows} rows"
            )
        for split, least_sentences in (("train", 1), ("test", 2)):
            if sentences[split] < least_sentences:
                raise ValueError(
                    f"{path} has {users.total()} users, of whom {users[split]} with "
                    f"{sentences[split]} sentences fall into the {split} "
                    f"split, but training needs {least_sentences}: bring more users, or change "
                    f"test_users={options.test_users} or seed={options.seed}"
                )
    return ImportSummary(
        path=str(expanded(out)),
        rows=table.rows,
        rows_without_user=table.rows_without_user,
        rows_without_text=without_text,
        lookalike_users=table.lookalike_users,
        users={split: users[split] for split in data_file.SPLITS},
        sentences={split: sentences[split] for split in data_file.SPLITS},
    )


def _write(table: TableImport, options: ImportOptions) -> tuple[Counter[str], Counter[str], int]:
    """Writes the texts of a table into the data file, user by user.

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
            table.bar.update()
            for sentence in text_sentences:
                yield example_proto.encode_example(_OTHER_FEATURES | {"tokens": sentence.encode()})

    sorted_rows = fetched_rows(
        table.db,
        "SELECT client, value_0 FROM source_rows WHERE client IS NOT NULL ORDER BY client, rowid",
    )
    for user, rows in itertools.groupby(sorted_rows, key=operator.itemgetter(0)):
        split = options.split_of(user)
        num_sentences = data_file.write_client(table.file, user, split, records(rows))
        users[split] += num_sentences > 0
        sentences[split] += num_sentences
    return users, sentences, without_text
