"""Error messages for runs that Ctrl-C, a full disk or invalid arguments have stopped."""

import contextlib
import errno
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from fedmf.cli.errors import BadArgument, one_line

# Error numbers of a full disk, of a full quota and of the limit of `ulimit -f`.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def training(out: pathlib.Path, *, resume: bool) -> Iterator[Callable[[], None]]:
    """Translates errors of training in the folder `out`, and yields a callback for the start of
    round 0.

    Raises:
      BadArgument: for an error of the inputs before the first round. The same error later is a
        failed run.
      Interrupted: for a Ctrl-C that the training has not handled.
      OSError: for a full disk.
    """
    from fedmf.terminal.interrupts import Interrupted

    # If the folder has another run, training refuses to begin and changes nothing, so that there is
    # no message about saved rounds.
    has_another_run = not resume and (out / "config.json").exists()
    has_begun = False

    def begin() -> None:
        nonlocal has_begun
        has_begun = True

    try:
        yield begin
    except KeyboardInterrupt:
        if has_another_run:
            raise
        raise Interrupted(f"interrupted: {_folder_state(out)}") from None
    except OSError as error:
        if error.errno in _FULL:
            folder_state = "nothing in the folder has changed"
            if not has_another_run:
                folder_state = _folder_state(out)
            raise OSError(f"{one_line(error)}: make room; {folder_state}") from error
        if has_begun or not isinstance(error, FileNotFoundError):
            raise
        raise BadArgument(one_line(error)) from error
    except (ValueError, TypeError) as error:
        if has_begun:
            raise
        raise BadArgument(one_line(error)) from error


def _folder_state(out: pathlib.Path) -> str:
    """Describes how many rounds of a run are saved, and how to resume it."""
    from fedmf.runs.folder import RunFolder

    if not (out / "config.json").exists():
        return "the run had not begun: give the same command again"
    num_rounds = RunFolder(out).committed_rounds()
    saved_rounds = f"{num_rounds} rounds of the run are saved"
    if num_rounds == 0:
        saved_rounds = "no round of the run is saved"
    elif num_rounds == 1:
        saved_rounds = "1 round of the run is saved"
    return f"{saved_rounds} in {out}: resume it with --resume"


@contextlib.contextmanager
def no_half_archives() -> Iterator[None]:
    """Silences the traceback of a zip archive that could not be written because the disk is full.

    zipfile tries to finish an incomplete archive when its object is deleted, and fails again.
    """
    previous_hook = sys.unraisablehook

    def report_others(unraisable: Any) -> None:
        if getattr(unraisable.object, "__qualname__", "") != "ZipFile.__del__":
            previous_hook(unraisable)

    sys.unraisablehook = report_others
    try:
        yield
    finally:
        sys.unraisablehook = previous_hook
