"""`FunctionLearner`: a learner of three functions, in numpy or any framework."""

import dataclasses
import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from fedmf import checks
from fedmf.runs.config import TrainConfig
from fedmf.runs.executions import execution_kind
from fedmf.server.clipping import UpdateSum
from fedmf.server.means import in_shapes
from fedmf.server.messages import ClippedSum
from fedmf.terminal import interrupts
from fedmf.training.client_work import Broadcast, ClientWork, group_sum
from fedmf.training.examples import ClientData, Epochs, Examples, count, digest, errors_of, take
from fedmf.training.learner import (
    ClientSettings,
    Evaluate,
    Evaluation,
    Learner,
    Machine,
    TaskData,
    function_name,
)

Weights = list[np.ndarray]
# (weights, epochs, settings) -> (weights after training minus before, loss before each step summed
# over examples).
ClientUpdate = Callable[[Weights, Epochs, ClientSettings], tuple[Sequence[Any], float]]

_DTYPES = ("float32", "float64")
# Updates are clipped for a sum of so many clients at least, see `clip_margin`. The margin must be
# the same on each worker of a cluster, which sees a few of them.
_LEAST_CLIENTS = 2**16


class FunctionLearner(Learner):
    """A learner of three pure functions: what one of them kept from call to call would carry a
    client's data past the clipped sum.

    The library clips, sums and adds noise. Clients train one after the other; a Ray cluster trains
    several at a time. With a cluster the functions are pickled: let them be a module's, or use
    nothing that is open in this process.

    Args:
      initial_weights: seed -> a list of float32 or float64 arrays, the same for the same seed.
      client_update: (weights, epochs, settings) -> (update, loss). `weights` are arrays of its
        own. `epochs` are the examples of each pass, (x, y) in an order that is drawn, and
        `settings.batches(epochs)` yields the batches. `settings` has the learning rate and what
        else the configuration says of clients; what the function does not look at has no effect.
        `update` is the weights after training minus those before, `loss` is the loss before each
        step, summed over examples. Random numbers follow from `settings.client_seed`. For
        fine-tuning it is called for each batch, as a client of one epoch.
      evaluate: (weights, (x, y)) -> {name: value}, means over the examples, at least one. "loss" is
        one of them; reports show the first other one. A metric is NaN on examples that do not
        define it. Labels may be `Weighted`; evaluation counts each example once.

    Raises:
      TypeError: no functions of so many arguments.

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
        """See `Learner.initial_weights`."""
        with errors_of("initial_weights"):
            return _checked_weights(self._initial_weights(seed))

    def client_work(self, settings: ClientSettings, machine: Machine) -> ClientWork:
        """See `Learner.client_work`."""
        return _ClientsInTurn(self, settings)

    def evaluator(self, settings: ClientSettings, machine: Machine) -> Evaluate:
        """See `Learner.evaluator`."""

        def evaluate(weights: Sequence[np.ndarray], examples: Examples) -> Evaluation:
            with errors_of(f"evaluate of task {settings.task!r}"):
                found = self._evaluate([np.array(weight) for weight in weights], examples)
            values = _checked_metrics(found, settings.task)
            undefined = (name for name, value in values.items() if math.isnan(value))
            return Evaluation(values, frozenset(undefined))

        return evaluate

    def metric_names(self, task: TaskData) -> list[str]:
        """See `Learner.metric_names`: those of an evaluation of the validation split, the loss
        last.
        """
        with errors_of(f"evaluate of task {task.name!r}"):
            found = self._evaluate(self.initial_weights(0), task.split("validation"))
        names = list(_checked_metrics(found, task.name))
        return [*(name for name in names if name != "loss"), "loss"]

    def check(self, task: TaskData, config: TrainConfig) -> None:
        """See `Learner.check`: calls the functions twice on a batch of the validation split."""
        if execution_kind(config.execution).in_tff:
            raise ValueError(
                f"execution={config.execution!r} trains models of TFF, and task {task.name!r} has "
                "functions: use execution='fast'"
            )
        weights, again = (self.initial_weights(config.seed) for _ in range(2))
        if digest(weights) != digest(again):
            raise ValueError(
                f"initial_weights of task {task.name!r} returns other weights for the same seed: "
                "draw them by np.random.default_rng(seed)"
            )
        settings = task.client_settings(config)
        validation = task.split("validation")
        first_rows = np.arange(min(task.batch_size, count(validation)))
        batch = take(validation, first_rows)
        updates = []
        for _ in range(2):
            client = ClientData([take(validation, first_rows)], (config.seed,))
            updates.append(_update_of(self, settings, weights, client)[0])
        if digest(updates[0]) != digest(updates[1]):
            raise ValueError(
                f"client_update of task {task.name!r} returns another update for the same client: "
                "make it a pure function, and let what it draws follow from "
                "`settings.client_seed`"
            )
        evaluate = self.evaluator(settings, Machine())
        values, same = (evaluate(weights, batch).values for _ in range(2))
        if not np.array_equal([*values.values()], [*same.values()], equal_nan=True):
            raise ValueError(
                f"evaluate of task {task.name!r} returns other metrics for the same examples: make "
                "it a pure function"
            )
        if config.private_metrics and not 0 <= values[task.headline] <= 1:
            raise ValueError(
                f"`private_metrics` do not go with task {task.name!r}, whose {task.headline} is "
                "not between 0 and 1: put one first"
            )

    def fingerprint(self, seed: int) -> dict[str, str]:
        """See `Learner.fingerprint`: names of the functions, whose bodies can differ unseen, and a
        digest of the initial weights."""
        return {
            "initial_weights": function_name(self._initial_weights),
            "client_update": function_name(self.client_update),
            "evaluate": function_name(self._evaluate),
            "initial weights": digest(self.initial_weights(seed)),
        }

    def starting_from(self, weights: Sequence[np.ndarray]) -> Self:
        """See `Learner.starting_from`."""
        weights = checks.entries("weights", weights, hint="give a list of arrays")
        expected = [weight.shape for weight in self.initial_weights(0)]
        shapes = [np.shape(weight) for weight in weights]
        if expected != shapes:
            raise ValueError(
                f"the weights have the shapes {shapes} and initial_weights returns {expected}: "
                "take those of the same model"
            )
        return type(self)(
            initial_weights=_Copies([np.array(weight) for weight in weights]),
            client_update=self.client_update,
            evaluate=self._evaluate,
        )


@dataclasses.dataclass(frozen=True)
class _Copies:
    """Returns copies of the same weights for every seed; it pickles."""

    weights: Weights

    def __call__(self, seed: int) -> Weights:
        return [weight.copy() for weight in self.weights]


class _ClientsInTurn(ClientWork):
    """Clients of a `FunctionLearner`, one after the other.

    Args:
      learner: whose function trains them.
      settings: of the run.
    """

    def __init__(self, learner: FunctionLearner, settings: ClientSettings) -> None:
        self._learner, self._settings = learner, settings
        self._most_clients = max(_LEAST_CLIENTS, 2 * settings.cohort_size)
        self._sum: UpdateSum | None = None

    def explain(self) -> str:
        """See `ClientWork.explain`."""
        return "clients train one after the other, each by the task's client_update"

    def sums(self, sent: Broadcast, groups: Iterable[Sequence[ClientData]]) -> Iterator[ClippedSum]:
        """See `ClientWork.sums`."""
        weights, params = list(sent.weights), sent.params
        shapes = [weight.shape for weight in weights]
        if self._sum is None:
            self._sum = UpdateSum(sum(weight.size for weight in weights), self._most_clients)
        for group in groups:
            self._sum.clear()
            loss_sum = 0.0
            for client in group:
                if not client.epochs:
                    continue
                interrupts.check()
                update, loss = self._trained(weights, client)
                self._sum.add(
                    [-part for part in update],
                    clip_norm=params.clip_norm,
                    zeroing_norm=params.zeroing_norm,
                    scales=params.scales,
                )
                loss_sum += loss
            yield group_sum(
                group,
                in_shapes(self._sum.total.copy(), shapes),
                clipped=self._sum.clipped,
                zeroed=self._sum.zeroed,
                loss_sum=loss_sum,
            )

    def _trained(self, weights: Weights, client: ClientData) -> tuple[Weights, float]:
        """Returns a client's update, in steps of at most `max_step_norm`, and its loss."""
        settings = self._settings
        if math.isinf(settings.max_step_norm):
            return _update_of(self._learner, settings, weights, client)
        current = [weight.copy() for weight in weights]
        loss_sum = 0.0
        for number, batch in enumerate(settings.batches(client.epochs)):
            of_batch = ClientData([batch], (*client.seed, number))
            step, loss = _update_of(self._learner, settings, current, of_batch)
            norm = math.sqrt(sum(float(np.vdot(part, part)) for part in step))
            factor = min(1.0, settings.max_step_norm / norm) if norm > 0 else 1.0
            current = [
                (weight + factor * part).astype(weight.dtype)
                for weight, part in zip(current, step, strict=True)
            ]
            loss_sum += loss
        return [after - weight for after, weight in zip(current, weights, strict=True)], loss_sum


