"""Limits on the number of threads that a run uses, so that several runs can share a machine."""

import contextlib
import os
from collections.abc import Iterator

import tensorflow as tf
import threadpoolctl

# TensorFlow reads these environment variables when it starts. TFF's worker process inherits them.
_THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def use_one_thread_per_operation() -> None:
    """Makes TensorFlow compute each operation in one thread, which is faster for parallel clients.

    If operations of small models are split over threads, the threads mostly wait for each other.
    The function has no effect once TensorFlow has started, because it reads the setting once.
    """
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(1)


@contextlib.contextmanager
def limited_threads(threads: int | None) -> Iterator[None]:
    """Limits the number of threads that compute, here and in TFF workers started in the block.

    The limit is on TensorFlow's operations (in this process for good: TensorFlow reads the setting
    once), on TensorFlow in workers that start inside, and on the linear algebra behind numpy and
    scipy. Threads that wait, such as those of gRPC, are not counted. The executions themselves
    limit the number of parallel clients.

    Args:
      threads: most threads; None changes nothing.

    Raises:
      ValueError: TensorFlow has already started with another number.

    >>> with limited_threads(None):
    ...     pass
    """
    if threads is None:
        yield
        return
    try:
        threading_config = tf.config.threading
        if threading_config.get_inter_op_parallelism_threads() != threads:
            threading_config.set_inter_op_parallelism_threads(threads)
        if threading_config.get_intra_op_parallelism_threads() not in (1, threads):
            threading_config.set_intra_op_parallelism_threads(threads)
    except RuntimeError as error:
        raise ValueError(
            f"threads={threads}: TensorFlow has already started in this process with another "
            "number: train in a new process, or leave out `threads`"
        ) from error
    saved_environment = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    with contextlib.ExitStack() as limits:
        limits.enter_context(threadpoolctl.threadpool_limits(limits=threads))
        os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))
        try:
            yield
        finally:
            for name, value in saved_environment.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
