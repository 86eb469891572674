"""Ctrl-C as a flag that a long job looks at, and the signals that ask a process to end."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

# Batch systems send SIGTERM before they kill; SIGHUP comes where a terminal or its connection is
# gone. Windows has neither.
ENDING_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Interrupted(Exception):
    """Ctrl-C or its like has ended a job that says what is kept, and how to go on."""


_received: list[int] = []  # signals since the outermost block of this module began
_blocks = 0
_deferring = 0


@contextlib.contextmanager
def handled(*numbers: int) -> Iterator[None]:
    """Inside, each of these signals raises KeyboardInterrupt, or sets a flag inside `deferred`.

    A second Ctrl-C raises at once, whatever the block. A signal that is ignored, as by nohup, or
    that somebody else handles is left alone. Does nothing outside the main thread.
    """
    global _blocks
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    free = (signal.SIG_DFL, signal.default_int_handler)
    before = {
        number: signal.getsignal(number) for number in numbers if signal.getsignal(number) in free
    }
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def handle(number: int, frame: Any) -> None:
        first = not _received
        _received.append(number)
        if first:
            _leave_lost_terminals(terminals)
        # A lost terminal sends SIGHUP twice, by its shell and by itself.
        if (first and not _deferring) or (not first and number == signal.SIGINT):
            raise KeyboardInterrupt

    if not _blocks:
        _received.clear()
    _blocks += 1
    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        _blocks -= 1
        # Once one has come the process is exiting, which a second SIGTERM must not cut short.
        for number, handler in before.items():
            if number == signal.SIGINT or not _received:
                signal.signal(number, handler)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Inside, the first Ctrl-C only sets a flag, which `check` raises; the same for other signals
    that `handled` takes.
    """
    global _deferring
    with handled(signal.SIGINT):
        _deferring += 1
        try:
            yield
        finally:
            _deferring -= 1


def check() -> None:
    """Raises KeyboardInterrupt if a handled signal has come: also one whose exception third-party
    code swallowed or replaced.
    """
    if _blocks and _received:
        raise KeyboardInterrupt


def first_received() -> int:
    """The signal that came first, SIGINT if none did."""
    return _received[0] if _received else signal.SIGINT


def _leave_lost_terminals(terminals: list[int]) -> None:
    """Sends output to a lost terminal nowhere: writing to it would fail before the run is saved."""
    for descriptor in terminals:
        if not os.isatty(descriptor):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)