def _update_of(
    learner: FunctionLearner, settings: ClientSettings, weights: Weights, client: ClientData
) -> tuple[Weights, float]:
    """Returns what `client_update` returns for a client, in arrays of the weights' dtypes.

    It gets copies of the weights: what it writes to them reaches no other client.

    Raises:
      TypeError, ValueError: no update of the weights' shapes, and no loss.
    """
    origin = f"client_update of task {settings.task!r}"
    of_client = dataclasses.replace(settings, client_seed=client.seed)
    with errors_of(origin):
        own_weights = [weight.copy() for weight in weights]
        result = learner.client_update(own_weights, client.epochs, of_client)
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(f"{origin} returns a {type(result).__name__}: return (update, loss)")
    update, loss = result
    if not isinstance(update, list | tuple):
        raise TypeError(
            f"{origin} returns an update that is a {type(update).__name__}: return a list of "
            "arrays, one for each weight"
        )
    arrays = [np.asarray(part) for part in update]
    shapes = [array.shape for array in arrays]
    expected = [weight.shape for weight in weights]
    if shapes != expected:
        raise ValueError(
            f"{origin} returns an update of shapes {shapes} where the weights have {expected}: "
            "return the weights after training minus those before"
        )
    if any(array.dtype.kind not in "fiu" for array in arrays):
        raise TypeError(f"{origin} returns an update that is not all real numbers: return floats")
    if not isinstance(loss, numbers.Real | np.ndarray) or np.ndim(loss):
        raise TypeError(
            f"{origin} returns the loss {loss!r}: return one number, the loss before each step "
            "summed over examples"
        )
    with np.errstate(over="ignore"):  # what is infinite counts as zero
        return [
            array.astype(weight.dtype, copy=False)
            for array, weight in zip(arrays, weights, strict=True)
        ], float(loss)


