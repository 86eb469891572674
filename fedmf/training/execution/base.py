"""`Execution`, a pure state machine over rounds, and `RunOptions`, how this machine runs it."""

import abc
import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from fedmf import checks, fields, nest
from fedmf.noise.host_strategies import HOST_STRATEGIES
from fedmf.privacy.plan import Plan
from fedmf.runs.config import TrainConfig
from fedmf.runs.round_metrics import RoundMetric, checked_metrics
from fedmf.server.optimizers import ServerOptimizer
from fedmf.server.rows import HostNoise
from fedmf.training.client_data import ClientRound, client_data
from fedmf.training.examples import ClientData
from fedmf.training.task import Task

# More than any machine has: beyond, libraries overflow or run out of memory.
_MAX_THREADS = 4096


def _worker_task(name: str, value: Any) -> Callable[[], Task]:
    hint = "pass a function that makes the task, or None"
    return checks.function(name, value, num_arguments=0, hint=hint)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(fields.Checked):
    """How this machine trains, and with which objects of yours.

    Machine settings leave the model as it is, to float32 rounding.

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
      test: evaluate on the test split at the end; without it result.json has no test metrics, as
        befits runs that tune.
      progress: show a progress bar with rounds, clients/s, time left and the latest metrics.
      server_optimizer: in place of the one that the config names, with its own fields; of a class
        that is registered. plan.json records it, and a resume needs an equal one.
      accept_changed_task: go on with a run whose model or loss is another than before; plan.json,
        report and statement say so.
      round_metrics: columns of yours in metrics.jsonl; see `fedmf.runs.round_metrics.RoundMetric`.
    """

    noise_strategy: str | None = fields.choice(None, "", lambda: HOST_STRATEGIES)
    noise_memory: int | None = fields.whole_number(None, "")
    threads: int | None = fields.whole_number(None, "", high=_MAX_THREADS)
    cluster: str | None = fields.text(None, "")
    worker_task: Callable[[], Task] | None = fields.validated(_worker_task, None)
    test: bool = fields.flag(True, "")
    progress: bool = fields.flag(True, "")
    server_optimizer: ServerOptimizer | None = fields.validated(
        fields.instance(ServerOptimizer), None
    )
    accept_changed_task: bool = fields.flag(False, "")
    round_metrics: Sequence[RoundMetric] = fields.validated(checked_metrics, ())


def parameters(task: Task, config: TrainConfig) -> int:
    """The number of trainable parameters of the task's model."""
    return sum(weight.size for weight in task.initial_weights(config.seed))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Release:
    """The release of a round, which nobody has seen yet.

    Attributes:
      arrays: all that the server's step needs of it: no sum without noise, no noise, no seed.
      row: numbers of the round: {"examples", "train_loss", "not_finite", "clip_fraction", "zeroed",
        "noise_stddev"}; with scaled updates {"scale_drift"}, with a clip norm that adapts
        {"clip_norm"}. train_loss is the mean of the batches' losses before each step, each example
        counts once, without the model's own losses. not_finite counts the clients whose examples
        are not finite: they are among the zeroed, and not among the examples.
      canaries: products of the released sum with the directions of the run's canaries, float64
        (canaries,); empty without canaries.
    """

    arrays: Sequence[np.ndarray]
    row: Mapping[str, float]
    canaries: np.ndarray


@dataclasses.dataclass(kw_only=True, eq=False)
class Execution(abc.ABC):
    """init / collect_release / step over an opaque state.

    A round is `collect_release`, in which clients train and noise is added, and `step`, which
    follows from the release alone. After a crash the step is taken again from the release and from
    `before`, and neither clients nor noise take part.

    A context manager, which ends what it has started, a worker or a cluster. The noise is made by
    the host and handed into the state. Any round may be asked for; rounds in order are fast.

    Attributes:
      task, config, plan, noise_seed: of the run.
      options: how this machine runs it.
      noise_folder: private folder for a memory map of noise; None for one that ends
        with the execution.
    """

    # Beside the learner's: what a client's examples raise
    errors: ClassVar[tuple[type[Exception], ...]] = ()
    slow = ""  # a sentence for the terminal: why rounds take longer than they might

    task: Task
    config: TrainConfig
    plan: Plan
    noise_seed: int
    options: RunOptions
    noise_folder: str | pathlib.Path | None
    _started: contextlib.ExitStack = dataclasses.field(
        default_factory=contextlib.ExitStack, init=False
    )

    @abc.abstractmethod
    def __post_init__(self) -> None:
        """Makes what the rounds need."""

    @functools.cached_property
    def noise(self) -> HostNoise:
        """The rows of the run's noise, made when the first is needed."""
        return HostNoise(
            self.plan,
            parameters(self.task, self.config),
            noise_seed=self.noise_seed,
            strategy=self.options.noise_strategy,
            memory_bytes=self.options.noise_memory,
            folder=self.noise_folder,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._started.close()

    def client(self, t: int, client: int) -> ClientData | ClientRound:
        """What `collect_release` takes for a client, by its index, in round t."""
        return client_data(self.task, self.config, t, client)

    @abc.abstractmethod
    def explain(self) -> str:
        """Returns a sentence that says how the clients train here, and why so."""

    @abc.abstractmethod
    def init(self) -> Any:
        """State before round 0."""

    @abc.abstractmethod
    def collect_release(
        self, state: Any, cohort: Sequence[Any], canaries: Sequence[int] = ()
    ) -> Release:
        """Returns the release of the coming round.

        Args:
          state: before the round.
          cohort: what `client` returns for each client of the cohort.
          canaries: those of the run's canaries that take part.
        """

    @abc.abstractmethod
    def step(self, state: Any, release: Release) -> Any:
        """Returns the state after the server's step: a pure function of the release's arrays and of
        what `before` has of the state.
        """

    @abc.abstractmethod
    def before(self, state: Any) -> list[np.ndarray]:
        """Returns all that `step` needs of the state before it: the leaves of weights and optimizer
        state.
        """

    @abc.abstractmethod
    def from_before(self, arrays: Sequence[np.ndarray]) -> Any:
        """Returns a state from which `step` comes to the same bits; it is for that alone.

        Raises:
          ValueError: the arrays are not those of this execution's `before`.
        """

    @abc.abstractmethod
    def weights(self, state: Any) -> list[np.ndarray]:
        """The global model's trainable weights."""

    def canary_evidence(self, state: Any, releases: np.ndarray) -> dict[str, np.ndarray]:
        """Returns what a run shows of its canaries, as in `fedmf.audits.canaries.CanaryEvidence`;
        empty without canaries.

        Args:
          state: after the last round.
          releases: `Release.canaries` of each round, float64 (rounds, canaries).
        """
        return {}


def packed_like(template: Any, leaves: Sequence[np.ndarray]) -> Any:
    """Returns leaves that were saved in the structure of a state.

    Raises:
      ValueError: their number, shapes or dtypes are others than those of the state.
    """
    expected = [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in nest.flatten(template)]
    if expected != [(leaf.shape, leaf.dtype) for leaf in leaves]:
        raise ValueError(
            "the saved state does not fit this model and mechanism: resume with "
            "the version that wrote it"
        )
    return nest.unflatten(template, list(leaves))
