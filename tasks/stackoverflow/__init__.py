"""StackOverflow next-word prediction: the data file, its synthetic stand-in, import of text, the
model and the task.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from fedmf.tasks.stackoverflow.data import describe_file
from fedmf.tasks.stackoverflow.options import StackOverflowOptions
from fedmf.tasks.stackoverflow.synthetic import write_synthetic_corpus
from fedmf.tasks.stackoverflow.text_import import import_text

if TYPE_CHECKING:
    from fedmf.federated.task import Task
    from fedmf.tasks.stackoverflow.task import stackoverflow_task

__all__ = [
    "StackOverflowOptions",
    "describe_file",
    "import_text",
    "stackoverflow_nwp",
    "stackoverflow_task",
    "write_synthetic_corpus",
]


def stackoverflow_nwp(options: StackOverflowOptions, *, progress: bool = True) -> "Task":
    """See `stackoverflow_task`; imports TensorFlow."""
    from fedmf.tasks.stackoverflow.task import stackoverflow_task

    values = dataclasses.asdict(options)
    return stackoverflow_task(values.pop("data"), progress=progress, **values)


def __getattr__(name: str) -> Any:
    # fedmf.federated imports TensorFlow; writing and describing data must not wait for it.
    if name == "stackoverflow_task":
        from fedmf.tasks.stackoverflow.task import stackoverflow_task

        return stackoverflow_task
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
