"""Tests whether the tails of standard normal noise are there.

Noise that ends at c standard deviations has almost the claimed variance and distribution function
if c is 3 or 4. But a release beyond its end proves that a client is there: delta is then the
chance of such a release, at every epsilon. Three kinds of tests look for it in N entries z that
are independent standard normals under the claim:

- the number of entries beyond t standard deviations is binomial (N, 2 Phi(-t)): exact. Noise that
  is left out of a few entries, or almost so, shows in the number of those within 0.03 and 0.001;
- the largest |z| is at most m with chance (2 Phi(m) - 1)^N: exact. Noise that ends at m fails this
  test with certainty once 2 (2 Phi(m) - 1)^N is below the test's threshold;
- the fourth moment beside the variance, the mean of f(z) = z^4 - 6 z^2 with |z| limited to 4, by
  the bound of Cramer and Chernoff: P(mean >= a) <= exp(-N (theta a - log E exp(theta f(z)))) for
  every theta > 0, and likewise below. f is bounded, so the expectation exists and an integral
  gives it. A normal approximation would be too small at one in a million.

Every p-value is two-sided.
"""

import functools
import math
from collections.abc import Iterator

import numpy as np

from fedmf import checks
from fedmf.audits.finding import Finding
from fedmf.numpy_errors import with_numpy_defaults

# Entries beyond each of these are counted.
DISTANCES = (2.0, 2.5, 3.0, 3.5, 4.0, 4.5)
# Entries nearer to zero than these are counted, too. Noise on a grid, whose steps are not small
# beside the second, is counted within the first alone.
_ALMOST_ZERO, _ZERO = 0.03, 0.001
# Tests of `tail_findings`.
NUM_TESTS = len(DISTANCES) + 4
_LARGEST_IN_MOMENT = 4.0
_NODES = 200
_MOST_TILT = 1.0
# Noise of the claimed variance ends beyond sqrt(3), where it is uniform.
_LEAST_CUT, _MOST_CUT = 1e-2, 37.0


def tail_findings(values: np.ndarray) -> Iterator[Finding]:
    """Yields the tests of values that are independent standard normals under the claim.

    Args:
      values: at least one entry, any shape; all runs together.

    Example:
      >>> z = np.random.default_rng(1).standard_normal(300_000)
      >>> ended = np.clip(z, -4.0, 4.0)
      >>> [min(f.p_value for f in tail_findings(noise)) > 1e-7 for noise in (z, ended)]
      [True, False]
    """
    import scipy.special

    sizes = np.abs(values).ravel()
    num_entries = len(sizes)
    for distance in (_ALMOST_ZERO, *DISTANCES):
        count = int((sizes > distance).sum())
        chance = 2 * float(scipy.special.ndtr(-distance))
        name = (
            f"tails: entries beyond {distance:g} standard deviations, "
            f"{num_entries * chance:,.1f} expected"
        )
        yield Finding(
            name=name, statistic=float(count), p_value=_p_of_count(count, num_entries, chance)
        )
    yield _entries_at_zero(sizes)
    largest = float(sizes.max())
    log_chance = num_entries * math.log1p(-2 * float(scipy.special.ndtr(-largest)))
    yield Finding(
        name="tails: the largest entry in standard deviations",
        statistic=largest,
        p_value=min(1.0, 2 * math.exp(log_chance), -2 * math.expm1(log_chance)),
    )
    moments = _fourth(np.minimum(sizes, _LARGEST_IN_MOMENT))
    mean = float(moments.mean())
    yield Finding(
        name=f"tails: mean of z^4 - 6 z^2 within {_LARGEST_IN_MOMENT:g} standard deviations",
        statistic=mean,
        p_value=moment_p_value(mean, num_entries),
    )


def _p_of_count(count: int, num_entries: int, chance: float) -> float:
    """Returns the exact two-sided p-value of a binomial count."""
    import scipy.special

    # The binomial distribution by the incomplete beta function.
    at_least = 1.0
    if count:
        at_least = float(scipy.special.bdtrc(count - 1, num_entries, chance))
    at_most = float(scipy.special.bdtr(count, num_entries, chance))
    return min(1.0, 2 * at_least, 2 * at_most)


def _entries_at_zero(sizes: np.ndarray) -> Finding:
    """Tests the number of entries within 0.001 standard deviations, unless noise is on a grid.

    Of 300,000 entries, of which one in a thousand lacks its noise, 300 more than 240 are there.
    """
    chance = math.erf(_ZERO / math.sqrt(2))
    count = int((sizes <= _ZERO).sum())
    p_value = _p_of_count(count, len(sizes), chance)
    near = np.sort(sizes[(sizes > 0) & (sizes <= _ALMOST_ZERO)])
    # On a grid of coarse steps almost all sizes occur again, and a step more or less counts.
    if 2 * int((near[1:] == near[:-1]).sum()) > len(near):
        p_value = 1.0
    return Finding(
        name=f"tails: entries within {_ZERO:g} standard deviations, "
        f"{len(sizes) * chance:,.1f} expected",
        statistic=float(count),
        p_value=p_value,
    )


def moment_p_value(mean: float, entries: int) -> float:
    """Returns an upper bound on the two-sided p-value of the mean of f(z) of so many entries.

    >>> moment_p_value(-3.0, 100) > 0.5 > 1e-6 > moment_p_value(-3.2, 100_000)
    True
    """
    import scipy.optimize

    _, lowest = _cumulant(-_MOST_TILT)
    _, highest = _cumulant(_MOST_TILT)
    if lowest < mean < highest:
        # The best tilt; every other one would give a valid bound as well.
        tilt = scipy.optimize.brentq(
            lambda theta: _cumulant(theta)[1] - mean, -_MOST_TILT, _MOST_TILT, xtol=1e-15
        )
    else:
        tilt = math.copysign(_MOST_TILT, mean - lowest)
    exponent = entries * (tilt * mean - _cumulant(tilt)[0])
    return min(1.0, 2 * math.exp(-exponent))


