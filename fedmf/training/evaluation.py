"""Metrics of a model on a split of the data, or on any examples."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmf.runs.config import TrainConfig
from fedmf.training.examples import Examples
from fedmf.training.learner import Machine
from fedmf.training.task import Task


class Evaluator:
    """Metrics of weights on a split or on any examples: {name: float}.

    Args:
      task: whose learner evaluates.
      config: of the run.
    """

    def __init__(self, task: Task, config: TrainConfig) -> None:
        self._task, self._seed = task, config.seed
        self._evaluate = task.learner.evaluator(task.client_settings(config), Machine())

    def __call__(self, weights: Sequence[np.ndarray], split: str) -> dict[str, float]:
        """Returns the metrics on "validation" or "test"."""
        return self.on(weights, self._task.split(split))

    def on(self, weights: Sequence[np.ndarray], examples: Examples) -> dict[str, float]:
        """Returns the metrics on these examples, at least one."""
        return dict(self._evaluate(weights, examples).values)

    def told_apart(self, weights: Sequence[np.ndarray], examples: Examples) -> dict[str, float]:
        """Evaluates on these examples: NaN for a metric that they do not define, infinity for one
        that they define, and that is not finite because of the weights.

        The examples define a metric that is finite with the weights of the untrained model.
        """
        evaluation = self._evaluate(weights, examples)
        not_finite = [name for name, value in evaluation.values.items() if not math.isfinite(value)]
        values = {**evaluation.values} | dict.fromkeys(evaluation.undefined, math.nan)
        if not not_finite:
            return values
        untrained = self._evaluate(self._task.initial_weights(self._seed), examples)
        for name in not_finite:
            is_defined = name not in untrained.undefined
            is_finite = math.isfinite(untrained.values[name])
            values[name] = math.inf if is_finite and is_defined else math.nan
        return values


def mean_and_deciles(values: Any) -> dict[str, Any]:
    """{"mean": float, "deciles": the 10%, 20% ... 90% quantiles} of numbers, at least one."""
    deciles = np.quantile(values, np.arange(1, 10) / 10)
    return {"mean": float(np.mean(values)), "deciles": deciles.tolist()}
