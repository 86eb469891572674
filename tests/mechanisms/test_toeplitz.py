"""Toeplitz mechanisms: their coefficients, series and limits."""

import numpy as np
import pytest
import scipy.signal
from numpy.testing import assert_allclose

import fedmf
from fedmf.mechanisms import ToeplitzMechanism, load_mechanism
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.mechanisms.toeplitz.mechanism import inverse_series
from tests.mechanisms.schemas import separated, single
from tests.refusals import refusal


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "exactly one"),
        ({"coefficients": [1.0], "noising_window": [1.0]}, "exactly one"),
        ({"coefficients": [1.0, 0.5, 0.2]}, "coefficients has length 3.*rounds=2"),
        ({"coefficients": [0.0, 0.5]}, r"coefficients\[0\]=0.0"),
        ({"noising_window": [-1.0]}, r"noising_window\[0\]=-1.0"),
        ({"coefficients": [1.0, np.nan]}, "not finite"),
        ({"rounds": 0, "coefficients": [1.0]}, "rounds=0"),
    ],
)
def test_invalid_coefficients_are_refused_by_name(arguments, words):
    with refusal(words):
        ToeplitzMechanism(**{"rounds": 2} | arguments)


@pytest.mark.parametrize(("n", "bands"), [(1000, 3), (1000, 1000), (40_000, 30_000)])
def test_inverse_series_times_the_series_is_one(n, bands):
    """Checks both algorithms: the last size takes the FFT, as it has over 1e9 multiplications."""
    t = np.arange(1, bands)
    c = np.cumprod(np.append(1.0, (2 * t - 1) / (2 * t)))
    product = scipy.signal.fftconvolve(c, inverse_series(c, n))[:n]
    assert_allclose(product, np.eye(1, n)[0], atol=1e-12)


def test_a_million_rounds_are_measured_without_a_matrix():
    n = 10**6
    mechanism = ToeplitzMechanism(rounds=n, coefficients=[1.0, 0.5, 0.25])
    for form_matrix in (
        mechanism.encoder,
        mechanism.noising,
        ToeplitzMechanism(rounds=n, coefficients=np.ones(n)).stream,
    ):
        with refusal("GiB"):
            form_matrix()
    participation = separated(n, 1000)
    bound = sensitivity(mechanism, participation)
    assert bound.exact
    assert_allclose(bound.value**2, 1000 * 1.3125)
    errors = fedmf.per_round_error(mechanism, fedmf.prefix_sum(n), participation)
    # 1 / ((1 - x) (1 + x / 2 + x^2 / 4)) settles at 1 / 1.75.
    assert_allclose((errors[-1] ** 2 - errors[-2] ** 2) / bound.value**2, 1.75**-2, rtol=1e-6)
    assert mechanism.stream().recurrence.shape == (n, 3)
    with refusal("1000000 columns but participation has rounds=5"):
        sensitivity(mechanism, single(5))


def test_long_mechanisms_are_saved_and_checked_when_read(tmp_path):
    mechanism = ToeplitzMechanism(rounds=50_000, coefficients=[1.0, 0.5])
    mechanism.save(tmp_path / "good")
    assert np.array_equal(load_mechanism(tmp_path / "good").coefficients, mechanism.coefficients)
    # N grows to 9^50000
    ToeplitzMechanism(rounds=50_000, coefficients=[1.0, -9.0]).save(tmp_path / "unstable")
    with refusal("not an inverse"):
        load_mechanism(tmp_path / "unstable")
