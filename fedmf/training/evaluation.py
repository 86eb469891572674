"""`Evaluator`: metrics of weights on a split of the data, or on any examples."""

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
      task: the task whose learner evaluates.
      config: config of the run.
    """

    def __init__(self, task: Task, config: TrainConfig) -> None:
        self._task = task
        self._seed = config.seed
        self._evaluate = task.learner.evaluator(task.client_settings(config), Machine())

    def __call__(self, weights: Sequence[np.ndarray], split: str) -> dict[str, float]:
        """Returns the metrics on "validation" or "test"."""
        return self.on(weights, self._task.split(split))

    def on(self, weights: Sequence[np.ndarray], examples: Examples) -> dict[str, float]:
        """Returns the metrics on these examples, at least one."""
        return dict(self._evaluate(weights, examples).values)

    def on_marked(self, weights: Sequence[np.ndarray], examples: Examples) -> dict[str, float]:
        """Returns the metrics on these examples, marked where they are no finite numbers: NaN for a
        metric that the examples do not define, infinity for one that is defined and not finite
        because of the weights.

        Examples define a metric if it is finite with the weights of the untrained model.
        """
        evaluation = self._evaluate(weights, examples)
        values = {**evaluation.values} | dict.fromkeys(evaluation.undefined, math.nan)
        names = [name for name, value in evaluation.values.items() if not math.isfinite(value)]
        if not names:
            return values
        untrained = self._evaluate(self._task.initial_weights(self._seed), examples)
        for name in names:
            is_defined = name not in untrained.undefined and math.isfinite(untrained.values[name])
            values[name] = math.inf if is_defined else math.nan
        return values


def mean_and_deciles(values: Any) -> dict[str, Any]:
    """Returns {"mean": float, "deciles": the 10%, 20% ... 90% quantiles} of at least one number."""
    deciles = np.quantile(values, np.arange(1, 10) / 10)
    return {"mean": float(np.mean(values)), "deciles": deciles.tolist()}
