"""Standard output and standard error after a write error, such as a full disk or a pipe without a
reader.

A pipe loses its reader under `| head`.
"""

import contextlib
import os
import select
import signal
import sys
from collections.abc import Iterator

# Exit status of a program that the signal SIGPIPE has ended.
LOST_READER = 128 + signal.SIGPIPE
_STANDARD_DESCRIPTORS = (1, 2)


def has_lost_reader() -> bool:
    """Returns whether standard output or standard error is a pipe without a reader."""
    return any(map(_is_abandoned, _STANDARD_DESCRIPTORS))


def is_lost_reader(error: BaseException) -> bool:
    """Returns whether an error comes from writing to a standard stream without a reader."""
    return isinstance(error, BrokenPipeError) and has_lost_reader()


@contextlib.contextmanager
def cleared_on_error() -> Iterator[None]:
    """Clears the terminal's line if the block raises, so that the error has a line of its own."""
    try:
        yield
    except BaseException:
        # Standard error can be closed or missing.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if sys.stderr.isatty():
                sys.stderr.write("\r\033[K")
        raise


def flush() -> OSError | None:
    """Flushes both standard streams, and returns the first error.

    After an error the rest of the output is discarded. The interpreter would otherwise try again
    when it exits, and print a traceback.
    """
    first_error = None
    for descriptor, stream in zip(_STANDARD_DESCRIPTORS, (sys.stdout, sys.stderr), strict=True):
        if stream is None or stream.closed:
            continue
        try:
            stream.flush()
        except OSError as error:
            first_error = first_error or error
            _discard(descriptor)
    return first_error


def _is_abandoned(descriptor: int) -> bool:
    """Returns whether a descriptor is a pipe without a reader."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _discard(descriptor: int) -> None:
    """Discards everything that is written to a descriptor from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
