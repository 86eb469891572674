"""CIFAR-10 task, where each client holds one image. The package has the reader of the data file, a
synthetic substitute, the networks and the task.
"""

from typing import TYPE_CHECKING

from fedmf.tasks.cifar10.data import Cifar10Options, describe
from fedmf.tasks.cifar10.synthetic import write_synthetic

if TYPE_CHECKING:
    from fedmf.federated.task import Task

__all__ = ["Cifar10Options", "cifar10", "describe", "write_synthetic"]


def cifar10(options: Cifar10Options) -> "Task":
    """Returns the CIFAR-10 task, as `task.build_task` does, and imports TensorFlow."""
    from fedmf.tasks.cifar10.task import build_task

    return build_task(options)
