"""Opens, checks and describes a StackOverflow data file: TFF's own, a synthetic one or imported
text in the same format.
"""

import contextlib
import functools
import hashlib
import os
import pathlib
import random
import sqlite3
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedmf.tasks import example_proto
from fedmf.tasks.client_database import quantiles
from fedmf.tasks.data_file import ORIGINS, SPLITS

FILE_NAME = "stackoverflow.sqlite"
TFF_FILE = "StackOverflow file"

_SQLITE_HEADER = 100  # bytes
_DESCRIBED_SENTENCES = 64  # of each sampled client

_COLUMNS = {
    "examples": ("split_name", "client_id", "serialized_example_proto"),
    "client_metadata": ("client_id", "split_name", "num_examples"),
}
_HINT = (
    "fetch the file again, or write a synthetic one with `fedmf data synth --clients N --out FILE`"
)
# `PRAGMA wal_checkpoint` alone would leave a header that looks as before the changes.
_OUT_OF_WAL = "`PRAGMA journal_mode=DELETE` on it"


def resolve_path(path: str | os.PathLike[str] | None) -> pathlib.Path:
    """The data file at `path`; None is where TFF's own load_data keeps it. Nothing is downloaded.

    Raises:
      FileNotFoundError: no such file; the message says what to put where.
      ValueError: a folder.
    """
    wanted = pathlib.Path("~/.tff").expanduser() / FILE_NAME if path is None else pathlib.Path(path)
    if wanted.is_dir():
        raise ValueError(
            f"{wanted} is a folder: name the data file in it, such as {wanted / FILE_NAME}"
        )
    if not wanted.exists():
        raise FileNotFoundError(
            f"no StackOverflow data at {wanted}: put TFF's unpacked {FILE_NAME} there or name it "
            "by data=FILE, or, offline, write a synthetic corpus with `fedmf data synth "
            "--clients N --out FILE`"
        )
    return wanted


def _check_header(path: pathlib.Path) -> None:
    """Refuses what is not a whole SQLite file that counts its changes, by its header
    (sqlite.org/fileformat2.html) and its size.
    """
    size = path.stat().st_size
    _check_no_log(path)
    if size == 0:
        raise ValueError(f"{path} is empty: {_HINT}")
    with path.open("rb") as file:
        header = file.read(_SQLITE_HEADER)
    if not header.startswith(b"SQLite format 3\0"[: len(header)]):
        own = "import a CSV, JSON lines or Parquet file of your own with `fedmf data import`, or "
        what = (
            "the packed download; unpack it with `unlzma`"
            if path.suffix == ".lzma"
            else own + _HINT
        )
        raise ValueError(f"{path} is not a SQLite file: {what}")
    pages = changes = valid_for = page_size = 0
    if len(header) == 100:
        page_size = struct.unpack(">H", header[16:18])[0]
        page_size = 65_536 if page_size == 1 else page_size
        changes, pages = struct.unpack(">II", header[24:32])
        valid_for = struct.unpack(">I", header[92:96])[0]
    # The page count in the header is in use only when both counters agree;
    # older writers left it unset.
    if len(header) < 100 or (changes == valid_for and pages * page_size > size) or size < page_size:
        raise ValueError(
            f"{path} is truncated ({size} bytes of {max(pages * page_size, 100)}): {_HINT}"
        )
    # Checkpointed or not: what SQLite writes in this mode leaves the header's counter as it is, and
    # a resume would not notice.
    if 2 in header[18:20]:
        raise ValueError(
            f"{path} is in SQLite's write-ahead mode (WAL), in which its header does not count "
            f"changes: close its writer and run {_OUT_OF_WAL}"
        )


def _check_no_log(path: pathlib.Path) -> None:
    """Refuses changes that lie beside the file: SQLite reads them with it,
    whatever its header says.
    """
    resolved = path.resolve()  # as SQLite does: the log is beside the file, not beside a link to it
    log = resolved.with_name(f"{resolved.name}-wal")
    size = log.stat().st_size if log.exists() else 0
    if size:
        raise ValueError(
            f"{path} has changes that are not in it yet, {size} bytes in {log}: close its writer "
            f"and run {_OUT_OF_WAL}"
        )


