"""CIFAR-10 as a training task whose clients hold one image each, or parts of a synthetic partition.

With one image a client, the unit of privacy is one image.
"""

import functools
import itertools
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.task import Task
from fedmf.tasks.cifar10.data import SIDE, Cifar10Options, load_images, scaled

_VALIDATION_EXAMPLES = 5_000


def build_task(o: Cifar10Options) -> Task:
    """Returns the CIFAR-10 task.

    Raises:
      FileNotFoundError: no archive; the message says what to put where.
      ValueError: a damaged archive.
    """
    images = load_images(o.data)
    if o.validation == "train":
        num_train = len(images.x) - min(_VALIDATION_EXAMPLES, len(images.x) // 10)
        examples_by_split = {
            "validation": (images.x[num_train:], images.y[num_train:]),
            "test": (images.x_test, images.y_test),
        }
    else:
        num_train = len(images.x)
        examples_by_split = {
            "validation": (images.x_test[::2], images.y_test[::2]),
            "test": (images.x_test[1::2], images.y_test[1::2]),
        }
    num_train = min(num_train, o.max_clients or num_train)
    pool_text = f"{num_train} training images"
    if o.partition is None:
        indices_by_client: dict[str, Any] = {f"{i:05d}": slice(i, i + 1) for i in range(num_train)}
        data_version = images.version
        synthetic_clients = ""
        if images.synthetic:
            synthetic_clients = f"{pool_text} of a synthetic substitute for CIFAR-10, each a client"
        client_description = f"{pool_text}, each a client"
    else:
        synthetic_partition = o.synthetic_clients(images.y[:num_train], pool_text)
        indices_by_client = synthetic_partition.indices
        data_version = f"{images.version}-{synthetic_partition.version}"
        synthetic_clients = synthetic_partition.description
        client_description = synthetic_partition.description

    def client_examples(client_id: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns a client's images and labels."""
        client_indices = indices_by_client[client_id]
        return scaled(images.x[client_indices]), images.y[client_indices]

    @functools.cache
    def evaluation_examples(split: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the images and labels of a split."""
        x, y = examples_by_split[split]
        return scaled(x), y

    origin_text = "a synthetic substitute for CIFAR-10" if images.synthetic else "CIFAR-10"
    return Task(
        name="cifar10",
        description=(
            f"{origin_text}: {client_description}; "
            f"network {o.model!r}; validated on {o.validation} images"
        ),
        synthetic_clients=synthetic_clients,
        data_version=data_version,
        validation_clients="others",
        client_ids=tuple(indices_by_client),
        client_examples=client_examples,
        evaluation_examples=evaluation_examples,
        build_model=functools.partial(build_model, kind=o.model),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=lambda: [tf.keras.metrics.SparseCategoricalAccuracy("accuracy")],
        batch_size=o.batch_size,
    )


def build_model(seed: int, *, kind: str = "vgg") -> Any:
    """Builds an untrained tf.keras.Model from images (batch, 32, 32, 3) to logits (batch, 10).

    Images are float32 in [-1, 1].

    "vgg" is the network of Kairouz et al. 2021, "Practical and private (deep) learning without
    sampling or shuffling", Table 2(b): pairs of convolutions of 32, 64 and 128 channels, each pair
    pooled, a dense layer of 128, all with tanh; 550,570 parameters. As there, a convolution's
    kernel is normal with variance 1 / fan-in, a dense one Glorot normal, and biases are 0; normals
    are truncated at two standard deviations. "small" has strides for the pairs; 38,570 parameters.

    Args:
      seed: draws the initial weights.
      kind: "vgg" or "small".
    """
    layer_seeds = iter(np.random.SeedSequence(seed).generate_state(8).astype(np.int64).tolist())
    initializers = tf.keras.initializers
    layers = tf.keras.layers

    def convolution(channels: int, stride: int = 1) -> Any:
        """Makes a convolution layer whose initializer has the next seed."""
        kernel_initializer = initializers.LecunNormal(seed=next(layer_seeds))
        return layers.Conv2D(
            channels,
            3,
            stride,
            padding="same",
            activation="tanh",
            kernel_initializer=kernel_initializer,
        )

    def dense(width: int, activation: str | None = None) -> Any:
        """Makes a dense layer whose initializer has the next seed."""
        return layers.Dense(
            width, activation, kernel_initializer=initializers.GlorotNormal(seed=next(layer_seeds))
        )

    if kind == "vgg":
        convolution_blocks = [
            (convolution(width), convolution(width), layers.MaxPool2D()) for width in (32, 64, 128)
        ]
        layer_stack = list(itertools.chain.from_iterable(convolution_blocks))
        dense_width = 128
    else:
        layer_stack = [convolution(16, 2), convolution(32, 2), layers.MaxPool2D()]
        dense_width = 64
    layer_stack += [layers.Flatten(), dense(dense_width, "tanh"), dense(10)]
    return tf.keras.Sequential(
        [tf.keras.Input((SIDE, SIDE, 3)), *layer_stack], name=f"cifar10_{kind}"
    )