@with_numpy_defaults
def power(cut: float, entries: int, *, threshold: float) -> float:
    """Returns a lower bound on the chance to see noise that ends.

    It is that of the best single test among the counts and the largest entry.

    Args:
      cut: the standard normal is drawn again where it is beyond `cut`, and then
        scaled to variance 1.
      entries: so many are tested.
      threshold: a p-value below it contradicts the claim.

    >>> power(3.0, 300_000, threshold=1e-8), power(4.5, 300_000, threshold=1e-8) < 1e-3
    (1.0, True)
    """
    import scipy.special
    import scipy.stats

    _check(cut, threshold)
    scale = cut / end_of_noise(cut)
    inside = math.erf(cut / math.sqrt(2))

    def chance_within(size: float) -> float:
        return min(1.0, math.erf(min(cut, scale * size) / math.sqrt(2)) / inside)

    # The largest entry that is too small for the claim.
    best = chance_within(largest_seen_end(entries, threshold=threshold)) ** entries
    for distance in DISTANCES:
        claimed = 2 * float(scipy.special.ndtr(-distance))
        lowest = float(scipy.stats.binom.ppf(threshold / 2, entries, claimed)) - 1
        highest = float(scipy.stats.binom.isf(threshold / 2, entries, claimed)) + 1
        true_chance = 1 - chance_within(distance)
        few = float(scipy.stats.binom.cdf(lowest, entries, true_chance))
        many = float(scipy.stats.binom.sf(highest - 1, entries, true_chance))
        best = max(best, few, many)
    return min(1.0, best)


def entries_to_see(cut: float, *, threshold: float) -> int:
    """Returns how many entries show with certainty that noise ends at this cut.

    Args:
      cut: as in `power`.
      threshold: a p-value below it contradicts the claim.

    >>> entries_to_see(4.0, threshold=1e-8), entries_to_see(4.5, threshold=1e-8)
    (304490, 2817060)
    """
    import scipy.special

    _check(cut, threshold)
    beyond = 2 * float(scipy.special.ndtr(-end_of_noise(cut)))
    return math.ceil(math.log(threshold / 2) / math.log1p(-beyond))


def smallest_unseen_cut(entries: int, *, threshold: float) -> float:
    """Returns the smallest cut that so many entries do not show with certainty.

    It is 0 where they are so few that they show no cut.

    Args:
      entries: so many are tested.
      threshold: a p-value below it contradicts the claim.

    >>> round(smallest_unseen_cut(304_490, threshold=1e-8), 3)
    4.0
    """
    import scipy.optimize

    end = largest_seen_end(entries, threshold=threshold)
    if end <= end_of_noise(_LEAST_CUT):
        return 0.0
    return float(scipy.optimize.brentq(lambda cut: end_of_noise(cut) - end, _LEAST_CUT, _MOST_CUT))


def end_of_noise(cut: float) -> float:
    """Returns where a standard normal that is cut ends, once it is scaled to variance 1.

    >>> round(end_of_noise(2.5), 3)
    2.619
    """
    density = math.exp(-cut * cut / 2) / math.sqrt(2 * math.pi)
    variance = 1 - 2 * cut * density / math.erf(cut / math.sqrt(2))
    return cut / math.sqrt(variance)


def largest_seen_end(entries: int, *, threshold: float) -> float:
    """Returns the largest m with 2 (2 Phi(m) - 1)^entries <= threshold."""
    import scipy.special

    beyond = -math.expm1(math.log(threshold / 2) / entries)
    return -float(scipy.special.ndtri(beyond / 2))


def _check(cut: float, threshold: float) -> None:
    checks.positive("cut", cut, "use standard deviations, such as 4", below=_MOST_CUT)
    checks.positive("threshold", threshold, "use a small number such as 1e-8", below=1)


def _fourth(sizes: np.ndarray) -> np.ndarray:
    """Computes f, the fourth Hermite polynomial but for a constant.

    It is uncorrelated with the sum of squares, which has tests of its own.
    """
    squares = sizes**2
    return squares * (squares - 6)


@functools.cache
def _quadrature() -> tuple[np.ndarray, np.ndarray]:
    """Returns values of f and their probabilities: Gauss-Legendre within the limit, and one beyond.

    200 nodes give E exp(theta f(z)) to 13 digits for all tilts that are used.
    """
    import scipy.special

    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    sizes = (nodes + 1) * _LARGEST_IN_MOMENT / 2
    density = np.exp(-(sizes**2) / 2) * math.sqrt(2 / math.pi)
    beyond = 2 * float(scipy.special.ndtr(-_LARGEST_IN_MOMENT))
    values = np.append(_fourth(sizes), _fourth(np.array(_LARGEST_IN_MOMENT)))
    return values, np.append(weights * density * _LARGEST_IN_MOMENT / 2, beyond)


def _cumulant(theta: float) -> tuple[float, float]:
    """Returns log E exp(theta f(z)) and its derivative."""
    values, chances = _quadrature()
    top = float((theta * values).max())
    tilted = chances * np.exp(theta * values - top)
    total = float(tilted.sum())
    return top + math.log(total), float(tilted @ values) / total
