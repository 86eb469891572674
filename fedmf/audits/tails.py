"""Tests for noise whose tails are cut off, which breaks differential privacy.

Noise that is cut off at 3 or 4 standard deviations has almost the claimed variance and distribution
function. But a release beyond the cut proves that a client is there: delta is then the chance of
such a release, at every epsilon. Three kinds of tests detect a cut in N entries z that are
independent standard normals under the claim:

- the number of entries beyond t standard deviations is binomial (N, 2 Phi(-t)): exact. A few
  entries without noise, or with almost none, show in the number of entries within 0.03 and 0.001;
- the largest |z| is at most m with chance (2 Phi(m) - 1)^N: exact. Noise that is cut off at m fails
  this test with certainty once 2 (2 Phi(m) - 1)^N is below the test's threshold;
- the fourth moment beside the variance, the mean of f(z) = z^4 - 6 z^2 with |z| limited to 4, by
  the Cramer-Chernoff bound: P(mean >= a) <= exp(-N (theta a - log E exp(theta f(z)))) for every
  theta > 0, and likewise below. f is bounded, so the expectation exists, and is computed by an
  integral. A normal approximation would give too small a p-value at one in a million.

Every p-value is two-sided.
"""

import functools
import math
from collections.abc import Iterator

import numpy as np

from fedmf import checks
from fedmf.audits.finding import Finding
from fedmf.numpy_errors import with_numpy_defaults

# Distances from 0, in standard deviations. For each of them, a test counts the noise entries beyond
# it.
DISTANCES = (2.0, 2.5, 3.0, 3.5, 4.0, 4.5)
# The tests also count the entries whose absolute value is at most _NEAR_ZERO or at most _AT_ZERO,
# in standard deviations. The test with _AT_ZERO is skipped for noise on a grid that is too coarse
# for it.
_NEAR_ZERO = 0.03
_AT_ZERO = 0.001
# Number of findings that `tail_findings` yields.
NUM_TESTS = len(DISTANCES) + 4
# The test of the fourth moment clips absolute values to this number.
_MOMENT_LIMIT = 4.0
_NUM_NODES = 200
_MAX_TILT = 1.0
# The search for a value at which the normal distribution's tails are cut off is limited to this
# range. At the lower end, the truncated distribution is almost uniform.
_MIN_CUT = 1e-2
_MAX_CUT = 37.0


def tail_findings(values: np.ndarray) -> Iterator[Finding]:
    """Tests whether values have the tails of independent standard normals.

    Args:
      values: at least one entry, any shape.

    Example:
      >>> z = np.random.default_rng(1).standard_normal(300_000)
      >>> clipped = np.clip(z, -4.0, 4.0)
      >>> [min(f.p_value for f in tail_findings(noise)) > 1e-7 for noise in (z, clipped)]
      [True, False]
    """
    import scipy.special

    absolute_values = np.abs(values).ravel()
    num_entries = len(absolute_values)
    for distance in (_NEAR_ZERO, *DISTANCES):
        num_beyond = int((absolute_values > distance).sum())
        chance_beyond = 2 * float(scipy.special.ndtr(-distance))
        yield Finding(
            name=f"tails: entries beyond {distance:g} standard deviations, "
            f"{num_entries * chance_beyond:,.1f} expected",
            statistic=float(num_beyond),
            p_value=_count_p_value(num_beyond, num_entries, chance_beyond),
        )
    yield _test_entries_at_zero(absolute_values)
    largest_size = float(absolute_values.max())
    log_chance = num_entries * math.log1p(-2 * float(scipy.special.ndtr(-largest_size)))
    yield Finding(
        name="tails: the largest entry in standard deviations",
        statistic=largest_size,
        p_value=min(1.0, 2 * math.exp(log_chance), -2 * math.expm1(log_chance)),
    )
    mean_moment = float(_fourth_moments(np.minimum(absolute_values, _MOMENT_LIMIT)).mean())
    yield Finding(
        name=f"tails: mean of z^4 - 6 z^2 within {_MOMENT_LIMIT:g} standard deviations",
        statistic=mean_moment,
        p_value=moment_p_value(mean_moment, num_entries),
    )


