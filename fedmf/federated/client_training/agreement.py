"""A check that a Keras model and its stateless form have the same loss and gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.client_training.client_work import gradients
from fedmf.federated.loss import BatchLoss, minimised
from fedmf.training.examples import Examples


def check_agreement(
    model: tf.keras.Model,
    loss_of_batch: BatchLoss,
    loss_and_gradients: Callable[..., Any],
    batch: Examples,
) -> None:
    """Checks that stateless and Keras model agree in loss and gradients for other weights.

    They differ if a model computes a tensor from its weights when it is built. In Keras this
    tensor keeps the value for the first weights. In the stateless model it would follow the
    weights of each client.

    Args:
      model: the Keras model, whose weights this function changes.
      loss_of_batch: labels and outputs -> the loss of the Keras model.
      loss_and_gradients: weights, x and y -> the loss and the gradients of the stateless model.
      batch: the examples (x, y).

    Raises:
      ValueError: loss or gradients differ on these examples.
    """
    x, y = batch
    random_generator = np.random.default_rng(1)
    trainable_variables = model.trainable_variables
    for variable in trainable_variables:
        variable.assign_add(
            random_generator.normal(scale=0.1, size=variable.shape).astype(np.float32)
        )
    loss, gradient_list = loss_and_gradients(
        [variable.read_value() for variable in trainable_variables], x, y
    )
    with tf.GradientTape() as tape:
        keras_loss = loss_of_batch(y, model(x, training=True))
        total_loss = minimised(keras_loss, model.losses)
    keras_gradients = gradients(tape, total_loss, trainable_variables)
    value_pairs = [(loss, keras_loss), *zip(gradient_list, keras_gradients, strict=True)]
    for stateless_value, keras_value in value_pairs:
        stateless_array = np.asarray(tf.convert_to_tensor(stateless_value))
        keras_array = np.asarray(tf.convert_to_tensor(keras_value))
        largest_magnitude = np.nanmax(np.abs(keras_array), initial=1e-6)
        if not np.allclose(
            stateless_array, keras_array, rtol=1e-3, atol=1e-3 * largest_magnitude, equal_nan=True
        ):
            raise ValueError(
                "the stateless model is another function of the weights than the model"
            )
