"""What a worker of a cluster does: it trains groups of clients, on one thread."""

import contextlib
import functools
import pickle
import platform
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fedmf.federated.execution.client_data import ClientRound, client_epochs
from fedmf.federated.execution.client_setup import ClientSetup
from fedmf.federated.execution.client_work import Broadcast, ClientWork
from fedmf.federated.execution.groups import GroupSum
from fedmf.federated.execution.threads import limited_threads
from fedmf.federated.task import Task

_limits = contextlib.ExitStack()  # for the life of this process


@functools.cache
def _on_one_thread() -> None:
    _limits.enter_context(limited_threads(1))


@functools.lru_cache(maxsize=1)
def _begun(pickled: bytes) -> tuple[ClientSetup, ClientWork, Task]:
    """What the groups of a run share: its setup, the traced client work, and the task
    that has the examples.
    """
    setup, worker_task = pickle.loads(pickled)
    _on_one_thread()
    task = setup.task if worker_task is None else worker_task()
    if task.data_version != setup.task.data_version:
        raise ValueError(
            f"worker {platform.node()} has other data than the run (version {task.data_version!r} "
            f"and not {setup.task.data_version!r}): copy the same file there"
        )
    return setup, setup.work(1), task


def train(pickled: bytes, sent: Broadcast, number: int, group: Sequence[Any]) -> GroupSum:
    """The sum of the group's clipped updates, with arrays for tensors.

    Args:
      pickled: (`ClientSetup`, a function that makes the task here, or None).
      sent: to the clients of the round, as arrays.
      number: of the group in the round.
      group: each client's epochs, or its `ClientRound`.
    """
    setup, work, task = _begun(bytes(pickled))
    clients = [
        client_epochs(task, setup.config, *client) if isinstance(client, ClientRound) else client
        for client in group
    ]
    [part] = work.sums(sent, [clients])
    total = tf.nest.map_structure(lambda tensor: tensor.numpy(), part.total)
    return part._replace(total=total, group=number, worker=platform.node())