def _count_p_value(count: int, num_entries: int, chance: float) -> float:
    """Returns the exact two-sided p-value of a count that has a binomial distribution if the claim
    holds.
    """
    import scipy.special

    # scipy's bdtr and bdtrc are the binomial distribution function and its complement.
    chance_at_least = 1.0
    if count:
        chance_at_least = float(scipy.special.bdtrc(count - 1, num_entries, chance))
    chance_at_most = float(scipy.special.bdtr(count, num_entries, chance))
    return min(1.0, 2 * chance_at_least, 2 * chance_at_most)


def _test_entries_at_zero(sizes: np.ndarray) -> Finding:
    """Tests the number of entries within 0.001 standard deviations of 0, unless the noise is on a
    coarse grid.

    Of 300,000 entries 240 are expected; if one in a thousand has no noise, there are 300 more.
    """
    chance_at_zero = math.erf(_AT_ZERO / math.sqrt(2))
    num_at_zero = int((sizes <= _AT_ZERO).sum())
    p_value = _count_p_value(num_at_zero, len(sizes), chance_at_zero)
    near_sizes = np.sort(sizes[(sizes > 0) & (sizes <= _NEAR_ZERO)])
    # If the noise is on a coarse grid, most absolute values occur several times, and their number
    # near 0 depends on the grid. The test is then skipped.
    num_repeated = int((near_sizes[1:] == near_sizes[:-1]).sum())
    if 2 * num_repeated > len(near_sizes):
        p_value = 1.0
    return Finding(
        name=f"tails: entries within {_AT_ZERO:g} standard deviations, "
        f"{len(sizes) * chance_at_zero:,.1f} expected",
        statistic=float(num_at_zero),
        p_value=p_value,
    )


def moment_p_value(mean: float, entries: int) -> float:
    """Returns an upper bound on the two-sided p-value of the mean of f(z) = z^4 - 6 z^2.

    Absolute values of z are limited to 4.

    Args:
      mean: of f(z) over all entries.
      entries: number of entries.

    >>> moment_p_value(-3.0, 100) > 0.5 > 1e-6 > moment_p_value(-3.2, 100_000)
    True
    """
    import scipy.optimize

    _, lowest_mean = _cumulant(-_MAX_TILT)
    _, highest_mean = _cumulant(_MAX_TILT)
    if lowest_mean < mean < highest_mean:
        # A Chernoff bound is valid for any value of its parameter theta, the tilt. The value that
        # is chosen here gives the tightest bound.
        tilt = scipy.optimize.brentq(
            lambda theta: _cumulant(theta)[1] - mean, -_MAX_TILT, _MAX_TILT, xtol=1e-15
        )
    else:
        tilt = math.copysign(_MAX_TILT, mean - lowest_mean)
    chernoff_exponent = entries * (tilt * mean - _cumulant(tilt)[0])
    return min(1.0, 2 * math.exp(-chernoff_exponent))


@with_numpy_defaults
def power(cut: float, entries: int, *, threshold: float) -> float:
    """Returns a lower bound on the probability that the tests detect noise whose tails are cut off.

    It is the power of the best single test among the counts and the largest entry.

    Args:
      cut: standard normal noise is drawn again if it is beyond this size, and then scaled to
        variance 1.
      entries: number of tested entries.
      threshold: a p-value below it contradicts the claim.

    >>> power(3.0, 300_000, threshold=1e-8), power(4.5, 300_000, threshold=1e-8) < 1e-3
    (1.0, True)
    """
    import scipy.special
    import scipy.stats

    _check_arguments(cut, threshold)
    cut_scale = cut / end_of_noise(cut)
    chance_before_cut = math.erf(cut / math.sqrt(2))

    def chance_within(size: float) -> float:
        """Returns the probability that the absolute value of truncated noise is at most `size`."""
        return min(1.0, math.erf(min(cut, cut_scale * size) / math.sqrt(2)) / chance_before_cut)

    # Truncated noise is detected if its largest entry is too small for the claim.
    best_power = chance_within(largest_seen_end(entries, threshold=threshold)) ** entries
    for distance in DISTANCES:
        claimed_chance = 2 * float(scipy.special.ndtr(-distance))
        low_critical_count = (
            float(scipy.stats.binom.ppf(threshold / 2, entries, claimed_chance)) - 1
        )
        high_critical_count = (
            float(scipy.stats.binom.isf(threshold / 2, entries, claimed_chance)) + 1
        )
        true_chance = 1 - chance_within(distance)
        power_below = float(scipy.stats.binom.cdf(low_critical_count, entries, true_chance))
        power_above = float(scipy.stats.binom.sf(high_critical_count - 1, entries, true_chance))
        best_power = max(best_power, power_below, power_above)
    return min(1.0, best_power)


