"""The functions that a task passes to build, train and evaluate its model."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

# A function of (labels, outputs, example weights) that returns a scalar, as `Task.loss` describes.
LossFunction = Callable[[Any, Any, Any], Any]


class CompiledEpoch(Protocol):
    """A function that trains a client for one epoch without TensorFlow's automatic differentiation.

    A task may pass one, for example in C, to train faster.
    """

    def __call__(
        self,
        weights: Sequence[np.ndarray],
        x: np.ndarray,
        y: np.ndarray,
        learning_rate: float,
        update: Sequence[np.ndarray],
        /,
    ) -> float:
        """Trains for one epoch of SGD over the examples in their order, in the task's batches.

        The last batch may be short. The result must be that of SGD on the task's model and loss, to
        float32 rounding, and deterministic. The function writes to `update` alone. Several threads
        call it at once, and it should let them run in parallel.

        Args:
          weights: the model's trainable weights, float32 and contiguous.
          x, y: a client's examples, contiguous.
          learning_rate: learning rate of SGD.
          update: arrays like the weights, to which the weights before training minus the weights
            after it are written.

        Returns:
          The sum over batches of the loss before the step times the batch's number of examples.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFunctions:
    """The functions of a task that build, train and evaluate its model.

    Attributes:
      name: name of the task.
      build_model, loss, metrics, compiled_epoch, export_model: see `fedmf.federated.Task`; the
        models of `build_model` are in the form of a tf.keras.Model.
    """

    name: str
    build_model: Callable[[int], Any]
    loss: tf.keras.losses.Loss | LossFunction | None
    metrics: Callable[[], Sequence[tf.keras.metrics.Metric]] | None
    compiled_epoch: Callable[[], CompiledEpoch | None] | None = None
    export_model: Callable[[Any], Any] | None = None


def tensor_specs(spec: Any) -> Any:
    """Returns tensor specs of a batch of any size from the `ArraySpec` structure of one example."""
    return tf.nest.map_structure(
        lambda array: tf.TensorSpec([None, *array.shape], array.dtype), spec
    )
