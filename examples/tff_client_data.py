"""A ClientData of TFF as the task: simulation data that you have already,
with your own preprocessing.

python examples/tff_client_data.py
"""

import tempfile

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import fedmf
from fedmf import federated

rng = np.random.default_rng(0)


def sensor(shift):
    """A client's raw data: readings of a device that is off by `shift`,
    and whether there was an alarm.
    """
    readings = rng.normal(shift, 1.0, size=(12, 5)).astype(np.float32)
    return {"readings": readings, "alarm": (readings.mean(axis=1) > 0.2).astype(np.int32)}


def client_data(clients):
    return tff.simulation.datasets.TestClientData(
        {f"sensor {c}": sensor(0.3 * rng.normal()) for c in clients}
    )


def preprocess(dataset):
    """Single examples (x, y); fedmf shuffles and batches them."""
    return dataset.map(lambda e: (tf.clip_by_value(e["readings"], -3.0, 3.0), e["alarm"]))


task = federated.Task.from_client_data(
    name="sensors",
    train=client_data(range(200)),
    validation=client_data(range(200, 220)),
    test=client_data(range(220, 250)),
    preprocess=preprocess,
    model=lambda: tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(5,))]),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=lambda: [tf.keras.metrics.SparseCategoricalAccuracy("accuracy")],
    batch_size=6,
)
config = fedmf.TrainConfig(
    rounds=30,
    cohort_size=20,
    min_sep=10,
    family="blt",  # a few running sums: little memory on the server
    epsilon=6.0,
    clip_norm=0.5,
    client_learning_rate=0.5,
    server_momentum=0.5,
    evaluate_every=10,
)
run = federated.train(task, config, folder=tempfile.mkdtemp(), noise_seed="os", progress=False)
print(f"test accuracy {run.result['test']['accuracy']:.3f} at epsilon {run.plan['epsilon']:.2f}")
print("clients by how often they took part:", run.result["participation"]["histogram"])
