"""Standard output and standard error that can no longer be written: nobody reads the pipe any more,
as under `| head`, or the disk is full.
"""

import contextlib
import os
import select
import signal
import sys
from collections.abc import Iterator

# What a shell says of a tool that SIGPIPE has ended.
LOST_READER = 128 + signal.SIGPIPE
_STANDARD_DESCRIPTORS = (1, 2)


def has_lost_reader() -> bool:
    """Returns whether standard output or standard error is a pipe without a reader."""
    return any(map(_is_abandoned, _STANDARD_DESCRIPTORS))


def is_lost_reader(error: BaseException) -> bool:
    """Returns whether an error is that of writing to standard output or standard error, of which
    nobody reads any more.
    """
    return isinstance(error, BrokenPipeError) and has_lost_reader()


@contextlib.contextmanager
def cleared_on_error() -> Iterator[None]:
    """Clears the terminal's line where an error ends what it shows, so that the error's own line
    stands alone.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # it is closed, or gone
            if sys.stderr.isatty():
                sys.stderr.write("\r\033[K")
        raise


def flush() -> OSError | None:
    """Writes what is buffered, and returns the error of it.

    After an error the rest goes nowhere, so that the interpreter does not try again when it exits
    and print a traceback.
    """
    failure = None
    for descriptor, stream in zip(_STANDARD_DESCRIPTORS, (sys.stdout, sys.stderr), strict=True):
        if stream is None or stream.closed:
            continue
        try:
            stream.flush()
        except OSError as error:
            failure = failure or error
            _discard(descriptor)
    return failure


def _is_abandoned(descriptor: int) -> bool:
    """Returns whether a descriptor is a pipe without a reader."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _discard(descriptor: int) -> None:
    """Sends what is written to a descriptor nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