def _checked_weights(weights: Any) -> Weights:
    """Returns initial weights as arrays.

    Raises:
      TypeError, ValueError: no list of finite float arrays with an entry.
    """
    hint = "return a list of float32 or float64 arrays"
    if not isinstance(weights, list | tuple):
        raise TypeError(f"initial_weights returns a {type(weights).__name__}: {hint}")
    arrays = [np.asarray(weight) for weight in weights]
    dtypes = [array.dtype.name for array in arrays]
    if any(dtype not in _DTYPES for dtype in dtypes):
        raise TypeError(f"initial_weights returns {', '.join(dtypes)}: {hint}")
    if not sum(array.size for array in arrays):
        raise ValueError(f"initial_weights returns no number: {hint}")
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError(f"initial_weights returns NaN or infinity: {hint}")
    return arrays


def _checked_metrics(found: Any, task: str) -> dict[str, float]:
    """Returns the metrics of an evaluation.

    Raises:
      TypeError, ValueError: no dict of numbers, or no loss.
    """
    hint = 'return {"loss": ..., "accuracy": ...}, one number each'
    if not isinstance(found, Mapping):
        raise TypeError(f"evaluate of task {task!r} returns a {type(found).__name__}: {hint}")
    values = {}
    for name, value in found.items():
        if not isinstance(name, str) or np.ndim(value) or not np.isreal(value):
            raise TypeError(f"evaluate of task {task!r} returns {name!r}: {value!r}: {hint}")
        values[name] = float(value)
    if "loss" not in values:
        raise ValueError(f"evaluate of task {task!r} returns no loss: {hint}")
    return values