@contextlib.contextmanager
def connect(path: pathlib.Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection; SQLite's own errors become a ValueError that names the file and the
    way out.
    """
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            yield connection
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise ValueError(
            f"{path} cannot be read as StackOverflow data ({error}): {_HINT}"
        ) from None


def check_file(path: str | os.PathLike[str] | None) -> pathlib.Path:
    """Checks that a file is whole as far as can be told without reading it all, and holds the
    tables and a train split.

    Args:
      path: the file, None for TFF's cache.

    Returns:
      The file's path.

    Raises:
      FileNotFoundError: there is none.
      ValueError: a folder, an empty, truncated or unreadable file, one in write-ahead mode, another
        format, or no train split.
    """
    file = resolve_path(path)
    try:
        _check_header(file)
    except OSError as error:
        raise ValueError(
            f"{file} cannot be read: {error.strerror or error}; check its permissions"
        ) from None
    with connect(file) as connection:
        for table, wanted in _COLUMNS.items():
            columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
            missing = [column for column in wanted if column not in columns]
            if not columns:
                raise ValueError(
                    f"{file} has no table {table!r}, so it is not TFF's "
                    f"StackOverflow format: {_HINT}"
                )
            if missing:
                raise ValueError(
                    f"{file}: table {table!r} lacks the column {missing[0]!r}: {_HINT}"
                )
        first = connection.execute(
            "SELECT client_id FROM client_metadata WHERE split_name = 'train' LIMIT 1"
        ).fetchone()
        if first is None:
            raise ValueError(f"{file} has no train split, so there is nobody to train on: {_HINT}")
        records = connection.execute(
            "SELECT serialized_example_proto FROM examples LIMIT 20"
        ).fetchall()
    if not any(_features(file, record).get("tokens") for (record,) in records):
        raise ValueError(f"{file} holds no tf.train.Example with the feature 'tokens': {_HINT}")
    return file


def origin(path: pathlib.Path) -> str:
    """Where the file comes from: "synthetic corpus", "imported text", or else TFF_FILE."""
    with connect(path) as connection:
        return ORIGINS.get(connection.execute("PRAGMA application_id").fetchone()[0], TFF_FILE)


def client_sizes(path: pathlib.Path, split: str) -> dict[str, int]:
    """client id -> number of examples in `split`, from the metadata table, in the sorted order of
    TFF's loader.
    """
    with connect(path) as connection:
        query = (
            "SELECT client_id, num_examples FROM client_metadata WHERE split_name "
            "= ? ORDER BY client_id"
        )
        return dict(connection.execute(query, (split,)))


def iterate_examples(
    path: pathlib.Path, split: str, client_ids: list[str], limit: int = -1
) -> Iterator[list[dict[str, Any]]]:
    """Yields for each client its examples in file order, at most `limit` (-1 for all), as feature
    name -> bytes or int.

    For counting and describing, without TensorFlow; training reads through `Corpus`.
    """
    query = (
        "SELECT serialized_example_proto FROM examples WHERE client_id = ? AND "
        "split_name = ? LIMIT ?"
    )
    with connect(path) as connection:
        for client_id in client_ids:
            rows = connection.execute(query, (client_id, split, limit))
            yield [_features(path, record) for (record,) in rows]


def _features(path: pathlib.Path, record: Any) -> dict[str, example_proto.Feature]:
    try:
        return example_proto.decode_example(record if isinstance(record, bytes) else b"\xff")
    except ValueError as error:
        raise ValueError(f"{path}: {error}; {_HINT}") from None


class Corpus:
    """The splits of a checked data file, read by TFF's own loader.

    Attributes:
      path: the file.
      origin: as `origin` says.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.origin = origin(path)
        self._clients: dict[str, Any] = {}

    @property
    def version(self) -> str:
        """Another text after every change that SQLite made to the file: its header counts them, and
        has the size.
        """
        with open(self.path, "rb") as file:
            header = file.read(_SQLITE_HEADER)
        return hashlib.sha256(header + str(self.path.stat().st_size).encode()).hexdigest()[:16]

    def _client_data(self, split: str) -> Any:
        from fedmf.federated.tff import tff

        if split not in SPLITS:
            raise ValueError(f"split={split!r} must be one of {', '.join(SPLITS)}")
        if split not in self._clients:
            self._clients[split] = tff.simulation.datasets.SqlClientData(str(self.path), split)
        return self._clients[split]

    def client_ids(self, split: str) -> list[str]:
        """Client ids of a split in TFF's order (sorted as strings)."""
        return list(self._client_data(split).client_ids)

    def sentences(self, split: str, client_id: str, limit: int) -> np.ndarray:
        """The first `limit` sentences of a client in file order, object array of bytes; none of an
        unknown client.
        """
        import tensorflow as tf

        dataset = self._client_data(split).serializable_dataset_fn(tf.constant(client_id))
        records = list(dataset.take(limit).batch(limit).with_options(_plain_options()))
        if not records:
            return np.zeros((0,), object)
        return tf.io.parse_example(records[0], {"tokens": tf.io.FixedLenFeature((), tf.string)})[
            "tokens"
        ].numpy()


@functools.cache
def _plain_options() -> Any:
    """Without the graph rewriting and tuning that take longer than reading one client's rows."""
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return options


def open_corpus(path: str | os.PathLike[str] | None = None) -> Corpus:
    """Opens a StackOverflow data file for training.

    Args:
      path: the SQLite file; None for TFF's own cache, ~/.tff/stackoverflow.sqlite.
        Nothing is downloaded.

    Returns:
      The corpus.

    Raises:
      FileNotFoundError, ValueError: as `check_file`.
    """
    return Corpus(check_file(path))


def describe_file(
    path: str | os.PathLike[str] | None = None, *, sample_clients: int = 200, seed: int = 0
) -> dict[str, Any]:
    """Describes a data file from its metadata table and a sample of clients; needs no TensorFlow.

    Args:
      path: the file, None for TFF's cache.
      sample_clients: clients read per split for words, lengths and dates.
      seed: draws the sample.

    Returns:
      A JSON-able dict: path, bytes, origin, and for each split clients, examples,
      sentences_per_client (quantiles), and sample: clients, sentences, mean_sentence_length,
      first_date, last_date, distinct_words, top_words.

    Raises:
      FileNotFoundError, ValueError: as `check_file`.
    """
    file = check_file(path)
    splits = {split: _describe_split(file, split, sample_clients, seed) for split in SPLITS}
    return {
        "path": str(file),
        "bytes": file.stat().st_size,
        "origin": origin(file),
        "splits": splits,
    }


def _describe_split(
    path: pathlib.Path, split: str, sample_clients: int, seed: int
) -> dict[str, Any]:
    sizes = client_sizes(path, split)
    if not sizes:
        return {"clients": 0, "examples": 0}
    sample = random.Random(seed).sample(list(sizes), min(sample_clients, len(sizes)))
    words: Counter[bytes] = Counter()
    lengths: list[int] = []
    dates: list[bytes] = []
    for examples in iterate_examples(path, split, sample, limit=_DESCRIBED_SENTENCES):
        for example in examples:
            tokens = example.get("tokens", b"").split()
            words.update(tokens)
            lengths.append(len(tokens))
            dates.append(example.get("creation_date", b""))
    return {
        "clients": len(sizes),
        "examples": sum(sizes.values()),
        "sentences_per_client": quantiles(list(sizes.values())),
        "sample": {
            "clients": len(sample),
            "sentences": len(lengths),
            "mean_sentence_length": float(np.mean(lengths)) if lengths else 0.0,
            "first_date": min(dates, default=b"").decode(errors="replace"),
            "last_date": max(dates, default=b"").decode(errors="replace"),
            "distinct_words": len(words),
            "top_words": [word.decode(errors="replace") for word, _ in words.most_common(20)],
        },
    }
