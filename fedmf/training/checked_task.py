"""`CheckedTask`: a task as it is read once, before round 0."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fedmf.runs.config import TrainConfig
from fedmf.training.examples import NotFinite
from fedmf.training.identity import task_identity
from fedmf.training.task import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckedTask:
    """A task that a run can train on, and what the run has to know of it before round 0.

    Attributes:
      task: whose models start as the run's do.
      num_clients: training clients, without canaries.
      num_parameters: numbers of the model that are trained.
      summary: of plan.json.
      identity: what a resume must have again; see `task_identity`.
    """

    task: Task
    num_clients: int
    num_parameters: int
    summary: Mapping[str, Any]
    identity: Mapping[str, Any]

    @staticmethod
    def of(task: Task, config: TrainConfig, *, splits: Sequence[str]) -> "CheckedTask":
        """Reads and checks a task.

        Args:
          task: whose models start as the run's do.
          config: of the run.
          splits: that the run is going to evaluate.

        Raises:
          TypeError, ValueError: it cannot be trained or evaluated, or would break the guarantee.
        """
        task.learner.check(task, config)
        summary = {
            "name": task.name,
            "description": task.description,
            "headline_metric": task.headline,  # refuses what cannot be evaluated
            "metric_note": task.metric_note,
            "clients": len(task.client_ids),
            "data_version": task.data_version,
        }
        if task.synthetic_clients:
            summary["synthetic_clients"] = task.synthetic_clients
        for split in splits:
            task.split(split)
        with contextlib.suppress(NotFinite):  # which a run survives
            task.examples_of(task.client_ids[0])
        weights = task.initial_weights(config.seed)
        return CheckedTask(
            task=task,
            num_clients=len(task.client_ids),
            num_parameters=sum(weight.size for weight in weights),
            summary=summary,
            identity=task_identity(task, task.learner.fingerprint(config.seed)),
        )
