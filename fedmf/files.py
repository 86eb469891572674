"""Paths as people write them, files that are written whole or not at all, folders of their owner
alone, locks, and the cache folder.
"""

import contextlib
import errno
import os
import pathlib
import reprlib
import secrets
import shlex
import weakref
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TextIO


def expanded(path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the path, with the home folder in place of a leading "~".

    Every path that a caller gives goes through this function: by its text "~/server" looks like
    one place, and Python would make a folder of the name "~" wherever the program stands.

    Raises:
      ValueError: a leading "~name" of which there is no user.

    >>> expanded("~/server") == pathlib.Path.home() / "server"
    True
    """
    text = os.fspath(path)
    full = os.path.expanduser(text)
    if text.startswith("~") and full == text:
        raise ValueError(
            f"path {text!r} begins with the home folder of a user that this machine does not have: "
            f"write the whole path, or './{text}' for a name that begins with ~"
        )
    whole = pathlib.Path(full)
    # pathlib drops "./", and a second expansion would take the name for a user's.
    return whole.absolute() if str(whole).startswith("~") else whole


def shell_word(text: str) -> str:
    """Returns a text as one word of a command line, in quotes where a shell needs them.

    A text with a line end or another character that does not show is written in bash's $'...', so
    that the command stays one line.

    >>> shell_word("first"), shell_word("my run"), shell_word("two\\nlines")
    ('first', "'my run'", "$'two\\\\nlines'")
    """
    if text.isprintable():
        return shlex.quote(text)
    escapes = {ord("\n"): "\\n", ord("'"): "\\'", ord("\\"): "\\\\"}
    characters = []
    for byte in os.fsencode(text):
        plain = chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}"
        characters.append(escapes.get(byte, plain))
    return f"$'{''.join(characters)}'"


def shell_path(path: str | os.PathLike[str]) -> str:
    """Returns a path as a command line takes it: in quotes where a shell needs them, and with ./ in
    front of what would be an option or a home folder.

    >>> shell_path("runs/first"), shell_path("my run"), shell_path("-x")
    ('runs/first', "'my run'", './-x')
    """
    text = os.fspath(path)
    is_special = text.startswith(("-", "~"))
    return shell_word(f"./{text}" if is_special else text)


def checked_path(name: str, value: Any, *, hint: str = "name a file") -> pathlib.Path:
    """Returns the expanded path that an argument names; `hint` ends the error's sentence.

    Raises:
      TypeError: no text and no path, or an empty one.
    """
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise TypeError(f"{name}={reprlib.repr(value)} is no path: {hint}")
    return expanded(value)


def write_atomically(
    path: pathlib.Path, content: bytes | str | Callable[[BinaryIO], None], *, mode: int = 0o644
) -> None:
    """Replaces `path` by `content` in one step: a reader or a crash sees the old file or the new
    one, never half of one.

    Args:
      path: the file; a crash can leave a temporary .NAME.*.part beside it.
      content: bytes, text to be written as UTF-8, or a function that writes to an open file.
      mode: permissions, of which the process's umask takes away as usual.
    """
    with _whole_temporary(path, content, mode) as temporary:
        os.replace(temporary, path)


def write_exclusively(
    path: pathlib.Path, content: bytes | str | Callable[[BinaryIO], None], *, mode: int = 0o644
) -> None:
    """Makes a file that was not there, whole or not at all: of two processes one makes it.

    Args:
      path, content, mode: as of `write_atomically`.

    Raises:
      FileExistsError: the file is there.
      OSError: it cannot be written, or the file system has no hard links.
    """
    with _whole_temporary(path, content, mode) as temporary:
        os.link(temporary, path)
        os.unlink(temporary)


@contextlib.contextmanager
def _whole_temporary(
    path: pathlib.Path, content: bytes | str | Callable[[BinaryIO], None], mode: int
) -> Iterator[pathlib.Path]:
    """Gives the content in a temporary file beside `path`, which is removed after an error."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as out:
            if callable(content):
                content(out)
            else:
                out.write(content.encode() if isinstance(content, str) else content)
            out.flush()
            os.fsync(out.fileno())
        yield temporary
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):  # names the file, not the temporary one
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def make_folder(path: str | os.PathLike[str]) -> None:
    """Makes the folder, and those above it that are missing, for their owner alone.

    One that is there stays as it is.
    """
    path = pathlib.Path(path)
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def append_privately(path: pathlib.Path) -> TextIO:
    """The file, opened to append text; a new one is its owner's alone."""
    return open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600))


def sync_folder(folder: pathlib.Path) -> None:
    """Makes the names in a folder ones that no power failure takes back.

    Raises:
      OSError: they cannot be; where the file system syncs no folders it says so.
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
    """Makes a folder of the process's own, its private/, and their names ones that no power failure
    takes back.
    """
    for path in (folder / "private", folder, *folder.absolute().parents):
        with contextlib.suppress(PermissionError):
            sync_folder(path)


_LOCKS: "weakref.WeakSet[FolderLock]" = weakref.WeakSet()


class FolderLock:
    """A lock on an open folder, of this process alone, until `release` or the process' end.

    A forked process shares the descriptor, and with it the lock: it closes its copy, and `release`
    ends the lock whoever still has one.

    Attributes:
      descriptor: of the folder; None once it was released, and in a forked process.
      is_exclusive: whether the file system has locks, so that no other process holds the folder.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor: int | None = descriptor
        self.is_exclusive = False
        _LOCKS.add(self)

    def release(self) -> None:
        """Ends the lock and closes the folder; does nothing the second time."""
        descriptor = self.descriptor
        self.descriptor = None
        if descriptor is None:
            return
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

    def _leave_in_child(self) -> None:
        """Closes a forked process' copy: unlocking it would unlock the parent's folder."""
        descriptor = self.descriptor
        self.descriptor = None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _leave_locks_in_child() -> None:
    for folder_lock in list(_LOCKS):
        folder_lock._leave_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks_in_child)


def lock(path: str | os.PathLike[str], *, without: bool = True) -> FolderLock | None:
    """Opens a folder and locks it; None if another holder has the lock.

    Args:
      path: of the folder.
      without: whether a file system without locks does as well; False raises
        NotImplementedError there.

    Raises:
      OSError: it cannot be opened as a folder.
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
    except (ImportError, OSError) as error:  # some network file systems have none
        if not without:
            folder_lock.release()
            raise NotImplementedError("no locks") from error
    except BaseException:
        folder_lock.release()
        raise
    return folder_lock


def cache_folder() -> pathlib.Path | None:
    """$FEDMF_CACHE, or else fedmf in the user's cache folder.

    None where $FEDMF_CACHE is set to nothing: keep no cache.
    """
    if "FEDMF_CACHE" in os.environ:
        return expanded(os.environ["FEDMF_CACHE"]) if os.environ["FEDMF_CACHE"] else None
    return expanded(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "fedmf"


def check_archive(path: str | os.PathLike[str]) -> None:
    """Reads every entry of an .npz archive to its end.

    numpy reads as many bytes as an entry's own header asks for: of an entry damaged there, too few
    to reach its checksum.

    Raises:
      ValueError: an entry has another checksum.
      zipfile.BadZipFile, OSError: it is no archive, or cannot be read.
    """
    with zipfile.ZipFile(path) as archive:
        if (damaged := archive.testzip()) is not None:
            raise ValueError(f"{damaged} has another checksum")
