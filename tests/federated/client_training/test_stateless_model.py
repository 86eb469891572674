"""The model as a function of weights has the outputs and gradients of the Keras model."""

import numpy as np
import pytest
import tensorflow as tf

from fedmf.federated.client_training.stateless_model import (
    check_clients_stay_separate,
    stateless_model,
)
from tests.federated.small_task import small_task
from tests.refusals import refusal

layers = tf.keras.layers

CONVOLUTIONS = [
    {"kernel_size": (2, 4), "padding": "same", "strides": (2, 3)},
    {"kernel_size": (3, 1), "padding": "valid", "strides": (1, 2), "use_bias": False},
    {"kernel_size": 4, "padding": "valid", "strides": 5},
    {"kernel_size": 3, "padding": "same", "dilation_rate": 2},
]


@pytest.mark.parametrize("arguments", CONVOLUTIONS, ids=str)
def test_gradients_of_convolutions_equal_those_of_tensorflow(arguments):
    def build_model(seed):
        tf.keras.utils.set_random_seed(seed)
        convolution = layers.Conv2D(4, activation="tanh", **arguments)
        return tf.keras.Sequential(
            [tf.keras.Input((11, 8, 2)), convolution, layers.Conv2D(2, 1), layers.Flatten()]
        )

    model = build_model(3)
    variables = model.trainable_variables
    apply = stateless_model(small_task(build_model=build_model), 3)
    x = tf.constant(np.random.default_rng(1).normal(size=(3, 1, 11, 8, 2)).astype(np.float32))

    def loss_and_gradients(x):
        weights = [tf.convert_to_tensor(variable) for variable in variables]
        with tf.GradientTape() as tape:
            tape.watch([weights, x])
            loss = tf.reduce_sum(tf.sin(apply(weights, x)[0]))
        return loss, tape.gradient(loss, [*weights, x])

    losses, gradients = tf.function(lambda x: tf.vectorized_map(loss_and_gradients, x))(x)
    for i, client_x in enumerate(x):
        with tf.GradientTape() as tape:
            tape.watch(client_x)
            loss = tf.reduce_sum(tf.sin(model(client_x)))
        np.testing.assert_allclose(losses[i], loss, rtol=1e-5)
        for gradient, expected_gradient in zip(
            gradients, tape.gradient(loss, [*variables, client_x]), strict=True
        ):
            np.testing.assert_allclose(gradient[i], expected_gradient, rtol=1e-4, atol=1e-5)


def test_a_random_constant_of_a_layer_is_not_drawn_in_every_call():
    """Random features are such a constant; clients of the model train one by one."""

    def check(matrix):
        product = tf.function(lambda x: x @ matrix(), input_signature=[tf.TensorSpec([1, 3])])
        check_clients_stay_separate(product)

    with refusal("RandomStandardNormal would draw other numbers"):
        check(lambda: tf.random.normal([3, 2]))
    fixed_weights = tf.random.normal([3, 2])
    check(lambda: fixed_weights)
