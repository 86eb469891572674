"""Functions for files and folders, such as for paths, files that are written atomically, private
folders, locks of folders, and the cache folder.
"""

import contextlib
import errno
import os
import pathlib
import reprlib
import secrets
import shlex
import tempfile
import weakref
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TextIO


def expanded(path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the path with the home folder in place of a leading "~".

    Every path of a caller passes through this function, since Python itself would create a folder
    called "~" in the current folder.

    Raises:
      ValueError: the path begins with "~name", and there is no user of that name.

    >>> expanded("~/server") == pathlib.Path.home() / "server"
    True
    """
    path_text = os.fspath(path)
    expanded_text = os.path.expanduser(path_text)
    if path_text.startswith("~") and expanded_text == path_text:
        raise ValueError(
            f"path {path_text!r} begins with the home folder of a user that this machine does not "
            f"have: write the whole path, or './{path_text}' for a name that begins with ~"
        )
    expanded_path = pathlib.Path(expanded_text)
    # pathlib drops a leading "./", so that "./~name" would become "~name". The absolute path is
    # returned instead, because a second call of this function would take "~name" for a home folder.
    if str(expanded_path).startswith("~"):
        return expanded_path.absolute()
    return expanded_path


def shell_word(text: str) -> str:
    """Quotes a text, if necessary, so that a shell reads it as one word of a command line.

    If the text has an unprintable character such as a line end, bash's form $'...' keeps the
    command on one line.

    >>> shell_word("first"), shell_word("my run"), shell_word("two\\nlines")
    ('first', "'my run'", "$'two\\\\nlines'")
    """
    if text.isprintable():
        return shlex.quote(text)
    escape_by_code = {ord("\n"): "\\n", ord("'"): "\\'", ord("\\"): "\\\\"}
    quoted_characters = []
    for byte in os.fsencode(text):
        default_text = chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}"
        quoted_characters.append(escape_by_code.get(byte, default_text))
    return f"$'{''.join(quoted_characters)}'"


def shell_path(path: str | os.PathLike[str]) -> str:
    """Quotes a path, if necessary, so that a shell reads it as one word of a command line.

    A path that looks like an option or a home folder begins with ./ in the result.

    >>> shell_path("runs/first"), shell_path("my run"), shell_path("-x")
    ('runs/first', "'my run'", './-x')
    """
    path_text = os.fspath(path)
    if path_text.startswith(("-", "~")):
        path_text = f"./{path_text}"
    return shell_word(path_text)


def checked_path(name: str, value: Any, *, hint: str = "name a file") -> pathlib.Path:
    """Checks that an argument is a path, and returns it with the home folder in place of a leading
    "~". Errors end with `hint`, which says what to do instead.

    Raises:
      TypeError: the value is not a str or a path, or is empty.
    """
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise TypeError(f"{name}={reprlib.repr(value)} is no path: {hint}")
    return expanded(value)


def write_atomically(
    path: pathlib.Path, content: bytes | str | Callable[[BinaryIO], None], *, mode: int = 0o644
) -> None:
    """Writes a file in one step, so that after a crash, and for other processes, it has either the
    old content or the new one.

    Args:
      path: the file. A crash can leave a temporary file .NAME.*.part beside it.
      content: bytes, text to be written as UTF-8, or a function that writes to an open file.
      mode: permissions, from which the process's umask is subtracted as usual.
    """
    with _temporary_file(path, content, mode) as temporary:
        os.replace(temporary, path)


def write_exclusively(
    path: pathlib.Path, content: bytes | str | Callable[[BinaryIO], None], *, mode: int = 0o644
) -> None:
    """Creates a new file in one step. If several processes try to create it, only one succeeds.

    Args:
      path, content, mode: see `write_atomically`.

    Raises:
      FileExistsError: the file exists.
      OSError: the file cannot be written, or the file system has no hard links.
    """
    with _temporary_file(path, content, mode) as temporary:
        os.link(temporary, path)
        os.unlink(temporary)


@contextlib.contextmanager
def replacement_of(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a new path. The file or folder that the block writes there takes the place of `path`
    at the end of the block, and `path` stays as it is if the block raises an error.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        temporary_path = pathlib.Path(folder) / path.name
        yield temporary_path
        os.replace(temporary_path, path)


@contextlib.contextmanager
def _temporary_file(
    path: pathlib.Path, content: bytes | str | Callable[[BinaryIO], None], mode: int
) -> Iterator[pathlib.Path]:
    """Writes the content to a temporary file beside `path` and yields its path. After an error it
    removes the file.
    """
    temporary_path = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        file_descriptor = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(file_descriptor, "wb") as out:
            if callable(content):
                content(out)
            elif isinstance(content, str):
                out.write(content.encode())
            else:
                out.write(content)
            out.flush()
            os.fsync(out.fileno())
        yield temporary_path
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary_path)
        if isinstance(error, OSError):
            # The error of the temporary file would mislead the caller, who does not know that file.
            # So the new error names `path`.
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def make_folder(path: str | os.PathLike[str]) -> None:
    """Creates a folder and its missing parents, which only their owner can access.

    Existing folders keep their permissions.
    """
    path = pathlib.Path(path)
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def append_privately(path: pathlib.Path) -> TextIO:
    """Opens a file for appending text. If it is created, only its owner can access it."""
    return open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600))


def sync_folder(folder: pathlib.Path) -> None:
    """Writes the directory entries of a folder to the disk, so that new files in it survive a power
    failure.

    Raises:
      OSError: the file system failed, or cannot sync folders; the message says which.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise OSError(
            error.errno,
            "the file system syncs no folders, so that a power failure could take back what was "
            "released: name a folder on a local disk",
            str(folder),
        ) from error
    finally:
        os.close(descriptor)


def sync_names(folder: pathlib.Path) -> None:
    """Writes the directory entries of a folder, of its subfolder private/ and of all its parents to
    the disk, so that they survive a power failure.

    Folders that the process may not read are skipped.
    """
    for path in (folder / "private", folder, *folder.absolute().parents):
        with contextlib.suppress(PermissionError):
            sync_folder(path)


_LOCKS: "weakref.WeakSet[FolderLock]" = weakref.WeakSet()


class FolderLock:
    """Lock of this process on an open folder. It lasts until `release` or the end of the process.

    A forked process inherits the open folder and would hold the lock too. So it closes the folder,
    and `release` ends the lock even if a forked process still has it open.

    Attributes:
      descriptor: file descriptor of the folder; None after `release`, and in a forked process.
      is_exclusive: whether the file system has locks, so that no other process holds the folder.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor: int | None = descriptor
        self.is_exclusive = False
        _LOCKS.add(self)

    def release(self) -> None:
        """Ends the lock and closes the folder. Later calls do nothing."""
        folder_descriptor = self.descriptor
        self.descriptor = None
        if folder_descriptor is None:
            return
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(folder_descriptor, fcntl.LOCK_UN)
        os.close(folder_descriptor)

    def _leave_in_child(self) -> None:
        """Closes the folder in a forked process without unlocking it, because that would end the
        lock of the parent process.
        """
        folder_descriptor = self.descriptor
        self.descriptor = None
        if folder_descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(folder_descriptor)


def _leave_locks_in_child() -> None:
    """Closes all locked folders in a forked process, which must not hold its parent's locks."""
    for folder_lock in list(_LOCKS):
        folder_lock._leave_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks_in_child)


