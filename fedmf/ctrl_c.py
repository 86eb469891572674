"""A Ctrl-C that Python would lose."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

_SECONDS = 0.05


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
        timer = threading.Timer(_SECONDS, signal.pthread_kill, (main_thread, signal.SIGINT))
        timer.daemon = True
        timer.start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def not_swallowed() -> Iterator[None]:
    """Inside, a Ctrl-C that is caught on its way, or made into another error, is raised at the end: around other people's code.

    Does nothing outside the main thread, and where somebody else has taken over the signal.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    pressed = False

    def raise_and_remember(number: int, frame: Any) -> None:
        nonlocal pressed
        pressed = True
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, raise_and_remember)
    try:
        yield
    except Exception as error:
        if pressed:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if pressed:
        raise KeyboardInterrupt
