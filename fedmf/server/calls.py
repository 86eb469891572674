"""Guards for calls of a server's methods. Calls run one at a time and in one process, and two
servers with the same noise seed cause a warning.
"""

import functools
import hashlib
import os
import pathlib
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Concatenate, NoReturn, ParamSpec, TypeVar

from fedmf.numpy_errors import numpy_defaults
from fedmf.server.folder import ServerFolder

_SERVERS: "weakref.WeakSet[ExclusiveCalls]" = weakref.WeakSet()


class ExclusiveCalls:
    """Base class of objects whose `exclusive` methods run one at a time, until `close`.

    Threads wait for each other. A signal handler runs within the call that it interrupts, and would
    wait for itself: the lock is reentrant, and `_is_busy` refuses such calls.
    """

    _folder: ServerFolder | None = None
    _noun = "server"
    _way_to_reopen = (
        "open its folder with fedmf.Server.open, in one process at a time; without a folder "
        "begin a new one, with another seed"
    )

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_busy = False
        self._is_open = True
        self._is_torn = False
        _SERVERS.add(self)

    def close(self) -> None:
        """Closes the folder, so that another `open` can use it. Later calls of this object raise
        ValueError.

        In a signal handler within a call it takes effect when that call ends.
        """
        with self._lock:
            self._is_open = False
            if not self._is_busy:
                self._close_folder()

    def _close_folder(self) -> None:
        """Releases the lock on the folder, if there is one."""
        if self._folder is not None:
            self._folder.close()

    def _check_open(self) -> None:
        """Raises ValueError after `close`, in a forked process, and after an interrupt in the
        middle of a change.
        """
        if not self._is_open or self._is_torn:
            raise ValueError(
                f"this {self._noun} is closed, was interrupted, or is of another process: "
                f"{self._way_to_reopen}"
            )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: two of it would release the "
            "same noise under two sums; hand on what it releases"
        )


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Object = TypeVar("Object", bound=ExclusiveCalls)


def exclusive(
    method: Callable[Concatenate[Object, Parameters], Result],
) -> Callable[Concatenate[Object, Parameters], Result]:
    """Decorates a method so that it waits for calls of other threads to end.

    The method raises ValueError where the object is closed, and within another call of its own
    thread.
    """

    @functools.wraps(method)
    def call(self: Object, *args: Parameters.args, **options: Parameters.kwargs) -> Result:
        with self._lock:
            if self._is_busy:
                raise ValueError(
                    f"this {self._noun} is at work: do not call it from within a call, as a "
                    "signal handler does"
                )
            try:
                self._is_busy = True
                self._check_open()
                with numpy_defaults():
                    return method(self, *args, **options)
            finally:
                self._is_busy = False
                # A signal handler may have closed the object during the call.
                if not self._is_open:
                    self._close_folder()

    return call


# Maps the digest of each noise seed to a text that says where the first server with this seed was
# made. The text becomes None after a warning about the seed.
_PLACE_BY_SEED: dict[bytes, str | None] = {}


def warn_of_used_seed(seed: int, folder: pathlib.Path | None) -> None:
    """Warns, once for each seed, if a new server or process of TFF has the noise seed of another
    one in this program.

    Warns:
      UserWarning: naming both folders.
    """
    seed_digest = _digest(seed)
    first_place = _PLACE_BY_SEED.get(seed_digest)
    if first_place is not None:
        _PLACE_BY_SEED[seed_digest] = None
        warnings.warn(
            f"two runs of this program have one noise seed (the first {first_place}, the second "
            f"{_place(folder)}): the difference of their releases of one round has no noise; give "
            'each run a seed of its own, such as noise_seed="os"',
            UserWarning,
            stacklevel=3,
        )


def count_seed(seed: int, folder: pathlib.Path | None) -> None:
    """Records a server's noise seed as used by this process."""
    _PLACE_BY_SEED.setdefault(_digest(seed), _place(folder))


def _digest(seed: int) -> bytes:
    """Returns a digest of a noise seed, so that the process keeps no second copy of the secret."""
    return hashlib.sha256(f"{seed}".encode()).digest()


def _place(folder: pathlib.Path | None) -> str:
    """Returns a phrase that says where a server is, in memory or in a folder."""
    return "in memory" if folder is None else f"in {str(folder)!r}"


def _close_in_child() -> None:
    """Closes the copies of servers in a forked process, so that only its parent uses them."""
    for server in list(_SERVERS):
        server._is_open = False
        server._is_busy = False
        server._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
