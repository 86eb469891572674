"""Reader of TFF's SQLite format of federated data (tff.simulation.datasets.SqlClientData), which
needs no TensorFlow.

A file holds an `examples` table of serialized tf.train.Example with the client's id and the split's
name, and a `client_metadata` table of the number of examples of each client in each split.
"""

import contextlib
import dataclasses
import hashlib
import pathlib
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedmf.tasks.data_file import SYNTHETIC

# Size of the header of an SQLite file in bytes, see sqlite.org/fileformat2.html.
_HEADER = 100
_COLUMNS = {
    "examples": ("split_name", "client_id", "serialized_example_proto"),
    "client_metadata": ("client_id", "split_name", "num_examples"),
}


@dataclasses.dataclass(frozen=True)
class ClientDatabase:
    """SQLite file of federated data in TFF's format.

    Attributes:
      path: the file.
      hint: what errors tell the user to do, such as "fetch it again".

    Raises:
      FileNotFoundError: there is no such file; `hint` says what to put where.
      ValueError: a folder, an empty, truncated or unreadable file, one in write-ahead mode, or
        another format.
    """

    path: pathlib.Path
    hint: str

    def __post_init__(self) -> None:
        if not self.path.exists():
            raise FileNotFoundError(f"there is no file {self.path}: {self.hint}")
        try:
            self._check_header()
        except OSError as error:
            raise ValueError(
                f"{self.path} cannot be read: {error.strerror or error}; name a file that you may "
                "read"
            ) from None
        for table, required_columns in _COLUMNS.items():
            table_columns = {row[1] for row in self.rows(f"PRAGMA table_info({table})")}
            missing_columns = [column for column in required_columns if column not in table_columns]
            if missing_columns:
                raise ValueError(
                    f"{self.path} has no column {missing_columns[0]!r} in a table {table!r}, so it "
                    f"is not TFF's format: {self.hint}"
                )

    def _header(self) -> bytes:
        """Reads the SQLite header of the file."""
        with self.path.open("rb") as file:
            return file.read(_HEADER)

    def _check_header(self) -> None:
        """Raises an error if the file is not SQLite, is truncated, or uses a write-ahead log."""
        file_size = self.path.stat().st_size
        header_bytes = self._header()
        if not header_bytes.startswith(b"SQLite format 3\0"[: len(header_bytes)]):
            is_packed = self.path.suffix == ".lzma"
            file_hint = "the packed download; unpack it with `unlzma`" if is_packed else self.hint
            raise ValueError(f"{self.path} is not a SQLite file: {file_hint}")
        least_size = _least_file_size(header_bytes)
        if file_size < least_size:
            raise ValueError(
                f"{self.path} is truncated ({file_size} bytes of {least_size}): {self.hint}"
            )
        # If the path is a symbolic link, SQLite keeps the write-ahead log beside the file that the
        # link leads to, and not beside the link.
        log_path = self.path.resolve().with_name(f"{self.path.resolve().name}-wal")
        # With a write-ahead log, the newest rows are not in the file, so the file's digest, which a
        # resumed run compares, would miss changes of them.
        if 2 in header_bytes[18:20] or (log_path.exists() and log_path.stat().st_size):
            raise ValueError(
                f"{self.path} is in SQLite's write-ahead mode, in which changes lie beside it, in "
                f"{log_path.name}: close its writer and run `PRAGMA journal_mode=DELETE` on it"
            )

    @contextlib.contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Opens a read-only connection to the file.

        SQLite's errors become a ValueError that names the file and the way out.
        """
        try:
            connection = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True)
            with contextlib.closing(connection):
                yield connection
        except sqlite3.Error as error:
            raise ValueError(f"{self.path} cannot be read ({error}): {self.hint}") from None

    def rows(self, query: str, *arguments: object) -> Iterator[Any]:
        """Yields the rows that a query returns, using a new connection."""
        with self.connection() as connection:
            yield from connection.execute(query, arguments)

    @property
    def application_id(self) -> int:
        """SQLite application id, which is `SYNTHETIC` or `IMPORTED` of `fedmf.tasks.data_file`, or
        0 for TFF's own files.
        """
        [(number,)] = self.rows("PRAGMA application_id")
        return int(number)

    @property
    def synthetic(self) -> bool:
        """Whether fedmf wrote the file as a synthetic substitute."""
        return self.application_id == SYNTHETIC

    @property
    def version(self) -> str:
        """Digest of the file, which identifies the data."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]

    def client_sizes(self, split: str) -> dict[str, int]:
        """Returns a mapping from client id to number of examples in a split, in the order of TFF's
        loader.
        """
        query = (
            "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ? ORDER BY "
            "client_id"
        )
        return dict(self.rows(query, split))

    def splits(self) -> list[str]:
        """Returns the names of the splits, sorted."""
        query = "SELECT DISTINCT split_name FROM client_metadata ORDER BY split_name"
        return [str(name) for (name,) in self.rows(query)]

    def records(self, split: str, client_id: str, limit: int = -1) -> list[bytes]:
        """Returns a client's serialized examples in file order, at most `limit` of them (-1 for
        all).
        """
        query = (
            "SELECT serialized_example_proto FROM examples WHERE client_id = ? AND split_name = ? "
            "LIMIT ?"
        )
        return [self.blob(record) for (record,) in self.rows(query, client_id, split, limit)]

    def numbered_records(
        self, split: str, client_ids: Sequence[str]
    ) -> Iterator[tuple[str, int, bytes]]:
        """Yields the client id, row number and serialized example of each example of these
        clients.
        """
        query = (
            "SELECT rowid, serialized_example_proto FROM examples WHERE client_id = ? AND "
            "split_name = ? ORDER BY rowid"
        )
        for client_id in client_ids:
            for number, record in self.rows(query, client_id, split):
                yield client_id, number, self.blob(record)

    def records_at(self, numbers: Sequence[int]) -> list[bytes]:
        """Returns the serialized examples in the rows with these numbers."""
        query = "SELECT serialized_example_proto FROM examples WHERE rowid = ?"
        with self.connection() as connection:
            database_rows = (connection.execute(query, (number,)).fetchone() for number in numbers)
            return [self.blob(row and row[0]) for row in database_rows]

    def blob(self, record: object) -> bytes:
        """Returns a record as bytes, or raises an error if it has another type."""
        if not isinstance(record, bytes):
            raise ValueError(
                f"{self.path} holds a {type(record).__name__} where a tf.train.Example belongs: "
                f"{self.hint}"
            )
        return record


def quantiles(sizes: Sequence[int]) -> dict[str, float]:
    """Returns the smallest and the largest number of examples of a client, and three quantiles
    between them.
    """
    level_by_name = {"min": 0.0, "10%": 0.1, "median": 0.5, "90%": 0.9, "max": 1.0}
    return {name: float(np.quantile(sizes, level)) for name, level in level_by_name.items()}


def _least_file_size(header: bytes) -> int:
    """Returns the file size that a SQLite header states, or a lower bound if it states none."""
    if len(header) < _HEADER:
        return _HEADER
    page_size, changes, num_pages = struct.unpack(">H6xII", header[16:32])
    if page_size == 1:
        page_size = 65_536
    # The page count of an SQLite header is valid only if the two change counters agree. Older
    # programs left it unset.
    has_page_count = changes == struct.unpack(">I", header[92:96])[0]
    return int(page_size * num_pages) if has_page_count else int(page_size)
