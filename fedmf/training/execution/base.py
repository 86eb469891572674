"""The interface of code that computes the rounds of a run. `RunOptions` has the options of the
machine that runs it.
"""

import abc
import contextlib
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from fedmf import checks, fields, nest
from fedmf.noise.host_strategies import HOST_STRATEGIES
from fedmf.privacy.plan import Plan
from fedmf.runs.config import TrainConfig
from fedmf.runs.round_metrics import RoundMetric, check_round_metrics
from fedmf.server.host_noise import HostNoise
from fedmf.server.optimizers import ServerOptimizer
from fedmf.training.client_data import ClientRound, client_data
from fedmf.training.examples import ClientData
from fedmf.training.task import Task

# Largest number of threads that may be set. No machine has more, and with larger numbers libraries
# overflow or run out of memory.
_MAX_THREADS = 4096


def _worker_task(name: str, value: Any) -> Callable[[], Task]:
    """Checks the argument `worker_task`, and returns it."""
    hint = "pass a function that returns the task, or None"
    return checks.function(name, value, num_arguments=0, hint=hint)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(fields.Checked):
    """Options of a run that concern this machine, and objects that the caller passes.

    With execution="fast", `threads` and `cluster` change no bit of the clients' updates and their
    sum. `noise_strategy` and `noise_memory` change noise vectors by float32 rounding, and so does
    `threads` where noise is regenerated from all draws.

    Attributes:
      noise_strategy: strategy of `HostNoise` to make the noise; None chooses one. A resumed run may
        use another one.
      noise_memory: bytes of noise that may be in memory; more noise is in a memory map in private/.
        None for a quarter of the machine's memory.
      threads: limit on the threads of this process and of its TFF worker; None for one on each
        processor. docs/cluster.md lists what it limits.
      device: name of the device on which clients train, such as "cuda"; None for the learner's
        default. Another device changes updates by float32 rounding.
      cluster: with execution="fast", the address of a Ray cluster whose workers train the clients:
        "local", "auto", "host:port" or "ray://host:port"; see docs/cluster.md.
      worker_task: a function that returns the run's task on a worker of the cluster, which then
        reads the examples of its clients; None to send them. It must be pure, because another
        worker reads the clients of a lost worker again.
      test: whether to evaluate on the test split at the end; without it result.json has no test
        metrics, as suits runs that tune.
      progress: whether to show a progress bar with rounds, clients per second, remaining time and
        the newest metrics.
      server_optimizer: an object of a registered class, which replaces the optimizer that the
        config names. plan.json records it, and a resume needs an equal one.
      accept_changed_task: whether to resume a run with another model or loss; plan.json, report and
        statement record that.
      round_metrics: `fedmf.runs.round_metrics.RoundMetric` objects, columns of metrics.jsonl.
    """

    noise_strategy: str | None = fields.choice(None, "", lambda: HOST_STRATEGIES)
    noise_memory: int | None = fields.whole_number(None, "")
    threads: int | None = fields.whole_number(None, "", high=_MAX_THREADS)
    device: str | None = fields.text(None, "")
    cluster: str | None = fields.text(None, "")
    worker_task: Callable[[], Task] | None = fields.validated(_worker_task, None)
    test: bool = fields.flag(True, "")
    progress: bool = fields.flag(True, "")
    server_optimizer: ServerOptimizer | None = fields.validated(
        fields.instance(ServerOptimizer), None
    )
    accept_changed_task: bool = fields.flag(False, "")
    round_metrics: Sequence[RoundMetric] = fields.validated(check_round_metrics, ())


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Release:
    """The release of a round and its statistics, before they are committed.

    Attributes:
      arrays: the arrays that the server's step needs. None is a sum without noise, the noise or its
        seed.
      statistics: counts, losses and public scales of the round: {"examples", "train_loss",
        "not_finite", "clip_fraction", "zeroed", "noise_stddev"}; with scaled updates
        {"scale_drift"}, with an adaptive clip norm {"clip_norm"}. train_loss is the mean over
        examples of the loss before each step, without the model's own losses; it is NaN in a round
        without examples. not_finite counts the clients whose examples are not finite: they count as
        zeroed, and their examples do not count.
      canaries: products of the released sum with the directions of the run's canaries, float64
        (canaries,); empty without canaries.
    """

    arrays: Sequence[np.ndarray]
    statistics: Mapping[str, float]
    canaries: np.ndarray


