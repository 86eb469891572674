import numpy as np
import pytest
import scipy.optimize

from fedmf.mechanisms.error import loss, max_error, rmse
from fedmf.mechanisms.fit import fit
from fedmf.mechanisms.fitting.descent import descend
from fedmf.mechanisms.fitting.progress import Stopping
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.mechanisms.toeplitz.fit import prefix_sum_bound
from fedmf.mechanisms.toeplitz.fit_problem import ToeplitzProblem
from fedmf.workloads import Workload, momentum_sgd, prefix_sum
from tests.mechanisms.schemas import separated, single


def toeplitz(workload, participation, **options):
    return fit(workload, participation, family="toeplitz", cache=False, **options)


@pytest.mark.parametrize("objective", ["mean", "max"])
@pytest.mark.parametrize("participation", [single(8), separated(8, 4)], ids=lambda p: p.schema)
@pytest.mark.parametrize("make", [prefix_sum, momentum_sgd])
def test_the_optimum_is_that_of_another_solver(make, objective, participation):
    workload = make(8)
    mechanism = toeplitz(workload, participation, bands=4, objective=objective, tolerance=1e-10)
    measure = rmse if objective == "mean" else max_error

    def of_matrices(c):
        C = sum(value * np.eye(8, k=-lag) for lag, value in enumerate([1.0, *c]))
        AN = workload.matrix @ np.linalg.inv(C)
        rows = np.square(AN).sum(axis=1)
        rounds = range(0, 8, participation.min_sep)
        # Four bands: columns four rounds apart are disjoint
        squared = sum(C[:, t] @ C[:, t] for t in rounds)
        return np.sqrt(squared * (rows.mean() if objective == "mean" else rows.max()))

    found = scipy.optimize.minimize(
        of_matrices, [0.4, 0.3, 0.2], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-12}
    )
    np.testing.assert_allclose(measure(mechanism, workload, participation), found.fun, rtol=1e-7)


def test_more_bands_help_and_beyond_min_sep_sensitivity_stays_exact():
    n, participation = 60, separated(60, 10)
    fits = [toeplitz(prefix_sum(n), participation, bands=bands) for bands in (1, 3, 10)]
    errors = [rmse(mechanism, prefix_sum(n), participation) for mechanism in fits]
    assert errors == sorted(errors, reverse=True)
    beyond = toeplitz(prefix_sum(n), participation, bands=30)
    assert sensitivity(beyond, participation).exact
    # The steps down start from 10 bands' worth at least; the optimum has next
    # to nothing beyond min_sep.
    assert rmse(beyond, prefix_sum(n), participation) <= errors[-1] * 1.001


def test_square_root_has_the_smallest_largest_error_of_all_toeplitz_encoders():
    # BLT slides, "Toeplitz mechanism: optimal max error". Descents from elsewhere end there, and
    # none below.
    n = 24
    root = toeplitz(prefix_sum(n), single(n), coefficients="sqrt")
    least = max_error(root, prefix_sum(n), single(n))
    problem = ToeplitzProblem(np.array([1.0, -1.0]), single(n), n, "max", False)
    rng = np.random.default_rng(0)
    for _ in range(5):
        start = root.coefficients[1:] * rng.uniform(0.5, 1.2, n - 1)
        found = descend(problem.log_loss, start, Stopping(tolerance=1e-13, max_iterations=2000))
        np.testing.assert_allclose(np.sqrt(found.loss), least, rtol=1e-6)
        assert np.sqrt(found.loss) >= least * (1.0 - 1e-12)


@pytest.mark.parametrize("power", [4, 8, 12, 16, pytest.param(20, marks=pytest.mark.slow)])
def test_largest_errors_of_the_slides(power):
    # BLT slides: log(n) / pi + constant for the optimal Toeplitz encoder. It is the standard
    # deviation, sensitivity times error: both are the root of the sum of the squared coefficients
    # binomial(2 t, t)^2 / 16^t ~ 1 / (pi t), whose sum is (log(n) + Euler's gamma + log(16)) / pi
    # up to O(1 / n). Bands: grows like sqrt(n / bands).
    constant = (np.euler_gamma + np.log(16.0)) / np.pi
    n = 2**power
    root = toeplitz(prefix_sum(n), single(n), coefficients="sqrt")
    largest = max_error(root, prefix_sum(n), single(n))
    assert abs(largest - np.log(n) / np.pi - constant) < 0.1 / n + 1e-9
    buffered = fit(prefix_sum(n), single(n), family="blt", buffers=4, objective="max", cache=False)
    assert largest * (1.0 - 1e-9) <= max_error(buffered, prefix_sum(n), single(n)) <= 1.02 * largest


