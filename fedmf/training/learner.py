"""The interface between a machine-learning framework and the simulation. A learner has a model,
trains it on clients' examples, and evaluates it.
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
from fedmf.training.examples import Epochs, Examples, count, digest, take


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Settings with which the clients of a run train. They contain no examples, no noise and no
    noise seed.

    Attributes:
      task: name of the task, for errors.
      seed: seed of the run, which determines all of a model but its trained weights.
      batch_size: number of examples in a batch; the last batch of an epoch may be smaller.
      spec: `ArraySpec` structure of the examples.
      cohort_size: planned number of clients in a round.
      optimizer, learning_rate, momentum: the client optimizer, as the configuration names it.
      proximal_strength: strength of FedProx; 0 for none.
      epochs: passes of a client over its examples.
      is_scaled: whether the run scales updates before they are clipped.
      max_step_norm: bound on the L2 norm of a step; infinite in a run, where whole updates are
        clipped.
      client_seed: seed of a client in a round, whole numbers as `numpy.random.default_rng` takes
        them; empty in settings for all clients.
      work_kind: the kind of client work, as `Learner.work_kind` returns it; workers of a cluster
        use the same kind.
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
        """Yields the batches of a client in order, epoch after epoch."""
        for epoch in epochs:
            for start in range(0, count(epoch), self.batch_size):
                yield take(epoch, slice(start, start + self.batch_size))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """Settings of the machine that computes the clients' work.

    Attributes:
      threads: maximal number of threads; None for one on each processor. A client's update is
        bitwise identical for any number.
      device: name of the framework's device, such as "cuda"; None for the learner's default.
        Another device changes an update by float32 rounding.
    """

    threads: int | None = None
    device: str | None = None


class Evaluation(NamedTuple):
    """Metrics of a model on examples.

    Attributes:
      values: name -> value; one name is "loss", the mean over examples.
      undefined: names of the metrics that these examples do not define for any model.
    """

    values: Mapping[str, float]
    undefined: frozenset[str] = frozenset()


# A function that takes weights and at least one example, and returns the metrics.
Evaluate = Callable[[Sequence[np.ndarray], Examples], Evaluation]


class TaskData(Protocol):
    """The attributes of a `fedmf.training.Task` that its learner reads."""

    @property
    def name(self) -> str:
        """The name of the task."""

    @property
    def client_ids(self) -> Sequence[Any]:
        """The ids of the training clients."""

    @property
    def batch_size(self) -> int:
        """The number of examples in a batch."""

    @property
    def headline(self) -> str:
        """The name of the metric that reports show."""

    @property
    def spec(self) -> Any:
        """The spec of the examples, which is their structure with an `ArraySpec` for each array."""

    def client_settings(self, config: TrainConfig) -> ClientSettings:
        """Returns the settings with which clients train in a run with this config."""

    def examples_of(self, client_id: Any) -> Examples:
        """Returns the training examples of a client."""

    def split(self, name: str) -> Examples:
        """Returns the examples of the split "validation" or "test"."""


class FrozenWeights(NamedTuple):
    """The weights of a model that a run neither trains nor sends.

    Attributes:
      number: number of weights.
      digest: digest of their values; empty without weights.
    """

    number: int
    digest: str


class Learner(abc.ABC):
    """Base class of learners. A learner is a model with its training and evaluation, in any
    framework.

    Weights are the trained weights of the model, a list of float arrays. A learner holds no
    examples, and can be pickled for the workers of a cluster.

    Attributes:
      errors: exceptions that training and evaluation raise if examples do not fit the model, beside
        TypeError and ValueError.
      packages: names of the packages whose versions must agree on all machines of a run.
      takes_no_weights: description of the component that does not support weights of examples, for
        errors; empty if the learner supports them.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = ()
    packages: ClassVar[tuple[str, ...]] = ()
    takes_no_weights: str = ""

    @abc.abstractmethod
    def initial_weights(self, seed: int) -> list[np.ndarray]:
        """Returns the initial weights of a run, which depend on its seed alone."""

    @abc.abstractmethod
    def client_work(self, settings: ClientSettings, machine: Machine) -> ClientWork:
        """Returns the client work of a run, which trains clients and sums their clipped updates."""

    @abc.abstractmethod
    def evaluator(self, settings: ClientSettings, machine: Machine) -> Evaluate:
        """Returns a function that evaluates weights on examples."""

    @abc.abstractmethod
    def metric_names(self, task: TaskData) -> list[str]:
        """Returns the names of the metrics; reports show the first one.

        Args:
          task: task of this learner, for learners that learn the names by evaluating.
        """

    @abc.abstractmethod
    def check(self, task: TaskData, config: TrainConfig) -> None:
        """Checks before round 0 that the model can be trained and that the guarantee holds for it.

        Args:
          task: task of this learner.
          config: config of the run.

        Raises:
          TypeError, ValueError: the model cannot be trained, or the guarantee would not hold.
        """

    @abc.abstractmethod
    def fingerprint(self, seed: int) -> dict[str, str]:
        """Returns a dict that describes each component of the program that computes updates, by the
        component's name.

        A run is resumed with an equal fingerprint only, unless `accept_changed_task` is set. The
        guarantee does not depend on it.

        Args:
          seed: seed of the run.
        """

    def check_device(self, device: str) -> None:
        """Checks that clients can train on a device of this machine, such as "cuda".

        Raises:
          ValueError: the machine has no such device, or learners of this class have no choice.
        """
        raise ValueError(
            f"device={device!r} is for PyTorch models, and this task has a {type(self).__name__}: "
            "leave it out"
        )

    def frozen_weights(self, seed: int) -> FrozenWeights:
        """Returns the number and a digest of the weights that are not trained, for the privacy
        statement: it does not cover the data that they were trained on.
        """
        return FrozenWeights(0, "")

    def prepare(self, task: TaskData, config: TrainConfig) -> None:  # noqa: B027  (optional)
        """Prepares this process for a run, before it computes anything."""

    def limited_threads(self, threads: int | None) -> contextlib.AbstractContextManager[None]:
        """Returns a context manager that limits the threads with which this process computes.

        Raises:
          ValueError: the framework has started with another number of threads.
        """
        return limited_linear_algebra(threads)

    def work_kind(self, settings: ClientSettings) -> str:
        """Returns the name of the kind of client work that suits this machine; empty if there is
        only one kind.
        """
        return ""

    def slowness_warning(self, settings: ClientSettings) -> str:
        """Returns a sentence that says why clients train slowly on this machine; empty if they do
        not.

        Args:
          settings: settings with the kind of client work of this machine.
        """
        return ""

    def on_workers(self) -> Self:
        """Returns a learner for the workers of a cluster, which only train and never evaluate."""
        return self

    def misfit_reason(self, error: Exception) -> str:
        """Returns the part of an error's message that is about examples which do not fit the
        model.
        """
        return str(error)

    def all_weights(self, weights: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
        """Returns all weights of a model for a warm start, including weights that are not
        trained.
        """
        return list(weights)

    @abc.abstractmethod
    def starting_from(self, weights: Sequence[np.ndarray]) -> Self:
        """Returns this learner with other initial weights, so that models start from `weights` for
        every seed.

        Args:
          weights: all weights of a model, as `all_weights` returns them.

        Raises:
          ValueError: the shapes differ from those of the model.
        """

    def load_weights(self, path: pathlib.Path) -> list[np.ndarray]:
        """Reads all weights from a model file, in the order of `all_weights`.

        Raises:
          ValueError: the file cannot be read, or learners of this class read no files.
        """
        raise ValueError(
            f"{type(self).__name__} reads no model files: name the folder of a run of the same "
            "model, or let initial_weights return the weights"
        )

    def model(self, weights: Sequence[np.ndarray], seed: int) -> Any:
        """Returns a model of the framework with these weights.

        Raises:
          ValueError: learners of this class have no models.
        """
        raise ValueError(
            f"{type(self).__name__} has functions and no model: use `run.weights`, in the order "
            "of initial_weights"
        )

    def model_summary(self, model: Any) -> dict[str, Any]:
        """Returns facts about a model of the framework by name, such as its number of parameters,
        which `fedmf export` prints.
        """
        return {}

    def export(self, weights: Sequence[np.ndarray], seed: int, path: pathlib.Path) -> Any:
        """Writes the model with these weights to a new file or folder, and returns the model.

        Raises:
          ValueError: as `model` does.
        """
        return self.model(weights, seed)


def function_text(function: Any) -> str:
    """Returns the name of a function, or of the class of a callable object. The name includes the
    arguments of a functools.partial and the fields of a dataclass.

    >>> import functools
    >>> function_text(functools.partial(math.pow, 2, y=np.zeros(2)))
    'math.pow(2, y=array bc22cf6bfa1baa68)'
    """
    if isinstance(function, functools.partial):
        argument_texts = [value_text(value) for value in function.args]
        sorted_keywords = sorted(function.keywords.items())
        argument_texts += [
            f"{qualified_name}={value_text(value)}" for qualified_name, value in sorted_keywords
        ]
        return f"{function_text(function.func)}({', '.join(argument_texts)})"
    method_owner = getattr(function, "__self__", function)
    is_object = dataclasses.is_dataclass(method_owner) and not isinstance(method_owner, type)
    if not hasattr(function, "__qualname__"):
        function = type(function)
    qualified_name = f"{function.__module__}.{function.__qualname__}"
    return f"{qualified_name}({_fields_text(method_owner)})" if is_object else qualified_name


def value_text(value: Any) -> str:
    """Returns a text that changes with a value. Of an array it has a digest, and of an object that
    is no dataclass only the class.
    """
    # The value is converted to a Python number, because the repr of numpy's scalars depends on the
    # version of numpy.
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str | bytes | int | float | complex | None):
        return repr(value)
    if isinstance(value, Mapping):
        entry_texts = [f"{value_text(key)}: {value_text(entry)}" for key, entry in value.items()]
        return f"{{{', '.join(entry_texts)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    if hasattr(value, "__array__"):
        with contextlib.suppress(TypeError, RuntimeError):
            return f"array {digest(np.asarray(value))}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__qualname__}({_fields_text(value)})"
    return function_text(value)


def _fields_text(owner: Any) -> str:
    """Returns the fields of a dataclass object as text."""
    field_names = [field.name for field in dataclasses.fields(owner)]
    return ", ".join(f"{name}={value_text(getattr(owner, name))}" for name in field_names)


@contextlib.contextmanager
def limited_linear_algebra(threads: int | None) -> Iterator[None]:
    """Limits the threads of numpy's and scipy's linear algebra inside the block; None sets no
    limit.

    >>> with limited_linear_algebra(None):
    ...     pass
    """
    if threads is None:
        yield
        return
    with threadpoolctl.threadpool_limits(limits=threads):
        yield
