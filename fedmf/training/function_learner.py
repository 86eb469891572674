"""A learner made of three functions, in numpy or in any framework."""

import dataclasses
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from fedmf import checks
from fedmf.runs.config import TrainConfig
from fedmf.runs.executions import execution_kind
from fedmf.training.client_work import ClientWork
from fedmf.training.evaluation import check_evaluation
from fedmf.training.examples import (
    ClientData,
    Examples,
    count,
    digest,
    errors_of,
    split_weights,
    take,
)
from fedmf.training.learner import (
    ClientSettings,
    Evaluate,
    Evaluation,
    Learner,
    Machine,
    TaskData,
    function_text,
)
from fedmf.training.sequential_clients import (
    ClientUpdate,
    SequentialClients,
    Weights,
    checked_update,
)

_DTYPES = ("float32", "float64")


class FunctionLearner(Learner):
    """A learner made of three pure functions. They must keep no state between calls, because a
    state could carry a client's data past the clipped sum.

    The library clips and sums updates, and adds noise. Clients train one after the other; a Ray
    cluster trains several at a time, for which the functions are pickled: define them in a module,
    or let them use no open files, connections or locks.

    Args:
      initial_weights: seed -> a list of float32 or float64 arrays, a function of the seed alone.
      client_update: (weights, epochs, settings) -> (update, loss). It may overwrite `weights`.
        `epochs` are the shuffled examples (x, y) of each pass, and `settings.batches(epochs)`
        yields the batches. In a task with weights of examples y is `Weighted`: use `y.labels` and
        `y.weights`. `settings` has the learning rate and the other client options of the
        configuration; options that the function does not read have no effect. `update` is the
        weights after training minus those before, and `loss` the loss before each step, summed over
        examples. Random numbers must be drawn with `settings.client_seed`. Fine-tuning calls it for
        each batch, as for a client with one epoch of one batch.
      evaluate: (weights, (x, y)) -> {name: value}, means over at least one example. One name is
        "loss"; reports show the first other metric. A metric is NaN on examples that do not define
        it. The labels have no weights, because evaluation counts each example once.

    Raises:
      TypeError: an argument is no function with this number of arguments.

    >>> learner = FunctionLearner(
    ...     initial_weights=lambda seed: [np.zeros(1)],
    ...     client_update=lambda weights, epochs, settings: ([np.ones(1)], 0.5),
    ...     evaluate=lambda weights, examples: {"loss": 0.5},
    ... )
    >>> learner.initial_weights(3)
    [array([0.])]
    """

    def __init__(
        self,
        *,
        initial_weights: Callable[[int], Weights],
        client_update: ClientUpdate,
        evaluate: Callable[[Weights, Examples], Mapping[str, float]],
    ) -> None:
        hint = "pass a function: seed -> a list of arrays"
        checks.function("initial_weights", initial_weights, num_arguments=1, hint=hint)
        hint = "pass a function: (weights, epochs, settings) -> (update, loss)"
        checks.function("client_update", client_update, num_arguments=3, hint=hint)
        hint = "pass a function: (weights, (x, y)) -> {name: value}"
        checks.function("evaluate", evaluate, num_arguments=2, hint=hint)
        self._initial_weights = initial_weights
        self.client_update = client_update
        self._evaluate = evaluate

    def initial_weights(self, seed: int) -> Weights:
        """Returns the initial weights for this seed, after a check."""
        with errors_of("initial_weights"):
            return _check_initial_weights(self._initial_weights(seed))

    def client_work(self, settings: ClientSettings, machine: Machine) -> ClientWork:
        """Returns client work that trains clients one after the other with `client_update`."""
        return SequentialClients(self.client_update, settings)

    def evaluator(self, settings: ClientSettings, machine: Machine) -> Evaluate:
        """Returns a function that calls `evaluate` on copies of the weights and checks the
        metrics.
        """

        def evaluate(weights: Sequence[np.ndarray], examples: Examples) -> Evaluation:
            with errors_of(f"evaluate of task {settings.task!r}"):
                copied_weights = [np.array(weight) for weight in weights]
                metrics = self._evaluate(copied_weights, _without_weights(examples))
            value_by_name = _check_metrics(metrics, settings.task)
            undefined_names = (name for name, value in value_by_name.items() if math.isnan(value))
            return Evaluation(value_by_name, frozenset(undefined_names))

        return evaluate

    def metric_names(self, task: TaskData) -> list[str]:
        """Returns the names of the metrics that `evaluate` returns on the validation split, with
        "loss" at the end.
        """
        with errors_of(f"evaluate of task {task.name!r}"):
            validation_examples = _without_weights(task.split("validation"))
            metric_by_name = self._evaluate(self.initial_weights(0), validation_examples)
        checked_names = list(_check_metrics(metric_by_name, task.name))
        return [*(name for name in checked_names if name != "loss"), "loss"]

    def check(self, task: TaskData, config: TrainConfig) -> None:
        """Checks the three functions before round 0, by calling each twice on a batch of the
        validation split.
        """
        if execution_kind(config.execution).in_tff:
            raise ValueError(
                f"execution={config.execution!r} trains models of TFF, and task {task.name!r} has "
                "functions: use execution='fast'"
            )
        weights = self.initial_weights(config.seed)
        if digest(weights) != digest(self.initial_weights(config.seed)):
            raise ValueError(
                f"initial_weights of task {task.name!r} returns different weights for the same "
                "seed: draw them by np.random.default_rng(seed)"
            )
        settings = task.client_settings(config)
        validation_examples = task.split("validation")
        first_rows = np.arange(min(task.batch_size, count(validation_examples)))
        update_digests = []
        for _ in range(2):
            # A user's function may overwrite the examples that it gets, so each call gets a copy.
            validation_client = ClientData([take(validation_examples, first_rows)], (config.seed,))
            update, _ = checked_update(self.client_update, settings, weights, validation_client)
            update_digests.append(digest(update))
        if update_digests[0] != update_digests[1]:
            raise ValueError(
                f"client_update of task {task.name!r} returns different updates for the same "
                "client: make it a pure function, and draw random numbers with "
                "`settings.client_seed`"
            )
        check_evaluation(self.evaluator(settings, Machine()), weights, task, config)

    def fingerprint(self, seed: int) -> dict[str, str]:
        """Returns the names of the three functions and a digest of the initial weights. A name
        includes the arguments of a functools.partial and the fields of a dataclass. A change in a
        function's code goes unnoticed.
        """
        return {
            "initial_weights": function_text(self._initial_weights),
            "client_update": function_text(self.client_update),
            "evaluate": function_text(self._evaluate),
            "initial weights": digest(self.initial_weights(seed)),
        }

    def starting_from(self, weights: Sequence[np.ndarray]) -> Self:
        """Returns a learner with the same functions whose initial weights are these for every
        seed.
        """
        weights = checks.entries("weights", weights, hint="give a list of arrays")
        given_shapes = [np.shape(weight) for weight in weights]
        initial_shapes = [weight.shape for weight in self.initial_weights(0)]
        if given_shapes != initial_shapes:
            raise ValueError(
                f"the weights have the shapes {given_shapes} and initial_weights returns "
                f"{initial_shapes}: use weights of the same model"
            )
        return type(self)(
            initial_weights=_Copies([np.array(weight) for weight in weights]),
            client_update=self.client_update,
            evaluate=self._evaluate,
        )


