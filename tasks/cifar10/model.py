"""Networks for CIFAR-10: 32 x 32 colour images to logits."""

from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.tasks.cifar10.data import SIDE


def build_model(seed: int, *, kind: str = "vgg") -> Any:
    """An untrained tf.keras.Model from float32 (batch, 32, 32, 3) in [-1, 1] to logits (batch, 10).

    "vgg" is the network of Kairouz et al. 2021, "Practical and private (deep) learning without
    sampling or shuffling", Table 2(b): pairs of convolutions of 32, 64 and 128 channels, each pair
    pooled, a dense layer of 128, all with tanh; 550,570 parameters. As there, a convolution's
    kernel is normal with variance 1 / fan-in, a dense one Glorot normal, and biases are 0; normals
    are truncated at two standard deviations. "small" has strides for the pairs; 38,570 parameters.

    Args:
      seed: draws the initial weights.
      kind: "vgg" or "small".
    """
    seeds = iter(np.random.SeedSequence(seed).generate_state(8).astype(np.int64).tolist())
    initializers, layers = tf.keras.initializers, tf.keras.layers

    def convolution(channels: int, stride: int = 1) -> Any:
        kernel = initializers.LecunNormal(seed=next(seeds))
        return layers.Conv2D(
            channels, 3, stride, padding="same", activation="tanh", kernel_initializer=kernel
        )

    def dense(width: int, activation: str | None = None) -> Any:
        return layers.Dense(
            width, activation, kernel_initializer=initializers.GlorotNormal(seed=next(seeds))
        )

    if kind == "vgg":
        pairs = [
            (convolution(width), convolution(width), layers.MaxPool2D()) for width in (32, 64, 128)
        ]
        stack = [layer for pair in pairs for layer in pair]
    else:
        stack = [convolution(16, 2), convolution(32, 2), layers.MaxPool2D()]
    stack += [layers.Flatten(), dense(128 if kind == "vgg" else 64, "tanh"), dense(10)]
    return tf.keras.Sequential([tf.keras.Input((SIDE, SIDE, 3)), *stack], name=f"cifar10_{kind}")
