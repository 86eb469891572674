"""A check of a task, whose data is read once, before round 0."""

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
    """A checked task, with the facts about it that a run records before round 0.

    Attributes:
      task: the task, whose models start with the run's initial weights.
      num_clients: number of training clients, without canaries.
      num_parameters: number of trained parameters of the model.
      summary: description of the task for plan.json.
      identity: `task_identity` of the task.
    """

    task: Task
    num_clients: int
    num_parameters: int
    summary: Mapping[str, Any]
    identity: Mapping[str, Any]

    @staticmethod
    def of(task: Task, config: TrainConfig, *, splits: Sequence[str]) -> "CheckedTask":
        """Checks that a task can be trained and evaluated, and returns it with its facts.

        Args:
          task: task whose models start with the run's initial weights.
          config: config of the run.
          splits: splits that the run is going to evaluate.

        Raises:
          TypeError, ValueError: the task cannot be trained or evaluated, or the guarantee would not
            hold.
        """
        task.learner.check(task, config)
        task_summary = {
            "name": task.name,
            "description": task.description,
            # Reading `task.headline` raises an error if the task cannot be evaluated.
            "headline_metric": task.headline,
            "metric_note": task.metric_note,
            "clients": len(task.client_ids),
            "validation_clients": task.validation_clients,
        }
        if task.synthetic_clients:
            task_summary["synthetic_clients"] = task.synthetic_clients
        for split in splits:
            task.split(split)
        # An example that is not finite is no error here, because a run zeroes the update of its
        # client and continues.
        with contextlib.suppress(NotFinite):
            task.examples_of(task.client_ids[0])
        initial_weights = task.initial_weights(config.seed)
        return CheckedTask(
            task=task,
            num_clients=len(task.client_ids),
            num_parameters=sum(weight.size for weight in initial_weights),
            summary=task_summary,
            identity=task_identity(task, task.learner.fingerprint(config.seed)),
        )
