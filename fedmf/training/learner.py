"""`Learner`: what a framework brings to the simulation: a model, its training on one client's
examples, and its evaluation.
"""

import abc
import contextlib
import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
import threadpoolctl

from fedmf.runs.config import TrainConfig
from fedmf.training.client_work import ClientWork
from fedmf.training.examples import Epochs, Examples, count, take


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """How the clients of a run train: no examples, no noise and no seed of the noise.

    Attributes:
      task: name of the task, for errors.
      seed: of the run. What a model has beside its trained weights follows from it.
      batch_size: examples in a batch; the last batch of an epoch may have fewer.
      spec: of the examples, a structure of `ArraySpec`.
      cohort_size: clients of a round, as planned.
      optimizer, learning_rate, momentum: of the clients, as the configuration names them.
      proximal_strength: of FedProx; 0 for none.
      epochs: passes of a client over its examples.
      is_scaled: whether the run scales updates before they are clipped.
      max_step_norm: most that a step may move the weights, in L2; infinity in a run, where whole
        updates are clipped.
      client_seed: of a client in a round, whole numbers as `numpy.random.default_rng` takes them;
        empty where it is not about one client.
      work_kind: how clients train on this machine, as `Learner.work_kind` says; workers of a
        cluster do the same.
    """

    task: str
    seed: int
    batch_size: int
    spec: Any
    cohort_size: int
    optimizer: str = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.0
    proximal_strength: float = 0.0
    epochs: int = 1
    is_scaled: bool = False
    max_step_norm: float = math.inf
    work_kind: str = ""
    client_seed: tuple[int, ...] = ()

    def batches(self, epochs: Epochs) -> Iterator[Examples]:
        """Yields the batches of a client in their order, epoch after epoch."""
        for epoch in epochs:
            for start in range(0, count(epoch), self.batch_size):
                yield take(epoch, slice(start, start + self.batch_size))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """How this machine computes: it changes a model by rounding at most.

    Attributes:
      threads: most threads that compute; None for one on each processor. They change no bit.
      device: of the framework, such as "cuda"; None for the learner's default.
    """

    threads: int | None = None
    device: str | None = None


class Evaluation(NamedTuple):
    """Metrics of a model on some examples.

    Attributes:
      values: name -> value; "loss" is among them, a mean over examples.
      undefined: names of the metrics that these examples do not define, whatever the model.
    """

    values: Mapping[str, float]
    undefined: frozenset[str] = frozenset()


# (weights, examples) -> metrics; at least one example.
Evaluate = Callable[[Sequence[np.ndarray], Examples], Evaluation]


class TaskData(Protocol):
    """What a learner sees of its task; see `fedmf.training.Task`."""

    @property
    def name(self) -> str:
        """The name of the task."""

    @property
    def client_ids(self) -> Sequence[Any]:
        """The training clients."""

    @property
    def batch_size(self) -> int:
        """Examples of a batch."""

    @property
    def headline(self) -> str:
        """The metric that reports show."""

    @property
    def spec(self) -> Any:
        """The examples as a structure of `ArraySpec`."""

    def client_settings(self, config: TrainConfig) -> ClientSettings:
        """Returns how clients train."""

    def examples_of(self, client_id: Any) -> Examples:
        """Returns a client's examples."""

    def split(self, name: str) -> Examples:
        """Returns the examples of a split."""


