"""A file that grows by rows, and that somebody else may not edit meanwhile."""

import hashlib
import os
import pathlib

from fedmf.files import write_atomically

Stamp = tuple[int, ...]


class FileWasEdited(ValueError):
    """A file is not the one that this process has written."""


class AppendedFile:
    """Rows at the end of a file; each is written once, and no row before it again.

    What an interrupt or a full disk kept from the file is written by the next `flush`.

    Args:
      path: of the file; mode 0600.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._end = 0
        self._digest = hashlib.sha256()
        self._pending = b""
        # What the file system says of the file as this process left it.
        self._stamp: Stamp | None = None

    def begin(self) -> None:
        """Writes the empty file."""
        write_atomically(self.path, b"", mode=0o600)

    @property
    def end(self) -> int:
        """Bytes of all rows, those that are not in the file yet among them."""
        return self._end + len(self._pending)

    def digest(self) -> str:
        """Returns the SHA-256 of all rows, those that are not in the file yet among them."""
        whole = self._digest.copy()
        whole.update(self._pending)
        return whole.hexdigest()

    def restore(self, rows: bytes) -> bytes:
        """Makes `rows` the content for the next `flush`, and returns what the file has behind them.

        A file that is missing, or that has the first of these bytes only, gets the others then: a
        crash kept them from it.

        Raises:
          FileWasEdited: it has other bytes in their place.
          OSError: it cannot be read.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            content = b""
        shared = content[: len(rows)]
        if not rows.startswith(shared):
            raise FileWasEdited(f"{self.path.name} has other rows than the journal")
        self._end = len(shared)
        self._digest = hashlib.sha256(shared)
        self._pending = rows[len(shared) :]
        self._stamp = None
        return content[len(rows) :]

    def append(self, rows: bytes) -> None:
        """Adds rows, which the next `flush` writes."""
        self._pending += rows

    def check(self) -> None:
        """Compares the file with what this process wrote, where somebody has written to it.

        Raises:
          FileWasEdited: it is missing or has other rows.
        """
        try:
            with open(self.path, "rb") as file:
                if self._stamp != stamp_of(file.fileno()):
                    written = hashlib.sha256(file.read(self._end))
                    if written.digest() != self._digest.digest():
                        raise FileWasEdited(f"{self.path.name} was edited")
        except FileNotFoundError:
            raise FileWasEdited(f"{self.path.name} was removed") from None

    def flush(self, *, sync: bool = False) -> None:
        """Writes the rows that are not in the file yet, and removes what is behind them.

        Args:
          sync: whether a power failure may not lose them from now on.

        Raises:
          FileWasEdited: the file is missing.
          OSError: it cannot be written.
        """
        flags = os.O_RDWR
        if not self._end:
            flags |= os.O_CREAT
        try:
            descriptor = os.open(self.path, flags, 0o600)
        except FileNotFoundError:
            raise FileWasEdited(f"{self.path.name} was removed") from None
        with os.fdopen(descriptor, "r+b") as file:
            if os.fstat(descriptor).st_size != self._end:
                file.truncate(self._end)
            if self._pending:
                file.seek(self._end)
                file.write(self._pending)
                file.flush()
            if sync:
                os.fsync(descriptor)
            self._count(stamp_of(descriptor))

    def _count(self, stamp: Stamp) -> None:
        """Counts the pending rows as written."""
        digest = self._digest.copy()
        digest.update(self._pending)
        end = self._end + len(self._pending)
        self._digest, self._end, self._pending, self._stamp = digest, end, b"", stamp


def stamp_of(file: int | pathlib.Path) -> Stamp:
    """Returns what changes when somebody writes to a file, an open or a named one."""
    state = os.stat(file)
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
