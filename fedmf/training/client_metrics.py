"""Distribution of the headline metric over clients, each measured on its own examples."""

import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedmf.runs.config import TrainConfig
from fedmf.terminal import progress_bar
from fedmf.training.evaluation import Evaluator, mean_and_deciles
from fedmf.training.examples import NotFinite, count
from fedmf.training.task import Task


def client_metrics(
    task: Task, config: TrainConfig, weights: list[np.ndarray], *, progress: bool
) -> dict[str, Any]:
    """Returns mean, deciles and counts of the headline metric over the training clients.

    Args:
      task: task of the run.
      config: config of the run.
      weights: weights to evaluate.
      progress: whether to show a bar.

    Raises:
      ValueError: the metric is defined and finite on no client's examples.
    """
    client_values = list(_client_values(task, config, weights, progress=progress))
    finite_values = [value for value in client_values if math.isfinite(value)]
    num_undefined = sum(map(math.isnan, client_values))
    num_not_finite = sum(map(math.isinf, client_values))
    num_clients = len(task.client_ids)
    if not finite_values and num_not_finite:
        raise ValueError(
            f"{task.headline} of task {task.name!r} is not finite on the examples of "
            f"{num_not_finite} of {num_clients} clients, and finite on nobody's: the run "
            "diverged, train again with a smaller `server_learning_rate`"
        )
    if not finite_values:
        raise ValueError(
            f"{task.headline} of task {task.name!r} is not defined on any client's examples "
            f"({num_undefined} of {num_clients} clients have some): choose another headline_metric"
        )
    if num_not_finite:
        warnings.warn(
            f"{task.headline} is not finite on the examples of {num_not_finite} of {num_clients} "
            "clients: the mean and deciles leave these clients out, and look better than the "
            "model is",
            stacklevel=3,
        )
    return {
        "clients": len(finite_values),
        "clients_without_examples": num_clients - len(client_values),
        "clients_undefined": num_undefined,
        "clients_not_finite": num_not_finite,
        **mean_and_deciles(finite_values),
    }


def _client_values(
    task: Task, config: TrainConfig, weights: list[np.ndarray], *, progress: bool
) -> Iterator[float]:
    """Yields the headline metric of each client that has examples. It is NaN if the examples do not
    define it, and infinity if the model's value is not finite.

    It is NaN for a client whose examples are not finite.
    """
    evaluator = Evaluator(task, config)
    with progress_bar.bar(
        total=len(task.client_ids), unit="client", desc="evaluating", disable=not progress
    ) as bar:
        for client_id in task.client_ids:
            bar.update()
            try:
                examples = task.examples_of(client_id)
            # The client's examples are not finite, so the run zeroed its updates.
            except NotFinite:
                yield math.nan
                continue
            if count(examples):
                yield evaluator.on_marked(weights, examples)[task.headline]
