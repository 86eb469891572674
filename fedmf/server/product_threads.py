"""Threads that compute precomputed noise. Each matrix product of numpy uses a single thread
meanwhile.
"""

import concurrent.futures
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import threadpoolctl

from fedmf.noise.layout import THREADS
from fedmf.server.noise_store import NoiseTile

# A limit on the threads of numpy's products holds for the whole process, so this lock allows one
# limit at a time. It is reentrant, because a signal handler may call for noise of another run.
_ONE_LIMIT = threading.RLock()


def _free_limit_in_child() -> None:
    """Replaces the lock in a forked process, which lacks the thread that may hold it."""
    global _ONE_LIMIT
    _ONE_LIMIT = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_limit_in_child)


def for_each(work: Callable[[NoiseTile], None], tiles: Sequence[NoiseTile]) -> None:
    """Calls `work` for every tile. It uses two threads if numpy's products may use more than one.

    Each product uses one thread, so that its bits do not depend on the number of processors, and no
    idle thread of it keeps a processor from the draws.

    A first Ctrl-C waits for tiles that have begun, a second one does not: after an error threads
    may still write where `work` writes.
    """
    with _ONE_LIMIT, _one_thread_a_product() as allowed:
        num_threads = min(allowed, THREADS, len(tiles))
        if num_threads == 1:
            for tile in tiles:
                work(tile)
            return
        thread_pool = concurrent.futures.ThreadPoolExecutor(num_threads, "noise")
        try:
            for job in [thread_pool.submit(work, tile) for tile in tiles]:
                job.result()
        finally:
            thread_pool.shutdown(cancel_futures=True)


@functools.cache
def blas_libraries() -> tuple[Any, ...]:
    """Returns the controllers of the BLAS libraries in this process, which set the number of
    threads of numpy's products. Finding them takes milliseconds.
    """
    blas_controller = threadpoolctl.ThreadpoolController().select(user_api="blas")
    return tuple(blas_controller.lib_controllers)


@contextmanager
def _one_thread_a_product() -> Iterator[int]:
    """Limits numpy's products to one thread each inside the block, and yields their old limit."""
    product_libraries = blas_libraries()
    past_limits = [library.num_threads for library in product_libraries]
    try:
        for library in product_libraries:
            library.set_num_threads(1)
        yield max(past_limits, default=1)
    finally:
        for library, num_threads in zip(product_libraries, past_limits, strict=True):
            library.set_num_threads(num_threads)
