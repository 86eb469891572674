import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.mechanisms import BLTMechanism
from fedmf.mechanisms.blt.fit import _positions, _Problem, _workload_poles, time_grid
from fedmf.mechanisms.error import loss, max_error, rmse
from fedmf.mechanisms.fit import fit
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.mechanisms.toeplitz.fit import toeplitz_inverse
from fedmf.participation.schema import Participation
from fedmf.workloads import momentum_sgd, prefix_sum
from tests.mechanisms.fits.test_toeplitz import WORKLOADS, schemas
from tests.mechanisms.schemas import separated, single


def blt(workload, participation, **options):
    return fit(workload, participation, family="blt", cache=False, **options)


@given(count=st.integers(0, 200_000), rate=st.floats(-9.0, 2.0))
@settings(deadline=None, max_examples=25)
def test_sums_over_the_grid(count, rate):
    times, weights = time_grid(count)
    for decay in (np.exp(-(10.0**rate)), 1.0):
        expected = np.sum(decay ** np.arange(count))
        np.testing.assert_allclose(weights @ decay**times, expected, rtol=1e-12)
        np.testing.assert_allclose(
            weights @ (times * decay**times),
            np.arange(count) @ decay ** np.arange(count),
            rtol=1e-11,
        )
    # At most three panels, the first two and a short last one, have up to 64 rounds
    # taken one by one.
    assert len(times) <= 192 + 24 * max(0.0, np.log2(max(count, 1) / 64))


@pytest.mark.parametrize("make", WORKLOADS)
@pytest.mark.parametrize("objective", ["mean", "max"])
@pytest.mark.parametrize(
    "participation", schemas(40) + schemas(300), ids=lambda p: f"{p.schema} {p.rounds}"
)
def test_the_objective_is_the_error_and_has_its_gradient(make, objective, participation):
    workload = make(participation.rounds)
    problem = _Problem(toeplitz_inverse(workload), participation, 3, objective)
    point = problem.starts()[0] * (1.0 + 0.01 * np.random.default_rng(0).random(6))
    value, gradient = problem.log_loss(point)
    places = 1.0 / (1.0 + np.exp(_positions(point)))
    mechanism = BLTMechanism(
        rounds=participation.rounds, decays=places[0::2], inverse_decays=places[1::2]
    )
    measure = loss if objective == "mean" else lambda *of: max_error(*of) ** 2
    np.testing.assert_allclose(
        np.exp(value), measure(mechanism, workload, participation), rtol=1e-10
    )
    expected = [
        (problem.log_loss(point + e)[0] - problem.log_loss(point - e)[0]) / 2e-5
        for e in 1e-5 * np.eye(6)
    ]
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_poles_of_workloads():
    assert _workload_poles(np.array([2.0])) is None
    assert _workload_poles(np.array([1.0, -1.0])) == [(1.0, 1.0)]
    poles = np.array(_workload_poles(toeplitz_inverse(momentum_sgd(9, 0.95))))
    np.testing.assert_allclose(poles, [[1.0, 20.0], [0.95, -19.0]], rtol=1e-12)
    assert _workload_poles(np.array([1.0, -2.0, 1.0])) is None  # a double pole
    assert _workload_poles(np.array([1.0, 0.0, 1.0])) is None  # complex ones
    assert _workload_poles(np.array([1.0, -2.0])) is None  # a growing one


def test_a_workload_without_simple_poles_is_fitted():
    n = 50
    workload = prefix_sum(n) @ prefix_sum(n)
    fitted = blt(workload, single(n))
    root = fit(workload, single(n), family="toeplitz", coefficients="sqrt")
    assert max_error(
        blt(workload, single(n), objective="max"), workload, single(n)
    ) < 1.05 * max_error(root, workload, single(n))
    assert rmse(fitted, workload, single(n)) < rmse(root, workload, single(n))


@pytest.mark.parametrize("make", [prefix_sum, momentum_sgd])
def test_a_few_buffers_come_near_the_best_toeplitz_encoder(make):
    n = 256
    workload = make(n)
    for objective, measure in (("mean", rmse), ("max", max_error)):
        best = measure(
            fit(workload, single(n), family="toeplitz", bands=n, objective=objective),
            workload,
            single(n),
        )
        errors = [
            measure(blt(workload, single(n), buffers=d, objective=objective), workload, single(n))
            for d in (1, 2, 4)
        ]
        # Equal at the tolerance of the fits, for momentum
        assert errors[2] <= errors[1] * (1.0 + 1e-6)
        assert errors[1] < errors[0]
        assert best * (1.0 - 1e-5) <= errors[-1] <= 1.003 * best


def test_several_participations_are_worth_fitting_to():
    n = 300
    participation = separated(n, 50)
    for objective, measure in (("mean", rmse), ("max", max_error)):
        for_one, for_six = (
            measure(blt(prefix_sum(n), under, objective=objective), prefix_sum(n), participation)
            for under in (single(n), participation)
        )
        assert for_six < for_one
    assert sensitivity(blt(prefix_sum(n), participation), participation).exact


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("objective", ["mean", "max"])
def test_fewer_rounds_than_buffers(n, objective):
    for participation in (single(n), Participation(rounds=n, schema="every_round")):
        mechanism = blt(prefix_sum(n), participation, buffers=8, objective=objective)
        assert mechanism.rounds == n
        assert mechanism.buffers <= max(1, n // 2)
        np.testing.assert_allclose(mechanism.noising() @ mechanism.encoder(), np.eye(n), atol=1e-12)


def test_a_million_rounds():
    n = 10**6
    participation = separated(n, n // 6)
    mechanism = blt(momentum_sgd(n), participation, buffers=4)
    root = fit(momentum_sgd(n), participation, family="toeplitz", coefficients="sqrt", cache=False)
    assert sensitivity(mechanism, participation).exact
    assert rmse(mechanism, momentum_sgd(n), participation) < 0.9 * rmse(
        root, momentum_sgd(n), participation
    )
