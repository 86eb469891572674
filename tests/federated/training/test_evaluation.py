"""Metrics on a split, in batches whose outputs stay small."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from fedmf.federated.training import evaluation
from tests.federated.small_runs import config, start_of
from tests.federated.small_task import CLASSES, LENGTH, small_task, task_of_arrays

layers, losses = tf.keras.layers, tf.keras.losses


class Batches(tf.keras.metrics.Metric):
    """The number of batches."""

    def __init__(self):
        super().__init__("batches")
        self.count = self.add_weight("count", initializer="zeros")

    def update_state(self, labels, outputs, sample_weight=None):
        self.count.assign_add(1.0)

    def result(self):
        return self.count.value()


def evaluated(bytes_, monkeypatch):
    """Metrics of the small task's first weights, and the number of batches."""
    monkeypatch.setattr(evaluation, "MAX_OUTPUT_BYTES", bytes_)
    small = small_task()
    task = dataclasses.replace(small, metrics=lambda: [*small.metrics(), Batches()])
    found = evaluation.Evaluator(task, config())(start_of(task, 0), "validation")
    return found, found.pop("batches")


def test_outputs_of_a_batch_stay_within_the_limit(monkeypatch):
    each = 4 * CLASSES * LENGTH
    whole, count = evaluated(2**25, monkeypatch)
    assert count == 1
    for batches, limit in ((40, 1), (40, 2 * each - 1), (5, 9 * each), (3, 31 * each)):
        part, count = evaluated(limit, monkeypatch)
        assert count == batches
        assert part == pytest.approx(whole, rel=1e-6)


def test_a_metric_named_loss_takes_the_place_of_the_mean():
    task = dataclasses.replace(
        small_task(),
        metrics=lambda: [tf.keras.metrics.SparseCategoricalCrossentropy("loss", from_logits=True)],
        headline_metric="loss",
    )
    assert list(evaluation.Evaluator(task, config())(start_of(task), "test")) == ["loss"]


@pytest.mark.parametrize(
    ("ends", "loss"),
    [
        ([layers.Dense(3, "softmax")], losses.SparseCategoricalCrossentropy()),
        ([layers.Dense(3), layers.Softmax()], losses.SparseCategoricalCrossentropy()),
        ([layers.Dense(1, "sigmoid")], losses.BinaryCrossentropy()),
        ([layers.Dense(1, tf.nn.sigmoid)], losses.BinaryCrossentropy()),
    ],
    ids=["softmax", "layer of softmax", "sigmoid", "operation of sigmoid"],
)
def test_probabilities_that_are_rounded_to_0_have_the_loss_of_keras(ends, loss):
    """Of the logits, which Keras finds behind the model's outputs: crossentropies of probabilities
    alone end at 16.1, -log(1e-7).
    """
    x = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    y = np.arange(300) % 2
    task = task_of_arrays(
        x, y, lambda: tf.keras.Sequential([tf.keras.Input((4,)), *ends]), loss=loss,
        metrics=lambda: [Batches()],
    )  # fmt: skip
    model = task.build_model(0)
    model.set_weights([100 * np.ones_like(w) * np.arange(w.shape[-1]) - 50 for w in start_of(task)])
    model.compile(loss=loss)
    expected = model.evaluate(x, y, verbose=0)
    found = evaluation.Evaluator(task, config())(model.get_weights(), "test")["loss"]
    assert found == pytest.approx(expected, rel=1e-5)
    assert found > 20
