"""Reader of StackOverflow data files, which are TFF's own file, or synthetic or imported text in
the same format.
"""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedmf.files import expanded
from fedmf.tasks.client_database import ClientDatabase, quantiles
from fedmf.tasks.data_file import ORIGINS, SPLITS
from fedmf.tasks.example_proto import Feature, decode_example, text_of

FILE_NAME = "stackoverflow.sqlite"
TFF_FILE = "StackOverflow file"

# A data file is described by statistics of this many clients of each split, and of this many
# sentences of each of these clients.
_DESCRIBED_CLIENTS = 200
_DESCRIBED_SENTENCES = 64
_HINT = (
    f"let TFF download {FILE_NAME} (`tff.simulation.datasets.stackoverflow.load_data()`), or name "
    "the unpacked file by data=FILE, import text of your own with `fedmf data import`, or, "
    "offline, write a synthetic corpus with `fedmf data synth --clients N --out FILE`"
)


@dataclasses.dataclass(frozen=True)
class Corpus(ClientDatabase):
    """StackOverflow data file with a train split, whose records have the feature "tokens".

    Raises:
      FileNotFoundError, ValueError: as `ClientDatabase`, and for a file without these.
    """

    hint: str = _HINT

    def __post_init__(self) -> None:
        super().__post_init__()
        train_query = "SELECT client_id FROM client_metadata WHERE split_name = 'train' LIMIT 1"
        if not list(self.rows(train_query)):
            raise ValueError(
                f"{self.path} has no train split, so there is nobody to train on: {self.hint}"
            )
        record_rows = self.rows("SELECT serialized_example_proto FROM examples LIMIT 20")
        if not any(self.features(record).get("tokens") for (record,) in record_rows):
            raise ValueError(
                f"{self.path} holds no tf.train.Example with the feature 'tokens': {self.hint}"
            )

    @property
    def origin(self) -> str:
        """Origin of the file, which is "synthetic corpus", "imported text" or TFF_FILE."""
        return ORIGINS.get(self.application_id, TFF_FILE)

    @property
    def version(self) -> str:
        """Text that identifies the content of the file, from `version_of`."""
        return version_of(self.path)

    def sentences(self, split: str, client_id: str, limit: int = -1) -> list[bytes]:
        """Returns the first `limit` sentences of a client in file order."""
        records = self.records(split, client_id, limit)
        with self._decoding():
            return [text_of(record, "tokens") for record in records]

    def features(self, record: object) -> dict[str, Feature]:
        """Decodes the features of a record with `decode_example`."""
        serialized_example = self.blob(record)
        with self._decoding():
            return decode_example(serialized_example)

    @contextlib.contextmanager
    def _decoding(self) -> Iterator[None]:
        """Adds the file's name and advice to errors of decoding that are raised in the block."""
        try:
            yield
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}; {self.hint}") from None


def _bytes(example: dict[str, Feature], name: str) -> bytes:
    """Returns a byte-string feature of an example, or b"" if the example lacks it."""
    feature_value = example.get(name, b"")
    return feature_value if isinstance(feature_value, bytes) else b""


def version_of(path: pathlib.Path) -> str:
    """Returns a text that changes whenever SQLite changes the file.

    It is a digest of the header, which counts changes, and of the size, since reading all of the
    real file would take long.
    """
    with path.open("rb") as file:
        header_bytes = file.read(100)
    return hashlib.sha256(header_bytes + str(path.stat().st_size).encode()).hexdigest()[:16]


def open_corpus(path: str | os.PathLike[str] | None = None) -> Corpus:
    """Opens the data file at `path`. The path None means the file that TFF's load_data keeps.

    Nothing is downloaded.

    Raises:
      FileNotFoundError, ValueError: as `Corpus`.
    """
    if path is None:
        path = f"~/.tff/{FILE_NAME}"
    return Corpus(expanded(path))


def describe_file(path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Describes a data file from its metadata table and a sample of clients, without TensorFlow.

    Args:
      path: the file, None for TFF's cache.

    Returns:
      A JSON-able dict: path, bytes, origin, and for each split clients, examples,
      sentences_per_client (quantiles), and sample: clients, sentences, mean_sentence_length,
      first_date, last_date, distinct_words, top_words.

    Raises:
      FileNotFoundError, ValueError: as `open_corpus`.
    """
    corpus = open_corpus(path)
    description_by_split = {split: _describe_split(corpus, split) for split in SPLITS}
    return {
        "path": str(corpus.path),
        "bytes": corpus.path.stat().st_size,
        "origin": corpus.origin,
        "splits": description_by_split,
    }


def _describe_split(corpus: Corpus, split: str) -> dict[str, Any]:
    """Describes a split by its sizes and by the content of a sample of its clients."""
    size_by_client = corpus.client_sizes(split)
    if not size_by_client:
        return {"clients": 0, "examples": 0}
    sampled_clients = random.Random(0).sample(
        list(size_by_client), min(_DESCRIBED_CLIENTS, len(size_by_client))
    )
    words: Counter[bytes] = Counter()
    lengths: list[int] = []
    dates: list[bytes] = []
    for client_id in sampled_clients:
        for record in corpus.records(split, client_id, _DESCRIBED_SENTENCES):
            decoded_example = corpus.features(record)
            tokens = _bytes(decoded_example, "tokens").split()
            words.update(tokens)
            lengths.append(len(tokens))
            dates.append(_bytes(decoded_example, "creation_date"))
    mean_length = float(np.mean(lengths)) if lengths else 0.0
    return {
        "clients": len(size_by_client),
        "examples": sum(size_by_client.values()),
        "sentences_per_client": quantiles(list(size_by_client.values())),
        "sample": {
            "clients": len(sampled_clients),
            "sentences": len(lengths),
            "mean_sentence_length": mean_length,
            "first_date": min(dates, default=b"").decode(errors="replace"),
            "last_date": max(dates, default=b"").decode(errors="replace"),
            "distinct_words": len(words),
            "top_words": [word.decode(errors="replace") for word, _ in words.most_common(20)],
        },
    }
