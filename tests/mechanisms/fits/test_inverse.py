"""Banded inverses: closed forms against independent figures, optimised ones against a search."""

import numpy as np
import pytest
import scipy.optimize

import fedmf
from fedmf.mechanisms import ToeplitzMechanism
from fedmf.workloads import momentum_sgd, prefix_sum
from tests.mechanisms.schemas import fitted, separated, single
from tests.oracles import attained_sensitivity

EIGHT = separated(512, 64, 8)
# Banded inverse square roots of prefix sums, 512 rounds: sensitivity, rmse, largest error, computed
# independently of this code.
BISR = [
    (single(512), 2, (1.154701, 9.300538, 13.102163)),
    (single(512), 4, (1.273736, 6.513015, 9.104996)),
    (single(512), 8, (1.369474, 4.865136, 6.685681)),
    (single(512), 16, (1.453163, 3.833474, 5.095482)),
    (EIGHT, 2, (3.265986, 26.305893, 37.058512)),
    (EIGHT, 4, (3.602668, 18.421589, 25.752819)),
    (EIGHT, 8, (3.874708, 13.765129, 18.916072)),
    (EIGHT, 16, (4.172777, 11.007874, 14.631751)),
]


def measures(mechanism, participation):
    """Returns sensitivity, rmse and largest error on prefix sums."""
    error = (mechanism, prefix_sum(mechanism.rounds), participation)
    return (
        fedmf.sensitivity(mechanism, participation).value,
        fedmf.rmse(*error),
        fedmf.max_error(*error),
    )


def inverse(participation, bands, **options):
    """Fits an optimised banded inverse to prefix sums."""
    return fitted(participation, "toeplitz",
        coefficients="optimized_inverse", bands=bands, **options,
    )  # fmt: skip


@pytest.mark.parametrize(("participation", "bands", "expected"), BISR)
def test_closed_forms_have_known_figures_and_optimised_ones_less_error(
    participation, bands, expected
):
    closed_form = fitted(participation, "toeplitz", coefficients="inverse_sqrt", bands=bands)
    assert measures(closed_form, participation) == pytest.approx(expected, abs=1e-6)
    best_mechanism = inverse(participation, bands)
    assert len(best_mechanism.noising_window) == bands
    assert measures(best_mechanism, participation)[1] < 0.9 * expected[1]
    assert (
        measures(inverse(participation, bands, objective="max"), participation)[2]
        < 0.9 * expected[2]
    )


@pytest.mark.parametrize(
    ("momentum", "expected"),
    [
        (None, [1.0, -1 / 2, -1 / 8, -1 / 16, -5 / 128]),
        (0.9, [1.0, -0.95, -0.00125, -0.0011875, -0.0011289062]),
        (0.95, [1.0, -0.975, -0.0003125, -0.0003046875]),
    ],
)
def test_closed_forms_have_the_coefficients_of_the_square_root(momentum, expected):
    workload = prefix_sum(8) if momentum is None else momentum_sgd(8, momentum)
    mechanism = fedmf.fit(
        workload, single(8), family="toeplitz", coefficients="inverse_sqrt", bands=len(expected)
    )
    np.testing.assert_allclose(mechanism.noising_window, expected, atol=1e-10)


@pytest.mark.parametrize("participation", [single(512), EIGHT], ids=["single", "eight"])
@pytest.mark.parametrize(("objective", "measure_index"), [("mean", 1), ("max", 2)])
def test_a_single_free_coefficient_is_that_of_a_search(participation, objective, measure_index):
    def error(r):
        return measures(ToeplitzMechanism(rounds=512, noising_window=[1.0, r]), participation)[
            measure_index
        ]

    optimum = scipy.optimize.minimize_scalar(
        error, bounds=(-0.999, -0.5), method="bounded", options={"xatol": 1e-7}
    )
    fitted_error = measures(inverse(participation, 2, objective=objective), participation)[
        measure_index
    ]
    assert fitted_error == pytest.approx(optimum.fun, rel=1e-6)


def test_the_sensitivity_of_alternating_coefficients_is_an_upper_bound():
    # 1 / (1 + 0.6 x) alternates: three columns of it nearly cancel, and contributions of both signs
    # add them up.
    mechanism = ToeplitzMechanism(rounds=9, noising_window=[1.0, 0.6])
    participation = separated(9, 3)
    C = mechanism.encoder()
    attained_value = attained_sensitivity(C, participation, np.random.default_rng(0))
    claimed_sensitivity = fedmf.sensitivity(mechanism, participation)
    assert claimed_sensitivity.value >= attained_value * (1 - 1e-9)
    assert not claimed_sensitivity.exact
    # Negative control: the formula for decreasing coefficients would be too small.
    assert np.linalg.norm(C[:, [0, 3, 6]].sum(axis=1)) < 0.95 * attained_value


def test_certificates_exist_where_a_bound_is_known():
    assert 0.0 < inverse(single(64), 16).certificate.gap < 0.3
    assert "several participations" in inverse(separated(64, 8), 4).certificate_reason
