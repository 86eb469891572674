"""Server SGD with momentum and a schedule."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedmf
from fedmf import federated

pytestmark = pytest.mark.tensorflow


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


def test_constant_rate_equals_tffs_own():
    ours, theirs = (
        federated.ScheduledSGDM(np.full(5, 0.3), momentum=0.5),
        tff.learning.optimizers.build_sgdm(0.3, 0.5),
    )
    results = []
    for optimizer in (ours, theirs):
        weights, state = tf.ones([2]), optimizer.initialize(tf.TensorSpec([2]))
        for t in range(5):
            state, weights = optimizer.next(state, weights, tf.constant([1.0, -t]))
        results.append(weights.numpy())
    np.testing.assert_allclose(*results, rtol=1e-6)


@pytest.mark.parametrize("rates", [[], [0.1, float("nan")], [0.1, 0.0], [[0.1]]])
def test_bad_rates_are_refused(rates):
    with pytest.raises(ValueError, match="learning_rates"):
        federated.ScheduledSGDM(rates)


@pytest.mark.parametrize("momentum", [-0.1, 1.0, float("nan")])
def test_bad_momentum_is_refused(momentum):
    with pytest.raises(ValueError, match="momentum"):
        federated.ScheduledSGDM([0.1], momentum=momentum)
