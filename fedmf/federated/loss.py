"""The loss that clients minimise on a batch, computed as in Keras's `Model.fit`.

A batch holds examples of one client only, at least one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fedmf.federated.model_functions import ModelFunctions
from fedmf.federated.task_checks import KERAS_MODULES
from fedmf.federated.tensorflow_import import rewritten
from fedmf.training.examples import split_weights

# A function of y and the outputs of the model on a batch. It returns the loss, a float32 scalar; y
# holds the labels, or labels with example weights as `Weighted`.
BatchLoss = Callable[[Any, Any], tf.Tensor]


def batch_loss(functions: ModelFunctions) -> BatchLoss:
    """Returns the function that computes the task's loss, without regularisers and add_loss.

    A Keras loss is called as Keras calls it: its reduction, its `__call__` and the mask of the
    outputs count. `check_model` checks the value, and this function does not.
    """
    loss = functions.loss
    if loss is None:
        return lambda labels, outputs: tf.cast(outputs.loss(labels), tf.float32)
    if isinstance(loss, tf.keras.losses.Loss):
        return lambda y, outputs: tf.cast(_keras_loss(functions.name, loss, y, outputs), tf.float32)

    def loss_of_function(y: Any, outputs: Any) -> tf.Tensor:
        labels, weights = split_weights(y)
        if weights is None:
            weights = tf.ones(tf.shape(tf.nest.flatten(labels)[0])[:1])
        return tf.cast(rewritten(loss)(labels, outputs, weights), tf.float32)

    return loss_of_function


def minimised(loss: tf.Tensor, model_losses: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the loss that training minimises, the task's loss plus the model's own losses.

    A model's own losses are those of its regularisers and of Keras's add_loss.
    """
    return tf.add_n([loss, *(tf.cast(model_loss, tf.float32) for model_loss in model_losses)])


def outputs_and_losses(model: Any, x: Any) -> tuple[Any, list[tf.Tensor]]:
    """Returns the outputs of a model in training mode, and its own losses of this call.

    In a graph of TFF a model also keeps the losses of earlier calls, and those of the call that
    built it, whose inputs nobody feeds. They are left out.
    """
    earlier_losses = list(model.losses)
    outputs = model(x, training=True)
    new_losses = [
        loss for loss in model.losses if all(loss is not earlier for earlier in earlier_losses)
    ]
    return outputs, new_losses


def keras_mask(outputs: Any) -> tf.Tensor | None:
    """Returns the mask that Keras's layers have set on outputs, or None if they have set none.

    The mask has the dtype of the outputs, and is 0 where an output does not count.
    """
    output_mask = getattr(outputs, "_keras_mask", None)
    return None if output_mask is None else tf.cast(output_mask, outputs.dtype)


def is_mean(functions: ModelFunctions) -> bool:
    """Returns whether the loss is a mean over examples, which allows batches of any size."""
    loss = functions.loss
    if not isinstance(loss, tf.keras.losses.Loss):
        # If the loss is a function, `Task.loss` requires that it returns the mean over examples.
        return True
    is_of_keras = type(loss).__module__.startswith(KERAS_MODULES)
    return is_of_keras and loss.reduction != tf.keras.losses.Reduction.SUM


def _keras_loss(name: str, loss: tf.keras.losses.Loss, y: Any, outputs: Any) -> tf.Tensor:
    """Returns the sum of a Keras loss over all outputs of a model, with the same example weights.

    It is computed as by keras.engine.compile_utils.LossesContainer of Keras 2.14.
    """
    labels, weights = split_weights(y)
    if tf.nest.is_nested(labels) or tf.nest.is_nested(outputs):
        try:
            tf.nest.assert_same_structure(labels, outputs)
        except (TypeError, ValueError):
            raise ValueError(
                f"labels and outputs of task {name!r} have different structures, so that its Keras "
                "loss cannot pair them: give both the same structure, or the task a function "
                "(labels, outputs, example_weights)"
            ) from None
    leaf_pairs = zip(tf.nest.flatten(labels), tf.nest.flatten(outputs), strict=True)
    output_losses = [
        _output_loss(loss, output_labels, output, weights) for output_labels, output in leaf_pairs
    ]
    return tf.add_n(output_losses)


def _output_loss(
    loss: tf.keras.losses.Loss,
    labels: tf.Tensor,
    outputs: tf.Tensor,
    example_weights: tf.Tensor | None,
) -> tf.Tensor:
    """Returns the Keras loss of one output of a model, with example weights if they are given."""
    if example_weights is None:
        output_weights = keras_mask(outputs)
    else:
        output_weights = _masked_weights(outputs, example_weights)
    weight_argument = {} if output_weights is None else {"sample_weight": output_weights}
    are_floats = labels.dtype.is_floating and outputs.dtype.is_floating
    are_integers = labels.dtype.is_integer and outputs.dtype.is_integer
    if are_floats or are_integers:
        labels = tf.cast(labels, outputs.dtype)
    if labels.shape.rank != 1 or outputs.shape.rank != 2:
        return loss(labels, outputs, **weight_argument)
    try:
        return loss(labels[:, tf.newaxis], outputs, **weight_argument)
    except ValueError:
        # Keras's `Model.fit` fails if the loss does not take labels with a second axis, but TFF's
        # from_keras_model works.
        return loss(labels, outputs, **weight_argument)


def _masked_weights(outputs: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns the example weights times the mask of the outputs, in the shape that Keras expects.

    Without a mask, these are the example weights alone.
    """
    if outputs.shape.rank > 3:
        raise ValueError(
            f"Keras's losses take no weight for each example beside outputs {outputs.shape}: give "
            "the task a function (labels, outputs, example_weights)"
        )
    weights = tf.cast(weights, outputs.dtype)
    output_mask = keras_mask(outputs)
    if output_mask is None:
        return weights[:, tf.newaxis] if outputs.shape.rank == 2 else weights
    return (
        output_mask * weights
        if output_mask.shape.rank == 1
        else output_mask * weights[:, tf.newaxis]
    )
