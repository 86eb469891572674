"""Ctrl-C as a flag that a long job checks, and the signals that ask a process to end."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

# Batch systems send SIGTERM before they kill a process. SIGHUP arrives when a terminal or its
# connection is lost. Windows has no SIGHUP.
ENDING_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Interrupted(Exception):
    """Error that Ctrl-C or a similar signal has ended a job. The message says what is saved and how
    to resume.
    """


# The signals that have arrived since the outermost block of `handled` or `deferred` began.
_received: list[int] = []
_blocks = 0
_deferring = 0


@contextlib.contextmanager
def handled(*numbers: int) -> Iterator[None]:
    """Raises KeyboardInterrupt in the block when a signal that ends the process arrives. Within
    `deferred` the signal only sets a flag.

    A second Ctrl-C raises at once in either block. A signal that is ignored, as by nohup, or that
    has another handler keeps it. Outside the main thread nothing is handled.
    """
    global _blocks
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    default_handlers = (signal.SIG_DFL, signal.default_int_handler)
    previous_handlers = {
        number: signal.getsignal(number)
        for number in numbers
        if signal.getsignal(number) in default_handlers
    }
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def handle(number: int, frame: Any) -> None:
        is_first = not _received
        _received.append(number)
        if is_first:
            _leave_lost_terminals(terminals)
        # A second Ctrl-C interrupts at once. A second SIGHUP is ignored, because a lost terminal
        # sends SIGHUP twice, once through its shell.
        if (is_first and not _deferring) or (not is_first and number == signal.SIGINT):
            raise KeyboardInterrupt

    if not _blocks:
        _received.clear()
    _blocks += 1
    for number in previous_handlers:
        signal.signal(number, handle)
    try:
        yield
    finally:
        _blocks -= 1
        # After a signal has arrived, the handlers stay in place, so that a second SIGTERM cannot
        # interrupt the end of the process.
        for number, handler in previous_handlers.items():
            if number == signal.SIGINT or not _received:
                signal.signal(number, handler)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Defers the first Ctrl-C in the block until `check` is called, as well as other handled
    signals.
    """
    global _deferring
    with handled(signal.SIGINT):
        _deferring += 1
        try:
            yield
        finally:
            _deferring -= 1


def check() -> None:
    """Raises KeyboardInterrupt if a handled signal has arrived.

    It does so too if third-party code has swallowed or replaced the signal's own exception.
    """
    if _blocks and _received:
        raise KeyboardInterrupt


def first_received() -> int:
    """Returns the signal that arrived first, or SIGINT if none has arrived."""
    if not _received:
        return signal.SIGINT
    return _received[0]


def _leave_lost_terminals(terminals: list[int]) -> None:
    """Discards output to a lost terminal, where writing would fail before the run is saved."""
    for descriptor in terminals:
        if not os.isatty(descriptor):
            null_descriptor = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null_descriptor, descriptor)
            os.close(null_descriptor)
