"""Epsilon of random allocation: in each epoch a client takes part in one of t Gaussian releases,
which is uniform and secret.

The pair of 1-out-of-t allocation (Feldman and Shenfeld 2025 and 2026, arXiv 2502.08202 and
2602.17284) is

    P = (1 / t) sum_i Normal(e_i, sigma^2 I)     Q = Normal(0, sigma^2 I)     in t dimensions.

Under Q the ratio P / Q is the mean M = (R_1 + .. + R_t) / t of independent R_i = exp(N(-s^2 / 2,
s^2)), s = 1 / sigma. The ratio of E epochs is the product of E such means. Both deltas are
expectations under Q of functions that are convex in M:

    remove   delta(epsilon) = E max(0, M - exp(epsilon))
    add      delta(epsilon) = E max(0, 1 - exp(epsilon) M)

Rounding. Replace the value of one R_i by one of its two neighbours in a grid, at random and with
the same mean. The ratio is affine in each R_i, so that no expectation of a convex function of it
decreases (Jensen). All rounding below is of this kind: of R_i, of means of some of them, of
products, and of extreme values, which become 0 or infinity. So each delta is an upper bound, for
both directions at once, and its excess decreases with the square of the grid's step. Only positive
terms are added, so that float64 keeps its relative accuracy down to the least delta.

Domination. Let the releases be adaptive: release i is Normal(v_i, sigma^2 I) with the client in it,
and v_i, |v_i| <= 1, depends on all earlier releases. Given these, R_i is exp(N(-r^2 / 2, r^2))
with r = |v_i| / sigma <= s, and times an independent factor of mean 1 it is exp(N(-s^2 / 2, s^2)).
By Jensen, from the last release to the first, no delta is above that of the pair. So the bound
covers adaptive queries, different sensitivities (the largest is used), releases without the client
(v_i = 0), and epochs that are cut short. It requires that the client's release is independent of
all else, which a permutation into batches of fixed size does not satisfy (docs/accounting.md).
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np

from fedmf import checks
from fedmf.privacy.curves import epsilons_of_curve
from fedmf.privacy.gaussian import (
    check_delta,
    gaussian_delta,
    gaussian_epsilon,
    loss_scale,
)

# Mass beyond the ends of a grid, which becomes 0 and infinity. It is negligible beside the least
# delta, 1e-15.
_TAIL = 1e-25
# Grid points for a standard deviation of log R_i.
_POINTS_PER_DEVIATION = 64
# Bound on the relative error of a delta for each release in its distribution; 1e-15 was measured.
_ROUNDING = 1e-14
# The cost increases with the positions. More positions do not increase epsilon, because all but so
# many of them could be revealed at random.
_MAX_POSITIONS = 2**16
# Ratios beyond exp(700) leave float64. Epsilon is then hundreds with or without amplification.
_LARGEST_LOSS = 700.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RatioLaw:
    """The distribution of a likelihood ratio P / Q under Q: probability `mass[i]` of
    exp(step * (low + i)).

    Attributes:
      step: of the grid of logarithms.
      low: index of the first point.
      mass: float64 (points,).
      zero: probability under Q of the ratio 0.
      infinite: probability under P of the ratio infinity.
    """

    step: float
    low: int
    mass: np.ndarray
    zero: float
    infinite: float

    @functools.cached_property
    def losses(self) -> np.ndarray:
        """The logarithms of the ratios, float64 (points,)."""
        return self.step * np.arange(self.low, self.low + len(self.mass))

    @functools.cached_property
    def mass_under_p(self) -> np.ndarray:
        """The probabilities under P, float64 (points,)."""
        return self.mass * np.exp(self.losses)

    def deltas(self, epsilon: float) -> tuple[float, float]:
        """Computes delta(epsilon) of removing and of adding the client."""
        is_high = self.losses > epsilon
        is_low = self.losses < -epsilon
        remove = self.mass_under_p[is_high] @ -np.expm1(epsilon - self.losses[is_high])
        add = self.mass[is_low] @ -np.expm1(epsilon + self.losses[is_low])
        return float(remove) + self.infinite, float(add) + self.zero

    def trimmed(self) -> "RatioLaw":
        """Returns the distribution without its negligible ends, whose values become 0 and
        infinity.
        """
        num_left = int(np.searchsorted(np.cumsum(self.mass), _TAIL))
        right = len(self.mass) - int(np.searchsorted(np.cumsum(self.mass_under_p[::-1]), _TAIL))
        ends = np.r_[0:num_left, right : len(self.mass)]
        return dataclasses.replace(
            self,
            low=self.low + num_left,
            mass=self.mass[num_left:right],
            zero=self.zero + float(self.mass[ends].sum()),
            infinite=self.infinite + float(self.mass_under_p[ends].sum()),
        )

    def coarsened(self) -> "RatioLaw":
        """Returns the distribution on every second point. Each other point is replaced by its
        neighbours, with the same mean.
        """
        padding = 2 - (self.low + len(self.mass)) % 2
        mass = np.concatenate([np.zeros(self.low % 2), self.mass, np.zeros(padding)])
        odd_mass = mass[1::2]
        upper_share = 1 / (1 + math.exp(self.step))
        even_mass = np.append(mass[::2], 0.0)
        even_mass[:-1] += (1 - upper_share) * odd_mass
        even_mass[1:] += upper_share * odd_mass
        return dataclasses.replace(self, step=2 * self.step, low=self.low // 2, mass=even_mass)


def gaussian_law(noise_multiplier: float, step: float) -> RatioLaw:
    """Computes the distribution for Normal(1, sigma^2) against Normal(0, sigma^2), rounded to a
    grid.
    """
    from scipy import special

    s = 1 / noise_multiplier
    end = math.ceil((s * s / 2 - s * special.ndtri(_TAIL)) / step)
    x = step * np.arange(-end, end + 1)
    # Probabilities of the intervals between points.
    mass_under_q = _interval_probabilities(special.ndtr, x / s + s / 2)
    mass_under_p = _interval_probabilities(special.ndtr, x / s - s / 2)
    # The mean of an interval determines the share of it that becomes its upper end.
    upper_mass = (mass_under_p * np.exp(-x[:-1]) - mass_under_q) / math.expm1(step)
    upper_mass = np.clip(upper_mass, 0, mass_under_q)
    mass = np.append(mass_under_q - upper_mass, 0.0)
    mass[1:] += upper_mass
    return RatioLaw(step=step, low=-end, mass=mass, zero=2 * _TAIL, infinite=2 * _TAIL)


def _interval_probabilities(cdf: Callable[[np.ndarray], np.ndarray], z: np.ndarray) -> np.ndarray:
    """Computes the probabilities between consecutive points of a symmetric distribution."""
    # Differences in the nearer tail keep their relative accuracy.
    return np.where(z[:-1] > 0, cdf(-z[:-1]) - cdf(-z[1:]), cdf(z[1:]) - cdf(z[:-1]))


def _mean(first: RatioLaw, second: RatioLaw, share: float, step: float) -> RatioLaw:
    """Computes the distribution of (1 - share) M + share M' for independent ratios on one grid,
    rounded to `step`, which divides the step of that grid.
    """
    stride = round(first.step / step)
    a = first.mass
    b = second.mass
    # Points i and j give exp(first.step * (first.low + i)) * (1 + share * (exp(...) - 1)), whose
    # second factor depends on j - i only: all pairs with the same difference have the same position
    # between two points of the grid.
    differences = np.arange(1 - len(a), len(b))
    log_factors = np.log1p(share * np.expm1(first.step * (second.low - first.low + differences)))
    positions = log_factors / step
    floors = np.floor(positions).astype(int)
    upper_shares = np.clip(np.expm1(step * (positions - floors)) / math.expm1(step), 0, 1)
    begins = np.maximum(0, -differences)
    ends = np.minimum(len(a), len(b) - differences)
    low = int((floors + stride * begins).min())
    mass = np.zeros(int((floors + stride * ends).max()) + 2 - low)
    starts = floors + stride * begins - low
    columns = [x.tolist() for x in (differences, begins, ends, starts, upper_shares)]
    for difference, begin, end, start, upper_share in zip(*columns, strict=True):
        pair_mass = a[begin:end] * b[begin + difference : end + difference]
        stop = start + stride * (end - begin - 1) + 1
        mass[start:stop:stride] += (1 - upper_share) * pair_mass
        mass[start + 1 : stop + 1 : stride] += upper_share * pair_mass
    # If either ratio is 0 the mean becomes 0 or infinity.
    return RatioLaw(
        step=step,
        low=stride * first.low + low,
        mass=mass,
        zero=first.zero + second.zero,
        infinite=(1 - share) * (first.infinite + second.zero)
        + share * (second.infinite + first.zero),
    ).trimmed()


def _product(first: RatioLaw, second: RatioLaw) -> RatioLaw:
    """Computes the distribution of the product of independent ratios on one grid."""
    return RatioLaw(
        step=first.step,
        low=first.low + second.low,
        mass=np.convolve(first.mass, second.mass),
        zero=first.zero + second.zero,
        infinite=first.infinite + second.infinite,
    ).trimmed()


def _from_halves(
    single: RatioLaw, count: int, join: Callable[[RatioLaw, RatioLaw, float, float], RatioLaw]
) -> RatioLaw:
    """Computes the distribution of `count` independent ratios by joining halves.

    Args:
      single: of one ratio.
      count: of ratios.
      join: takes the distributions of two halves on one grid, the share of the second half, and the
        count of both, integer or not. Of 3 ratios it joins the distributions of 1 and of 2.
    """
    depth = (count - 1).bit_length()
    law_by_size = {1: single}
    for level in range(1, depth + 1):
        level_count = count * 2.0 ** (level - depth)
        joined_laws = {}
        for size in {math.floor(level_count), math.ceil(level_count)}:
            if size == 1:
                joined_laws[size] = single
                continue
            second_size = size - size // 2
            joined_laws[size] = join(
                law_by_size[size // 2], law_by_size[second_size], second_size / size, level_count
            )
        law_by_size = joined_laws
    return law_by_size[count]


@functools.lru_cache(maxsize=16)
def allocation_law(noise_multiplier: float, positions: int, epochs: int) -> RatioLaw:
    """Computes the distribution of the ratio after `epochs` epochs of 1-out-of-`positions`
    allocation.
    """
    s = 1 / noise_multiplier

    # The deviation of a mean's logarithm, as for a lognormal of the same variance, decreases with
    # the count, and so does the step of the grid.
    def mean(first: RatioLaw, second: RatioLaw, share: float, count: float) -> RatioLaw:
        deviation = math.sqrt(math.log1p(math.expm1(s * s) / count))
        step = first.step
        if deviation / _POINTS_PER_DEVIATION < 0.6 * step:
            step = step / 2
        return _mean(first, second, share, step)

    # The deviation of a product's logarithm increases by sqrt(2) each time the count doubles.
    def product(first: RatioLaw, second: RatioLaw, share: float, count: float) -> RatioLaw:
        law = _product(first, second)
        log2_growth = math.log2(law.step / epoch_law.step)
        is_too_fine = log2_growth < 0.5 * math.log2(count) - 0.75
        return law.coarsened() if is_too_fine else law

    release_law = gaussian_law(noise_multiplier, s / _POINTS_PER_DEVIATION)
    epoch_law = _from_halves(release_law, positions, mean)
    return _from_halves(epoch_law, epochs, product)


@functools.lru_cache(maxsize=4096)
def random_allocation_epsilon(
    noise_multiplier: float, delta: float, *, positions: int, epochs: int = 1
) -> float:
    """Computes an upper bound on epsilon of `epochs` epochs, in each of which a client is in one of
    `positions` Gaussian releases.

    Balls in bins of an encoder whose bins have orthogonal sums of columns of the same norm is one
    epoch with that norm (`fedmf.privacy.sampling`).

    Args:
      noise_multiplier: of each release, stddev over its sensitivity; 0 gives infinity.
      delta: in [1e-15, 1).
      positions: t >= 1, among which the client's release is uniform, drawn anew each epoch and
        independently of everything else.
      epochs: E >= 1.

    >>> round(random_allocation_epsilon(1.0, 1e-8, positions=8), 2)
    3.72
    >>> round(gaussian_epsilon(1.0, 1e-8), 2)
    5.78
    """
    t = checks.integer("positions", positions, low=1, hint="count the releases of an epoch")
    t = min(t, _MAX_POSITIONS)
    E = checks.integer("epochs", epochs, low=1, hint="count the passes over the population")
    delta = check_delta(delta)
    composed_multiplier = noise_multiplier / math.sqrt(E)
    if t == 1 or not _fits_float64(noise_multiplier, composed_multiplier):
        return gaussian_epsilon(composed_multiplier, delta)
    law = allocation_law(noise_multiplier, t, E)
    epsilon = _least_epsilon(law, delta * (1 - _ROUNDING * t * E))
    if gaussian_delta(composed_multiplier, epsilon) >= delta:
        return epsilon
    # The amplification is negligible, and smaller than the error of the grid.
    return min(epsilon, gaussian_epsilon(composed_multiplier, delta))


def random_allocation_curve(
    noise_multiplier: float, *, positions: int, epochs: int = 1
) -> tuple[tuple[float, float], ...]:
    """Computes upper bounds (epsilon, delta) of `epochs` epochs.

    Args:
      noise_multiplier, positions, epochs: as in `random_allocation_epsilon`.

    Returns:
      Pairs with increasing epsilon; empty if the amplification is negligible.

    >>> len(random_allocation_curve(1.0, positions=8))
    101
    """
    t = min(positions, _MAX_POSITIONS)
    composed_multiplier = noise_multiplier / math.sqrt(epochs)
    if t == 1 or not _fits_float64(noise_multiplier, composed_multiplier):
        return ()
    law = allocation_law(noise_multiplier, t, epochs)
    rounding = 1 + _ROUNDING * t * epochs
    epsilons = epsilons_of_curve(composed_multiplier)
    return tuple((e, min(1.0, max(law.deltas(e)) * rounding)) for e in epsilons)


def _fits_float64(noise_multiplier: float, composed_multiplier: float) -> bool:
    """Returns whether the ratios of one release and of all epochs fit into float64."""
    if noise_multiplier == 0:
        return False
    s = 1 / noise_multiplier
    # A release's grid spans about 22 deviations of the loss.
    if s * s + 22 * s > _LARGEST_LOSS:
        return False
    return loss_scale(composed_multiplier) + 10 / composed_multiplier <= _LARGEST_LOSS


def _least_epsilon(law: RatioLaw, delta: float) -> float:
    """Computes the least epsilon at which neither delta of the distribution is above `delta`; it is
    never too small.
    """
    from scipy import optimize

    if max(law.zero, law.infinite) >= delta:
        return math.inf
    if max(law.deltas(0.0)) <= delta:
        return 0.0
    largest_loss = float(np.abs(law.losses[[0, -1]]).max())
    epsilon = optimize.brentq(
        lambda e: max(law.deltas(e)) - delta, 0.0, largest_loss, xtol=1e-13, rtol=1e-12
    )
    while max(law.deltas(epsilon)) > delta:
        epsilon = epsilon * (1 + 1e-11) + 1e-13
    return float(epsilon)
