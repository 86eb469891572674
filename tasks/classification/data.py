"""Reader of data files of labelled rows, which `row_import` writes."""

import dataclasses
import hashlib
import json
import os
import sqlite3
from typing import Any, Self

import numpy as np

from fedmf.files import expanded
from fedmf.tasks.client_database import ClientDatabase, quantiles
from fedmf.tasks.data_file import LABELLED, ORIGINS, SPLITS
from fedmf.tasks.example_proto import decode_example
from fedmf.training.examples import Examples

_HINT = "write it by `fedmf data import ROWS --user-column NAME --label-column NAME --out FILE`"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportRecord:
    """Columns, classes and statistics of an imported table.

    Attributes:
      columns: names of the columns of numbers, or of the one of texts.
      is_text: whether examples are texts.
      label_column: name of the column of labels.
      is_split_in_time: whether all users train, and the test split has their last rows.
      classes: the labels of the training rows, sorted. A label's position is its class.
      means, deviations: mean and standard deviation of each column of numbers over the training
        rows; a constant column has a deviation of 0.
    """

    columns: list[str]
    is_text: bool
    label_column: str
    is_split_in_time: bool
    classes: list[str]
    means: list[float]
    deviations: list[float]

    def write(self, connection: sqlite3.Connection) -> None:
        """Writes the record into a data file."""
        connection.execute("CREATE TABLE import_record (json TEXT NOT NULL)")
        connection.execute(
            "INSERT INTO import_record VALUES (?)", (json.dumps(dataclasses.asdict(self)),)
        )

    @classmethod
    def read(cls, file: ClientDatabase) -> Self:
        """Reads the record of a data file.

        Raises:
          ValueError: the file is none of labelled rows.
        """
        if file.application_id != LABELLED:
            raise ValueError(f"{file.path} has no rows with labels: {_HINT}")
        [(text,)] = file.rows("SELECT json FROM import_record")
        return cls(**json.loads(text))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledRows:
    """Data file of labelled rows, whose classes and numbers have the meaning of a record.

    Attributes:
      file: the data file.
      record: record of this file or of another one.
      hashed_words, text_words: see `ClassificationOptions`.
    """

    file: ClientDatabase
    record: ImportRecord
    hashed_words: int
    text_words: int

    def examples(self, split: str, client_id: str) -> Examples:
        """Returns the numbers float32 (rows, columns) or hashed words int32 (rows, text_words) of a
        client, and the classes int32 (rows,).
        """
        features = [self._features(record) for record in self.file.records(split, client_id)]
        class_by_label = {label.encode(): i for i, label in enumerate(self.record.classes)}
        y = np.array([class_by_label[example["label"]] for example in features], np.int32)
        if self.record.is_text:
            word_rows = [self._word_row(example["text"].split()) for example in features]
            return np.array(word_rows, np.int32).reshape(-1, self.text_words), y
        numbers = np.array([np.frombuffer(example["numbers"], "<f8") for example in features])
        deviations = np.array(self.record.deviations)
        scales = np.where(deviations > 0, deviations, np.inf)
        x = (numbers.reshape(-1, len(scales)) - self.record.means) / scales
        return x.astype(np.float32), y

    def _features(self, record: bytes) -> dict[str, bytes]:
        """Returns the features of a record, all of which are byte strings."""
        features = decode_example(record)
        return {name: value for name, value in features.items() if isinstance(value, bytes)}

    def _word_row(self, words: list[bytes]) -> list[int]:
        """Returns the numbers of a text's first words, filled up with 0."""
        hashed = [hashed_word(word, self.hashed_words) for word in words[: self.text_words]]
        return hashed + [0] * (self.text_words - len(hashed))


def hashed_word(word: bytes, hashed_words: int) -> int:
    """Returns a number in 1..hashed_words for a word. It needs no vocabulary, which would be
    computed from clients' texts.

    >>> hashed_word(b"word", 1000) == hashed_word(b"word", 1000) <= 1000
    True
    """
    word_digest = hashlib.blake2b(word, digest_size=8).digest()
    return 1 + int.from_bytes(word_digest, "big") % hashed_words


def open_file(path: str | os.PathLike[str] | None) -> ClientDatabase:
    """Opens a data file.

    Raises:
      FileNotFoundError, ValueError: as `ClientDatabase`, or the path is None.
    """
    if path is None:
        raise ValueError(f"data=None names no data file: {_HINT}, and name it by data=FILE")
    return ClientDatabase(expanded(path), _HINT)


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Describes a data file by its path, size, origin, columns and classes, and its users and rows
    by split, as values for JSON.

    Raises:
      FileNotFoundError, ValueError: as `open_file` and `ImportRecord.read`.
    """
    file = open_file(path)
    record = ImportRecord.read(file)
    description_by_split: dict[str, dict[str, Any]] = {}
    for split in SPLITS:
        sizes = list(file.client_sizes(split).values())
        description_by_split[split] = {"users": len(sizes), "rows": sum(sizes)}
        if sizes:
            description_by_split[split]["rows_per_user"] = quantiles(sizes)
    return {
        "path": str(file.path),
        "bytes": file.path.stat().st_size,
        "origin": ORIGINS[LABELLED],
        **dataclasses.asdict(record),
        "splits": description_by_split,
    }
