"""Federated EMNIST task. The package has the reader of the data file, a synthetic substitute, the
networks and the task.
"""

from typing import TYPE_CHECKING

from fedmf.tasks.emnist.data import EmnistOptions, describe, is_emnist
from fedmf.tasks.emnist.synthetic import write_synthetic

if TYPE_CHECKING:
    from fedmf.federated.task import Task

__all__ = ["EmnistOptions", "describe", "emnist", "is_emnist", "write_synthetic"]


def emnist(options: EmnistOptions) -> "Task":
    """Returns the EMNIST task, as `task.build_task` does, and imports TensorFlow."""
    from fedmf.tasks.emnist.task import build_task

    return build_task(options)
