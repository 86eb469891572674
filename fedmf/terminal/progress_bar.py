"""Progress bars for terminals and for log files."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def bar(
    iterable: Iterable[Any] | None = None,
    *,
    desc: str | None = None,
    unit: str = "it",
    total: int | None = None,
    initial: int = 0,
    delay: float | None = None,
    disable: bool = False,
) -> Any:
    """Returns a `tqdm.tqdm` progress bar on standard error.

    It is drawn ten times a second on a terminal, and as a line every ten seconds elsewhere.

    Args:
      iterable, desc, unit, total, initial, disable: arguments of `tqdm.tqdm`.
      delay: seconds after which the bar appears; a bar with a delay is cleared when it is done.

    Example:
      >>> with bar(total=2, disable=True) as steps:
      ...     _ = steps.update()
    """
    import tqdm

    seconds_between_lines = 10.0
    if sys.stderr.isatty():
        seconds_between_lines = 0.1
    return tqdm.tqdm(
        iterable,
        desc=desc,
        unit=unit,
        total=total,
        initial=initial,
        delay=delay or 0,
        leave=delay is None,
        disable=disable,
        mininterval=seconds_between_lines,
        **_shape(),
    )


@contextlib.contextmanager
def elapsed(description: str, *, disable: bool = False, delay: float = 3.0) -> Iterator[None]:
    """Shows on standard error how long the block has run, and clears the line at the end.

    Args:
      description: the work, as in "reading the run".
      disable: whether to show nothing.
      delay: seconds after which it appears.

    Example:
      >>> with elapsed("reading", disable=True):
      ...     pass
    """
    if disable:
        yield
        return
    is_done = threading.Event()

    def show_time() -> None:
        if is_done.wait(delay):
            return
        import tqdm

        bar_format = "{desc} [{elapsed}]"
        with tqdm.tqdm(
            desc=description, bar_format=bar_format, leave=False, **_shape()
        ) as time_bar:
            _refresh(time_bar, is_done, threading.Event())

    with _in_background(show_time, is_done):
        yield


@contextlib.contextmanager
def refreshed(progress_bar: Any) -> Iterator[None]:
    """Redraws a progress bar during the block, so that its elapsed time stays current."""
    if progress_bar.disable:
        yield
        return
    is_done = threading.Event()
    is_drawn = threading.Event()
    try:
        with _in_background(lambda: _refresh(progress_bar, is_done, is_drawn), is_done):
            yield
    finally:
        if is_drawn.is_set():
            # tqdm does not know that the redrawing thread has drawn the bar, and would not clear
            # its line.
            progress_bar.clear()


def _refresh(progress_bar: Any, is_done: threading.Event, is_drawn: threading.Event) -> None:
    """Redraws a progress bar until `is_done` is set, every second on a terminal and every ten
    seconds elsewhere.
    """
    interval_seconds = 10.0
    if sys.stderr.isatty():
        interval_seconds = 1.0
    while not is_done.wait(interval_seconds):
        # A bar with a delay is not drawn before its delay is over.
        if time.time() - progress_bar.start_t >= progress_bar.delay:
            is_drawn.set()
            progress_bar.refresh()


@contextlib.contextmanager
def _in_background(work: Callable[[], None], is_done: threading.Event) -> Iterator[None]:
    """Runs `work` in a thread during the block, and sets `is_done` at the block's end."""
    work_thread = threading.Thread(target=work, daemon=True)
    work_thread.start()
    try:
        yield
    finally:
        is_done.set()
        work_thread.join()


def _shape() -> dict[str, Any]:
    """Returns the tqdm arguments that fit a progress bar into the terminal."""
    try:
        terminal_size = os.get_terminal_size(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        # Standard error is not a terminal, or not a file at all.
        return {}
    if all(terminal_size):
        return {"dynamic_ncols": True}
    # A terminal whose size is not set reports width 0, for which tqdm would draw nothing.
    return {"ncols": 100, "nrows": 24}
