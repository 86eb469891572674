"""The regression task: linear or logistic, on generated clients."""

import functools
from typing import Any

import tensorflow as tf

from fedmf.federated.task import Task
from fedmf.tasks.regression import data
from fedmf.tasks.regression.data import RegressionOptions


def build_task(o: RegressionOptions) -> Task:
    """The regression task. Validation and test are on clients that do not train."""
    losses, metrics = tf.keras.losses, tf.keras.metrics
    linear = o.kind == "linear"
    return Task(
        name="regression",
        description=(
            f"{o.kind} regression: {o.clients} synthetic clients of {o.examples} examples, "
            f"{o.features} features with effective dimension {data.effective_dimension(o):.3g}"
        ),
        data_version=data.version(o),
        client_ids=tuple(str(i) for i in range(o.clients)),
        client_examples=lambda client_id: data.client_examples(o, int(client_id)),
        evaluation_examples=functools.cache(functools.partial(data.split_examples, o)),
        build_model=functools.partial(build_model, features=o.features),
        loss=losses.MeanSquaredError() if linear else losses.BinaryCrossentropy(from_logits=True),
        metrics=lambda: [
            metrics.MeanSquaredError("mean_squared_error")
            if linear
            else metrics.BinaryAccuracy("accuracy", threshold=0.0)
        ],
        batch_size=o.batch_size,
    )


def build_model(seed: int, *, features: int) -> Any:
    """A tf.keras.Model from float32 (batch, features) to (batch, 1), the prediction or the logit:
    weights without a bias, all 0.

    Args:
      seed: not used, since the model starts at 0.
      features: number of weights.
    """
    del seed
    layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    return tf.keras.Sequential([tf.keras.Input((features,)), layer], name="regression")
