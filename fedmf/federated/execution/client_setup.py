"""What client work is made of, on this machine or on a worker of a cluster.

It holds no noise, no seed of it, and no examples.
"""

import dataclasses
import functools
import math

from fedmf.federated.execution.client_work import ClientWork, cores
from fedmf.federated.execution.in_threads import ClientsInThreads, CompiledClient, KerasClient
from fedmf.federated.execution.records import Records
from fedmf.federated.execution.side_by_side import side_by_side
from fedmf.federated.task import CompiledEpoch, Task
from fedmf.runs.config import TrainConfig

_NOT_COMPILED = (
    "task {!r} has no compiled epoch that runs on this machine, as it does where the run was "
    "begun: install a C compiler here too, or train the task without its `compiled_epoch`"
)
_SLOW = (
    "the compiled epoch of {} does not run here, so its Keras model trains, about half as fast: "
    "install a C compiler, or name one in FEDMF_CC"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientSetup:
    """The model, the optimizer and the clipping of a run's clients.

    Attributes:
      task: of the run; its examples are not looked at.
      config: of the run.
      kind: "compiled" or "autodiff".
      largest_step: bound on the norm of a client's step; infinity in a run, which clips updates.
    """

    task: Task
    config: TrainConfig
    kind: str
    largest_step: float = math.inf

    @classmethod
    def here(
        cls, task: Task, config: TrainConfig, *, largest_step: float = math.inf
    ) -> "ClientSetup":
        """Returns the setup with the kind of client work that runs on this machine."""
        kind = "autodiff" if compiled_epoch(task, config) is None else "compiled"
        return cls(task=task, config=config, kind=kind, largest_step=largest_step)

    @property
    def slow(self) -> str:
        """Why the client work is slow, a sentence, where a compiled epoch does not run here."""
        slow = self.task.compiled_epoch is not None and _is_plain(self.config)
        return _SLOW.format(self.task.name) if slow and self.kind == "autodiff" else ""

    def work(self, threads: int | None) -> ClientWork:
        """The client work, with so many clients at a time, each on one thread; None for one on each
        processor. Small models, and clients of one gradient each, train side by side in one call.

        Raises:
          ValueError: the compiled epoch does not run here.
        """
        records = Records(self.task.initial_weights(self.config.seed))
        in_threads = functools.partial(
            ClientsInThreads, records=records, threads=cores() if threads is None else threads
        )
        if self.kind == "autodiff":
            one = functools.partial(KerasClient, self.task, self.config, records, self.largest_step)

            def others(reason: str) -> ClientWork:
                return in_threads(one, reason=reason)

            return side_by_side(self.task, self.config, records, others, self.largest_step)
        epoch = compiled_epoch(self.task, self.config)
        if epoch is None:
            raise ValueError(_NOT_COMPILED.format(self.task.name))
        return in_threads(
            functools.partial(
                CompiledClient,
                epoch,
                self.config,
                records,
                self.task.batch_size,
                self.largest_step,
            ),
            reason="the task's compiled epoch runs here",
        )


def compiled_epoch(task: Task, config: TrainConfig) -> CompiledEpoch | None:
    """The task's compiled epoch; None where it has none for this client work,
    or none that runs here.
    """
    return task.compiled_epoch() if task.compiled_epoch is not None and _is_plain(config) else None


def _is_plain(config: TrainConfig) -> bool:
    """Whether clients make one epoch of plain SGD, which is what compiled epochs do."""
    plain = config.client_optimizer == "sgd" and config.client_epochs == 1
    return plain and not config.client_momentum and not config.proximal_strength
