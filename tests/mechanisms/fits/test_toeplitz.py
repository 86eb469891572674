"""Toeplitz fits: optima of another solver, closed forms and certificates."""

import numpy as np
import pytest
import scipy.optimize
from numpy.testing import assert_allclose

from fedmf.mechanisms.error import loss, max_error, rmse
from fedmf.mechanisms.fit import fit
from fedmf.mechanisms.toeplitz.fit import prefix_sum_bound
from fedmf.workloads import Workload, momentum_sgd, prefix_sum
from tests.mechanisms.schemas import fitted, separated, single
from tests.refusals import refusal


def toeplitz(workload, participation, **options):
    """Fits a Toeplitz mechanism."""
    return fit(workload, participation, family="toeplitz", **options)


@pytest.mark.parametrize("objective", ["mean", "max"])
@pytest.mark.parametrize("participation", [single(8), separated(8, 4)], ids=lambda p: p.schema)
@pytest.mark.parametrize("make", [prefix_sum, momentum_sgd])
def test_the_optimum_is_that_of_another_solver(make, objective, participation):
    workload = make(8)
    mechanism = toeplitz(workload, participation, bands=4, objective=objective, tolerance=1e-10)
    measure = rmse if objective == "mean" else max_error

    def error_of_coefficients(c):
        C = sum(value * np.eye(8, k=-lag) for lag, value in enumerate([1.0, *c]))
        AN = workload.matrix @ np.linalg.inv(C)
        rows = np.square(AN).sum(axis=1)
        rounds = range(0, 8, participation.min_sep)
        # With four bands, columns four rounds apart do not overlap.
        squared_norm = sum(C[:, t] @ C[:, t] for t in rounds)
        return np.sqrt(squared_norm * (rows.mean() if objective == "mean" else rows.max()))

    optimum = scipy.optimize.minimize(
        error_of_coefficients,
        [0.4, 0.3, 0.2],
        method="Nelder-Mead",
        options={"xatol": 1e-7, "fatol": 1e-12},
    )
    assert_allclose(measure(mechanism, workload, participation), optimum.fun, rtol=1e-7)


def test_closed_forms_have_their_coefficients_and_no_certificate():
    n = 12
    options = {"participation": single(n), "family": "toeplitz"}
    square_root = fit(prefix_sum(n), **options, coefficients="sqrt")
    for workload in (prefix_sum(n), momentum_sgd(n)):
        C = fit(workload, **options, coefficients="sqrt").encoder()
        assert_allclose(C @ C, workload.matrix, atol=1e-10)
    three_bands = fit(prefix_sum(n), **options, coefficients="sqrt", bands=3)
    assert three_bands.coefficients.tolist() == [1.0, 0.5, 0.375]
    # (1 - 0.9 x)^(1/2) has the coefficients of (1 - x)^(1/2), damped.
    damped_root, undamped = (
        fit(prefix_sum(n), **options, coefficients="nu", nu=nu) for nu in (0.1, 0.0)
    )
    assert np.array_equal(undamped.coefficients, square_root.coefficients)
    assert_allclose(
        damped_root.noising_coefficients(),
        square_root.noising_coefficients() * 0.9 ** np.arange(n),
        atol=1e-15,
    )
    assert square_root.certificate is None
    assert "closed form" in square_root.certificate_reason


@pytest.mark.parametrize("n", [1, 7, 64])
def test_the_bound_of_prefix_sums_is_below_the_dense_optimum(n):
    singular_values = np.linalg.svd(prefix_sum(n).matrix, compute_uv=False)
    assert_allclose(prefix_sum_bound(n), singular_values.sum() ** 2 / n, rtol=1e-12)
    dense_certificate = fitted(single(n), "dense").certificate
    assert prefix_sum_bound(n) <= dense_certificate.loss * (1.0 + 1e-12)


def test_certificates_exist_where_a_bound_is_known():
    single_participation = single(64)
    certified_mechanism = toeplitz(prefix_sum(64), single_participation, bands=64)
    certificate = certified_mechanism.certificate
    assert_allclose(
        certificate.loss,
        loss(certified_mechanism, prefix_sum(64), single_participation),
        rtol=1e-12,
    )
    assert_allclose(certificate.lower_bound, prefix_sum_bound(64), rtol=1e-12)
    assert 0.0 < certificate.gap < 0.15
    for uncertified, words in (
        (toeplitz(prefix_sum(64), single_participation, bands=8, objective="max"), "largest error"),
        (toeplitz(prefix_sum(64), separated(64, 8), bands=8), "several participations"),
        (toeplitz(momentum_sgd(64), single_participation, bands=8), "prefix sums only"),
    ):
        assert uncertified.certificate is None
        assert words in uncertified.certificate_reason


@pytest.mark.parametrize("coefficients", ["optimized", "sqrt", "optimized_inverse"])
def test_uneven_workloads_are_refused_with_the_way_out(coefficients):
    uneven_workload = momentum_sgd(8, 0.9, np.linspace(1.0, 0.5, 8))
    for workload in (uneven_workload, Workload("dense", np.tri(8))):
        with refusal("without its learning rates"):
            toeplitz(workload, single(8), coefficients=coefficients)
    assert toeplitz(uneven_workload, single(8), coefficients="nu", nu=0.1).bands == 8
