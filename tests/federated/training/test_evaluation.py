"""Metrics on a split, in batches whose outputs stay small."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from fedmf.federated import evaluation
from fedmf.training.evaluation import Evaluator
from fedmf.training.examples import take
from tests.federated.small_runs import config, start_of
from tests.federated.small_task import CLASSES, LENGTH, small_task, task_of_arrays

layers = tf.keras.layers
losses = tf.keras.losses


def evaluated_metrics(limit, monkeypatch):
    """Returns the metrics of the small task's initial weights, and the number of batches."""
    batches_taken = []

    def counted(examples, index):
        batches_taken.append(index)
        return take(examples, index)

    monkeypatch.setattr(evaluation, "MAX_OUTPUT_BYTES", limit)
    monkeypatch.setattr(evaluation, "take", counted)
    task = small_task()
    evaluate = evaluation.KerasEvaluator(task.learner, task.client_settings(config()))
    values = evaluate(start_of(task, 0), task.split("validation")).values
    return values, len(batches_taken) - 1  # One more example shows how large outputs are.


def test_outputs_of_a_batch_are_at_most_the_limit(monkeypatch):
    example_bytes = 4 * CLASSES * LENGTH
    expected, count = evaluated_metrics(2**25, monkeypatch)
    assert count == 1
    for batches, limit in (
        (40, 1),
        (40, 2 * example_bytes - 1),
        (5, 9 * example_bytes),
        (3, 31 * example_bytes),
    ):
        values, count = evaluated_metrics(limit, monkeypatch)
        assert count == batches
        assert values == pytest.approx(expected, rel=1e-6)


def test_a_metric_named_loss_replaces_the_mean_loss():
    task = dataclasses.replace(
        small_task(),
        metrics=lambda: [tf.keras.metrics.SparseCategoricalCrossentropy("loss", from_logits=True)],
        headline_metric="loss",
    )
    assert list(Evaluator(task, config())(start_of(task), "test")) == ["loss"]


@pytest.mark.parametrize(
    ("ends", "loss"),
    [
        ([layers.Dense(3, "softmax")], losses.SparseCategoricalCrossentropy()),
        ([layers.Dense(3), layers.Softmax()], losses.SparseCategoricalCrossentropy()),
        ([layers.Dense(1, tf.nn.sigmoid)], losses.BinaryCrossentropy()),
    ],
    ids=["softmax", "layer of softmax", "operation of sigmoid"],
)
def test_probabilities_rounded_to_0_have_the_loss_of_keras(ends, loss):
    """Keras computes it from the logits behind the outputs; from probabilities it is at most 16.1,
    -log(1e-7).
    """
    x = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    y = np.arange(300) % 2
    task = task_of_arrays(
        x, y, lambda: tf.keras.Sequential([tf.keras.Input((4,)), *ends]), loss=loss
    )
    model = task.build_model(0)
    model.set_weights(
        [100 * np.ones_like(weight) * np.arange(weight.shape[-1]) - 50 for weight in start_of(task)]
    )
    model.compile(loss=loss)
    expected = model.evaluate(x, y, verbose=0)
    loss_value = Evaluator(task, config())(model.get_weights(), "test")["loss"]
    assert loss_value == pytest.approx(expected, rel=1e-5)
    assert loss_value > 20