def entries_to_see(cut: float, *, threshold: float) -> int:
    """Returns the number of noise entries with which the tests are certain to detect that the tails
    are cut off.

    Args:
      cut: as in `power`.
      threshold: a p-value below it contradicts the claim.

    >>> entries_to_see(4.0, threshold=1e-8), entries_to_see(4.5, threshold=1e-8)
    (304490, 2817060)
    """
    import scipy.special

    _check_arguments(cut, threshold)
    chance_beyond = 2 * float(scipy.special.ndtr(-end_of_noise(cut)))
    return math.ceil(math.log(threshold / 2) / math.log1p(-chance_beyond))


def smallest_unseen_cut(entries: int, *, threshold: float) -> float:
    """Returns the smallest point of truncation that the tests may miss with this many noise
    entries.

    It is 0 if the entries are too few to detect any cut.

    Args:
      entries: number of tested entries.
      threshold: a p-value below it contradicts the claim.

    >>> round(smallest_unseen_cut(304_490, threshold=1e-8), 3)
    4.0
    """
    import scipy.optimize

    largest_end = largest_seen_end(entries, threshold=threshold)
    if largest_end <= end_of_noise(_MIN_CUT):
        return 0.0
    return float(
        scipy.optimize.brentq(lambda cut: end_of_noise(cut) - largest_end, _MIN_CUT, _MAX_CUT)
    )


def end_of_noise(cut: float) -> float:
    """Returns the largest value of a standard normal that is truncated at `cut` and scaled to
    variance 1.

    >>> round(end_of_noise(2.5), 3)
    2.619
    """
    density_at_cut = math.exp(-cut * cut / 2) / math.sqrt(2 * math.pi)
    variance = 1 - 2 * cut * density_at_cut / math.erf(cut / math.sqrt(2))
    return cut / math.sqrt(variance)


def largest_seen_end(entries: int, *, threshold: float) -> float:
    """Returns the largest value m so that noise within [-m, m] is detected with certainty.

    It is the largest m with 2 (2 Phi(m) - 1)^entries <= threshold, where Phi is the normal
    distribution function.
    """
    import scipy.special

    chance_beyond = -math.expm1(math.log(threshold / 2) / entries)
    return -float(scipy.special.ndtri(chance_beyond / 2))


def _check_arguments(cut: float, threshold: float) -> None:
    """Raises an error if the cut or the threshold is out of range."""
    checks.positive("cut", cut, "use standard deviations, such as 4", below=_MAX_CUT)
    checks.positive("threshold", threshold, "use a small number such as 1e-8", below=1)


def _fourth_moments(sizes: np.ndarray) -> np.ndarray:
    """Computes f(z) = z^4 - 6 z^2, the fourth Hermite polynomial without its constant.

    It is uncorrelated with z^2, whose sum has a test of its own.
    """
    squared_sizes = sizes**2
    return squared_sizes * (squared_sizes - 6)


@functools.cache
def _quadrature() -> tuple[np.ndarray, np.ndarray]:
    """Returns values of f(z) = z^4 - 6 z^2 with weights, for expectations over a normal z.

    The values of z are the nodes of Gauss-Legendre quadrature within the limit of |z|, and the
    limit itself. 200 nodes give E exp(theta f(z)) to 13 digits for all tilts in use.
    """
    import scipy.special

    nodes, weights = np.polynomial.legendre.leggauss(_NUM_NODES)
    node_values = (nodes + 1) * _MOMENT_LIMIT / 2
    node_densities = np.exp(-(node_values**2) / 2) * math.sqrt(2 / math.pi)
    chance_beyond = 2 * float(scipy.special.ndtr(-_MOMENT_LIMIT))
    fourth_moments = np.append(
        _fourth_moments(node_values), _fourth_moments(np.array(_MOMENT_LIMIT))
    )
    return fourth_moments, np.append(weights * node_densities * _MOMENT_LIMIT / 2, chance_beyond)


def _cumulant(theta: float) -> tuple[float, float]:
    """Returns log E exp(theta f(z)) and its derivative, for f(z) = z^4 - 6 z^2 and a normal z."""
    values, chances = _quadrature()
    max_exponent = float((theta * values).max())
    tilted_chances = chances * np.exp(theta * values - max_exponent)
    total_chance = float(tilted_chances.sum())
    return max_exponent + math.log(total_chance), float(tilted_chances @ values) / total_chance
