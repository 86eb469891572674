"""A linear model in TFF's own processes, and clients whose data it fits."""

import numpy as np
import tensorflow as tf

from fedmf.federated.tff import tff


def client_data(seed):
    x = np.random.default_rng(seed).normal(size=(8, 2)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x @ np.array([[1.0], [-2.0]], np.float32))).batch(
        4
    )


def model_fn():
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(1, kernel_initializer="zeros", input_shape=[2])]
    )
    spec = (tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1]))
    return tff.learning.models.from_keras_model(
        model, loss=tf.keras.losses.MeanSquaredError(), input_spec=spec
    )


def fed_avg(aggregator):
    sgd = tff.learning.optimizers.build_sgdm
    return tff.learning.algorithms.build_unweighted_fed_avg(
        model_fn, sgd(0.1), sgd(1.0), model_aggregator=aggregator
    )
