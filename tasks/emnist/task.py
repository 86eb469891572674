"""The EMNIST task: 28 x 28 images of handwritten characters, a client for each writer; or clients
that are made.
"""

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.task import Task
from fedmf.tasks.emnist import data
from fedmf.tasks.emnist.data import PIXELS, EmnistOptions


def build_task(o: EmnistOptions) -> Task:
    """The EMNIST task.

    Every other writer's test images are the validation split, the others' are the test split.

    Raises:
      FileNotFoundError: no data file; the message says what to put where.
      ValueError: a damaged file.
    """
    file = data.open_file(o.data)
    train = tuple(data.client_sizes(file, o.split("train")))[: o.max_clients]
    writers = list(data.client_sizes(file, o.split("test")))
    if len(writers) < 2:
        raise ValueError(
            f"{file.path} has one writer in {o.split('test')!r}: validation and test "
            "need at least one each"
        )
    evaluated = dict(zip(("validation", "test"), data.halves(writers), strict=True))
    read = functools.partial(data.client_examples, file, classes=o.classes)
    dealt, numbers = None, np.empty(0, np.int64)
    if o.partition is not None:
        labels, numbers = data.pooled_labels(file, o.split("train"), train, classes=o.classes)
        dealt = o.dealt(labels, f"the {len(labels)} images of {len(train)} writers")

    def client_examples(client_id: str) -> tuple[np.ndarray, np.ndarray]:
        if dealt is None:
            return read(o.split("train"), client_id, limit=o.max_examples)
        places = dealt.places[client_id][: o.max_examples]
        return data.examples_at(file, numbers[places], classes=o.classes)

    @functools.cache
    def evaluation_examples(split: str) -> tuple[np.ndarray, np.ndarray]:
        parts = [read(o.split("test"), writer) for writer in evaluated[split]]
        x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return x, y

    return Task(
        name="emnist",
        description=(
            f"EMNIST on {'a synthetic substitute' if file.synthetic else 'the federated file'}: "
            f"{dealt.made if dealt else f'{len(train)} writers'}, "
            f"{o.classes} classes, network {o.model!r}"
        ),
        synthetic_clients=dealt.made if dealt else "",
        data_version=f"{file.version}-{dealt.version}" if dealt else file.version,
        client_ids=tuple(dealt.places) if dealt else train,
        client_examples=client_examples,
        evaluation_examples=evaluation_examples,
        build_model=functools.partial(build_model, classes=o.classes, kind=o.model),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=lambda: [tf.keras.metrics.SparseCategoricalAccuracy("accuracy")],
        batch_size=o.batch_size,
    )


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
