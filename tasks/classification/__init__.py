"""Classification of a user's own rows. The package has the import of a table, the reader of the
data file, the models and the task.
"""

from typing import TYPE_CHECKING

from fedmf.tasks.classification.data import describe
from fedmf.tasks.classification.options import ClassificationOptions
from fedmf.tasks.classification.row_import import import_rows

if TYPE_CHECKING:
    from fedmf.federated.task import Task

__all__ = ["ClassificationOptions", "classification", "describe", "import_rows"]


def classification(options: ClassificationOptions) -> "Task":
    """Returns the classification task, as `task.build_task` does, and imports TensorFlow."""
    from fedmf.tasks.classification.task import build_task

    return build_task(options)
