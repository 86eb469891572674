"""Scaled updates never exceed the clip norm, and scales depend on releases alone."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from fedmf.federated.tff.query import MatrixFactorizationQuery
from fedmf.server.aggregation import initial_scaling, scaling_after
from fedmf.server.following import Scaling
from tests.federated.plans import noise_of_sums, plan_of
from tests.mechanisms.registry import MECHANISMS
from tests.refusals import refusal

ROUNDS = 6
SIZE = 5
CLIENTS = 4
EPSILON = 0.05
SPECS = [tf.TensorSpec([SIZE])]


def query_of(scaling):
    plan = plan_of(MECHANISMS["banded"](ROUNDS))
    query = MatrixFactorizationQuery(plan, SPECS, divisor=CLIENTS, noise_seed=3, zeroing_norm=None)
    return query.with_scaling(scaling)


def run_rounds(query):
    """Returns the releases of all rounds, the scales, and the last state."""
    state = query.initial_global_state()
    releases = []
    scales = []
    for t in range(ROUNDS):
        params = query.derive_sample_params(state)
        sample = query.initial_sample_state()
        for update in random_updates(t):
            sample = query.accumulate_record(params, sample, [tf.constant(update, tf.float32)])
        [mean], state, _ = query.get_noised_result(sample, state)
        releases.append(mean.numpy())
        scales.append(params.scales[0].numpy())
    return np.array(releases), np.array(scales), state


def random_updates(t):
    return np.random.default_rng([7, t]).normal(size=(CLIENTS, SIZE)) * [10, 1, 1, 0.1, 0.01]


def scales_of(rule, released, interval):
    """Computes the scales of all rounds and of the next one by the formulas, in float64."""
    v = np.zeros(SIZE)
    scales = [np.ones(SIZE)]
    for t, g in enumerate(released.astype(np.float64)):
        v = v + g**2 if rule == "adagrad" else 0.9 * v + 0.1 * g**2
        s = (np.sqrt(v.mean()) + EPSILON) / (np.sqrt(v) + EPSILON)
        next_scales = s if (t + 1) % interval == 0 else scales[-1]
        scales.append(next_scales)
    return np.array(scales)


@pytest.mark.parametrize(("rule", "interval"), itertools.product(["adam", "adagrad"], [1, 2]))
def test_scales_follow_from_releases_and_sums_from_scales(rule, interval):
    scaling = Scaling(rule=rule, epsilon=EPSILON, decay=0.9, every=interval)
    query = query_of(scaling)
    releases, scales, state = run_rounds(query)
    expected = scales_of(rule, releases, interval)
    np.testing.assert_allclose(scales, expected[:-1], rtol=1e-4)
    np.testing.assert_allclose(state.scaling.scales[0], expected[-1], rtol=1e-4)
    # By brute force: each update scaled and clipped, the sum with its noise, and back.
    clip = query.plan.clip_norm
    for t, noise in enumerate(noise_of_sums(query.plan, SIZE, 3)):
        u = random_updates(t) * expected[t]
        u *= np.minimum(1, clip / np.linalg.norm(u, axis=1))[:, None]
        np.testing.assert_allclose(
            releases[t], (u.sum(axis=0) + noise) / CLIENTS / expected[t], rtol=2e-3, atol=1e-5
        )
    drift = float(query.derive_metrics(state)["scale_drift"])
    assert drift == pytest.approx(np.abs(np.log(expected[-2] / expected[-3])).max(), rel=1e-3)
    assert np.ptp(np.log(scales[-1])) > 0.5
    on_arrays = initial_scaling([SIZE])
    for t, mean in enumerate(releases):
        on_arrays = scaling_after(scaling, on_arrays, [mean], t)
    np.testing.assert_allclose(on_arrays.scales[0], state.scaling.scales[0], rtol=1e-6)
    np.testing.assert_allclose(on_arrays.moment[0], state.scaling.moment[0], rtol=1e-6)
    np.testing.assert_allclose(on_arrays.drifts, state.scaling.drifts, rtol=1e-5, atol=1e-6)


def test_no_scaled_update_exceeds_the_clip_norm_and_scales_are_finite_and_positive():
    """Releases have any size, also sizes of no honest run: the bound does not depend on them."""
    rule = Scaling(rule="adam", epsilon=1e-12, decay=0.0)
    rng = np.random.default_rng(5)
    query = query_of(rule)
    for exponent in (-45.0, -20.0, -3.0, 0.0, 12.0, 30.0, 38.0):
        releases = rng.normal(size=SIZE) * 10.0 ** rng.uniform(-10, 0, SIZE) * 10.0**exponent
        state = initial_scaling([spec.shape for spec in SPECS], tf)
        scaling = scaling_after(rule, state, [tf.constant(releases, tf.float32)], 0, tf)
        s = scaling.scales[0].numpy()
        assert np.all((s > 0) & np.isfinite(s))
        params = query.derive_sample_params(query.initial_global_state()._replace(scaling=scaling))
        for size in (1e-30, 1.0, 1e30):
            sent_update = tf.constant(rng.normal(size=SIZE) * size, tf.float32)
            [clipped_update] = query.preprocess_record(params, [sent_update]).record
            assert np.linalg.norm(clipped_update.numpy().astype(np.float64)) <= query.plan.clip_norm


@pytest.mark.parametrize("bad", [{"rule": "yogi"}, {"epsilon": 1e-30}, {"decay": 1.0}])
def test_invalid_scalings_are_refused(bad):
    [(name, value)] = bad.items()
    with refusal(f"{name}={value!r}"):
        Scaling(**{"rule": "adam"} | bad)