class Learner(abc.ABC):
    """A model and how it is trained and judged, in any framework.

    Weights are the trained weights of the model, a list of float arrays. A learner holds no
    examples and pickles, so that workers of a cluster get one.

    Attributes:
      errors: what training and evaluation raise where examples do not fit the model, beside
        TypeError and ValueError.
      packages: names of the packages whose versions must be the same on all machines of a run.
      takes_no_weights: what of it takes no weights of examples, in words; empty where all does.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = ()
    packages: ClassVar[tuple[str, ...]] = ()
    takes_no_weights: str = ""

    @abc.abstractmethod
    def initial_weights(self, seed: int) -> list[np.ndarray]:
        """Returns the weights that a run of this seed begins with: the same for the same seed."""

    @abc.abstractmethod
    def client_work(self, settings: ClientSettings, machine: Machine) -> ClientWork:
        """Returns what trains the clients of a run, and clips and sums their updates."""

    @abc.abstractmethod
    def evaluator(self, settings: ClientSettings, machine: Machine) -> Evaluate:
        """Returns a function that evaluates weights on examples."""

    @abc.abstractmethod
    def metric_names(self, task: TaskData) -> list[str]:
        """Returns the names of the metrics; the first is the one that reports show.

        Args:
          task: whose learner this is, for learners that name their metrics when they evaluate.
        """

    @abc.abstractmethod
    def check(self, task: TaskData, config: TrainConfig) -> None:
        """Refuses before round 0 what cannot train, or would break the guarantee.

        Args:
          task: whose learner this is.
          config: of the run.

        Raises:
          TypeError, ValueError: saying what is wrong and what to do instead.
        """

    @abc.abstractmethod
    def fingerprint(self, seed: int) -> dict[str, str]:
        """Returns a text for each part of the program that computes updates, by its name.

        A resume needs equal ones, unless `accept_changed_task` is given. No guarantee rests on it.

        Args:
          seed: of the run.
        """

    def prepare(self, task: TaskData, config: TrainConfig) -> None:  # noqa: B027  (optional)
        """Prepares this process for a run, before anything is computed."""

    def limited_threads(self, threads: int | None) -> contextlib.AbstractContextManager[None]:
        """Returns a context inside which this process computes with at most so many threads.

        Raises:
          ValueError: the framework has started with another number.
        """
        return limited_linear_algebra(threads)

    def work_kind(self, settings: ClientSettings) -> str:
        """Returns how clients train on this machine, a word, where a learner has several ways."""
        return ""

    def slow(self, settings: ClientSettings) -> str:
        """Returns why clients train slower here than they might, a sentence; empty if they do not.

        Args:
          settings: with the kind of work of this machine.
        """
        return ""

    def on_workers(self) -> Self:
        """Returns the learner that workers of a cluster get, who train and do not evaluate."""
        return self

    def misfit_reason(self, error: Exception) -> str:
        """Returns what one of `errors` says of the examples that it is about."""
        return str(error)

    def all_weights(self, weights: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
        """Returns all that a warm start keeps of a model: the trained weights and the others."""
        return list(weights)

    @abc.abstractmethod
    def starting_from(self, weights: Sequence[np.ndarray]) -> Self:
        """Returns this learner with models that start from these, whatever the seed.

        Args:
          weights: as `all_weights` returns them.

        Raises:
          ValueError: the shapes are not those of the model.
        """

    def load_weights(self, path: pathlib.Path) -> list[np.ndarray]:
        """Returns all weights of a model file, as `all_weights` has them.

        Raises:
          ValueError: it cannot be read, or learners of this kind have no files.
        """
        raise ValueError(
            f"{type(self).__name__} reads no model files: name the folder of a run of the same "
            "model, or let initial_weights return the weights"
        )

    def model(self, weights: Sequence[np.ndarray], seed: int) -> Any:
        """Returns a model of the framework with these weights.

        Raises:
          ValueError: learners of this kind have no models.
        """
        raise ValueError(
            f"{type(self).__name__} has functions and no model: take `run.weights`, in the order "
            "of initial_weights"
        )

    def export(self, weights: Sequence[np.ndarray], seed: int, path: pathlib.Path) -> Any:
        """Writes `model` to a new file or folder, and returns it.

        Raises:
          ValueError: as `model` does.
        """
        return self.model(weights, seed)


def function_name(function: Any) -> str:
    """Returns the name of a function, or of the class of what is called like one.

    >>> import functools
    >>> function_name(functools.partial(math.sqrt, 2))
    'math.sqrt'
    """
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__qualname__"):
        function = type(function)
    return f"{function.__module__}.{function.__qualname__}"


@contextlib.contextmanager
def limited_linear_algebra(threads: int | None) -> Iterator[None]:
    """Inside, the linear algebra behind numpy and scipy takes at most so many threads; None changes
    nothing.

    >>> with limited_linear_algebra(None):
    ...     pass
    """
    if threads is None:
        yield
        return
    with threadpoolctl.threadpool_limits(limits=threads):
        yield
