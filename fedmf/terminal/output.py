"""Handling of standard output and standard error after a write error, for example if the disk is
full or a pipe has no reader.

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
    """Clears the terminal's current line if the block raises an error, so that the error message
    begins on an empty line.
    """
    try:
        yield
    except BaseException:
        # Standard error can be closed or missing.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if sys.stderr.isatty():
                sys.stderr.write("\r\033[K")
        raise


def flush() -> OSError | None:
    """Flushes standard output and standard error, and returns the first error, or None if there was
    none.

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
    poll_object = select.poll()
    poll_object.register(descriptor, select.POLLOUT)
    return any(events & select.POLLERR for _, events in poll_object.poll(0))


def _discard(descriptor: int) -> None:
    """Discards everything that is written to a descriptor from now on."""
    null_descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_descriptor, descriptor)
    os.close(null_descriptor)
