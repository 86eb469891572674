"""BLT fits: close to the best Toeplitz encoder, on sums over a grid."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import fedmf
from fedmf.mechanisms.blt.fit_problem import time_grid
from fedmf.mechanisms.error import max_error, rmse
from fedmf.workloads import momentum_sgd, prefix_sum
from tests.mechanisms.schemas import every_round, single


def blt(workload, participation, **options):
    """Fits a BLT mechanism."""
    return fedmf.fit(workload, participation, family="blt", **options)


@given(count=st.integers(0, 200_000), rate=st.floats(-9.0, 2.0))
@settings(max_examples=25)
def test_the_time_grid_sums_exponentials_exactly(count, rate):
    times, weights = time_grid(count)
    for decay in (np.exp(-(10.0**rate)), 1.0):
        expected = np.sum(decay ** np.arange(count))
        assert_allclose(weights @ decay**times, expected, rtol=1e-12)
        assert_allclose(
            weights @ (times * decay**times),
            np.arange(count) @ decay ** np.arange(count),
            rtol=1e-11,
        )
    # At most three panels, the first two and a short last one, sum up to 64 rounds exactly.
    assert len(times) <= 192 + 24 * max(0.0, np.log2(max(count, 1) / 64))


def test_a_workload_with_a_double_pole_is_fitted():
    workload = prefix_sum(50) @ prefix_sum(50)
    single_participation = single(50)
    square_root = fedmf.fit(workload, single_participation, family="toeplitz", coefficients="sqrt")
    assert rmse(blt(workload, single_participation), workload, single_participation) < rmse(
        square_root, workload, single_participation
    )


@pytest.mark.parametrize("make", [prefix_sum, momentum_sgd])
def test_a_few_buffers_come_near_the_best_toeplitz_encoder(make):
    n = 256
    workload = make(n)
    for objective, measure in (("mean", rmse), ("max", max_error)):

        def error(family, objective=objective, measure=measure, **options):
            mechanism = fedmf.fit(
                workload, single(n), family=family, objective=objective, **options
            )
            return measure(mechanism, workload, single(n))

        best_error = error("toeplitz", bands=n)
        errors = [error("blt", buffers=d) for d in (1, 2, 4)]
        # For momentum they are equal at the tolerance of the fits.
        assert errors[2] <= errors[1] * (1.0 + 1e-6)
        assert errors[1] < errors[0]
        assert best_error * (1.0 - 1e-5) <= errors[-1] <= 1.003 * best_error


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("objective", ["mean", "max"])
def test_few_rounds_get_at_most_half_as_many_buffers(n, objective):
    mechanism = blt(prefix_sum(n), every_round(n), buffers=8, objective=objective)
    assert mechanism.buffers <= max(1, n // 2)
    assert_allclose(mechanism.noising() @ mechanism.encoder(), np.eye(n), atol=1e-12)
