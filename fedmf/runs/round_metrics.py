"""Numbers that a caller computes for each round, as columns of metrics.jsonl."""

import abc
import reprlib
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedmf import checks

# Names of the columns that fedmf itself writes.
_COLUMNS = frozenset(
    "round clients examples train_loss not_finite clip_fraction zeroed noise_stddev scale_drift "
    "clip_norm private validation".split()
)


class FinishedRound(NamedTuple):
    """The data of a finished round that a `RoundMetric` may read. They include neither the sum of
    updates nor the noise.

    Attributes:
      round: the round, from 0 on.
      weights_before: trainable weights of the model before the round.
      weights_after: trainable weights after the server's step.
      client_ids: ids of the clients that took part.
    """

    round: int
    weights_before: Sequence[np.ndarray]
    weights_after: Sequence[np.ndarray]
    client_ids: Sequence[str]


class RoundMetric(abc.ABC):
    """A column of metrics.jsonl with one number for each round, which is computed after the
    server's step.

    Pass objects of subclasses to `train(..., round_metrics=[...])`. A metric may read the clients'
    data, so that the guarantee does not cover its column.

    Attributes:
      name: name of the column, which must differ from fedmf's columns.

    >>> class StepLength(RoundMetric):
    ...     name = "step_length"
    ...
    ...     def compute(self, finished):
    ...         pairs = zip(finished.weights_after, finished.weights_before, strict=True)
    ...         return float(sum(np.linalg.norm(a - b) for a, b in pairs))
    >>> finished = FinishedRound(0, [np.zeros(2)], [np.array([3.0, 4.0])], ["ann"])
    >>> compute_round_metrics([StepLength()], finished)
    {'step_length': 5.0}
    """

    name: ClassVar[str]

    @abc.abstractmethod
    def compute(self, finished: FinishedRound) -> float:
        """Returns the metric's number for a finished round, or NaN."""


def check_round_metrics(argument: str, metrics: Any) -> tuple[RoundMetric, ...]:
    """Checks a list of round metrics, and returns it as a tuple.

    Raises:
      TypeError: they are no list of `RoundMetric` objects.
      ValueError: a name is no identifier, is the name of a column of fedmf, or occurs twice.
    """
    if isinstance(metrics, str) or not isinstance(metrics, Sequence):
        raise TypeError(f"{argument}={reprlib.repr(metrics)} must be a list of round metrics")
    metric_names: set[str] = set()
    for metric in metrics:
        if not isinstance(metric, RoundMetric):
            raise TypeError(
                f"{argument} holds {reprlib.repr(metric)}: make an object of a class that inherits "
                "from fedmf.runs.round_metrics.RoundMetric"
            )
        metric_name = getattr(metric, "name", None)
        if not isinstance(metric_name, str) or not metric_name.isidentifier():
            raise ValueError(
                f"{argument} holds one with name={metric_name!r}: use a word such as 'step_length'"
            )
        if metric_name in _COLUMNS or metric_name in metric_names:
            raise ValueError(
                f"{argument} holds one with name={metric_name!r}, which is a column already: use "
                "another name"
            )
        metric_names.add(metric_name)
    return tuple(metrics)


def compute_round_metrics(
    metrics: Sequence[RoundMetric], finished: FinishedRound
) -> dict[str, float]:
    """Computes all metrics of a round, and returns them by name. Each metric gets copies of the
    round's arrays.

    Raises:
      TypeError: a metric returns no number.
    """
    value_by_name: dict[str, float] = {}
    for metric in metrics:
        computed_value = metric.compute(_copied(finished))
        metric_value = checks.real_number(computed_value)
        if isinstance(computed_value, bool) or metric_value is None:
            raise TypeError(
                f"round metric {metric.name} returned {reprlib.repr(computed_value)} in round "
                f"{finished.round}: return one number"
            )
        value_by_name[metric.name] = metric_value
    return value_by_name


def _copied(finished: FinishedRound) -> FinishedRound:
    """Returns a finished round with copies of its weights, so that a metric may write to them."""
    return finished._replace(
        weights_before=[np.array(weight) for weight in finished.weights_before],
        weights_after=[np.array(weight) for weight in finished.weights_after],
        client_ids=list(finished.client_ids),
    )
