"""The CIFAR-10 task: the unit of privacy is one image, so each client holds one."""

import functools

import numpy as np
import tensorflow as tf

from fedmf.federated.task import Task
from fedmf.tasks.cifar10.data import load_images, scaled
from fedmf.tasks.cifar10.model import build_model
from fedmf.tasks.cifar10.options import Cifar10Options

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
    client_ids = tuple(f"{i:05d}" for i in range(min(trained, o.max_clients or trained)))

    def client_examples(client_id: str) -> tuple[np.ndarray, np.ndarray]:
        only = slice(int(client_id), int(client_id) + 1)
        return scaled(images.x[only]), images.y[only]

    @functools.cache
    def evaluation_examples(split: str) -> tuple[np.ndarray, np.ndarray]:
        x, y = splits[split]
        return scaled(x), y

    return Task(
        name="cifar10",
        description=(
            f"{'a stand-in for ' if images.synthetic else ''}CIFAR-10: {len(client_ids)} training "
            f"images, each a client; network {o.model!r}; validated on {o.validation} images"
        ),
        data_version=images.version,
        client_ids=client_ids,
        client_examples=client_examples,
        evaluation_examples=evaluation_examples,
        build_model=functools.partial(build_model, kind=o.model),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=lambda: [tf.keras.metrics.SparseCategoricalAccuracy("accuracy")],
        batch_size=1,
    )
