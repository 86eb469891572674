"""Networks for EMNIST: 28 x 28 images to logits."""

from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.tasks.emnist.data import PIXELS


def build_model(seed: int, *, classes: int, kind: str = "cnn") -> Any:
    """An untrained tf.keras.Model from float32 (batch, 28, 28, 1) to logits (batch, classes).

    "cnn" is the network of Reddi et al. 2021, "Adaptive federated optimization" (App. C), without
    its dropout: two convolutions of 3 x 3, one pooling, a dense layer of 128; 1,206,590 parameters
    for 62 classes, 1,199,882 for 10. "small" pools after each convolution; 56,714 parameters for 10
    classes. Initializers are Keras's defaults with seeds.

    Args:
      seed: draws the initial weights.
      classes: number of labels.
      kind: "cnn" or "small".
    """
    seeds = iter(np.random.SeedSequence(seed).generate_state(4).astype(np.int64).tolist())

    def kernel() -> Any:
        return tf.keras.initializers.GlorotUniform(seed=next(seeds))

    layers = tf.keras.layers
    wide = kind == "cnn"
    stack = [
        layers.Conv2D(32 if wide else 16, 3, activation="relu", kernel_initializer=kernel()),
        *([] if wide else [layers.MaxPool2D()]),
        layers.Conv2D(64 if wide else 32, 3, activation="relu", kernel_initializer=kernel()),
        layers.MaxPool2D(),
        layers.Flatten(),
        layers.Dense(128 if wide else 64, activation="relu", kernel_initializer=kernel()),
        layers.Dense(classes, kernel_initializer=kernel()),
    ]
    return tf.keras.Sequential([tf.keras.Input((PIXELS, PIXELS, 1)), *stack], name=f"emnist_{kind}")
