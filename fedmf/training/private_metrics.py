"""The private metrics of a round: the model that it begins with, on its clients' examples."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedmf.privacy.plan import Plan
from fedmf.runs.notes import smaller_is_better
from fedmf.server.metrics_stream import MetricsStream
from fedmf.training.evaluation import Evaluator
from fedmf.training.examples import NotFinite, count
from fedmf.training.task import Task


class PrivateRoundMetrics:
    """Loss and headline metric of each client, as `MetricsStream` releases them.

    The sum is there before the round's noise is made, and the release is committed with the round.

    A client without examples, or with some that are not finite, adds nothing: it is not counted.

    Args:
      task, plan, noise_seed: of the run; the task's headline metric stands for the accuracy.
      evaluator: of the run.
    """

    def __init__(self, task: Task, plan: Plan, noise_seed: int, evaluator: Evaluator) -> None:
        self._task, self._evaluator = task, evaluator
        self._metrics = MetricsStream(plan, noise_seed=noise_seed)

    def sum_of(self, weights: list[np.ndarray], cohort: Sequence[int]) -> np.ndarray:
        """Returns the sum of what a cohort's clients contribute: it has no noise yet.

        Args:
          weights: of the model before the round.
          cohort: indices of its clients.
        """
        total = self._metrics.empty_sum()
        for client in cohort:
            try:
                examples = self._task.examples_of(self._task.client_ids[client])
            except NotFinite:
                continue
            if count(examples):
                evaluated = self._evaluator.on(weights, examples)
                values = bounded_metrics(evaluated, self._task.headline)
                total += self._metrics.contribution(values)
        return total

    def release(self, t: int, total: np.ndarray) -> dict[str, Any]:
        """Returns what is released of round t, whose sum is `total`."""
        return self._metrics.values(range(t, t + 1), self._metrics.release(t, total))


def bounded_metrics(evaluated: Mapping[str, float], headline: str) -> dict[str, float]:
    """Returns a client's "accuracy", the headline metric, and "loss", as a sum of private metrics
    takes them: the worst of both where the loss is NaN or minus infinity.

    The worst value of an error is 1, and that of an accuracy is 0.
    """
    metric, loss = evaluated[headline], evaluated["loss"]
    has_diverged = math.isnan(loss) or loss == -math.inf
    if has_diverged or not math.isfinite(metric):
        metric = float(smaller_is_better(headline))
    if has_diverged:
        loss = math.inf
    return {"accuracy": metric, "loss": loss}
