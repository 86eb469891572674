"""A clip norm that follows the median of the updates' norms, and scales before clipping, at the
epsilon of a run without.

The first clip norm is far too small. A run that keeps it learns less; one that adapts finds the
updates' size. The updates then have 2% more noise, which is what the clients' bits cost.
docs/adaptive.md has the argument.

python examples/adaptive_clipping.py
"""

import dataclasses
import tempfile

import numpy as np
import tensorflow as tf

import fedmf
from fedmf import federated

rng = np.random.default_rng(0)
x = (rng.normal(size=(4000, 8)) * np.array([8, 4, 2, 1, 1, 0.5, 0.25, 0.1])).astype(np.float32)
y = (x @ np.array([0.1, -0.2, 0.4, 1, -1, 1, -2, 4]) > 0).astype(np.int32)
task = federated.Task.from_arrays(
    name="eight scales",
    x=x,
    y=y,
    client_ids=np.arange(4000) // 10,
    model=lambda: tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(2)]),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=lambda: [tf.keras.metrics.SparseCategoricalAccuracy("accuracy")],
    validation=(x[:400], y[:400]),
    test=(x[400:800], y[400:800]),
    batch_size=10,
)
fixed = fedmf.TrainConfig(
    rounds=40,
    cohort_size=40,
    min_sep=10,
    epsilon=8.0,
    client_learning_rate=0.1,
    server_learning_rate=0.5,
    clip_norm=0.005,
    evaluate_every=40,
)
median = dataclasses.replace(fixed, clip_quantile=0.5, clip_every=4, clip_learning_rate=2.0)
adam = {"server_optimizer": "scaled-adam", "server_learning_rate": 0.1, "server_epsilon": 0.01}
ways = {
    "a fixed norm": fixed,
    "the median": median,
    "and scaled Adam": dataclasses.replace(median, **adam),
}
for name, config in ways.items():
    with tempfile.TemporaryDirectory() as folder:
        run = federated.train(task, config, folder=f"{folder}/run", noise_seed="os", progress=False)
        norms = run.table().get("clip_norm", [config.clip_norm])
        print(
            f"{name:<16} epsilon {run.plan['epsilon']:.3g}, clip norm {norms[0]:.3g} at first and "
            f"{norms[-1]:.3g} at the end, test accuracy {run.result['test']['accuracy']:.3f}"
        )
