"""What is minimised on a batch: what Keras minimises in `Model.fit`.

A batch holds nothing but a client's own examples, at least one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fedmf.federated.model_functions import ModelFunctions
from fedmf.federated.task_checks import KERAS
from fedmf.federated.tensorflow_import import rewritten
from fedmf.training.examples import split_weights

# (y, outputs) -> the loss of a batch, a float32 scalar; y is labels, or `Weighted`.
BatchLoss = Callable[[Any, Any], Any]


def batch_loss(functions: ModelFunctions) -> BatchLoss:
    """The task's loss, without the model's own losses.

    A Keras loss is called as Keras calls it: its reduction, its `__call__` and the mask of the
    outputs count. Its value is not checked: `check_model` does that.
    """
    loss = functions.loss
    if loss is None:
        return lambda labels, outputs: tf.cast(outputs.loss(labels), tf.float32)
    if isinstance(loss, tf.keras.losses.Loss):
        return lambda y, outputs: tf.cast(_keras_loss(functions.name, loss, y, outputs), tf.float32)

    def of_function(y: Any, outputs: Any) -> Any:
        labels, weights = split_weights(y)
        if weights is None:
            weights = tf.ones(tf.shape(tf.nest.flatten(labels)[0])[:1])
        return tf.cast(rewritten(loss)(labels, outputs, weights), tf.float32)

    return of_function


def minimised(loss: Any, own: Sequence[Any]) -> Any:
    """The loss of a batch and the model's own losses (regularisers, add_loss) together."""
    return tf.add_n([loss, *(tf.cast(each, tf.float32) for each in own)])


def outputs_and_losses(model: Any, x: Any) -> tuple[Any, list[Any]]:
    """A model's outputs in training, and its own losses.

    In a graph of TFF a model keeps the losses of earlier calls too, and of the call that built it,
    whose inputs nobody feeds.
    """
    before = list(model.losses)
    outputs = model(x, training=True)
    return outputs, [loss for loss in model.losses if all(loss is not other for other in before)]


def keras_mask(outputs: Any) -> Any:
    """The mask that Keras's layers left on the outputs, of their dtype: 0 where they do not count.

    None for no mask.
    """
    mask = getattr(outputs, "_keras_mask", None)
    return None if mask is None else tf.cast(mask, outputs.dtype)


def is_mean(functions: ModelFunctions) -> bool:
    """Whether the loss is a mean over what it is given, so that it may be taken on
    batches of any size.
    """
    loss = functions.loss
    if not isinstance(loss, tf.keras.losses.Loss):
        return True  # by the contract of `Task.loss`
    own = not type(loss).__module__.startswith(KERAS)
    return not own and loss.reduction != tf.keras.losses.Reduction.SUM


def _keras_loss(name: str, loss: tf.keras.losses.Loss, y: Any, outputs: Any) -> Any:
    """As keras.engine.compile_utils.LossesContainer has it (Keras 2.14): the sum over the outputs
    of a model that has several, each with the same weights.
    """
    labels, weights = split_weights(y)
    if tf.nest.is_nested(labels) or tf.nest.is_nested(outputs):
        try:
            tf.nest.assert_same_structure(labels, outputs)
        except (TypeError, ValueError):
            raise ValueError(
                f"labels and outputs of task {name!r} have other structures, so that its Keras "
                "loss does not know which belong together: "
                "give both the same, or the task a function (labels, outputs, example_weights)"
            ) from None
    pairs = zip(tf.nest.flatten(labels), tf.nest.flatten(outputs), strict=True)
    return tf.add_n([_of_output(loss, *pair, weights) for pair in pairs])


def _of_output(loss: tf.keras.losses.Loss, labels: Any, outputs: Any, each: Any) -> Any:
    counted = keras_mask(outputs) if each is None else _weights(outputs, each)
    weights = {} if counted is None else {"sample_weight": counted}
    if all(dtype.is_floating for dtype in (labels.dtype, outputs.dtype)) or (
        labels.dtype.is_integer and outputs.dtype.is_integer
    ):
        labels = tf.cast(labels, outputs.dtype)
    if labels.shape.rank != 1 or outputs.shape.rank != 2:
        return loss(labels, outputs, **weights)
    try:
        return loss(labels[:, tf.newaxis], outputs, **weights)
    except ValueError:  # `Model.fit` fails here, and TFF's from_keras_model does not
        return loss(labels, outputs, **weights)


def _weights(outputs: Any, weights: Any) -> Any:
    """The examples' weights, times the mask if there is one, as Keras gives them to a loss."""
    if outputs.shape.rank > 3:
        raise ValueError(
            f"Keras's losses take no weight for each example beside outputs {outputs.shape}: give "
            "the task a function (labels, outputs, example_weights)"
        )
    weights, mask = tf.cast(weights, outputs.dtype), keras_mask(outputs)
    if mask is not None:
        return mask * (weights if mask.shape.rank == 1 else weights[:, tf.newaxis])
    return weights[:, tf.newaxis] if outputs.shape.rank == 2 else weights
