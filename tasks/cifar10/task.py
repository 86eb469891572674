"""The CIFAR-10 task: the unit of privacy is one image, so each client holds one; or a client that
is made.
"""

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.task import Task
from fedmf.tasks.cifar10.data import SIDE, Cifar10Options, load_images, scaled

_VALIDATION_EXAMPLES = 5_000


def build_task(o: Cifar10Options) -> Task:
    """The CIFAR-10 task.

    Raises:
      FileNotFoundError: no archive; the message says what to put where.
      ValueError: a damaged archive.
    """
    images = load_images(o.data)
    if o.validation == "train":
        trained = len(images.x) - min(_VALIDATION_EXAMPLES, len(images.x) // 10)
        splits = {
            "validation": (images.x[trained:], images.y[trained:]),
            "test": (images.x_test, images.y_test),
        }
    else:
        trained = len(images.x)
        splits = {
            "validation": (images.x_test[::2], images.y_test[::2]),
            "test": (images.x_test[1::2], images.y_test[1::2]),
        }
    trained = min(trained, o.max_clients or trained)
    pool = f"{trained} training images"
    if o.partition is None:
        places: dict[str, Any] = {f"{i:05d}": slice(i, i + 1) for i in range(trained)}
        version, made, clients = images.version, "", f"{pool}, each a client"
    else:
        dealt = o.dealt(images.y[:trained], pool)
        places, made, clients = dealt.places, dealt.made, dealt.made
        version = f"{images.version}-{dealt.version}"

    def client_examples(client_id: str) -> tuple[np.ndarray, np.ndarray]:
        return scaled(images.x[places[client_id]]), images.y[places[client_id]]

    @functools.cache
    def evaluation_examples(split: str) -> tuple[np.ndarray, np.ndarray]:
        x, y = splits[split]
        return scaled(x), y

    return Task(
        name="cifar10",
        description=(
            f"{'a synthetic substitute for ' if images.synthetic else ''}CIFAR-10: {clients}; "
            f"network {o.model!r}; validated on {o.validation} images"
        ),
        synthetic_clients=made,
        data_version=version,
        client_ids=tuple(places),
        client_examples=client_examples,
        evaluation_examples=evaluation_examples,
        build_model=functools.partial(build_model, kind=o.model),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=lambda: [tf.keras.metrics.SparseCategoricalAccuracy("accuracy")],
        batch_size=o.batch_size,
    )


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
