"""Epsilon of random allocation: each epoch a client takes part in one of t Gaussian releases, drawn
uniformly and kept secret.

The pair of 1-out-of-t allocation (Feldman and Shenfeld 2025 and 2026, arXiv 2502.08202 and
2602.17284) is

    P = (1 / t) sum_i Normal(e_i, sigma^2 I)     Q = Normal(0, sigma^2 I)     in t dimensions.

Under Q the ratio P / Q is the mean M = (R_1 + .. + R_t) / t of independent R_i = exp(N(-s^2 / 2,
s^2)), s = 1 / sigma. The ratio of E epochs is the product of E such means. Both deltas are
expectations under Q of functions that are convex in M:

    remove   delta(epsilon) = E max(0, M - exp(epsilon))
    add      delta(epsilon) = E max(0, 1 - exp(epsilon) M)

Rounding. Replace the value of one R_i by two neighbours in a grid, at random and with the same
mean. The ratio is affine in each R_i: no expectation of a convex function of it falls (Jensen). All
rounding below is of this kind: of R_i, of means of some of them, of products, and of extreme
values, which become 0 or infinity. So each delta is an upper bound, for both directions at once,
and its excess falls with the square of the grid's step. Only positive terms are added, so that
float64 keeps its relative accuracy down to the least delta.

Domination. Let the releases be adaptive: release i is Normal(v_i, sigma^2 I) with the client in it,
and v_i, |v_i| <= 1, follows from all earlier releases. Given these, R_i is exp(N(-r^2 / 2, r^2))
with r = |v_i| / sigma <= s, and an independent factor of mean 1 makes exp(N(-s^2 / 2, s^2)) of it.
By Jensen, from the last release to the first, no delta is above that of the pair. So the bound
covers adaptive queries, sensitivities that differ (take the largest), releases that a client stays
away from (v_i = 0), and epochs cut short. It needs the client's place to be independent of all
else. A permutation that deals batches of fixed size does not give that: see docs/accounting.md.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.privacy.curves import epsilons_of_curve
from fedmf.privacy.gaussian import (
    check_delta,
    gaussian_delta,
    gaussian_epsilon,
    loss_scale,
)

# Mass beyond the ends of a grid, which becomes 0 and infinity:
# nothing beside the least delta, 1e-15.
_TAIL = 1e-25
# Grid points for a standard deviation of log R_i.
_FINENESS = 64
# Relative error of a delta for each release that its law was made of; 1e-15 was measured.
_ROUNDING = 1e-14
# The cost grows with the positions. More of them give no larger epsilon: reveal so many places, the
# client's among them, at random.
_MOST_POSITIONS = 2**16
# Ratios beyond exp(700) leave float64. Epsilon is then hundreds with or without amplification.
_LARGEST_LOSS = 700.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RatioLaw:
    """The law of a likelihood ratio P / Q under Q: probability `mass[i]` of exp(step * (low + i)).

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
        """Logarithms of the ratios, float64 (points,)."""
        return self.step * np.arange(self.low, self.low + len(self.mass))

    @functools.cached_property
    def mass_under_p(self) -> np.ndarray:
        """Probabilities under P, float64 (points,)."""
        return self.mass * np.exp(self.losses)

    def deltas(self, epsilon: float) -> tuple[float, float]:
        """delta(epsilon) of removing and of adding the client."""
        high, low = self.losses > epsilon, self.losses < -epsilon
        remove = self.mass_under_p[high] @ -np.expm1(epsilon - self.losses[high])
        add = self.mass[low] @ -np.expm1(epsilon + self.losses[low])
        return float(remove) + self.infinite, float(add) + self.zero

    def trimmed(self) -> "RatioLaw":
        """The law without the ends of no consequence: their values become 0 and infinity."""
        left = int(np.searchsorted(np.cumsum(self.mass), _TAIL))
        right = len(self.mass) - int(np.searchsorted(np.cumsum(self.mass_under_p[::-1]), _TAIL))
        ends = np.r_[0:left, right : len(self.mass)]
        return dataclasses.replace(
            self,
            low=self.low + left,
            mass=self.mass[left:right],
            zero=self.zero + float(self.mass[ends].sum()),
            infinite=self.infinite + float(self.mass_under_p[ends].sum()),
        )

    def coarsened(self) -> "RatioLaw":
        """The law on every second point, where those between become their neighbours
        with the same mean.
        """
        mass = np.concatenate(
            [np.zeros(self.low % 2), self.mass, np.zeros(2 - (self.low + len(self.mass)) % 2)]
        )
        odd, up = mass[1::2], 1 / (1 + math.exp(self.step))
        even = np.append(mass[::2], 0.0)
        even[:-1] += (1 - up) * odd
        even[1:] += up * odd
        return dataclasses.replace(self, step=2 * self.step, low=self.low // 2, mass=even)


def gaussian_law(noise_multiplier: float, step: float) -> RatioLaw:
    """The law for Normal(1, sigma^2) against Normal(0, sigma^2), rounded to a grid."""
    from scipy import special

    s = 1 / noise_multiplier
    end = math.ceil((s * s / 2 - s * special.ndtri(_TAIL)) / step)
    x = step * np.arange(-end, end + 1)
    # Probabilities of the intervals between points.
    under_q, under_p = _between(special.ndtr, x / s + s / 2), _between(special.ndtr, x / s - s / 2)
    # The mean of an interval says what share of it becomes its upper end.
    upper = np.clip((under_p * np.exp(-x[:-1]) - under_q) / math.expm1(step), 0, under_q)
    mass = np.append(under_q - upper, 0.0)
    mass[1:] += upper
    return RatioLaw(step=step, low=-end, mass=mass, zero=2 * _TAIL, infinite=2 * _TAIL)


def _between(cdf: Callable[[np.ndarray], Any], z: np.ndarray) -> np.ndarray:
    # From the nearer tail, whose differences keep their relative accuracy.
    return np.where(z[:-1] > 0, cdf(-z[:-1]) - cdf(-z[1:]), cdf(z[1:]) - cdf(z[:-1]))


def _mean(first: RatioLaw, second: RatioLaw, share: float, step: float) -> RatioLaw:
    """The law of (1 - share) M + share M' for independent ratios on one grid, rounded to `step`, of
    which theirs is a multiple.
    """
    stride, a, b = round(first.step / step), first.mass, second.mass
    # Points i and j give exp(first.step * (first.low + i)) * (1 + share * (exp(...) - 1)), whose
    # second factor depends on j - i only: all pairs of one difference lie alike between two points
    # of the grid.
    difference = np.arange(1 - len(a), len(b))
    place = np.log1p(share * np.expm1(first.step * (second.low - first.low + difference))) / step
    floor = np.floor(place).astype(int)
    upper = np.clip(np.expm1(step * (place - floor)) / math.expm1(step), 0, 1)
    begin, end = np.maximum(0, -difference), np.minimum(len(a), len(b) - difference)
    low = int((floor + stride * begin).min())
    mass = np.zeros(int((floor + stride * end).max()) + 2 - low)
    rows = (difference, begin, end, floor + stride * begin - low, upper)
    for d, i, j, at, up in zip(*(row.tolist() for row in rows), strict=True):
        both, last = a[i:j] * b[i + d : j + d], at + stride * (j - i - 1) + 1
        mass[at:last:stride] += (1 - up) * both
        mass[at + 1 : last + 1 : stride] += up * both
    # Where either ratio is 0 the mean becomes 0 or infinity.
    return RatioLaw(
        step=step,
        low=stride * first.low + low,
        mass=mass,
        zero=first.zero + second.zero,
        infinite=(1 - share) * (first.infinite + second.zero)
        + share * (second.infinite + first.zero),
    ).trimmed()


def _product(first: RatioLaw, second: RatioLaw) -> RatioLaw:
    return RatioLaw(
        step=first.step,
        low=first.low + second.low,
        mass=np.convolve(first.mass, second.mass),
        zero=first.zero + second.zero,
        infinite=first.infinite + second.infinite,
    ).trimmed()


def _from_halves(
    one: RatioLaw, count: int, join: Callable[[RatioLaw, RatioLaw, float, float], RatioLaw]
) -> RatioLaw:
    """The law of `count` like `one`: `join` takes laws of half as many, the second's share of the
    count, and the count, whole or not.

    A count of 3 joins the laws of 1 and of 2: both must be on the grid of `one`.
    """
    depth, laws = (count - 1).bit_length(), {1: one}
    for level in range(1, depth + 1):
        share = 2.0 ** (level - depth)
        sizes = {math.floor(count * share), math.ceil(count * share)}
        laws = {
            n: one
            if n == 1
            else join(laws[n // 2], laws[n - n // 2], (n - n // 2) / n, count * share)
            for n in sizes
        }
    return laws[count]


@functools.lru_cache(maxsize=16)
def allocation_law(noise_multiplier: float, positions: int, epochs: int) -> RatioLaw:
    """The law of the ratio after `epochs` epochs of 1-out-of-`positions` allocation."""
    s = 1 / noise_multiplier

    # The deviation of a logarithm, as for a lognormal of the same variance, falls in means. There
    # the grid becomes finer.
    def mean(first: RatioLaw, second: RatioLaw, share: float, count: float) -> RatioLaw:
        wanted = math.sqrt(math.log1p(math.expm1(s * s) / count)) / _FINENESS
        return _mean(
            first, second, share, first.step / 2 if wanted < 0.6 * first.step else first.step
        )

    # It grows in products, by sqrt(2) each time they double.
    def product(first: RatioLaw, second: RatioLaw, share: float, count: float) -> RatioLaw:
        both = _product(first, second)
        return (
            both.coarsened()
            if math.log2(both.step / one.step) < 0.5 * math.log2(count) - 0.75
            else both
        )

    one = _from_halves(gaussian_law(noise_multiplier, s / _FINENESS), positions, mean)
    return _from_halves(one, epochs, product)


@functools.lru_cache(maxsize=4096)
def random_allocation_epsilon(
    noise_multiplier: float, delta: float, *, positions: int, epochs: int = 1
) -> float:
    """Epsilon of `epochs` epochs, in each of which a client is in one of `positions` Gaussian
    releases: an upper bound.

    Balls in bins of an encoder whose bins have orthogonal columns of one norm is one epoch with
    that norm (`fedmf.privacy.sampling`).

    Args:
      noise_multiplier: of each release, stddev over its sensitivity; 0 gives infinity.
      delta: in [1e-15, 1).
      positions: t >= 1, among which the client's place is uniform, drawn anew each epoch and
        independently of everything else.
      epochs: E >= 1.

    >>> round(random_allocation_epsilon(1.0, 1e-8, positions=8), 2)
    3.72
    >>> round(gaussian_epsilon(1.0, 1e-8), 2)
    5.78
    """
    t = min(
        checks.integer("positions", positions, low=1, hint="count the releases of an epoch"),
        _MOST_POSITIONS,
    )
    E = checks.integer("epochs", epochs, low=1, hint="count the passes over the population")
    delta = check_delta(delta)
    together = noise_multiplier / math.sqrt(E)
    if t == 1 or not _in_float64(noise_multiplier, together):
        return gaussian_epsilon(together, delta)
    epsilon = _epsilon(allocation_law(noise_multiplier, t, E), delta * (1 - _ROUNDING * t * E))
    if gaussian_delta(together, epsilon) >= delta:
        return epsilon
    # Next to no amplification, and the grid costs more than that.
    return min(epsilon, gaussian_epsilon(together, delta))


def random_allocation_curve(
    noise_multiplier: float, *, positions: int, epochs: int = 1
) -> tuple[tuple[float, float], ...]:
    """(epsilon, delta) of `epochs` epochs: upper bounds.

    Args:
      noise_multiplier, positions, epochs: as of `random_allocation_epsilon`.

    Returns:
      Pairs of growing epsilon; none where there is no amplification to speak of.

    >>> len(random_allocation_curve(1.0, positions=8))
    101
    """
    t, together = min(positions, _MOST_POSITIONS), noise_multiplier / math.sqrt(epochs)
    if t == 1 or not _in_float64(noise_multiplier, together):
        return ()
    law, more = allocation_law(noise_multiplier, t, epochs), 1 + _ROUNDING * t * epochs
    epsilons = epsilons_of_curve(together)
    return tuple((e, min(1.0, max(law.deltas(e)) * more)) for e in epsilons)


def _in_float64(noise_multiplier: float, together: float) -> bool:
    """Whether the ratios of one release, and of all epochs together, do not leave float64."""
    # From one end of a release's grid to the other it is some 22 deviations of the loss.
    s = 1 / noise_multiplier if noise_multiplier else math.inf
    return s * s + 22 * s <= _LARGEST_LOSS and loss_scale(together) + 10 / together <= _LARGEST_LOSS


def _epsilon(law: RatioLaw, delta: float) -> float:
    """The least epsilon at which neither delta of the law is above `delta`; never too small."""
    from scipy import optimize

    if max(law.zero, law.infinite) >= delta:
        return math.inf
    if max(law.deltas(0.0)) <= delta:
        return 0.0
    far = float(np.abs(law.losses[[0, -1]]).max())
    epsilon = optimize.brentq(
        lambda e: max(law.deltas(e)) - delta, 0.0, far, xtol=1e-13, rtol=1e-12
    )
    while max(law.deltas(epsilon)) > delta:
        epsilon = epsilon * (1 + 1e-11) + 1e-13
    return float(epsilon)
