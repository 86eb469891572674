"""Linear and logistic regression on generated clients."""

from typing import TYPE_CHECKING

from fedmf.tasks.regression.data import RegressionOptions

if TYPE_CHECKING:
    from fedmf.federated.task import Task

__all__ = ["RegressionOptions", "regression"]


def regression(options: RegressionOptions) -> "Task":
    """Returns the task; see `task.build_task`. Imports TensorFlow."""
    from fedmf.tasks.regression.task import build_task

    return build_task(options)
