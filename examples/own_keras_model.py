"""Your own Keras model on your own arrays, with an id of the client for each example.

python examples/own_keras_model.py
"""

import tempfile

import numpy as np
import tensorflow as tf

import fedmf
from fedmf import federated

CLASSES, FEATURES, CLIENTS = 4, 8, 600
rng = np.random.default_rng(0)
centers = rng.normal(size=(CLASSES, FEATURES))


def draw(examples):
    y = rng.integers(0, CLASSES, examples)
    return (centers[y] + 0.7 * rng.normal(size=(examples, FEATURES))).astype(np.float32), y


x, y = draw(10 * CLIENTS)
task = federated.Task.from_arrays(
    name="blobs",
    x=x,
    y=y,
    client_ids=np.arange(len(y)) % CLIENTS,
    validation=draw(500),
    test=draw(500),
    model=lambda: tf.keras.Sequential(
        [tf.keras.layers.Dense(16, "relu", input_shape=(FEATURES,)), tf.keras.layers.Dense(CLASSES)]
    ),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=lambda: [tf.keras.metrics.SparseCategoricalAccuracy("accuracy")],
    batch_size=10,
)
config = fedmf.TrainConfig(
    rounds=40,
    cohort_size=60,
    min_sep=10,  # a client waits 10 rounds: it takes part at most 4 times
    family="banded",
    epsilon=4.0,
    clip_norm=0.5,
    client_learning_rate=0.3,
    server_momentum=0.9,
    server_learning_rate=0.5,
    evaluate_every=10,
)
run = federated.train(task, config, folder=tempfile.mkdtemp(), noise_seed="os", progress=False)
print(f"test accuracy {run.result['test']['accuracy']:.3f} at epsilon {run.plan['epsilon']:.2f}")
print("the Keras model's first logits:", run.model()(x[:1]).numpy().round(2))
print(f"fedmf report {run.path} --out report      makes its report")
