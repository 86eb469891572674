"""`Execution`, a pure state machine over rounds, and `RunOptions`, how this machine runs it."""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf import fields
from fedmf.federated.task import Task
from fedmf.server.rows import HostNoise

CLIENT_WORK = ("compiled", "autodiff")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(fields.Checked):
    """How this machine trains: all of it leaves the model as it is, to float32 rounding.

    Attributes:
      noise_strategy: how the host makes the noise, as `HostNoise` names it; None chooses. A resume
        may name another one.
      noise_memory: bytes that the noise may take in memory, and is in a memory map in private/
        beyond; None for a quarter of the machine's memory.
      threads: limit on the threads of this process and of the TFF worker it starts; None for one on
        each processor. docs/cluster.md says what it limits.
      cluster: with execution="fast", the address of a Ray cluster whose workers train the clients:
        "local", "auto", "host:port" or "ray://host:port"; docs/cluster.md.
      worker_task: makes the run's task on a worker of the cluster, which then reads its clients'
        examples itself; None to send them. Pure, as the task's functions are: a lost worker's
        clients are read again by another.
      client_work: with execution="fast", "compiled" trains clients by the task's `compiled_epoch`,
        "autodiff" by its Keras model; None takes the former where there is one.
      test: evaluate on the test split at the end; without it result.json has no test metrics, as
        befits runs that tune.
      progress: show a progress bar with rounds, clients/s, time left and the latest metrics.
      tensorboard: write the metrics of every round to RUN/tensorboard, for TensorBoard.
      stop_after: rounds after which the run stops, checkpointed and without a result, to go on with
        at a resume; None for all.
      stop_at_epsilon: the run ends, with a result, before the round with which the plan's epsilon
        would pass this; it follows from the plan alone, before training. The folder keeps it: a
        resume may repeat it or leave it out, and is refused with another.
      stop_on_divergence: the run stops with `DivergedRun`, checkpointed and without a result, where
        it would warn of a divergence. Training losses decide that, which the guarantee does not
        cover; its rounds have the guarantee of all rounds of the plan.
      on_start: called before the first round of this process; errors before that are of the inputs.
      on_round: called with t after round t; an exception it raises stops the run like a crash.
    """

    noise_strategy: str | None = None
    noise_memory: int | None = fields.whole(None, "")
    threads: int | None = fields.whole(None, "")
    cluster: str | None = None
    worker_task: Callable[[], Task] | None = None
    client_work: str | None = fields.choice(None, "", lambda: CLIENT_WORK)
    test: bool = True
    progress: bool = True
    tensorboard: bool = False
    stop_after: int | None = fields.whole(None, "")
    stop_at_epsilon: float | None = fields.real(None, "")
    stop_on_divergence: bool = False
    on_start: Callable[[], None] | None = None
    on_round: Callable[[int], None] | None = None


class Execution(abc.ABC):
    """init / next over an opaque state; `leaves` and `from_leaves` carry it through a checkpoint
    bit for bit.

    The noise is made by the host and handed into the state. Any round may be asked for; rounds in
    order are fast.
    """

    noise: HostNoise
    errors: tuple[type[Exception], ...] = ()  # beside TensorFlow's: what a client's examples raise
    slow = ""  # a sentence for the terminal: why rounds take longer than they might

    @abc.abstractmethod
    def init(self) -> Any:
        """State before round 0."""

    @abc.abstractmethod
    def next(
        self, state: Any, cohort: Sequence[Any], canaries: Sequence[int] = ()
    ) -> tuple[Any, dict[str, float]]:
        """One round on the epochs of the cohort's clients, and with those of the run's canaries
        that take part.

        Where a cluster's workers read the examples, clients are `ClientRound`.

        Returns:
          The new state and {"examples", "train_loss", "not_finite"} with the query's
          {"clip_fraction", "zeroed", "noise_stddev"}; with scaled updates {"scale_drift"}, with a
          clip norm that adapts {"clip_norm"}. train_loss is the mean of the batches' losses before
          each step, an example a vote, without the model's own losses. not_finite counts the
          clients whose examples are not finite: they are among the zeroed,
          and not among the examples.
        """

    @abc.abstractmethod
    def weights(self, state: Any) -> list[np.ndarray]:
        """The global model's trainable weights."""

    def canary_evidence(self, state: Any) -> dict[str, np.ndarray]:
        """What the state shows of the run's canaries, as in `fedmf.audits.canaries.CanaryEvidence`;
        empty without canaries.
        """
        return {}

    def leaves(self, state: Any) -> list[np.ndarray]:
        """The state as numpy arrays in a fixed order, trainable weights first."""
        return [np.asarray(leaf) for leaf in tf.nest.flatten(state)]

    def from_leaves(self, leaves: Sequence[np.ndarray]) -> Any:
        """The inverse of `leaves`. The noise is made again from its seed.

        Raises:
          ValueError: the leaves are not those of this execution.
        """
        template = self.init()
        expected = [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in tf.nest.flatten(template)]
        if expected != [(leaf.shape, leaf.dtype) for leaf in leaves]:
            raise ValueError(
                "the checkpoint's state does not fit this model and mechanism: resume with "
                "the version that wrote it"
            )
        return tf.nest.pack_sequence_as(template, list(leaves))
