"""The banded fits: gradients, bounds and optima against dense definitions."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from fedmf.mechanisms.banded.loss import DenseLoss, StructuredLoss
from fedmf.mechanisms.banded.recursion import columns_of_rows, rows_of_columns
from fedmf.mechanisms.error import loss, rmse
from fedmf.mechanisms.fit import fit
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.noise.stream import banded_matrix
from fedmf.workloads import Workload, momentum_sgd, prefix_sum, sgd
from tests.mechanisms.schemas import epochs, separated, single
from tests.paper_figures import BANDED_TABLE_2_BANDS, BANDED_TABLE_2_UNIT


def random_structured(n, p, seed):
    rng = np.random.default_rng(seed)
    rows = rng.uniform(-0.4, 0.4, (n, min(n, p)))
    rows[:, 0] = rng.uniform(0.5, 1.5, n)
    return Workload.from_inverse("random", outside_cleared(rows))


def losses(workload, bands):
    return DenseLoss(workload.matrix, bands), StructuredLoss(workload.inverse_diagonals, bands)


def outside_cleared(rows):
    return np.where(np.arange(len(rows))[:, None] >= np.arange(rows.shape[1]), rows, 0.0)


def random_columns(n, bands, rng):
    columns = rng.uniform(-0.5, 0.5, (n, bands))
    columns[:, 0] = rng.uniform(0.5, 2.0, n)
    columns[np.arange(n)[:, None] + np.arange(bands) >= n] = 0.0
    return columns


def feasible(n, bands, min_sep, rng):
    """A random C by columns, of norm 1 or (min_sep given) with classes that sum to 1."""
    columns = random_columns(n, bands, rng)
    squares = np.square(columns).sum(axis=1)
    if min_sep is not None:
        squares = np.bincount(np.arange(n) % min_sep, squares)[np.arange(n) % min_sep]
    return columns / np.sqrt(squares)[:, None]


SIZES = st.tuples(
    st.integers(1, 120), st.integers(1, 50), st.integers(1, 4), st.integers(0, 2**32 - 1)
)


@given(SIZES)
@settings(max_examples=60)
def test_structured_and_dense_losses_agree_with_the_definition(sizes):
    n, bands, p, seed = sizes[0], min(sizes[1], sizes[0]), sizes[2], sizes[3]
    workload = random_structured(n, p, seed)
    columns = random_columns(n, bands, np.random.default_rng(seed))
    C = banded_matrix(rows_of_columns(columns))
    N = np.linalg.inv(C)
    B = workload.matrix @ N
    value, G = np.sum(B**2), -2.0 * B.T @ B @ N.T
    for problem in losses(workload, bands):
        found, gradient = problem.evaluate(columns)
        assert_allclose(found, value, rtol=1e-9)
        expected = columns_of_rows(
            np.stack([[G[t, t - o] if t >= o else 0.0 for o in range(bands)] for t in range(n)])
        )
        assert_allclose(gradient, expected, atol=1e-8 * np.abs(expected).max())


@given(SIZES, st.booleans(), st.booleans())
@settings(max_examples=80)
def test_bounds_hold_for_every_feasible_encoder(sizes, equal, structured):
    # Of the least loss at columns of norm one (banded paper, Problem 2), or with classes that sum
    # to one. Any point gives a valid bound, not only one near the optimum.
    n, bands, seed = sizes[0], min(sizes[1], sizes[0]), sizes[3]
    rng = np.random.default_rng(seed)
    workload = random_structured(n, sizes[2], seed)
    problem = losses(workload, bands)[structured]
    min_sep = None if equal else min(n, bands + seed % 3)
    classes = np.arange(n) % (min_sep or n)
    point = feasible(n, bands, min_sep, rng)
    value, bound = problem.bound(point, classes, 1e-6)
    assert_allclose(value, problem.evaluate(point)[0], rtol=1e-12)
    assert 0.0 < bound <= value * (1.0 + 1e-12)
    for _ in range(4):
        assert problem.evaluate(feasible(n, bands, min_sep, rng))[0] >= bound * (1.0 - 1e-12)


N = 130
RATES = np.concatenate([np.linspace(0.05, 1.0, 20), np.ones(N - 52), np.linspace(1.0, 0.05, 32)])
COSINE = (1.0 + np.cos(np.pi * (np.arange(N) % 16) / 15)) / 2.0
# Workload, tolerance, and whether norms may be free.
WORKLOADS = [
    (prefix_sum(N), 1e-4, True),
    # Takes more than max_iterations steps where norms are free, and says so.
    (momentum_sgd(N, 0.95, RATES), 1e-4, False),
    # Restarts, with which the recursion loses digits, and the fit is dense.
    (sgd(1e-6 + (1.0 - 1e-6) * COSINE), 1e-3, True),
]


@pytest.mark.parametrize(
    ("workload", "tolerance", "equal_norms"),
    [
        (workload, tolerance, equal)
        for workload, tolerance, free in WORKLOADS
        for equal in ([True, False] if free else [True])
    ],
)
def test_workloads_reach_their_tolerance(workload, tolerance, equal_norms):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mechanism = fit(
            workload, epochs(N, 16), bands=12, equal_norms=equal_norms, tolerance=tolerance
        )
    certificate = mechanism.certificate
    assert certificate.gap <= tolerance
    assert (certificate.participation is None) == equal_norms
    under = single(N) if equal_norms else certificate.participation
    found = sensitivity(mechanism, under)
    assert found.exact
    assert_allclose(found.value, 1.0, rtol=1e-12)
    assert_allclose(loss(mechanism, workload, under), certificate.loss, rtol=1e-9)
    defined = np.square(workload.matrix @ mechanism.noising()).sum()
    assert_allclose(certificate.loss, defined, rtol=1e-6)


def test_without_equal_norms_against_an_independent_solver():
    """A client's rounds add up to one, which is the sensitivity (banded paper, Prop. B.1)."""
    from scipy.optimize import minimize

    n, b, bands = 7, 3, 2
    workload = prefix_sum(n)

    def value(free):
        columns = np.stack([free[:n], np.append(free[n:], 0.0)], axis=1)
        sums = np.bincount(np.arange(n) % b, np.square(columns).sum(axis=1))
        C = banded_matrix(rows_of_columns(columns / np.sqrt(sums[np.arange(n) % b])[:, None]))
        return np.sum((workload.matrix @ np.linalg.inv(C)) ** 2)

    best = minimize(
        value, np.append(np.ones(n), np.full(n - 1, 0.3)), method="BFGS", options={"gtol": 1e-8}
    ).fun
    certificate = fit(
        workload, epochs(n, b), bands=bands, equal_norms=False, tolerance=1e-8
    ).certificate
    assert_allclose(certificate.loss, best, rtol=1e-6)
    assert certificate.lower_bound <= best * (1.0 + 1e-9)


