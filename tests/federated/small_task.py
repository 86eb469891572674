"""A task of a few hundred parameters for tests: the next symbol of arithmetic progressions."""

import dataclasses
import functools
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf import federated

CLASSES = 7
LENGTH = 5


def small_task(**changes: Any) -> federated.Task:
    """Returns the task, with these attributes changed.

    Clients have between 0 and 9 sequences; one has none.
    """
    return dataclasses.replace(_task(), **changes) if changes else _task()


@functools.cache
def _task() -> federated.Task:

    def examples(name: str, count: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(sum(name.encode()))
        count = int(name.split()[-1]) % 10 if count is None else count
        start = rng.integers(0, CLASSES, (count, 1))
        x = ((start + 2 * np.arange(LENGTH + 1)) % CLASSES).astype(np.int32)
        return x[:, :-1], x[:, 1:]

    def build_model(seed: int) -> tf.keras.Model:
        init = tf.keras.initializers.RandomUniform(seed=seed)
        return tf.keras.Sequential(
            [
                tf.keras.layers.Embedding(
                    CLASSES, 4, input_length=LENGTH, embeddings_initializer=init
                ),
                tf.keras.layers.Dense(
                    CLASSES, kernel_initializer=tf.keras.initializers.GlorotUniform(seed=seed)
                ),
            ]
        )

    return federated.Task(
        name="small",
        description="arithmetic progressions",
        client_ids=[f"client {i}" for i in range(12)],
        client_examples=examples,
        evaluation_examples=lambda split: examples(split, 40),
        build_model=build_model,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=lambda: [tf.keras.metrics.SparseCategoricalAccuracy("accuracy")],
        batch_size=4,
    )


def task_of_arrays(x, y, model, **changes):  # type: ignore[no-untyped-def]
    """Returns a classification task in batches of 4, both splits of which are all examples."""
    attributes = {
        "name": "arrays", "x": x, "y": y, "validation": (x, y), "test": (x, y), "model": model,
        "loss": tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": lambda: [tf.keras.metrics.SparseCategoricalAccuracy("accuracy")],
        "client_ids": np.arange(len(y)), "batch_size": 4,
    }  # fmt: skip
    return federated.Task.from_arrays(**(attributes | changes))
