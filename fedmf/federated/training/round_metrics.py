"""The private metrics of a round: the model that it begins with, on its clients' examples."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmf.federated.examples import NotFinite, count
from fedmf.federated.task import Task
from fedmf.federated.training.evaluation import Evaluator
from fedmf.privacy.plan import Plan
from fedmf.server.metrics_stream import MetricsStream


class RoundMetrics:
    """Loss and headline metric of each client, as `MetricsStream` releases them.

    A client without examples, or with some that are not finite, adds nothing: it is not counted.

    Args:
      task, plan, noise_seed: of the run; the task's headline metric stands for the accuracy.
      evaluator: of the run.
    """

    def __init__(self, task: Task, plan: Plan, noise_seed: int, evaluator: Evaluator) -> None:
        self._task, self._evaluator = task, evaluator
        self._metrics = MetricsStream(plan, noise_seed=noise_seed)

    def of_round(self, t: int, weights: list[np.ndarray], cohort: Sequence[int]) -> dict[str, Any]:
        """What is released of round t.

        Args:
          t: round.
          weights: of the model before it.
          cohort: indices of its clients.
        """
        total = self._metrics.empty_sum()
        for client in cohort:
            try:
                examples = self._task.examples_of(self._task.client_ids[client])
            except NotFinite:
                continue
            if count(examples):
                found = self._evaluator.on(weights, examples)
                values = {"accuracy": found[self._task.headline], "loss": found["loss"]}
                total += self._metrics.contribution(values, clients=len(cohort))
        return self._metrics.values(range(t, t + 1), self._metrics.release(t, total))
