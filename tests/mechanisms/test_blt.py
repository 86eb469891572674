"""BLT mechanisms: their coefficients, inverses and limits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import fedmf
from fedmf.mechanisms import BLTMechanism, load_mechanism
from tests.mechanisms.schemas import single
from tests.refusals import refusal


@st.composite
def mechanisms(draw, rounds):
    """Draws a BLTMechanism whose poles and zeros alternate."""
    d = draw(st.integers(1, 4))
    positions = draw(
        st.lists(st.integers(1, 10**6 - 1), min_size=2 * d, max_size=2 * d, unique=True).map(
            lambda p: sorted(p)[::-1]
        )
    )
    positions = np.array(positions) / 10**6
    return BLTMechanism(rounds=rounds, decays=positions[0::2], inverse_decays=positions[1::2])


@pytest.mark.parametrize(
    ("decays", "inverse_decays", "words"),
    [
        ([1.1], [0.6], "decays=.* grow without bound"),
        ([0.5], [-1.1], "inverse_decays=.* grow without bound"),
        ([0.9, 0.9], [0.7, 0.6], "distinct"),
        ([0.9, 0.8999], [0.2, 0.1], "float32"),
        ([0.0, 0.5], [0.0, 5e-324], "float32"),  # N's scales are 0 times infinity
        ([0.9], [0.7, 0.6], "inverse_decays 2"),
        ([np.inf], [0.7], "not finite"),
    ],
)
def test_invalid_decays_are_refused_by_name(decays, inverse_decays, words):
    with refusal(words):
        BLTMechanism(rounds=4, decays=decays, inverse_decays=inverse_decays)


@given(st.data())
@settings(max_examples=50)
def test_coefficients_are_those_of_the_rational_function(data):
    mechanism = data.draw(mechanisms(12))
    series = np.eye(1, 12)[0]
    for pole, zero in zip(mechanism.decays, mechanism.inverse_decays, strict=True):
        series = series - zero * np.concatenate([[0.0], series[:-1]])  # times 1 - zero x
        for t in range(1, 12):  # divided by 1 - pole x
            series[t] += pole * series[t - 1]
    c = mechanism.toeplitz_coefficients()
    assert_allclose(c, series, atol=1e-12)
    assert (mechanism.scales > 0.0).all()
    assert (mechanism.inverse_scales > 0.0).all()
    assert (c > 0.0).all()
    assert (np.diff(c) < 0.0).all()
    assert_allclose(
        np.convolve(c, mechanism.noising_coefficients())[:12], np.eye(1, 12)[0], atol=1e-9
    )


@given(seed=st.integers(0, 2**32 - 1), d=st.integers(1, 3))
@settings(max_examples=50)
def test_noising_inverts_the_encoder_for_decays_of_any_order_and_sign(seed, d):
    rng = np.random.default_rng(seed)
    decays, inverse_decays = rng.choice(np.linspace(-0.9, 0.9, 10), (2, d), replace=False)
    mechanism = BLTMechanism(rounds=9, decays=decays, inverse_decays=inverse_decays)
    assert_allclose(mechanism.noising() @ mechanism.encoder(), np.eye(9), atol=1e-9)


def test_poles_very_near_1_lose_no_digits():
    gaps = np.array([1e-7, 4e-7, 2e-6, 1e-5, 1e-3, 0.5])
    mechanism = BLTMechanism(
        rounds=100_000, decays=1.0 - gaps[0::2], inverse_decays=1.0 - gaps[1::2]
    )
    c = mechanism.toeplitz_coefficients()
    noising_column = mechanism.noising_coefficients()
    for t in (1, 10, 1000, 99_999):
        assert abs(c[: t + 1] @ noising_column[t::-1]) < 1e-8


def test_a_million_rounds_are_measured_without_a_matrix(tmp_path):
    n = 10**6
    mechanism = BLTMechanism(rounds=n, decays=[0.999999, 0.99], inverse_decays=[0.9999, 0.4])
    for form_matrix in (mechanism.encoder, mechanism.noising):
        with refusal("GiB"):
            form_matrix()
    assert mechanism.stream().buffers.decay.shape == (2,)
    mechanism.save(tmp_path / "m")
    assert np.array_equal(load_mechanism(tmp_path / "m").decays, mechanism.decays)
    participation = single(n)
    c = mechanism.toeplitz_coefficients()
    assert_allclose(
        fedmf.sensitivity(mechanism, participation).value, np.linalg.norm(c), rtol=1e-12
    )
    # Partial sums of N's coefficients, in closed form.
    s = mechanism.inverse_scales
    m = mechanism.inverse_decays
    t = np.arange(n)[:, None]
    column = 1.0 - ((1.0 - m**t) / (1.0 - m)) @ s
    expected = np.linalg.norm(c) * np.sqrt(np.cumsum(column**2))
    assert_allclose(
        fedmf.per_round_error(mechanism, fedmf.prefix_sum(n), participation), expected, rtol=1e-7
    )
