"""StackOverflow next-word prediction task. The package has the reader of the data file, a synthetic
substitute, the import of texts, the model and the task.
"""

from typing import TYPE_CHECKING

from fedmf.tasks.stackoverflow.data import describe_file
from fedmf.tasks.stackoverflow.options import StackOverflowOptions
from fedmf.tasks.stackoverflow.synthetic import write_synthetic_corpus
from fedmf.tasks.stackoverflow.text_import import import_text

if TYPE_CHECKING:
    from fedmf.training.task import Task

__all__ = [
    "StackOverflowOptions",
    "describe_file",
    "import_text",
    "stackoverflow_nwp",
    "write_synthetic_corpus",
]


def stackoverflow_nwp(options: StackOverflowOptions, *, progress: bool = True) -> "Task":
    """Returns the StackOverflow task, as `task.build_task` does.

    It imports the framework of the options.
    """
    from fedmf.tasks.stackoverflow.task import build_task

    return build_task(options, progress=progress)
