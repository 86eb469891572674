"""The one progress bar: on terminals that know their size or do not, and in log files."""

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
    """A `tqdm.tqdm` on standard error: drawn ten times a second on a terminal, a line every ten
    seconds elsewhere.

    Args:
      iterable, desc, unit, total, initial, disable: of `tqdm.tqdm`.
      delay: seconds after which it appears; it goes again when it is done.

    Example:
      >>> with bar(total=2, disable=True) as steps:
      ...     _ = steps.update()
    """
    import tqdm

    return tqdm.tqdm(
        iterable,
        desc=desc,
        unit=unit,
        total=total,
        initial=initial,
        delay=delay or 0,
        leave=delay is None,
        disable=disable,
        mininterval=0.1 if sys.stderr.isatty() else 10,
        **_shape(),
    )


@contextlib.contextmanager
def elapsed(description: str, *, disable: bool = False, delay: float = 3.0) -> Iterator[None]:
    """Shows that work without steps goes on, and for how long, on standard error; it goes again
    when it is done.

    Args:
      description: what is done.
      disable: shows nothing.
      delay: seconds after which it appears.

    Example:
      >>> with elapsed("reading", disable=True):
      ...     pass
    """
    if disable:
        yield
        return
    is_done = threading.Event()

    def show() -> None:
        if is_done.wait(delay):
            return
        import tqdm

        line = "{desc} [{elapsed}]"
        with tqdm.tqdm(desc=description, bar_format=line, leave=False, **_shape()) as shown:
            _refresh(shown, is_done, threading.Event())

    with _in_background(show, is_done):
        yield


@contextlib.contextmanager
def refreshed(shown: Any) -> Iterator[None]:
    """Draws a bar anew while its next step takes long, so that its time goes on.

    Args:
      shown: of `bar`.
    """
    if shown.disable:
        yield
        return
    is_done = threading.Event()
    is_drawn = threading.Event()
    try:
        with _in_background(lambda: _refresh(shown, is_done, is_drawn), is_done):
            yield
    finally:
        if is_drawn.is_set():  # tqdm does not know, and would leave the line
            shown.clear()


def _refresh(shown: Any, is_done: threading.Event, is_drawn: threading.Event) -> None:
    interval = 1.0 if sys.stderr.isatty() else 10.0
    while not is_done.wait(interval):
        # A bar with a delay is not there before it.
        if time.time() - shown.start_t >= shown.delay:
            is_drawn.set()
            shown.refresh()


@contextlib.contextmanager
def _in_background(work: Callable[[], None], is_done: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


def _shape() -> dict[str, Any]:
    try:
        size = os.get_terminal_size(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):  # not a terminal, or not a file at all
        return {}
    # A terminal to which nobody has given a size says 0, and tqdm would draw nothing.
    return {"dynamic_ncols": True} if all(size) else {"ncols": 100, "nrows": 24}
