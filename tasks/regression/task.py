"""Regression as a training task, linear or logistic, on generated clients."""

import functools
from typing import Any

import tensorflow as tf

from fedmf.federated.task import Task
from fedmf.tasks.regression import data
from fedmf.tasks.regression.data import RegressionOptions


def build_task(o: RegressionOptions) -> Task:
    """Returns the regression task. Validation and test are on clients that do not train."""
    loss_function: Any = tf.keras.losses.BinaryCrossentropy(from_logits=True)
    build_metric: Any = functools.partial(
        tf.keras.metrics.BinaryAccuracy, "accuracy", threshold=0.0
    )
    if o.kind == "linear":
        loss_function = tf.keras.losses.MeanSquaredError()
        build_metric = functools.partial(tf.keras.metrics.MeanSquaredError, "mean_squared_error")
    return Task(
        name="regression",
        description=(
            f"{o.kind} regression: {o.clients} synthetic clients of {o.examples} examples, "
            f"{o.features} features with effective dimension {data.effective_dimension(o):.3g}"
        ),
        synthetic_clients=f"{o.clients} clients with random examples",
        data_version=data.version(o),
        validation_clients="others",
        client_ids=tuple(str(i) for i in range(o.clients)),
        client_examples=lambda client_id: data.client_examples(o, int(client_id)),
        evaluation_examples=functools.cache(functools.partial(data.split_examples, o)),
        build_model=functools.partial(build_model, features=o.features),
        loss=loss_function,
        metrics=lambda: [build_metric()],
        batch_size=o.batch_size,
    )


def build_model(seed: int, *, features: int) -> Any:
    """Builds a tf.keras.Model from features, float32 (batch, features), to outputs of shape (batch,
    1).

    The output is the prediction or the logit. There is no bias, and all weights are 0.

    Args:
      seed: not used, since the model starts at 0.
      features: number of weights.
    """
    del seed
    output_layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    return tf.keras.Sequential([tf.keras.Input((features,)), output_layer], name="regression")
