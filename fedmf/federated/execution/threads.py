"""The threads of a run: a limit, for several runs on one machine; what its clients share."""

import contextlib
import os
from collections.abc import Iterator

import tensorflow as tf
import threadpoolctl

# Read by TensorFlow when it starts, also in TFF's worker, which inherits the environment.
_OF_TENSORFLOW = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def an_operation_a_thread() -> None:
    """From now on each TensorFlow operation of this process takes one thread, for clients that are
    trained side by side: operations of small models, shared out, wait more than they compute.

    Nothing where TensorFlow has started already: it decides that once.
    """
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(1)


@contextlib.contextmanager
def limited_threads(threads: int | None) -> Iterator[None]:
    """Inside, this process and the TFF workers that it starts compute with at most `threads`
    threads each; None changes nothing.

    Limited are TensorFlow's operations (in this process for good: TensorFlow decides that once),
    TensorFlow in workers started inside, and the linear algebra behind numpy and scipy. Threads
    that wait, such as those of gRPC, are not counted.
    Clients that train side by side are limited by the executions themselves.

    Raises:
      ValueError: TensorFlow has already started with another number.

    >>> with limited_threads(None):
    ...     pass
    """
    if threads is None:
        yield
        return
    try:
        config = tf.config.threading
        if config.get_inter_op_parallelism_threads() != threads:
            config.set_inter_op_parallelism_threads(threads)
        if config.get_intra_op_parallelism_threads() not in (1, threads):
            config.set_intra_op_parallelism_threads(threads)
    except RuntimeError as error:
        raise ValueError(
            f"threads={threads}: TensorFlow has already started in this process with another "
            "number: train in a new process, or leave threads out"
        ) from error
    saved = {name: os.environ.get(name) for name in _OF_TENSORFLOW}
    with contextlib.ExitStack() as limits:
        limits.enter_context(threadpoolctl.threadpool_limits(limits=threads))
        os.environ.update(dict.fromkeys(_OF_TENSORFLOW, str(threads)))
        try:
            yield
        finally:
            for name, value in saved.items():
                os.environ.pop(name, None)
                os.environ.update({} if value is None else {name: value})
