"""Optimizers take the steps of the workload's matrix, and those of TFF's own optimizers."""

import numpy as np
import pytest
import tensorflow as tf

import fedmf
from fedmf import federated
from fedmf.federated.client_training.client_work import client_optimizer
from fedmf.federated.tff.optimizers import tff_client_optimizer, tff_server_optimizer
from tests.federated.run_small import config
from tests.federated.small_task import small_task
from tests.refusals import refusal


def test_steps_equal_the_workload_of_the_same_schedule():
    # Multi-epoch paper, Sec. 4: SGD with momentum and learning rates is multiplication by the
    # momentum workload.
    rates = fedmf.WarmupCooldown(rounds=12, peak=0.7).learning_rates()
    optimizer = federated.ScheduledSGDM(rates, momentum=0.9)
    weights = tf.zeros([3])
    state = optimizer.initialize(tf.TensorSpec([3]))
    path = []
    for gradient in gradients(12):
        state, weights = optimizer.next(state, weights, tf.constant(gradient))
        path.append(-weights.numpy())
    A = fedmf.momentum_sgd(12, momentum=0.9, learning_rates=rates).matrix
    np.testing.assert_allclose(path, A @ gradients(12), rtol=1e-5, atol=1e-6)


def test_schedules_and_momenta_out_of_range_are_refused():
    with refusal("learning_rates"):
        federated.ScheduledSGDM([0.1, 0.0])
    with refusal("momentum=1.0"):
        federated.ScheduledSGDM([0.1], momentum=1.0)


# TFF's 1 - beta_2^t is a difference in float32, off by 2^-24 / 0.001 in the first step, its root by
# half of that: of steps of length 1 in all.
TFF_ROUNDING = 3e-5


def assert_same_steps(init, step, tff_optimizer, rates, to_array):
    """Asserts that an optimizer on arrays or tensors takes the steps of TFF's, the oracle."""
    weights = [to_array([1.0, -2.0, 0.0], np.float32)]
    tff_weights = [tf.constant(weight) for weight in weights]
    state = init(weights)
    tff_state = tff_optimizer.initialize([tf.TensorSpec([3])])
    for rate, gradient in zip(rates, gradients(len(rates)), strict=True):
        state, weights = step(state, weights, [to_array(gradient)], rate)
        tff_state, tff_weights = tff_optimizer.next(tff_state, tff_weights, [tf.constant(gradient)])
        [weight] = weights
        np.testing.assert_allclose(weight, *tff_weights, rtol=2e-6, atol=TFF_ROUNDING)
        assert weight.dtype == np.float32


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("rule", ["sgd", "adam", "adagrad", "yogi"])
def test_a_server_takes_the_steps_of_tff(rule, momentum):
    settings = config(server_optimizer=rule, server_momentum=momentum, rounds=12)
    rates = settings.server_schedule().learning_rates().tolist()
    optimizer = settings.server_steps()
    tff_optimizer = tff_server_optimizer(settings)
    assert_same_steps(optimizer.init, optimizer.step, tff_optimizer, rates, np.array)


@pytest.mark.parametrize("proximal", [0.0, 0.3])
@pytest.mark.parametrize(
    ("rule", "options"),
    [("sgd", {}), ("sgd", {"client_momentum": 0.9}), ("adam", {}), ("adagrad", {}), ("yogi", {})],
)
def test_a_client_takes_the_steps_of_tff(rule, options, proximal):
    settings = config(client_optimizer=rule, proximal_strength=proximal, **options)
    rates = [settings.client_learning_rate] * 5
    optimizer = client_optimizer(small_task().client_settings(settings))
    tff_optimizer = tff_client_optimizer(settings)
    assert_same_steps(optimizer.initial, optimizer.next, tff_optimizer, rates, tf.constant)


def gradients(count):
    """Returns random gradients, (count, 3)."""
    return np.random.default_rng(3).normal(size=(count, 3)).astype(np.float32)
