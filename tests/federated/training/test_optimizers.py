"""Server optimizers: SGD with momentum and a schedule, and Adam with one."""

import numpy as np
import pytest
import tensorflow as tf

import fedmf
from fedmf import federated
from fedmf.federated.training.optimizers import server_optimizer
from tests.federated.run_small import config
from tests.refusals import refusal


def test_equals_the_workload_of_the_same_schedule():
    # Multi-epoch paper, Sec. 4: SGD with momentum and learning rates is multiplication by the
    # momentum workload.
    rates = fedmf.WarmupCooldown(rounds=12, peak=0.7).learning_rates()
    optimizer = federated.ScheduledSGDM(rates, momentum=0.9)
    gradients = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    weights, state = tf.zeros([3]), optimizer.initialize(tf.TensorSpec([3]))
    path = []
    for gradient in gradients:
        state, weights = optimizer.next(state, weights, tf.constant(gradient))
        path.append(-weights.numpy())
    A = fedmf.momentum_sgd(12, momentum=0.9, learning_rates=rates).matrix
    np.testing.assert_allclose(path, A @ gradients, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rates", "momentum", "named"),
    [
        *((rates, 0.9, "learning_rates") for rates in ([], [0.1, np.nan], [0.1, 0.0], [[0.1]])),
        *(([0.1], momentum, f"momentum={momentum}") for momentum in (-0.1, 1.0, np.nan)),
    ],
)
def test_refusals(rates, momentum, named):
    with refusal(named):
        federated.ScheduledSGDM(rates, momentum=momentum)


@pytest.mark.parametrize("schedule", [None, "3:0.5"])
def test_adam_follows_the_schedule_and_its_own_formula(schedule):
    """Adam of Kingma and Ba, Algorithm 1, with the rate of each round."""
    settings = config(
        server_optimizer="adam",
        server_momentum=0.5,
        server_epsilon=0.1,
        server_learning_rate=2.0,
        learning_rate_schedule=schedule,
    )
    optimizer, rates = server_optimizer(settings), settings.server_schedule().learning_rates()
    assert len(set(rates)) > 1
    state, w = optimizer.initialize(tf.TensorSpec([1], tf.float32)), tf.constant([1.0])
    m = v = 0.0
    expected = 1.0
    for t, rate in enumerate(rates):
        gradient = float(t) - 1.5
        state, w = optimizer.next(state, w, tf.constant([gradient]))
        m, v = 0.5 * m + 0.5 * gradient, 0.999 * v + 0.001 * gradient**2
        step = rate * np.sqrt(1 - 0.999 ** (t + 1)) / (1 - 0.5 ** (t + 1))
        expected -= step * m / (np.sqrt(v) + 0.1)
    assert float(w[0]) == pytest.approx(expected, rel=1e-4)
