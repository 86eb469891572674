"""Evaluation of the clients of a round, for metrics that are released with noise. The model before
the round is evaluated on the examples of the cohort, and noise is added to the sums of the results.
"""

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
    """Private metrics of a run's rounds, that is the mean loss and headline metric of a cohort's
    clients, with the noise of a `MetricsStream`.

    The sum is computed before the round's noise is made, and the release is committed with the
    round. A client is not counted if it has no examples or some that are not finite.

    Args:
      task: task of the run, whose headline metric is released as the accuracy.
      plan: plan of the run.
      noise_seed: noise seed of the run.
      evaluator: evaluator of the run.
    """

    def __init__(self, task: Task, plan: Plan, noise_seed: int, evaluator: Evaluator) -> None:
        self._task = task
        self._evaluator = evaluator
        self._metrics = MetricsStream(plan, noise_seed=noise_seed)

    def sum_of(self, weights: list[np.ndarray], cohort: Sequence[int]) -> np.ndarray:
        """Evaluates the clients of a cohort, and returns the sum of their contributions without
        noise.

        Args:
          weights: weights of the model before the round.
          cohort: indices of the round's clients.
        """
        contribution_sum = self._metrics.empty_sum()
        for client in cohort:
            try:
                examples = self._task.examples_of(self._task.client_ids[client])
            except NotFinite:
                continue
            if count(examples):
                metrics = self._evaluator.on(weights, examples)
                bounded_values = bounded_metrics(metrics, self._task.headline)
                contribution_sum += self._metrics.contribution(bounded_values)
        return contribution_sum

    def release(self, t: int, total: np.ndarray) -> dict[str, Any]:
        """Returns the noisy metrics of round t, computed from the sum `total` without noise."""
        return self._metrics.values(range(t, t + 1), self._metrics.release(t, total))


def bounded_metrics(metrics: Mapping[str, float], headline: str) -> dict[str, float]:
    """Returns a client's contribution to the private metrics, that is its headline metric, which is
    called "accuracy", and its "loss".

    If the loss is NaN or minus infinity, both have their worst value. The worst value of an error
    is 1, that of an accuracy 0, and that of a loss infinity.
    """
    headline_value = metrics[headline]
    loss = metrics["loss"]
    has_diverged = math.isnan(loss) or loss == -math.inf
    if has_diverged or not math.isfinite(headline_value):
        headline_value = float(smaller_is_better(headline))
    if has_diverged:
        loss = math.inf
    return {"accuracy": headline_value, "loss": loss}
