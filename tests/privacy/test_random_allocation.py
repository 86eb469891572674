"""Random allocation against integrals by independent code: quadrature for two positions, uniform
grids by FFT for many.
"""

import math

import numpy as np
import pytest
from scipy import fft, special

from fedmf.privacy.gaussian import gaussian_delta, gaussian_epsilon
from fedmf.privacy.random_allocation import allocation_law, random_allocation_epsilon


def integrals(sigma, positions, epsilon, top, cells=2**21):
    """Computes lower and upper bounds on delta(epsilon) of remove and add: every exp(loss) is
    rounded down and up to a uniform grid of 0..top.
    """
    s = 1 / sigma
    h = top / cells
    with np.errstate(divide="ignore"):
        z = (np.log(h * np.arange(cells + 1)) + s * s / 2) / s
    mass_under_q = np.diff(special.ndtr(z))
    mass_under_p = np.diff(special.ndtr(z - s))
    transform_of_rest = fft.rfft(mass_under_q, 2 * cells) ** (positions - 1)
    present, absent = (
        fft.irfft(transform_of_rest * fft.rfft(mass, 2 * cells), 2 * cells)[:cells]
        for mass in (mass_under_p, mass_under_q)
    )
    rounded_down = h * np.arange(cells)
    rounded_up = rounded_down + positions * h
    # The mass beyond the grid, and the rounding of the transform.
    mass_beyond = max(0.0, 1 - present.sum()) + 1e-11
    high = positions * math.exp(epsilon)
    low = positions * math.exp(-epsilon)
    remove_low, remove_high = (
        present @ np.maximum(0, 1 - high / np.maximum(x, 1e-300))
        for x in (rounded_down, rounded_up)
    )
    add_low, add_high = (absent @ np.maximum(0, 1 - x / low) for x in (rounded_up, rounded_down))
    return (remove_low - 1e-11, remove_high + mass_beyond), (add_low - 1e-11, add_high + 1e-11)


@pytest.mark.parametrize(
    ("sigma", "positions", "epsilon", "top"),
    [
        (1.0, 64, 0.5, 3000),
        (0.8, 5, 0.4, 9000),
    ],
)
def test_delta_is_the_integral_in_both_directions(sigma, positions, epsilon, top):
    deltas = allocation_law(sigma, positions, 1).deltas(epsilon)
    bounds = integrals(sigma, positions, epsilon, top)
    for delta, (low, high) in zip(deltas, bounds, strict=True):
        assert high < 1.08 * low  # Wider bounds would test nothing.
        assert low <= delta <= 1.001 * high


def test_a_permutation_is_no_random_allocation():
    """docs/accounting.md: two clients, two rounds, sigma 1, and the other client contributes -1.

    Sums on a grid of 0.02 over normal densities are far more accurate than the tolerance.
    """
    x = np.arange(-8, 8, 0.02)

    def density(first, second):
        first_density, second_density = (
            np.exp(-((x - mean) ** 2) / 2) / math.sqrt(2 * math.pi) for mean in (first, second)
        )
        return np.outer(first_density, second_density) * 0.02**2

    def delta(present, absent):
        return np.maximum(present - math.exp(0.5) * absent, 0).sum()

    permuted = (density(1, -1) + density(-1, 1)) / 2
    permuted_absent = (density(0, -1) + density(-1, 0)) / 2
    assert delta(permuted, permuted_absent) == pytest.approx(0.221, abs=5e-4)
    allocated = (density(1, 0) + density(0, 1)) / 2
    assert delta(allocated, density(0, 0)) == pytest.approx(0.149, abs=5e-4)
    assert allocation_law(1.0, 2, 1).deltas(0.5)[0] == pytest.approx(0.1492, abs=5e-4)


# References by conditional integration with their errors; the one of (2, 64) is from the integrals
# above with 2^22 cells, [0.3295, 0.3296].
@pytest.mark.parametrize(
    ("sigma", "positions", "delta", "epsilon", "error"),
    [
        (1.0, 8, 1e-8, 3.71852, 0.0002),
        (1.0, 64, 1e-8, 1.79846, 0.0005),
        (1.0, 128, 1e-8, 1.26124, 0.0006),
        (2.0, 64, 1e-8, 0.32954, 0.0001),
        (0.5**0.5, 16, 1e-8, 5.76415, 0.0002),
        (0.5, 16, 1e-8, 9.97670, 0.0002),
        (1.0, 32, 1e-6, 1.63900, 0.0009),
        (1.0, 100, 1e-5, 0.6200, 0.0030),
    ],
)
def test_epsilon_of_one_epoch_is_within_its_reference(sigma, positions, delta, epsilon, error):
    bound = random_allocation_epsilon(sigma, delta, positions=positions)
    assert epsilon - error <= bound <= epsilon * 1.0005 + error