@dataclasses.dataclass(frozen=True)
class _Copies:
    """A function that returns copies of the same weights for every seed. Unlike a lambda, it can be
    pickled.
    """

    weights: Weights

    def __call__(self, seed: int) -> Weights:
        return [weight.copy() for weight in self.weights]


def _without_weights(examples: Examples) -> Examples:
    """Returns the examples with plain labels in place of `Weighted` labels."""
    x, y = examples
    labels, _ = split_weights(y)
    return x, labels


def _check_initial_weights(weights: Any) -> Weights:
    """Checks initial weights, and returns them as arrays.

    Raises:
      TypeError, ValueError: they are no list of finite float arrays, or have no entry.
    """
    hint = "return a list of float32 or float64 arrays"
    if not isinstance(weights, list | tuple):
        raise TypeError(f"initial_weights returns a {type(weights).__name__}: {hint}")
    if any(map(np.ma.isMaskedArray, weights)):
        raise TypeError(f"initial_weights returns a masked array: {hint}")
    weight_arrays = [np.array(weight) for weight in weights]
    dtypes = [array.dtype.name for array in weight_arrays]
    if any(dtype not in _DTYPES for dtype in dtypes):
        raise TypeError(f"initial_weights returns {', '.join(dtypes)}: {hint}")
    if not sum(array.size for array in weight_arrays):
        raise ValueError(f"initial_weights returns no number: {hint}")
    if not all(np.isfinite(array).all() for array in weight_arrays):
        raise ValueError(f"initial_weights returns NaN or infinity: {hint}")
    return weight_arrays


def _check_metrics(metrics: Any, task_name: str) -> dict[str, float]:
    """Checks the metrics that `evaluate` returned, and returns them as floats.

    Raises:
      TypeError, ValueError: they are no dict of numbers, or have no loss.
    """
    hint = 'return {"loss": ..., "accuracy": ...}, one number each'
    if not isinstance(metrics, Mapping):
        raise TypeError(
            f"evaluate of task {task_name!r} returns a {type(metrics).__name__}: {hint}"
        )
    value_by_name = {}
    for name, value in metrics.items():
        metric_value = checks.real_number(value)
        if not isinstance(name, str) or metric_value is None:
            raise TypeError(
                f"evaluate of task {task_name!r} returns {name!r}: {reprlib.repr(value)}: {hint}"
            )
        value_by_name[name] = metric_value
    if "loss" not in value_by_name:
        raise ValueError(f"evaluate of task {task_name!r} returns no loss: {hint}")
    return value_by_name
