"""The weights that a run starts from: of a Keras file, of another run, or drawn."""

import pathlib

import numpy as np
import tensorflow as tf

from fedmf.federated.task import Task
from fedmf.federated.training.trained_run import TrainedRun
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run, RunFolder


def starting_task(task: Task, config: TrainConfig, resumed: RunFolder | None) -> Task:
    """The task whose models start as the run does: from `config.initial_model`, or as the task
    draws them.

    Args:
      task: of the run.
      config: of the run.
      resumed: folder of a run that goes on, which has the weights itself; None for a new run.

    Raises:
      FileNotFoundError, ValueError: no such file or run, one that cannot be read, or weights that
        do not fit the task's model.
    """
    if config.initial_model is None:
        return task
    if resumed is not None:
        weights = resumed.initial_weights()
        # `reopen_run` refuses a run that lost them
        return task if weights is None else task.starting_from(weights)
    try:
        return task.starting_from(_weights(task, pathlib.Path(config.initial_model)))
    except ValueError as error:
        raise ValueError(f"initial_model={config.initial_model!r} does not do: {error}") from error


def _weights(task: Task, path: pathlib.Path) -> list[np.ndarray]:
    """All weights of a .keras file, or of a run of the same model."""
    if not path.exists():
        raise FileNotFoundError(
            f"initial_model={str(path)!r} does not exist: name a FILE.keras or the folder of a run"
        )
    if path.is_dir():
        weights = TrainedRun.of(Run.load(path), task).starting_weights()
    else:
        try:
            weights = tf.keras.models.load_model(path, compile=False).get_weights()
        except Exception as error:  # Keras raises errors of many kinds
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise ValueError(
                f"Keras cannot load it ({reason[0]}); name a FILE.keras or the folder of a run"
            ) from error
    if not all(np.isfinite(weight).all() for weight in weights):
        raise ValueError("its weights are not all finite; take an earlier model")
    return weights
