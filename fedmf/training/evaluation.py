"""Evaluation of a task's metrics for given weights, on a split of the data or on any examples."""

import math
import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.runs.config import TrainConfig
from fedmf.training.examples import Examples, count, take
from fedmf.training.learner import Evaluate, Evaluation, Machine, TaskData
from fedmf.training.task import Task


def check_evaluation(
    evaluate: Evaluate, weights: Sequence[np.ndarray], task: TaskData, config: TrainConfig
) -> None:
    """Evaluates a batch of the validation split, its last example, and the batch again.

    Args:
      evaluate: the function of the task's learner.
      weights: weights of the model.
      task, config: the task and the config of the run.

    Raises:
      ValueError: the batch has other metrics the second time, or the run has private metrics and
        the headline metric is not between 0 and 1.
    """
    examples = task.split("validation")
    batch = take(examples, np.arange(min(task.batch_size, count(examples))))
    metric_values = evaluate(weights, batch).values
    evaluate(weights, take(examples, np.array([count(examples) - 1])))
    repeated_values = evaluate(weights, batch).values
    if not np.array_equal([*metric_values.values()], [*repeated_values.values()], equal_nan=True):
        raise ValueError(
            f"evaluation of task {task.name!r} returns different metrics for the same examples: "
            "evaluate by pure functions"
        )
    if config.private_metrics and not 0 <= metric_values[task.headline] <= 1:
        raise ValueError(
            f"private_metrics={config.private_metrics} need a headline metric between 0 and 1, "
            f"and {task.headline} of task {task.name!r} is {metric_values[task.headline]:g}: "
            "put a metric first that is, such as an accuracy"
        )


class Evaluator:
    """Computation of a task's metrics for given weights on examples, as a dict of floats by name.

    Args:
      task: the task whose learner evaluates.
      config: config of the run.
    """

    def __init__(self, task: Task, config: TrainConfig) -> None:
        self._task = task
        self._seed = config.seed
        self._metric_names: set[str] = set()
        self._evaluate = task.learner.evaluator(task.client_settings(config), Machine())

    def __call__(self, weights: Sequence[np.ndarray], split: str) -> dict[str, float]:
        """Returns the metrics of a model with these weights on the split "validation" or "test"."""
        return self.on(weights, self._task.split(split))

    def on(self, weights: Sequence[np.ndarray], examples: Examples) -> dict[str, float]:
        """Returns the metrics of the model with these weights on these examples, of which there
        must be at least one.
        """
        return dict(self._evaluation(weights, examples).values)

    def on_marked(self, weights: Sequence[np.ndarray], examples: Examples) -> dict[str, float]:
        """Returns the metrics of the model with these weights on these examples, where metrics
        without a finite value are NaN or infinity. NaN marks a metric that the examples do not
        define, and infinity one that is defined but not finite because of the weights.

        Examples define a metric if it is finite with the weights of the untrained model.
        """
        evaluation = self._evaluation(weights, examples)
        value_by_name = {**evaluation.values} | dict.fromkeys(evaluation.undefined, math.nan)
        names_not_finite = [
            name for name, value in evaluation.values.items() if not math.isfinite(value)
        ]
        if not names_not_finite:
            return value_by_name
        initial_evaluation = self._evaluation(self._task.initial_weights(self._seed), examples)
        for name in names_not_finite:
            is_defined = name not in initial_evaluation.undefined and math.isfinite(
                initial_evaluation.values[name]
            )
            value_by_name[name] = math.inf if is_defined else math.nan
        return value_by_name

    def _evaluation(self, weights: Sequence[np.ndarray], examples: Examples) -> Evaluation:
        """Returns the learner's metrics after a check. The learner gets copies of the weights,
        because it may overwrite them.

        Raises:
          TypeError: a metric is no number.
          ValueError: the names of the metrics differ from those of earlier evaluations.
        """
        evaluation = self._evaluate([np.array(weight) for weight in weights], examples)
        task_name = self._task.name
        values: dict[str, float] = {}
        for name, value in evaluation.values.items():
            metric_value = checks.real_number(value)
            if metric_value is None:
                raise TypeError(
                    f"evaluation of task {task_name!r} returned {name!r}: "
                    f"{reprlib.repr(value)}: return one number for each metric"
                )
            values[name] = metric_value
        metric_names = set(values)
        if not self._metric_names:
            self._metric_names = {*metric_names, "loss"}
            if self._task.learner.metric_names(self._task):
                self._metric_names.add(self._task.headline)
        if metric_names != self._metric_names:
            raise ValueError(
                f"evaluation of task {task_name!r} returned the metrics {sorted(metric_names)} "
                f"where it has {sorted(self._metric_names)}: return all of them for all examples, "
                "NaN where they define none"
            )
        return Evaluation(values, evaluation.undefined)


def mean_and_deciles(values: Any) -> dict[str, Any]:
    """Returns the mean and the deciles of at least one number. The result is {"mean": float,
    "deciles": [the quantiles at 10%, 20% and so on to 90%]}.
    """
    deciles = np.quantile(values, np.arange(1, 10) / 10)
    return {"mean": float(np.mean(values)), "deciles": deciles.tolist()}
