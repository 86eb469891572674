"""Metrics on a split, in batches whose outputs stay small."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.tensorflow

from fedmf.federated.training import evaluation  # noqa: E402
from tests.federated.run_small import config  # noqa: E402
from tests.federated.small_task import CLASSES, LENGTH, small_task  # noqa: E402


def evaluated(bytes_, monkeypatch):
    """Metrics of the small task's first weights, and the sizes of the batches."""
    monkeypatch.setattr(evaluation, "MAX_OUTPUT_BYTES", bytes_)
    task, sizes = small_task(), []
    weights = [v.numpy() for v in task.build_model(0).trainable_variables]
    evaluator = evaluation.Evaluator(task, config())
    step = evaluator._step
    evaluator._step = lambda x, y: (sizes.append(len(x)), step(x, y))
    return evaluator(weights, "validation"), sizes


def test_outputs_of_a_batch_stay_within_the_limit(monkeypatch):
    each = 4 * CLASSES * LENGTH
    whole, sizes = evaluated(2**25, monkeypatch)
    assert sizes == [40]
    for examples, limit in ((1, 1), (1, 2 * each - 1), (8, 9 * each), (16, 31 * each)):
        part, sizes = evaluated(limit, monkeypatch)
        assert sizes[0] == examples
        assert part == pytest.approx(whole, rel=1e-6)


def test_metrics_are_those_of_numpy(monkeypatch):
    small = small_task()
    x, y = small.evaluation_examples("validation")
    logits = small.build_model(0)(x).numpy().astype(np.float64)
    log_softmax = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    found = evaluated(100, monkeypatch)[0]
    assert found["accuracy"] == pytest.approx((logits.argmax(-1) == y).mean())
    assert found["loss"] == pytest.approx(
        -np.take_along_axis(log_softmax, y[..., None], -1).mean(), rel=1e-6
    )


def test_a_metric_named_loss_takes_the_place_of_the_mean():
    task = dataclasses.replace(
        small_task(),
        metrics=lambda: [tf.keras.metrics.SparseCategoricalCrossentropy("loss", from_logits=True)],
        headline_metric="loss",
    )
    found = evaluation.Evaluator(task, config())(
        [v.numpy() for v in task.build_model(0).trainable_variables], "test"
    )
    assert list(found) == ["loss"]
