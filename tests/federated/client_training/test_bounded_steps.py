"""Steps are no longer than their bound in every kind of client work, compared with numpy."""

import math

import numpy as np
import pytest
import tensorflow as tf

from fedmf.server.messages import ClientParams
from fedmf.training import vectorised_sizes
from fedmf.training.client_work import Broadcast
from fedmf.training.examples import ClientData
from tests.federated.client_training.conftest import work_of
from tests.federated.small_runs import config
from tests.federated.small_task import task_of_arrays

SIZES = (9, 6)
WIDTH = 3
BATCH = 4
RATE = 0.1
RNG = np.random.default_rng(2)
X = RNG.normal(size=(sum(SIZES), WIDTH)).astype(np.float32)
Y = RNG.normal(size=(sum(SIZES), 1)).astype(np.float32)
OWNERS = np.repeat(np.arange(len(SIZES)), SIZES)
START = np.ones((WIDTH, 1), np.float32)
CLIENTS = list(zip(np.split(X, SIZES[:1]), np.split(Y, SIZES[:1]), strict=True))


def gradient(weights, x, y):
    return 2 * x.T @ (x @ weights - y) / len(y)


def update_by_hand(x, y, bound, momentum):
    """Returns the update of a client, and the number of its steps that exceed the bound."""
    weights = START
    velocity = np.zeros_like(START)
    shortened = 0
    for start in range(0, len(y), BATCH):
        rows = slice(start, start + BATCH)
        velocity = momentum * velocity + gradient(weights, x[rows], y[rows])
        step = RATE * velocity
        length = np.linalg.norm(step)
        shortened += length > bound
        weights = weights - step * min(1.0, bound / length)
    return START - weights, shortened


def compiled(weights, x, y, rate, update):
    """Trains for an epoch of SGD in batches, as a task's compiled epoch may."""
    current = weights[0]
    for start in range(0, len(y), BATCH):
        rows = slice(start, start + BATCH)
        current = current - np.float32(rate) * gradient(current, x[rows], y[rows])
    update[0][:] = weights[0] - current
    return 0.0


@pytest.mark.parametrize("bound", [0.15, 1e6, math.inf])
@pytest.mark.parametrize(
    ("kind", "momentum"),
    [("one by one", 0.5), ("vectorised", 0.5), ("compiled", 0.0)],
)
def test_no_step_is_longer_than_the_bound(monkeypatch, kind, momentum, bound):
    if kind != "vectorised":
        monkeypatch.setattr(vectorised_sizes, "SMALL_MODEL", 0)
    compiled_epoch = (lambda: compiled) if kind == "compiled" else None
    task = task_of_arrays(
        X, Y, lambda: tf.keras.Sequential(
            [tf.keras.Input((WIDTH,)), tf.keras.layers.Dense(1, use_bias=False)]
        ),
        client_ids=OWNERS, loss=tf.keras.losses.MeanSquaredError(), batch_size=BATCH,
        metrics=lambda: [tf.keras.metrics.MeanSquaredError()],
        compiled_epoch=compiled_epoch,
    )  # fmt: skip
    settings = config(client_learning_rate=RATE, client_momentum=momentum, clip_norm=1.0)
    work = work_of(task, settings, max_step_norm=bound)
    by_hand = [update_by_hand(x, y, bound, momentum) for x, y in CLIENTS]
    shortened = sum(steps for _, steps in by_hand)
    assert (0 < shortened < 5) == (bound == 0.15)  # Some of five steps are longer than the bound.
    broadcast = Broadcast([START], ClientParams(math.inf, math.inf, ()))
    client_sums = work.sums(broadcast, [[ClientData([client])] for client in CLIENTS])
    for client_sum, (expected, _) in zip(client_sums, by_hand, strict=True):
        np.testing.assert_allclose(client_sum.values[0], expected, rtol=1e-5)
