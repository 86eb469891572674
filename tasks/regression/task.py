"""The regression task: linear or logistic, on generated clients."""

import functools

import tensorflow as tf

from fedmf.federated.task import Task
from fedmf.tasks.regression import data
from fedmf.tasks.regression.model import build_model
from fedmf.tasks.regression.options import RegressionOptions


def build_task(o: RegressionOptions) -> Task:
    """The regression task. Validation and test are on clients that do not train."""
    losses, metrics = tf.keras.losses, tf.keras.metrics
    linear = o.kind == "linear"
    return Task(
        name="regression",
        description=(
            f"{o.kind} regression: {o.clients} generated clients of {o.examples} examples, "
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
