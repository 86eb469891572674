"""What a command says that was stopped: by Ctrl-C, by a full disk, or before its first round."""

import contextlib
import errno
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from fedmf.cli.errors import BadArgument, one_line

# No room on the disk, in the user's quota, and in what `ulimit -f` allows.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def training(out: pathlib.Path, *, resume: bool) -> Iterator[Callable[[], None]]:
    """Around the making of a task and its training in `out`; yields the training's `on_start`.

    Raises:
      BadArgument: for an error of the inputs before the first round. The same error later is a
        failed run.
      Interrupted: for Ctrl-C that the training itself has not answered.
      OSError: for a full disk.
    """
    from fedmf.terminal.interrupts import Interrupted

    another_run = not resume and (out / "config.json").exists()  # which will be refused
    begun = False

    def begin() -> None:
        nonlocal begun
        begun = True

    try:
        yield begin
    except KeyboardInterrupt:
        if another_run:
            raise
        raise Interrupted(f"interrupted: {_how_to_go_on(out)}") from None
    except OSError as error:
        if error.errno in _FULL:
            how_to_go_on = (
                "nothing in the folder has changed" if another_run else _how_to_go_on(out)
            )
            raise OSError(f"{one_line(error)}: make room; {how_to_go_on}") from error
        if begun or not isinstance(error, FileNotFoundError):
            raise
        raise BadArgument(one_line(error)) from error
    except (ValueError, TypeError) as error:
        if begun:
            raise
        raise BadArgument(one_line(error)) from error


def _how_to_go_on(out: pathlib.Path) -> str:
    from fedmf.runs.folder import RunFolder

    if not (out / "config.json").exists():
        return "the run had not begun: give the same command again"
    saved = RunFolder(out).committed_rounds()
    rounds = f"{saved} round{'' if saved == 1 else 's'}" if saved else "no round"
    return f"{rounds} of the run {'is' if saved < 2 else 'are'} saved in {out}: go on with --resume"


@contextlib.contextmanager
def no_half_archives() -> Iterator[None]:
    """Inside, an archive for which the disk had no room is dropped silently: zipfile tries to
    finish it, and Python prints a traceback.
    """
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if getattr(unraisable.object, "__qualname__", "") != "ZipFile.__del__":
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
