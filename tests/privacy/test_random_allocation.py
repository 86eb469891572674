"""Random allocation against integrals that share nothing with it: quadrature for two positions,
uniform grids by FFT for many.
"""

import math

import numpy as np
import pytest
from scipy import fft, special

from fedmf.privacy.gaussian import gaussian_delta, gaussian_epsilon
from fedmf.privacy.random_allocation import allocation_law, random_allocation_epsilon


def integrals(sigma, positions, epsilon, top, cells=2**21):
    """Lower and upper bounds on delta(epsilon) of remove and add: every exp(loss) rounded down and
    up to a uniform grid of 0..top.
    """
    s, h = 1 / sigma, top / cells
    with np.errstate(divide="ignore"):
        z = (np.log(h * np.arange(cells + 1)) + s * s / 2) / s
    absent, present = np.diff(special.ndtr(z)), np.diff(special.ndtr(z - s))
    others = fft.rfft(absent, 2 * cells) ** (positions - 1)
    with_client, without = (
        fft.irfft(others * fft.rfft(mass, 2 * cells), 2 * cells)[:cells]
        for mass in (present, absent)
    )
    down, wide = h * np.arange(cells), positions * h
    beyond = max(0.0, 1 - with_client.sum()) + 1e-11  # and the rounding of the transform
    high, low = positions * math.exp(epsilon), positions * math.exp(-epsilon)
    remove = [
        with_client @ np.maximum(0, 1 - high / np.maximum(x, 1e-300)) for x in (down, down + wide)
    ]
    add = [without @ np.maximum(0, 1 - x / low) for x in (down + wide, down)]
    return (remove[0] - 1e-11, remove[1] + beyond), (add[0] - 1e-11, add[1] + 1e-11)


def test_delta_is_the_integral_in_both_directions():
    found = allocation_law(0.8, 5, 1).deltas(0.4)
    for delta, (low, high) in zip(found, integrals(0.8, 5, 0.4, top=9000), strict=True):
        assert high < 1.08 * low  # or this test says nothing
        assert low <= delta <= 1.001 * high


# References by conditional integration with their errors; that of (2, 64) from the integrals above
# with 2^22 cells, [0.3295, 0.3296].
@pytest.mark.parametrize(
    ("sigma", "positions", "delta", "epsilon", "error"),
    [
        (1.0, 8, 1e-8, 3.71852, 0.0002),
        (1.0, 128, 1e-8, 1.26124, 0.0006),
        (2.0, 64, 1e-8, 0.32954, 0.0001),
        (0.5, 16, 1e-8, 9.97670, 0.0002),
        (1.0, 100, 1e-5, 0.6200, 0.0030),
    ],
)
def test_epsilon_of_one_epoch(sigma, positions, delta, epsilon, error):
    found = random_allocation_epsilon(sigma, delta, positions=positions)
    assert epsilon - error <= found <= epsilon * 1.0005 + error


@pytest.mark.parametrize(("sigma", "epsilon"), [(0.5, 16.5), (1.0, 5.8), (3.0, 1.8)])
def test_the_tail_keeps_its_relative_accuracy(sigma, epsilon):
    """Two positions, deltas of 1e-4 to 1e-15: one ratio in closed form, the other by the
    trapezoidal rule.
    """
    s, x = 1 / sigma, np.linspace(-14, 14 + 3 / sigma, 200_001)
    ratio, weight = (
        np.exp(s * x - s * s / 2),
        np.exp(-x * x / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0]),
    )

    def beyond(strike):
        """E max(0, R - strike) and E max(0, strike - R)."""
        d = (s * s / 2 - np.log(np.maximum(strike, 1e-300))) / s
        above = np.where(strike > 0, special.ndtr(d) - strike * special.ndtr(d - s), 1 - strike)
        return above, np.where(strike > 0, strike * special.ndtr(s - d) - special.ndtr(-d), 0)

    remove = weight @ beyond(2 * math.exp(epsilon) - ratio)[0] / 2
    add = weight @ beyond(2 * math.exp(-epsilon) - ratio)[1] * math.exp(epsilon) / 2
    for delta, exact in zip(
        allocation_law(sigma, 2, 1).deltas(epsilon), (remove, add), strict=True
    ):
        if exact > 1e-15:
            assert exact * (1 - 1e-9) <= delta <= 1.01 * exact


@pytest.mark.parametrize(
    ("sigma", "epochs", "epsilon"),
    [(1.0, 1, 4.0), (20.0, 2047, 18.0)],
)
def test_one_position_is_the_gaussian(sigma, epochs, epsilon):
    exact = gaussian_delta(sigma / math.sqrt(epochs), epsilon)
    for delta in allocation_law(sigma, 1, epochs).deltas(epsilon):
        assert exact * (1 - 1e-13) <= delta <= 1.01 * exact
    found = random_allocation_epsilon(sigma, 1e-12, positions=1, epochs=epochs)
    assert found == gaussian_epsilon(sigma / math.sqrt(epochs), 1e-12)


def test_the_ends_of_its_range():
    def epsilon(sigma, delta=1e-6, positions=8):
        return random_allocation_epsilon(sigma, delta, positions=positions)

    # The least delta there is; so many positions that they are counted as fewer; noise without
    # amplification to speak of, whose ratios leave float64; none, and much.
    assert epsilon(1.0, 1e-15) < gaussian_epsilon(1.0, 1e-15)
    assert epsilon(4.0, positions=2**16) == epsilon(4.0, positions=10**9) < 0.003
    assert epsilon(0.03) == gaussian_epsilon(0.03, 1e-6)
    for sigma in (0.038, 0.06):
        assert 0 < epsilon(sigma, 1e-15) <= gaussian_epsilon(sigma, 1e-15)
    assert epsilon(0.0) == epsilon(1e-200) == math.inf
    assert epsilon(100.0, 0.9) == 0
