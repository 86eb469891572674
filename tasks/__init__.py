"""Training tasks: data, model and metrics. They know no privacy.

A task is a folder here and a line of TASKS, which names a function of a `TrainConfig` and `progress` that returns a `Task`.
"""

import pkgutil
from typing import TYPE_CHECKING

from fedmf import checks

if TYPE_CHECKING:
    from fedmf.federated.task import Task
    from fedmf.runs.config import TrainConfig

TASKS = {
    "stackoverflow_nwp": "fedmf.tasks.stackoverflow.task:task_from_config",
}


def task_from_config(config: "TrainConfig", *, progress: bool = True) -> "Task":
    """The task that a config describes; imports TensorFlow. Reading shows progress bars where it takes long, or none.

    Raises:
      FileNotFoundError, ValueError: no such task, the data file is absent or damaged, a size is out of range.
    """
    make = pkgutil.resolve_name(TASKS[checks.one_of("task", config.task, tuple(TASKS))])
    task: Task = make(config, progress=progress)
    return task