def test_without_equal_norms_the_matrix_is_the_same_for_both_schemas():
    fixed, apart = (
        fit(prefix_sum(96), participation, bands=6, equal_norms=False)
        for participation in (epochs(96, 24), separated(96, 24))
    )
    assert np.array_equal(fixed.diagonals, apart.diagonals)
    assert apart.certificate.participation == epochs(96, 24)


def test_without_equal_norms_once_is_the_problem_with_them():
    once = separated(20, 5, 1)
    even, free = (fit(prefix_sum(20), once, bands=5, equal_norms=e) for e in (True, False))
    assert np.array_equal(even.diagonals, free.diagonals)
    assert free.certificate.participation is None


# `fedmf paper run banded-table-2 --scale full` compares the table's other two rows as well.
@pytest.mark.slow
@pytest.mark.parametrize(("bands", "equal_norms"), [(128, False), (342, True)])
def test_banded_table_2(bands, equal_norms):
    n, b = 2052, 342
    printed = BANDED_TABLE_2_BANDS[bands, equal_norms]
    options = {"bands": bands, "equal_norms": equal_norms, "tolerance": 1e-3}
    mechanism = fit(prefix_sum(n), epochs(n, b), **options)
    assert mechanism.certificate.gap <= 1e-3
    found = [sensitivity(mechanism, p) for p in (single(n), epochs(n, b), separated(n, b))]
    assert all(each.exact for each in found)
    once, under_epochs, apart = found
    error = rmse(mechanism, prefix_sum(n), epochs(n, b)) / BANDED_TABLE_2_UNIT
    ratio = apart.value / under_epochs.value
    found = (once.value / under_epochs.value, ratio, error, error * ratio)
    assert tuple(f"{value:.2f}" for value in found) == printed
