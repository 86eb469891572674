"""A file to which one process appends rows, with a check that no other program edits it."""

import hashlib
import os
import pathlib

from fedmf.files import write_atomically

Stamp = tuple[int, ...]


class FileWasEdited(ValueError):
    """The error for a file that another program edited, replaced or removed.

    Args:
      name: name of the file.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was edited, replaced or removed")
        self.name = name


class AppendedFile:
    """A file of rows. Each row is written once, at the end of the file.

    Rows that an interrupt or a full disk kept from the file are written by the next `flush`.

    Args:
      path: path of the file, which has mode 0600.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._end = 0
        self._digest = hashlib.sha256()
        self._pending = b""
        # Numbers of the file, such as size and times, after the last write of this process. If they
        # differ later, another program wrote to the file.
        self._stamp: Stamp | None = None

    def begin(self) -> None:
        """Creates the file without rows."""
        write_atomically(self.path, b"", mode=0o600)

    @property
    def end(self) -> int:
        """The number of bytes of all rows, including those that are not in the file yet."""
        return self._end + len(self._pending)

    def digest(self) -> str:
        """Returns the SHA-256 of all rows, including those that are not in the file yet."""
        digest_with_pending = self._digest.copy()
        digest_with_pending.update(self._pending)
        return digest_with_pending.hexdigest()

    def restore(self, rows: bytes) -> bytes:
        """Sets the rows that the file must have, and returns the bytes that follow them in the
        file. The next `flush` writes rows that are missing.

        The file may be missing, or end within the rows, where a crash came before they were
        written.

        Raises:
          FileWasEdited: the file has other bytes in their place.
          OSError: it cannot be read.
        """
        try:
            file_content = self.path.read_bytes()
        except FileNotFoundError:
            file_content = b""
        written_rows = file_content[: len(rows)]
        if not rows.startswith(written_rows):
            raise FileWasEdited(self.path.name)
        self._end = len(written_rows)
        self._digest = hashlib.sha256(written_rows)
        self._pending = rows[len(written_rows) :]
        self._stamp = None
        return file_content[len(rows) :]

    def append(self, rows: bytes) -> None:
        """Adds rows that the next `flush` writes."""
        self._pending += rows

    def check(self) -> None:
        """Checks that the file still has the rows that this process wrote. Its contents are read
        only if its stamp has changed.

        Raises:
          FileWasEdited: it is missing or has other rows.
        """
        try:
            with open(self.path, "rb") as file:
                if self._stamp != stamp_of(file.fileno()):
                    written_digest = hashlib.sha256(file.read(self._end))
                    if written_digest.digest() != self._digest.digest():
                        raise FileWasEdited(self.path.name)
        except FileNotFoundError:
            raise FileWasEdited(self.path.name) from None

    def flush(self, *, sync: bool = False) -> None:
        """Writes the rows that are not in the file yet. Bytes that follow the rows, left by an
        interrupted write, are removed first.

        Args:
          sync: whether to wait until no power failure can lose them.

        Raises:
          FileWasEdited: the file is missing.
          OSError: it cannot be written.
        """
        open_flags = os.O_RDWR
        if not self._end:
            open_flags |= os.O_CREAT
        try:
            file_descriptor = os.open(self.path, open_flags, 0o600)
        except FileNotFoundError:
            raise FileWasEdited(self.path.name) from None
        with os.fdopen(file_descriptor, "r+b") as file:
            if os.fstat(file_descriptor).st_size != self._end:
                file.truncate(self._end)
            if self._pending:
                file.seek(self._end)
                file.write(self._pending)
                file.flush()
            if sync:
                os.fsync(file_descriptor)
            self._count_as_written(stamp_of(file_descriptor))

    def _count_as_written(self, stamp: Stamp) -> None:
        """Counts the pending rows as written, and remembers the file's new size and times."""
        new_digest = self._digest.copy()
        new_digest.update(self._pending)
        new_end = self._end + len(self._pending)
        # All attributes are set in one assignment, so that an interrupt is unlikely to leave only
        # some of them changed.
        self._digest, self._end, self._pending, self._stamp = new_digest, new_end, b"", stamp


def stamp_of(file: int | pathlib.Path) -> Stamp:
    """Returns a file's device, inode, size and times, some of which change when a program writes to
    it.
    """
    file_status = os.stat(file)
    return (
        file_status.st_dev,
        file_status.st_ino,
        file_status.st_size,
        file_status.st_mtime_ns,
        file_status.st_ctime_ns,
    )
