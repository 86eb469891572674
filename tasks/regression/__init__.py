"""Linear and logistic regression on synthetic clients, as a training task."""

from typing import TYPE_CHECKING

from fedmf.tasks.regression.data import RegressionOptions

if TYPE_CHECKING:
    from fedmf.federated.task import Task

__all__ = ["RegressionOptions", "regression"]


def regression(options: RegressionOptions) -> "Task":
    """Returns the regression task, as `task.build_task` does, and imports TensorFlow."""
    from fedmf.tasks.regression.task import build_task

    return build_task(options)
