"""Metrics on a split, in batches whose outputs stay small."""

import dataclasses

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow

from fedmf.federated.training import evaluation  # noqa: E402
from tests.federated.run_small import config  # noqa: E402
from tests.federated.small_task import CLASSES, LENGTH, small_task  # noqa: E402


def evaluated(bytes_, monkeypatch, examples=40):
    """Metrics of the small task's first weights, and the sizes of the batches."""
    monkeypatch.setattr(evaluation, "MAX_OUTPUT_BYTES", bytes_)
    small, sizes = small_task(), []

    def metrics(labels, logits, weights):
        sizes.append(labels.shape[0])  # of every shape that is traced
        return small.metrics(labels, logits, weights)

    split = tuple(part[:examples] for part in small.evaluation_examples("validation 0"))
    task = dataclasses.replace(small, metrics=metrics, evaluation_examples=lambda name: split)
    weights = [v.numpy() for v in small.build_model(0).trainable_variables]
    return evaluation.Evaluator(task, config())(weights, "validation"), sizes


def test_outputs_of_a_batch_stay_within_the_limit(monkeypatch):
    each = 4 * CLASSES * LENGTH
    whole, sizes = evaluated(2**25, monkeypatch)
    assert sizes == [40]
    for examples, limit in ((1, 1), (1, 2 * each - 1), (8, 9 * each), (16, 31 * each)):
        part, sizes = evaluated(limit, monkeypatch)
        assert sizes[0] == examples
        assert part == pytest.approx(whole, rel=1e-6)


def test_an_empty_split_is_worth_nothing(monkeypatch):
    assert evaluated(2**25, monkeypatch, examples=0) == ({}, [])


def test_accuracy_is_that_of_numpy(monkeypatch):
    small = small_task()
    x, y = small.evaluation_examples("validation 0")
    right = np.argmax(small.build_model(0)(x).numpy(), -1) == y
    assert evaluated(100, monkeypatch)[0]["accuracy"] == pytest.approx(right.mean())
