"""Columns of your own in metrics.jsonl: `RoundMetric`, a number that each round is described by."""

import abc
import numbers
import reprlib
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

# The columns that fedmf writes.
_COLUMNS = frozenset(
    "round clients examples train_loss not_finite clip_fraction zeroed noise_stddev scale_drift "
    "clip_norm private validation".split()
)


class FinishedRound(NamedTuple):
    """A round as a `RoundMetric` sees it: no sum of updates, and no noise apart from a release.

    Attributes:
      round: its number, from 0 on.
      weights_before: trainable weights of the model that the round began with.
      weights_after: those after the server's step.
      client_ids: of the clients that took part.
    """

    round: int
    weights_before: Sequence[np.ndarray]
    weights_after: Sequence[np.ndarray]
    client_ids: Sequence[str]


class RoundMetric(abc.ABC):
    """A column of metrics.jsonl: one number a round, computed after the server's step.

    `train(..., round_metrics=[...])` takes objects of it. The guarantee covers the weights alone,
    so the column counts as not covered: a metric may read the clients' data.

    Attributes:
      name: of the column; another than those of fedmf.

    >>> class StepLength(RoundMetric):
    ...     name = "step_length"
    ...
    ...     def compute(self, finished):
    ...         pairs = zip(finished.weights_after, finished.weights_before, strict=True)
    ...         return float(sum(np.linalg.norm(a - b) for a, b in pairs))
    >>> finished = FinishedRound(0, [np.zeros(2)], [np.array([3.0, 4.0])], ["ann"])
    >>> computed_metrics([StepLength()], finished)
    {'step_length': 5.0}
    """

    name: ClassVar[str]

    @abc.abstractmethod
    def compute(self, finished: FinishedRound) -> float:
        """Returns the number of a round; NaN where it has none."""


def checked_metrics(argument: str, metrics: Any) -> tuple[RoundMetric, ...]:
    """Returns the metrics of an argument of this name.

    Raises:
      TypeError: no list of `RoundMetric` objects.
      ValueError: a name is no word, is that of a column of fedmf, or is there twice.
    """
    if isinstance(metrics, str) or not isinstance(metrics, Sequence):
        raise TypeError(f"{argument}={reprlib.repr(metrics)} must be a list of round metrics")
    names: set[str] = set()
    for metric in metrics:
        if not isinstance(metric, RoundMetric):
            raise TypeError(
                f"{argument} holds {reprlib.repr(metric)}: make an object of a class that inherits "
                "from fedmf.runs.round_metrics.RoundMetric"
            )
        name = getattr(metric, "name", None)
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(
                f"{argument} holds one with name={name!r}: use a word such as 'step_length'"
            )
        if name in _COLUMNS or name in names:
            raise ValueError(
                f"{argument} holds one with name={name!r}, which is a column already: use another "
                "name"
            )
        names.add(name)
    return tuple(metrics)


def computed_metrics(metrics: Sequence[RoundMetric], finished: FinishedRound) -> dict[str, float]:
    """Returns the numbers of a round by their names.

    Raises:
      TypeError: a metric returns no number.
    """
    values: dict[str, float] = {}
    for metric in metrics:
        value = metric.compute(finished)
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError(
                f"round metric {metric.name} returned {reprlib.repr(value)} in round "
                f"{finished.round}: return one number"
            )
        values[metric.name] = float(value)
    return values
