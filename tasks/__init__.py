"""Training tasks: data, model and metrics. They know no privacy."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedmf.federated.task import Task
    from fedmf.runs.config import TrainConfig


def task_from_config(config: "TrainConfig", *, progress: bool = True) -> "Task":
    """The task that a config describes; imports TensorFlow. Reading shows progress bars where it takes long, or none.

    Raises:
      FileNotFoundError, ValueError: the data file is absent or damaged, a size is out of range.
    """
    from fedmf.tasks.stackoverflow import stackoverflow_task

    return stackoverflow_task(
        config.data,
        vocabulary_size=config.vocabulary_size,
        sequence_length=config.sequence_length,
        max_sentences=config.max_sentences,
        batch_size=config.batch_size,
        embedding_size=config.embedding_size,
        lstm_size=config.lstm_size,
        loss=config.loss,
        validation_sentences=config.validation_sentences,
        test_sentences=config.test_sentences,
        progress=progress,
    )
