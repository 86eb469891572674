"""Files that are written whole or not at all, folders of their owner alone, locks,
and the cache folder.
"""

import contextlib
import os
import pathlib
import secrets
import zipfile
from collections.abc import Callable
from typing import BinaryIO, TextIO


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
        os.replace(temporary, path)
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


def lock(descriptor: int, *, without: bool = True) -> bool:
    """Locks an open file or folder until it is closed.

    False if another process holds the lock; `without` where there are no locks.

    Args:
      descriptor: of the file.
      without: False raises OSError there.
    """
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError) as error:  # some network file systems have none
        if not without:
            raise OSError("no locks") from error
    return True


def cache_folder() -> pathlib.Path | None:
    """$FEDMF_CACHE, or else fedmf in the user's cache folder.

    None where $FEDMF_CACHE is set to nothing: keep no cache.
    """
    if "FEDMF_CACHE" in os.environ:
        return pathlib.Path(os.environ["FEDMF_CACHE"]) if os.environ["FEDMF_CACHE"] else None
    return (
        pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "fedmf"
    )


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
