"""A Ctrl-C that Python would lose, and other signals that ask a process to end."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

_SECONDS = 0.05
# Batch systems send the first before they kill; the second comes where a terminal or its connection is gone. Windows has neither.
_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
# What of these has come inside `like_ctrl_c`; a list, because handlers and other threads share it.
_came: list[int] = []
# What is about to come again, because it was lost; see `never_lost`.
_coming: list[threading.Timer] = []


@contextlib.contextmanager
def like_ctrl_c() -> Iterator[Callable[[], int]]:
    """Inside, SIGTERM and SIGHUP do what Ctrl-C does. Yields a function: the number of the one that came, else that of SIGINT.

    A signal that is ignored, as by nohup, or that somebody else has taken is left alone. Does nothing outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: signal.SIGINT
        return
    _came.clear()
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def end(number: int, frame: Any) -> None:
        # A lost terminal sends it twice, by its shell and by itself: the second one must not end what the first has begun.
        if _came:
            return
        _came.append(number)
        _let_go(terminals)
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt):
            interrupt(signal.SIGINT, frame)
        raise KeyboardInterrupt  # where Ctrl-C is ignored, as in the background of a script

    taken = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield lambda: _came[0] if _came else signal.SIGINT
    finally:
        _let_none_come()
        # Once one has come the process is exiting, which a second one must not cut short.
        for number in taken if not _came else ():
            signal.signal(number, signal.SIG_DFL)


def _let_go(terminals: list[int]) -> None:
    """Writing to a terminal that is gone is an error, which would come before what was reached is saved."""
    for descriptor in terminals:
        if not os.isatty(descriptor):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)


@contextlib.contextmanager
def never_lost() -> Iterator[None]:
    """Inside, a Ctrl-C that nobody can catch comes again a moment later.

    Python raises KeyboardInterrupt wherever the main thread is. Where that is a destructor or a callback of the garbage collector, such as
    the one that jax brings, it prints "Exception ignored" and goes on, and whoever pressed the keys waits in vain.
    """
    before = sys.unraisablehook

    def again(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            before(unraisable)
            return
        # Not at once: it would be raised in here, and lost as well.
        main_thread = threading.main_thread().ident
        assert main_thread is not None
        timer = threading.Timer(
            _SECONDS, lambda: signal.pthread_kill(main_thread, _came.pop() if _came else signal.SIGINT)
        )
        timer.daemon = True
        _coming.append(timer)
        timer.start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


def _let_none_come() -> None:
    while _coming:
        _coming.pop().cancel()


@contextlib.contextmanager
def not_swallowed() -> Iterator[None]:
    """Inside, a Ctrl-C that is caught on its way, or made into another error, is raised at the end: around other people's code.

    The same for what `like_ctrl_c` takes for one. Does nothing outside the main thread, and leaves Ctrl-C alone where somebody else has
    taken over the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    free = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    pressed, before = False, len(_came)

    def raise_and_remember(number: int, frame: Any) -> None:
        nonlocal pressed
        pressed = True
        signal.default_int_handler(number, frame)

    if free:
        signal.signal(signal.SIGINT, raise_and_remember)
    try:
        yield
    except Exception as error:
        if pressed or len(_came) > before:
            raise KeyboardInterrupt from error
        raise
    finally:
        if free:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if pressed or len(_came) > before:
            _let_none_come()  # it is raised here, and must not interrupt what answers it
    if pressed or len(_came) > before:
        raise KeyboardInterrupt
