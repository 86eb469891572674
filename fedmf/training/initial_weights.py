"""The initial weights of a run. They come from the task, from a model file, or from another run."""

import pathlib

import numpy as np

from fedmf.files import expanded
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run, RunFolder
from fedmf.training.task import Task
from fedmf.training.trained_run import TrainedRun


def starting_task(task: Task, config: TrainConfig, resumed: RunFolder | None) -> Task:
    """Returns the task with models that start from the run's initial weights, which are those of
    `config.initial_model` or the task's own.

    Args:
      task: task of the run.
      config: config of the run.
      resumed: folder of a run that is resumed, which holds its initial weights; None for a new run.

    Raises:
      FileNotFoundError, ValueError: the file or run does not exist or cannot be read, or its
        weights do not fit the task's model.
    """
    if config.initial_model is None:
        return task
    if resumed is not None:
        recorded_weights = resumed.initial_weights()
        # If the run's initial weights are missing, `reopen_run` refuses to resume the run later.
        return task if recorded_weights is None else task.starting_from(recorded_weights)
    try:
        return task.starting_from(_model_weights(task, expanded(config.initial_model)))
    except ValueError as error:
        raise ValueError(
            f"initial_model={config.initial_model!r} cannot be used: {error}"
        ) from error


def _model_weights(task: Task, path: pathlib.Path) -> list[np.ndarray]:
    """Returns all weights of a model file, or of another run of the same model.

    Raises:
      FileNotFoundError: the path does not exist.
      ValueError: the weights cannot be read, or are not all finite.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"initial_model={str(path)!r} does not exist: name a model file (FILE.keras, "
            "FILE.pt) or the folder of a run"
        )
    if path.is_dir():
        model_weights = TrainedRun.of(Run.load(path), task).starting_weights()
    else:
        model_weights = task.learner.load_weights(path)
    numeric_weights = [weight for weight in model_weights if np.issubdtype(weight.dtype, np.number)]
    if not all(np.isfinite(weight).all() for weight in numeric_weights):
        raise ValueError("its weights are not all finite; use an earlier model")
    return model_weights
