"""The private metrics of a round: the model that it begins with, on its clients' examples."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmf.federated.examples import NotFinite, count
from fedmf.federated.task import Task
from fedmf.federated.training.evaluation import Evaluator
from fedmf.privacy.plan import Plan
from fedmf.runs.config import TrainConfig
from fedmf.server.private_metrics import PrivateMetrics


class RoundMetrics:
    """Loss and headline metric of each client, as `PrivateMetrics` releases them.

    A client without examples, or with some that are not finite, adds nothing: it is not counted.

    Args:
      task, config, plan, noise_seed: of the run.
      evaluator: of the run.
    """

    def __init__(
        self, task: Task, config: TrainConfig, plan: Plan, noise_seed: int, evaluator: Evaluator
    ) -> None:
        self._task, self._evaluator = task, evaluator
        ranges = {task.headline: (0.0, 1.0), "loss": (0.0, config.largest_loss)}
        self._metrics = PrivateMetrics(plan, ranges, noise_seed=noise_seed)

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
                values = {name: found[name] for name in self._metrics.ranges}
                total += self._metrics.contribution(values, clients=len(cohort))
        return self._metrics.values(range(t, t + 1), self._metrics.release(t, total))
