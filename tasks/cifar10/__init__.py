"""CIFAR-10 at example level: the archive, its synthetic substitute, the networks and the task."""

from typing import TYPE_CHECKING

from fedmf.tasks.cifar10.data import Cifar10Options, describe
from fedmf.tasks.cifar10.synthetic import write_synthetic

if TYPE_CHECKING:
    from fedmf.federated.task import Task

__all__ = ["Cifar10Options", "cifar10", "describe", "write_synthetic"]


def cifar10(options: Cifar10Options) -> "Task":
    """Returns the task; see `task.build_task`. Imports TensorFlow."""
    from fedmf.tasks.cifar10.task import build_task

    return build_task(options)