def test_closed_forms():
    n, options = 12, {"workload": prefix_sum(12), "participation": single(12), "family": "toeplitz"}
    root = fit(**options, coefficients="sqrt")
    np.testing.assert_allclose(root.encoder() @ root.encoder(), prefix_sum(n).matrix, atol=1e-12)
    assert fit(**options, coefficients="sqrt", bands=3).coefficients.tolist() == [1.0, 0.5, 0.375]
    root_of_momentum = fit(
        momentum_sgd(n), single(n), family="toeplitz", coefficients="sqrt"
    ).encoder()
    np.testing.assert_allclose(
        root_of_momentum @ root_of_momentum, momentum_sgd(n).matrix, atol=1e-10
    )
    assert np.array_equal(fit(**options, coefficients="nu", nu=0.0).coefficients, root.coefficients)
    damped = fit(**options, coefficients="nu", nu=0.1).noising_coefficients()
    # (1 - 0.9 x)^(1/2): minus binomial(1/2, t) damped, of the order of t^(-3/2)
    # 0.9^t / (2 sqrt(pi)).
    t = np.arange(1, n)
    np.testing.assert_allclose(damped[1:], root.noising_coefficients()[1:] * 0.9**t, atol=1e-15)
    assert abs(-damped[-1] * 11**1.5 / 0.9**11 * 2.0 * np.sqrt(np.pi) - 1.0) < 0.05
    inverse = fit(**options, coefficients="inverse_sqrt", bands=3)
    np.testing.assert_allclose(inverse.noising_window, [1.0, -0.5, -0.125])
    assert sensitivity(inverse, separated(n, 2)).exact
    for mechanism in (root, inverse):
        assert mechanism.certificate is None
        assert "closed form" in mechanism.certificate_reason


@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_bounds_of_every_factorization_of_prefix_sums(n):
    singular = np.linalg.svd(prefix_sum(n).matrix, compute_uv=False)
    np.testing.assert_allclose(prefix_sum_bound(n), singular.sum() ** 2 / n, rtol=1e-12)
    dense = fit(prefix_sum(n), single(n), family="dense", cache=False).certificate
    assert prefix_sum_bound(n) <= dense.loss * (1.0 + 1e-12)


def test_certificates_are_given_where_a_bound_is_known():
    mechanism = toeplitz(prefix_sum(64), single(64), bands=64)
    certificate = mechanism.certificate
    np.testing.assert_allclose(
        certificate.loss, loss(mechanism, prefix_sum(64), single(64)), rtol=1e-12
    )
    np.testing.assert_allclose(certificate.lower_bound, prefix_sum_bound(64), rtol=1e-12)
    assert 0.0 < certificate.gap < 0.15
    for workload, participation, objective, words in (
        (prefix_sum(64), single(64), "max", "largest error"),
        (prefix_sum(64), separated(64, 8), "mean", "several participations"),
        (momentum_sgd(64), single(64), "mean", "prefix sums only"),
    ):
        without = toeplitz(workload, participation, bands=8, objective=objective)
        assert without.certificate is None
        assert words in without.certificate_reason


@pytest.mark.parametrize("coefficients", ["optimized", "sqrt", "inverse_sqrt", "optimized_inverse"])
def test_uneven_workloads_are_refused_with_the_way_out(coefficients):
    for workload in (momentum_sgd(8, 0.9, np.linspace(1.0, 0.5, 8)), Workload("dense", np.tri(8))):
        with pytest.raises(ValueError, match="without its learning rates"):
            toeplitz(workload, single(8), coefficients=coefficients)
    assert (
        toeplitz(
            momentum_sgd(8, 0.9, np.linspace(1.0, 0.5, 8)), single(8), coefficients="nu", nu=0.1
        ).bands
        == 8
    )


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "measure"), [("mean", rmse), ("max", max_error)])
def test_a_million_rounds(objective, measure):
    n = 10**6
    for participation in (single(n), separated(n, n // 6)):
        better, root = (
            toeplitz(momentum_sgd(n), participation, bands=32, **options)
            for options in ({"objective": objective}, {"coefficients": "sqrt"})
        )
        assert measure(better, momentum_sgd(n), participation) < measure(
            root, momentum_sgd(n), participation
        )
        assert sensitivity(better, participation).exact
