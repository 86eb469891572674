"""Client work on a Ray cluster. Each group of clients is one Ray task, and sums are yielded in the
order of the groups.

Noise, controller and journal stay in this process, the driver. A worker gets weights, examples and
a `WorkerSetup`, and trains groups of clients on one thread (`train_group`). Ray repeats the tasks
of a lost worker on another one. They are pure functions, so that results are bitwise identical.
"""

import contextlib
import dataclasses
import functools
import pickle
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from fedmf import nest
from fedmf.runs.config import TrainConfig
from fedmf.server.messages import ClippedSum
from fedmf.training.client_data import ClientRound, client_data
from fedmf.training.client_work import Broadcast, ClientWork, sums_of_copies
from fedmf.training.examples import ClientData
from fedmf.training.execution.cluster import Cluster
from fedmf.training.learner import ClientSettings, Learner, Machine
from fedmf.training.task import Task

# Number of arrays of the model's size that a worker holds: weights, variables, gradients, update,
# sum, and the optimizer's state.
_MODEL_COPIES = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """Data that every worker of a run gets. They contain no noise, no noise seed and no examples.

    Attributes:
      learner: `Learner.on_workers` of the run's task.
      settings: settings of the clients.
      config: config of the run.
      data_version: data version of the run's task.
      make_task: function that returns the run's task on a worker, which then reads the examples
        itself; None to send them.
    """

    learner: Learner
    settings: ClientSettings
    config: TrainConfig
    data_version: str
    make_task: Callable[[], Task] | None

    def task(self) -> Task | None:
        """Returns the task from which a worker reads examples; None if the driver sends them.

        Raises:
          ValueError: its data version differs from the run's.
        """
        if self.make_task is None:
            return None
        task_on_worker = self.make_task()
        if task_on_worker.data_version != self.data_version:
            raise ValueError(
                f"worker {platform.node()} has other data than the run (version "
                f"{task_on_worker.data_version!r} and not {self.data_version!r}): copy the run's "
                "file there"
            )
        return task_on_worker


class ClusterClients(ClientWork):
    """Client work on the workers of a cluster. Each worker trains one group at a time.

    Args:
      cluster: a connection.
      setup: setup of the run.

    Raises:
      TypeError: the setup cannot be pickled.
    """

    def __init__(self, cluster: Cluster, setup: WorkerSetup) -> None:
        from ray import cloudpickle

        try:
            pickled_setup = cloudpickle.dumps(setup)
        except Exception as error:
            raise TypeError(
                f"task {setup.settings.task!r} cannot be sent to workers ({type(error).__name__}: "
                f"{error}): let its functions use nothing "
                "that is open here, such as files, connections or locks"
            ) from error
        self._cluster = cluster
        self._setup = cluster.put(pickled_setup)
        remote_function = f"{__name__}:train_group"
        self._train_group = cluster.function(remote_function, frameworks=setup.learner.packages)

    def explain(self) -> str:
        """Returns a sentence that says where clients are trained."""
        return f"groups of clients train on the workers of cluster {self._cluster.address!r}"

    def sums(
        self, sent: Broadcast, groups: Iterable[Sequence[ClientData | ClientRound]]
    ) -> Iterator[ClippedSum]:
        """Trains groups of clients on the workers, and yields the sum of each group's clipped
        updates.
        """
        broadcast_reference = self._cluster.put(sent)
        model_bytes = sum(weight.nbytes for weight in sent.weights)
        machine, memory = self._cluster.least_memory()

        def calls() -> Iterator[tuple[Any, ...]]:
            for number, group in enumerate(groups):
                group_bytes = _MODEL_COPIES * model_bytes + sum(map(_num_bytes, group))
                if group_bytes > memory:
                    raise ValueError(
                        f"cluster={self._cluster.address!r}: a group of {len(group)} clients needs "
                        f"about {group_bytes / 1e9:.2g} GB and machine {machine} has "
                        f"{memory / 1e9:.2g} for each processor: give it more memory, or Ray fewer "
                        "processors there"
                    )
                yield self._setup, broadcast_reference, number, group

        yield from self._cluster.in_order(self._train_group, calls())


def _num_bytes(client: ClientData | ClientRound) -> int:
    """Returns the number of bytes of examples that are sent for a client."""
    if isinstance(client, ClientRound):
        return 0
    return sum(leaf.nbytes for leaf in nest.flatten(list(client.epochs)))


# These limits on threads hold until this process ends.
_thread_limits = contextlib.ExitStack()


class _WorkerState(NamedTuple):
    """Objects that a worker keeps between the groups of a run.

    Attributes:
      setup: setup of the run.
      client_work: client work, which may have traced its functions.
      task: task from which examples are read; None if they are sent.
    """

    setup: WorkerSetup
    client_work: ClientWork
    task: Task | None


@functools.lru_cache(maxsize=1)
def _worker_state(pickled_setup: bytes) -> _WorkerState:
    """Returns this worker's state for a run. It is created when the first group arrives."""
    setup: WorkerSetup = pickle.loads(pickled_setup)
    _thread_limits.close()
    _thread_limits.enter_context(setup.learner.limited_threads(1))
    worker_task = setup.task()
    client_work = setup.learner.client_work(setup.settings, Machine(threads=1))
    return _WorkerState(setup, client_work, worker_task)


def train_group(
    pickled_setup: bytes, sent: Broadcast, number: int, group: Sequence[Any]
) -> ClippedSum:
    """Trains a group of clients on a worker, and returns the sum of their clipped updates.

    Args:
      pickled_setup: a `WorkerSetup`.
      sent: broadcast of the round.
      number: index of the group in the round.
      group: `ClientData` or `ClientRound` of each client.
    """
    worker_state = _worker_state(bytes(pickled_setup))
    clients: list[ClientData] = []
    for client in group:
        if isinstance(client, ClientRound):
            assert worker_state.task is not None
            client = client_data(
                worker_state.task, worker_state.setup.config, client.t, client.client
            )
        clients.append(client)
    [group_sum] = sums_of_copies(worker_state.client_work, sent, [clients])
    return group_sum._replace(group=number, worker=platform.node())
