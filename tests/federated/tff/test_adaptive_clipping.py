"""A clip norm that follows a quantile: both released streams equal their definition."""

import numpy as np
import pytest
import tensorflow as tf

from fedmf import QuantileClipping
from fedmf.federated.tff.query import MatrixFactorizationQuery
from fedmf.privacy.plan import bit_stddev
from tests.federated.plans import noise_of_sums, plan_of
from tests.mechanisms.registry import MECHANISMS

ROUNDS = 6
SIZE = 5
CLIENTS = 4


@pytest.mark.parametrize("interval", [1, 2])
def test_releases_equal_a_computation_by_brute_force(interval):
    clipping = QuantileClipping(quantile=0.7, share=0.2, every=interval, learning_rate=0.8)
    plan = plan_of(MECHANISMS["banded"](ROUNDS), quantile_clipping=clipping)
    query = MatrixFactorizationQuery(
        plan, [tf.TensorSpec([SIZE])], divisor=CLIENTS, noise_seed=3, zeroing_norm=None
    )
    state = query.initial_global_state()
    noise = noise_of_sums(plan, SIZE + 1, 3)
    zeta = plan.clip_norm
    within = []
    for t in range(ROUNDS):
        updates = np.random.default_rng([7, t]).normal(size=(CLIENTS, SIZE))
        updates *= [[0.05], [0.2], [0.5], [2.0]]
        sample = query.initial_sample_state()
        params = query.derive_sample_params(state)
        assert float(params.clip_norm) == pytest.approx(zeta, rel=1e-5)
        for update in updates:
            sample = query.accumulate_record(params, sample, [tf.constant(update, tf.float32)])
        [release], state, _ = query.get_noised_result(sample, state)
        norms = np.linalg.norm(updates, axis=1)
        units = (updates * np.minimum(1 / zeta, 1 / norms)[:, None]).sum(axis=0)
        expected = zeta * (units + noise[t, :-1] / plan.clip_norm) / CLIENTS
        np.testing.assert_allclose(release, expected, rtol=1e-4, atol=1e-5)
        bits = ((norms <= zeta) - 0.5).sum() + noise[t, -1] / plan.stddev * bit_stddev(plan)
        assert float(state.clip.bits) == pytest.approx(bits, rel=1e-4, abs=1e-5)
        stddev = query.derive_metrics(state)["noise_stddev"]
        assert float(stddev) == pytest.approx(plan.stddev * zeta / plan.clip_norm, rel=1e-5)
        within.append(bits / CLIENTS + 0.5)
        if (t + 1) % interval == 0:
            zeta *= np.exp(-0.8 * (np.clip(np.mean(within), 0, 1) - 0.7))
            within = []
    assert zeta != pytest.approx(plan.clip_norm, rel=0.1)
