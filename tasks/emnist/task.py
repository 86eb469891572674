"""EMNIST as a training task on 28 x 28 images of handwritten characters. Clients are the writers,
or the parts of a synthetic partition of all images.
"""

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.task import Task
from fedmf.tasks.emnist import data
from fedmf.tasks.emnist.data import PIXELS, EmnistOptions
from fedmf.training.task_checks import validation_clients_of


def build_task(o: EmnistOptions) -> Task:
    """Returns the EMNIST task.

    Every other writer's test images are the validation split, the others' are the test split.

    Raises:
      FileNotFoundError: no data file; the message says what to put where.
      ValueError: a damaged file.
    """
    data_file = data.open_file(o.data)
    train_writers = tuple(data.client_sizes(data_file, o.split("train")))[: o.max_clients]
    test_writers = list(data.client_sizes(data_file, o.split("test")))
    if len(test_writers) < 2:
        raise ValueError(
            f"{data_file.path} has one writer in {o.split('test')!r}: validation and test "
            "need at least one each"
        )
    writers_by_split = dict(zip(("validation", "test"), data.halves(test_writers), strict=True))
    read_client = functools.partial(data.client_examples, data_file, classes=o.classes)
    synthetic = None
    row_numbers = np.empty(0, np.int64)
    if o.partition is not None:
        labels, row_numbers = data.pooled_labels(
            data_file, o.split("train"), train_writers, classes=o.classes
        )
        synthetic = o.synthetic_clients(
            labels, f"the {len(labels)} images of {len(train_writers)} writers"
        )

    def client_examples(client_id: str) -> tuple[np.ndarray, np.ndarray]:
        """Reads a client's images and labels."""
        if synthetic is None:
            return read_client(o.split("train"), client_id, limit=o.max_examples)
        indices = synthetic.indices[client_id][: o.max_examples]
        return data.examples_at(data_file, row_numbers[indices], classes=o.classes)

    @functools.cache
    def evaluation_examples(split: str) -> tuple[np.ndarray, np.ndarray]:
        """Reads the images and labels of a split."""
        parts = [read_client(o.split("test"), writer) for writer in writers_by_split[split]]
        return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])

    data_version = data_file.version
    client_ids = train_writers
    clients = f"{len(train_writers)} writers"
    synthetic_clients = ""
    if data_file.synthetic:
        synthetic_clients = f"{len(train_writers)} writers of a synthetic substitute for EMNIST"
    if synthetic is not None:
        synthetic_clients = synthetic.description
        data_version = f"{data_file.version}-{synthetic.version}"
        client_ids = tuple(synthetic.indices)
        clients = synthetic.description
    origin_text = "a synthetic substitute" if data_file.synthetic else "the federated file"
    return Task(
        name="emnist",
        description=(
            f"EMNIST on {origin_text}: {clients}, {o.classes} classes, network {o.model!r}"
        ),
        synthetic_clients=synthetic_clients,
        data_version=data_version,
        # Writers have images in both splits of the federated file.
        validation_clients=validation_clients_of(client_ids, writers_by_split["validation"]),
        client_ids=client_ids,
        client_examples=client_examples,
        evaluation_examples=evaluation_examples,
        build_model=functools.partial(build_model, classes=o.classes, kind=o.model),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=lambda: [tf.keras.metrics.SparseCategoricalAccuracy("accuracy")],
        batch_size=o.batch_size,
    )


def build_model(seed: int, *, classes: int, kind: str = "cnn") -> Any:
    """Builds an untrained tf.keras.Model from images (batch, 28, 28, 1) to logits (batch, classes).

    "cnn" is the network of Reddi et al. 2021, "Adaptive federated optimization" (App. C), without
    its dropout: two convolutions of 3 x 3, one pooling, a dense layer of 128; 1,206,590 parameters
    for 62 classes, 1,199,882 for 10. "small" pools after each convolution; 56,714 parameters for 10
    classes. Initializers are Keras's defaults with seeds.

    Args:
      seed: draws the initial weights.
      classes: number of labels.
      kind: "cnn" or "small".
    """
    layer_seeds = iter(np.random.SeedSequence(seed).generate_state(4).astype(np.int64).tolist())

    def kernel() -> Any:
        """Makes a weight initializer that has the next seed."""
        return tf.keras.initializers.GlorotUniform(seed=next(layer_seeds))

    layers = tf.keras.layers
    is_published = kind == "cnn"
    num_filters = 32 if is_published else 16
    layer_stack = [layers.Conv2D(num_filters, 3, activation="relu", kernel_initializer=kernel())]
    if not is_published:
        layer_stack.append(layers.MaxPool2D())
    layer_stack += [
        layers.Conv2D(2 * num_filters, 3, activation="relu", kernel_initializer=kernel()),
        layers.MaxPool2D(),
        layers.Flatten(),
        layers.Dense(4 * num_filters, activation="relu", kernel_initializer=kernel()),
        layers.Dense(classes, kernel_initializer=kernel()),
    ]
    return tf.keras.Sequential(
        [tf.keras.Input((PIXELS, PIXELS, 1)), *layer_stack], name=f"emnist_{kind}"
    )
