"""A limit on the threads of one run, for several runs on one machine."""

import contextlib
import os
from collections.abc import Iterator

import tensorflow as tf

from fedmf import checks

# Read by TensorFlow when it starts, also in TFF's worker, which inherits the environment.
_OF_TENSORFLOW = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


@contextlib.contextmanager
def limited_threads(threads: int | None) -> Iterator[None]:
    """Inside, this process and the TFF workers that it starts compute with at most `threads` threads each; None changes nothing.

    Limited are TensorFlow's operations (in this process for good: TensorFlow decides that once), TensorFlow in workers started inside,
    and the linear algebra behind numpy and scipy where the package threadpoolctl is installed. Threads that wait, such as those of gRPC,
    are not counted. Clients that train side by side are limited by the executions themselves.

    Raises:
      TypeError, ValueError: not a positive int; or TensorFlow has already started with another number.

    >>> with limited_threads(None):
    ...     pass
    """
    if threads is None:
        yield
        return
    threads = checks.integer("threads", threads, low=1, hint="use None for one on each processor")
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError as error:
        raise ValueError(
            f"threads={threads}: TensorFlow has already started in this process with another number: train in a new process, "
            "or leave threads out"
        ) from error
    saved = {name: os.environ.get(name) for name in _OF_TENSORFLOW}
    os.environ.update(dict.fromkeys(_OF_TENSORFLOW, str(threads)))
    try:
        with _linear_algebra_limited(threads):
            yield
    finally:
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _linear_algebra_limited(threads: int) -> contextlib.AbstractContextManager[object]:
    try:
        import threadpoolctl
    except ImportError:
        return contextlib.nullcontext()
    limits: contextlib.AbstractContextManager[object] = threadpoolctl.threadpool_limits(limits=threads)
    return limits