def lock(path: str | os.PathLike[str], *, requires_lock: bool = False) -> FolderLock | None:
    """Opens and locks a folder. Returns None if another process or object has locked it already.

    Args:
      path: the folder.
      requires_lock: whether to raise on a file system without locks. Otherwise the result there is
        a `FolderLock` that is not exclusive.

    Raises:
      NotImplementedError: `requires_lock`, and the file system has no locks.
      OSError: the path cannot be opened as a folder.
    """
    folder_lock = FolderLock(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
    try:
        import fcntl

        assert folder_lock.descriptor is not None
        fcntl.flock(folder_lock.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder_lock.is_exclusive = True
    except BlockingIOError:
        folder_lock.release()
        return None
    # Locks are impossible on some network file systems, and on systems without the module fcntl.
    except (ImportError, OSError) as error:
        if requires_lock:
            folder_lock.release()
            raise NotImplementedError("no locks") from error
    except BaseException:
        folder_lock.release()
        raise
    return folder_lock


def cache_folder() -> pathlib.Path | None:
    """Returns the folder of the disk cache, which is $FEDMF_CACHE or, by default, fedmf in the
    user's cache folder.

    The result is None if $FEDMF_CACHE is empty, which means that nothing is cached.
    """
    fedmf_cache = os.environ.get("FEDMF_CACHE")
    if fedmf_cache is not None:
        return expanded(fedmf_cache) if fedmf_cache else None
    user_cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return expanded(user_cache) / "fedmf"


def check_archive(path: str | os.PathLike[str]) -> None:
    """Checks the checksums of all entries of an .npz archive.

    numpy alone may miss a damaged file: it reads as many bytes as the header of an entry states,
    and a damaged header may state too few to reach the checksum.

    Raises:
      ValueError: the checksum of an entry is wrong.
      zipfile.BadZipFile, OSError: the file is not an archive, or cannot be read.
    """
    with zipfile.ZipFile(path) as archive:
        damaged_entry = archive.testzip()
    if damaged_entry is not None:
        raise ValueError(f"{damaged_entry} has another checksum")
