"""The private metrics of a round: the model that it begins with, on its clients' examples."""

import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedmf import strict_json
from fedmf.federated.evaluation import Evaluator
from fedmf.federated.task import Task
from fedmf.files import append_privately, write_atomically
from fedmf.privacy.plan import Plan
from fedmf.runs.notes import smaller_is_better
from fedmf.server.metrics_stream import MetricsStream
from fedmf.training.examples import NotFinite, count


class PrivateRoundMetrics:
    """Loss and headline metric of each client, as `MetricsStream` releases them.

    A release is on disk before anybody sees it, and is handed out again where its round is done
    again: whatever an evaluation then came to, no row of noise is released under two sums.

    A client without examples, or with some that are not finite, adds nothing: it is not counted.

    Args:
      task, plan, noise_seed: of the run; the task's headline metric stands for the accuracy.
      evaluator: of the run.
      path: of the file of the releases.
    """

    def __init__(
        self, task: Task, plan: Plan, noise_seed: int, evaluator: Evaluator, path: pathlib.Path
    ) -> None:
        self._task, self._evaluator, self._path = task, evaluator, path
        self._metrics = MetricsStream(plan, noise_seed=noise_seed)
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:  # a line that a killed process began, and nobody saw
            write_atomically(path, whole, mode=0o600)
        rows = [json.loads(line) for line in whole.splitlines()]
        self._released = {row["round"]: row["private"] for row in rows}

    def of_round(self, t: int, weights: list[np.ndarray], cohort: Sequence[int]) -> dict[str, Any]:
        """What is released of round t.

        Args:
          t: round.
          weights: of the model before it.
          cohort: indices of its clients.
        """
        if t not in self._released:
            private = self._computed(t, weights, cohort)
            with append_privately(self._path) as out:
                out.write(strict_json.dumps({"round": t, "private": private}) + "\n")
                out.flush()
                os.fsync(out.fileno())
            self._released[t] = private
        return self._released[t]

    def _computed(self, t: int, weights: list[np.ndarray], cohort: Sequence[int]) -> dict[str, Any]:
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
