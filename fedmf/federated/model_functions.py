"""`ModelFunctions`: the functions of a task that make, train and judge its Keras or TFF model."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

# (labels, outputs, example weights) -> scalar; see `Task.loss`.
LossFunction = Callable[[Any, Any, Any], Any]


class CompiledEpoch(Protocol):
    """A client's local epoch without automatic differentiation, for a model whose
    speed is worth it.
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
        """One epoch of SGD over the examples in their order, in the task's batches, the last of
        which may be short.

        It must do what SGD on the task's model and loss does, to float32 rounding; give the same
        bits for the same input; write to nothing but `update`; and may be called from several
        threads at once, which it should let run side by side.

        Args:
          weights: the model's trainable weights, float32 and contiguous.
          x, y: a client's examples, contiguous.
          learning_rate: of SGD.
          update: arrays like the weights that the weights before less the weights after
            are written to.

        Returns:
          The sum over batches of the loss before the step times the batch's examples.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFunctions:
    """The functions of a task that make, train and judge its model.

    Attributes:
      name: of the task.
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
    """Returns a batch of examples of this spec, a structure of `ArraySpec`, as tf.TensorSpec."""
    return tf.nest.map_structure(
        lambda array: tf.TensorSpec([None, *array.shape], array.dtype), spec
    )
