"""The banded fits: gradients, bounds and optima against dense definitions."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from fedmf.mechanisms.banded.fit import diagonals_of
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
    """Returns a random workload whose inverse has p bands."""
    rng = np.random.default_rng(seed)
    rows = rng.uniform(-0.4, 0.4, (n, min(n, p)))
    rows[:, 0] = rng.uniform(0.5, 1.5, n)
    return Workload.from_inverse("random", outside_cleared(rows))


def losses(workload, bands):
    """Returns both algorithms for the loss."""
    return DenseLoss(workload.matrix, bands), StructuredLoss(workload.inverse_diagonals, bands)


def outside_cleared(rows):
    """Returns the rows of a banded matrix with zeros outside it."""
    return np.where(np.arange(len(rows))[:, None] >= np.arange(rows.shape[1]), rows, 0.0)


def random_columns(n, bands, rng):
    """Returns a random banded C by columns."""
    columns = rng.uniform(-0.5, 0.5, (n, bands))
    columns[:, 0] = rng.uniform(0.5, 2.0, n)
    columns[np.arange(n)[:, None] + np.arange(bands) >= n] = 0.0
    return columns


def feasible(n, bands, min_sep, rng):
    """Returns a random C by columns, of norm 1 or, with min_sep, with squares that sum to 1 in each
    class.
    """
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
    n, max_bands, p, seed = sizes
    bands = min(max_bands, n)
    workload = random_structured(n, p, seed)
    columns = random_columns(n, bands, np.random.default_rng(seed))
    C = banded_matrix(rows_of_columns(columns))
    N = np.linalg.inv(C)
    B = workload.matrix @ N
    value = np.sum(B**2)
    G = -2.0 * B.T @ B @ N.T
    for problem in losses(workload, bands):
        loss_value, gradient = problem.evaluate(columns)
        assert_allclose(loss_value, value, rtol=1e-9)
        expected = columns_of_rows(diagonals_of(np.tril(G), bands))
        assert_allclose(gradient, expected, atol=1e-8 * np.abs(expected).max())


@given(SIZES, st.booleans(), st.booleans())
@settings(max_examples=80)
def test_bounds_hold_for_every_feasible_encoder(sizes, equal, structured):
    # The bounds are on the smallest loss at columns of norm 1 (banded paper, Problem 2), or with
    # squares that sum to 1 in each class. Any point gives a valid bound, however far from the
    # optimum.
    n, max_bands, p, seed = sizes
    bands = min(max_bands, n)
    rng = np.random.default_rng(seed)
    workload = random_structured(n, p, seed)
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
    # With free norms this one takes more than max_iterations steps, and warns.
    (momentum_sgd(N, 0.95, RATES), 1e-4, False),
    # Restarts of the rates, for which the recursion loses digits, so that the fit is dense.
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
def test_fits_reach_their_tolerance_at_sensitivity_one(workload, tolerance, equal_norms):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mechanism = fit(
            workload, epochs(N, 16), bands=12, equal_norms=equal_norms, tolerance=tolerance
        )
    certificate = mechanism.certificate
    assert certificate.gap <= tolerance
    assert (certificate.participation is None) == equal_norms
    certified_participation = single(N) if equal_norms else certificate.participation
    claimed_sensitivity = sensitivity(mechanism, certified_participation)
    assert claimed_sensitivity.exact
    assert_allclose(claimed_sensitivity.value, 1.0, rtol=1e-12)
    assert_allclose(loss(mechanism, workload, certified_participation), certificate.loss, rtol=1e-9)
    loss_by_definition = np.square(workload.matrix @ mechanism.noising()).sum()
    assert_allclose(certificate.loss, loss_by_definition, rtol=1e-6)


def test_without_equal_norms_the_optimum_is_that_of_an_independent_solver():
    """Checks the optimum over squares that sum to 1 in each class.

    That is sensitivity 1 (banded paper, Prop. B.1).
    """
    from scipy.optimize import minimize

    n = 7
    b = 3
    bands = 2
    workload = prefix_sum(n)

    def value(free):
        columns = np.stack([free[:n], np.append(free[n:], 0.0)], axis=1)
        sums = np.bincount(np.arange(n) % b, np.square(columns).sum(axis=1))
        C = banded_matrix(rows_of_columns(columns / np.sqrt(sums[np.arange(n) % b])[:, None]))
        return np.sum((workload.matrix @ np.linalg.inv(C)) ** 2)

    optimum = minimize(
        value, np.append(np.ones(n), np.full(n - 1, 0.3)), method="BFGS", options={"gtol": 1e-8}
    ).fun
    certificate = fit(
        workload, epochs(n, b), bands=bands, equal_norms=False, tolerance=1e-8
    ).certificate
    assert_allclose(certificate.loss, optimum, rtol=1e-6)
    assert certificate.lower_bound <= optimum * (1.0 + 1e-9)


def test_without_equal_norms_the_matrix_is_the_same_for_both_schemas():
    epoch_fit, min_sep_fit = (
        fit(prefix_sum(96), participation, bands=6, equal_norms=False)
        for participation in (epochs(96, 24), separated(96, 24))
    )
    assert np.array_equal(epoch_fit.diagonals, min_sep_fit.diagonals)
    assert min_sep_fit.certificate.participation == epochs(96, 24)


def test_equal_norms_are_the_optimum_of_a_single_participation():
    single_participation = separated(20, 5, 1)
    equal = fit(prefix_sum(20), single_participation, bands=5, equal_norms=True)
    free_fit = fit(prefix_sum(20), single_participation, bands=5, equal_norms=False)
    assert np.array_equal(equal.diagonals, free_fit.diagonals)
    assert free_fit.certificate.participation is None


# `fedmf paper run banded-table-2 --scale full` compares the table's other two rows as well.
@pytest.mark.slow
@pytest.mark.parametrize(("bands", "equal_norms"), [(128, False), (342, True)])
def test_figures_are_those_of_banded_table_2(bands, equal_norms):
    n = 2052
    b = 342
    printed_figures = BANDED_TABLE_2_BANDS[bands, equal_norms]
    options = {"bands": bands, "equal_norms": equal_norms, "tolerance": 1e-3}
    mechanism = fit(prefix_sum(n), epochs(n, b), **options)
    assert mechanism.certificate.gap <= 1e-3
    participations = (single(n), epochs(n, b), separated(n, b))
    sensitivities = [sensitivity(mechanism, participation) for participation in participations]
    assert all(bound.exact for bound in sensitivities)
    of_single, of_epochs, of_min_sep = (bound.value for bound in sensitivities)
    error = rmse(mechanism, prefix_sum(n), epochs(n, b)) / BANDED_TABLE_2_UNIT
    ratio = of_min_sep / of_epochs
    figures = (of_single / of_epochs, ratio, error, error * ratio)
    assert tuple(f"{figure:.2f}" for figure in figures) == printed_figures