@pytest.mark.parametrize(("sigma", "epsilon"), [(0.5, 16.5), (1.0, 2.5), (1.0, 5.8), (3.0, 1.8)])
def test_the_tail_keeps_its_relative_accuracy(sigma, epsilon):
    """Two positions, deltas of 1e-4 to 1e-15: one ratio in closed form, the other by the
    trapezoidal rule.
    """
    s = 1 / sigma
    x = np.linspace(-14, 14 + 3 / sigma, 200_001)
    ratio = np.exp(s * x - s * s / 2)
    weight = np.exp(-x * x / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])

    def excess(strike):
        """Computes E max(0, R - strike) and E max(0, strike - R)."""
        d = (s * s / 2 - np.log(np.maximum(strike, 1e-300))) / s
        call = np.where(strike > 0, special.ndtr(d) - strike * special.ndtr(d - s), 1 - strike)
        put = np.where(strike > 0, strike * special.ndtr(s - d) - special.ndtr(-d), 0)
        return call, put

    call, _ = excess(2 * math.exp(epsilon) - ratio)
    _, put = excess(2 * math.exp(-epsilon) - ratio)
    remove = weight @ call / 2
    add = weight @ put * math.exp(epsilon) / 2
    deltas = allocation_law(sigma, 2, 1).deltas(epsilon)
    for delta, exact_delta in zip(deltas, (remove, add), strict=True):
        if exact_delta > 1e-15:
            assert exact_delta * (1 - 1e-9) <= delta <= 1.01 * exact_delta


@pytest.mark.parametrize(
    ("sigma", "epochs", "epsilon"),
    [(1.0, 1, 4.0), (1.3, 7, 9.0), (5.0, 100, 11.0), (20.0, 2047, 18.0)],
)
def test_one_position_has_the_deltas_of_the_gaussian(sigma, epochs, epsilon):
    exact_delta = gaussian_delta(sigma / math.sqrt(epochs), epsilon)
    for delta in allocation_law(sigma, 1, epochs).deltas(epsilon):
        assert exact_delta * (1 - 1e-13) <= delta <= 1.01 * exact_delta
    bound = random_allocation_epsilon(sigma, 1e-12, positions=1, epochs=epochs)
    assert bound == gaussian_epsilon(sigma / math.sqrt(epochs), 1e-12)


@pytest.mark.parametrize(("positions", "epochs"), [(1, 1), (1, 7), (5, 1)])
def test_deltas_beyond_the_grid_are_not_zero(positions, epochs):
    """The trimmed ends still count: P(R > x) of one R_i, and the probability that all are small."""
    law = allocation_law(1.0, positions, epochs)
    s = math.sqrt(epochs)
    top = law.losses[-1] + 0.01
    bottom = law.losses[0] - 0.01
    remove, _ = law.deltas(top)
    _, add = law.deltas(-bottom)
    assert gaussian_delta(1 / s, top + math.log(positions)) / positions <= remove < 1e-20
    assert special.ndtr((bottom - math.log(2)) / s + s / 2) ** positions / 2 <= add < 1e-20
    assert min(remove, add) > 0


def test_epsilon_is_right_at_the_ends_of_its_range():
    def epsilon(sigma, delta=1e-6, positions=8):
        return random_allocation_epsilon(sigma, delta, positions=positions)

    # The least delta; more positions than are computed; little noise with negligible amplification,
    # whose ratios leave float64; no noise, and much.
    assert epsilon(1.0, 1e-15) < gaussian_epsilon(1.0, 1e-15)
    assert epsilon(4.0, positions=2**16) == epsilon(4.0, positions=10**9) < 0.003
    assert epsilon(0.03) == gaussian_epsilon(0.03, 1e-6)
    for sigma in (0.038, 0.045, 0.054, 0.06):
        assert 0 < epsilon(sigma, 1e-15) <= gaussian_epsilon(sigma, 1e-15)
    assert epsilon(0.0) == epsilon(1e-200) == math.inf
    assert epsilon(100.0, 0.9) == 0