@dataclasses.dataclass(kw_only=True, eq=False)
class Execution(abc.ABC):
    """Interface of code that computes rounds as a pure state machine. Its functions are init,
    collect_release and step, and its state is opaque.

    In a round, `collect_release` trains clients and adds noise, and `step` computes the next state
    from the release alone. After a crash `step` is repeated from the release and from `before`,
    without clients and noise.

    An execution is a context manager that ends the worker or cluster that it has started. The host
    makes the noise. It can make the noise of any round, and is fast for consecutive rounds.

    Attributes:
      task, config, plan, noise_seed: task, config, plan and noise seed of the run.
      options: options of this machine.
      noise_folder: private folder for a memory map of noise; None for a temporary one.
      errors: exceptions, beside the learner's, that examples can cause.
      slowness_warning: a sentence on why rounds are slow on this machine; empty if they are not.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = ()
    slowness_warning = ""

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
        """Prepares the computation of rounds."""

    @functools.cached_property
    def num_parameters(self) -> int:
        """The number of trainable parameters of the model."""
        return sum(weight.size for weight in self.task.initial_weights(self.config.seed))

    @functools.cached_property
    def noise(self) -> HostNoise:
        """The noise vectors of the run. The object is created when the first is needed."""
        return HostNoise(
            self.plan,
            self.num_parameters,
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
        """Returns the training data of a client in round t, as an argument for `collect_release`.

        Args:
          t: the round.
          client: index of the client.
        """
        return client_data(self.task, self.config, t, client)

    @abc.abstractmethod
    def explain(self) -> str:
        """Returns a sentence that names the kind of client work and says why it was chosen."""

    @abc.abstractmethod
    def init(self) -> Any:
        """Returns the state before round 0."""

    @abc.abstractmethod
    def collect_release(
        self, state: Any, cohort: Sequence[Any], canaries: Sequence[int] = ()
    ) -> Release:
        """Trains the cohort's clients, adds noise, and returns the release of the next round.

        Args:
          state: state before the round.
          cohort: the result of `client` for each client of the cohort.
          canaries: indices of the canaries that take part.
        """

    @abc.abstractmethod
    def step(self, state: Any, release: Release) -> Any:
        """Returns the state after the server's step. It depends only on the release's arrays and on
        the arrays of `before`.
        """

    @abc.abstractmethod
    def before(self, state: Any) -> list[np.ndarray]:
        """Returns the arrays that `step` reads from a state, which are those of the weights and of
        the optimizer state.
        """

    @abc.abstractmethod
    def from_before(self, arrays: Sequence[np.ndarray]) -> Any:
        """Returns a state for `step` from the arrays of `before`. The step from it is bitwise
        identical to the original one.

        Raises:
          ValueError: the arrays are not those of this execution's `before`.
        """

    @abc.abstractmethod
    def weights(self, state: Any) -> list[np.ndarray]:
        """Returns the trainable weights of the global model in a state."""

    def canary_evidence(self, state: Any, releases: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the arrays of `fedmf.audits.canaries.CanaryEvidence`; empty without canaries.

        Args:
          state: state after the last round.
          releases: `Release.canaries` of each round, float64 (rounds, canaries).
        """
        return {}


def _spec_text(spec: tuple[tuple[int, ...], np.dtype] | None) -> str:
    """Returns the dtype and the shape of an array as text."""
    if spec is None:
        return "nothing"
    shape, dtype = spec
    return f"an array of {dtype} {shape}"


def packed_like(template: Any, leaves: Sequence[np.ndarray]) -> Any:
    """Returns saved arrays in the structure of a state, after a check that they fit it.

    Raises:
      ValueError: their number, shapes or dtypes differ from those of the state.
    """
    expected_specs = [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in nest.flatten(template)]
    recorded_specs = [(leaf.shape, leaf.dtype) for leaf in leaves]
    if expected_specs != recorded_specs:
        spec_pairs = itertools.zip_longest(recorded_specs, expected_specs)
        recorded_spec, expected_spec = next(pair for pair in spec_pairs if pair[0] != pair[1])
        raise ValueError(
            f"the run has {_spec_text(recorded_spec)} where weights and optimizer state of this "
            f"task have {_spec_text(expected_spec)}: resume with the model, server optimizer and "
            "version of fedmf that the run was begun with; `accept_changed_task` takes another "
            "program with the same shapes and dtypes"
        )
    return nest.unflatten(template, list(leaves))
