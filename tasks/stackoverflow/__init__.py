"""StackOverflow next-word prediction: the data file, its synthetic stand-in, the model and the task."""

from typing import TYPE_CHECKING, Any

from fedmf.tasks.stackoverflow.data import describe_file
from fedmf.tasks.stackoverflow.synthetic import write_synthetic_corpus

if TYPE_CHECKING:
    from fedmf.tasks.stackoverflow.task import stackoverflow_task

__all__ = ["describe_file", "stackoverflow_task", "write_synthetic_corpus"]


def __getattr__(name: str) -> Any:
    # fedmf.federated imports TensorFlow; writing and describing data must not wait for it.
    if name == "stackoverflow_task":
        from fedmf.tasks.stackoverflow.task import stackoverflow_task

        return stackoverflow_task
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
