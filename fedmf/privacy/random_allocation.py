"""Privacy amplification by random allocation, in which each client takes part in one of t Gaussian
releases of an epoch, drawn uniformly and in secret.

One epoch is accounted by two distributions in t dimensions (Feldman and Shenfeld 2025 and 2026,
arXiv 2502.08202 and 2602.17284): P of the output with the client and Q without it, where e_i is the
unit vector of release i:

    P = (1 / t) sum_i Normal(e_i, sigma^2 I)     Q = Normal(0, sigma^2 I)

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
all else, which a permutation into batches of fixed size does not satisfy (docs/accounting.md). The
shuffling theorems to which Corollary F.2 of the banded paper refers are for permutations. They
compare data sets in which one record is replaced, at twice the sensitivity, and give no
amplification below some hundreds of positions. If one order is used for several epochs, it is no
secret after the first.
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

# Probability of the likelihood ratios beyond each end of a grid. Ratios below the grid are rounded
# to 0, and ratios above it to infinity. The probability is negligible beside the smallest delta
# that is allowed, 1e-15.
_TAIL = 1e-25
# Number of grid points per standard deviation of the logarithm of a likelihood ratio.
_POINTS_PER_DEVIATION = 64
# Bound on the relative rounding error of delta per release. The total error is at most this bound
# times the number of releases, and the measured error is 1e-15.
_ROUNDING = 1e-14
# Largest number of positions (releases among which a client is allocated to one) for which epsilon
# is computed. For more positions, epsilon for this number is an upper bound.
_MAX_POSITIONS = 2**16
# float64 cannot hold likelihood ratios beyond exp(700). Where they occur, epsilon is in the
# hundreds anyway, so the bound without amplification is used.
_LARGEST_LOSS = 700.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RatioLaw:
    """The distribution of the likelihood ratio P / Q of outputs with the client (P) and without it
    (Q), on a grid of logarithms. Under Q, the ratio is exp(step * (low + i)) with probability
    `mass[i]`.

    Attributes:
      step: distance of neighbouring grid points.
      low: index of the first grid point.
      mass: probabilities of the grid points, float64 of shape (points,).
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
        """The logarithms of the ratios on the grid, float64 of shape (points,)."""
        return self.step * np.arange(self.low, self.low + len(self.mass))

    @functools.cached_property
    def mass_under_p(self) -> np.ndarray:
        """The probabilities of the grid points under P, float64 of shape (points,)."""
        return self.mass * np.exp(self.losses)

    def deltas(self, epsilon: float) -> tuple[float, float]:
        """Computes delta at an epsilon for removing the client, and delta for adding it."""
        is_high = self.losses > epsilon
        is_low = self.losses < -epsilon
        removal_delta = self.mass_under_p[is_high] @ -np.expm1(epsilon - self.losses[is_high])
        addition_delta = self.mass[is_low] @ -np.expm1(epsilon + self.losses[is_low])
        return float(removal_delta) + self.infinite, float(addition_delta) + self.zero

    def trimmed(self) -> "RatioLaw":
        """Returns the distribution without grid points of negligible probability at both ends.
        Their ratios are rounded to 0 and to infinity.
        """
        num_lowest = int(np.searchsorted(np.cumsum(self.mass), _TAIL))
        highest_start = len(self.mass) - int(
            np.searchsorted(np.cumsum(self.mass_under_p[::-1]), _TAIL)
        )
        removed_indices = np.r_[0:num_lowest, highest_start : len(self.mass)]
        return dataclasses.replace(
            self,
            low=self.low + num_lowest,
            mass=self.mass[num_lowest:highest_start],
            zero=self.zero + float(self.mass[removed_indices].sum()),
            infinite=self.infinite + float(self.mass_under_p[removed_indices].sum()),
        )

    def coarsened(self) -> "RatioLaw":
        """Returns the distribution on every second grid point. The probability of each other point
        is divided among its two neighbours so that the mean stays the same.
        """
        num_padding = 2 - (self.low + len(self.mass)) % 2
        padded_mass = np.concatenate([np.zeros(self.low % 2), self.mass, np.zeros(num_padding)])
        odd_mass = padded_mass[1::2]
        upper_share = 1 / (1 + math.exp(self.step))
        even_mass = np.append(padded_mass[::2], 0.0)
        even_mass[:-1] += (1 - upper_share) * odd_mass
        even_mass[1:] += upper_share * odd_mass
        return dataclasses.replace(self, step=2 * self.step, low=self.low // 2, mass=even_mass)


def gaussian_law(noise_multiplier: float, step: float) -> RatioLaw:
    """Computes the distribution of the likelihood ratio of one Gaussian release, Normal(1, sigma^2)
    against Normal(0, sigma^2), rounded to a grid.
    """
    from scipy import special

    s = 1 / noise_multiplier
    largest_index = math.ceil((s * s / 2 - s * special.ndtri(_TAIL)) / step)
    log_ratios = step * np.arange(-largest_index, largest_index + 1)
    # These are the probabilities, under Q and P, of the intervals between grid points.
    mass_under_q = _interval_probabilities(special.ndtr, log_ratios / s + s / 2)
    mass_under_p = _interval_probabilities(special.ndtr, log_ratios / s - s / 2)
    # The probability of each interval is divided among its two ends, so that the mean ratio of the
    # interval stays the same.
    upper_mass = (mass_under_p * np.exp(-log_ratios[:-1]) - mass_under_q) / math.expm1(step)
    upper_mass = np.clip(upper_mass, 0, mass_under_q)
    grid_mass = np.append(mass_under_q - upper_mass, 0.0)
    grid_mass[1:] += upper_mass
    return RatioLaw(
        step=step, low=-largest_index, mass=grid_mass, zero=2 * _TAIL, infinite=2 * _TAIL
    )


def _interval_probabilities(cdf: Callable[[np.ndarray], np.ndarray], z: np.ndarray) -> np.ndarray:
    """Computes the probabilities of the intervals between consecutive points, for a distribution
    that is symmetric around 0.
    """
    # Above 0, differences of the distribution function are taken in the mirrored lower tail, where
    # they keep their relative accuracy.
    return np.where(z[:-1] > 0, cdf(-z[:-1]) - cdf(-z[1:]), cdf(z[1:]) - cdf(z[:-1]))


def _mean(first: RatioLaw, second: RatioLaw, share: float, step: float) -> RatioLaw:
    """Computes the distribution of a weighted mean (1 - share) M + share M' of two independent
    ratios M and M' on the same grid.

    The result is rounded to a grid with distance `step`, which divides the distance of their grid.
    """
    indices_per_step = round(first.step / step)
    first_mass = first.mass
    second_mass = second.mass
    # All pairs of grid points (i, j) with the same difference j - i have a mean at the same place
    # between two points of the new grid. So they are rounded together.
    index_differences = np.arange(1 - len(first_mass), len(second_mass))
    log_factors = np.log1p(
        share * np.expm1(first.step * (second.low - first.low + index_differences))
    )
    relative_positions = log_factors / step
    lower_indices = np.floor(relative_positions).astype(int)
    upper_shares = np.clip(
        np.expm1(step * (relative_positions - lower_indices)) / math.expm1(step), 0, 1
    )
    first_indices = np.maximum(0, -index_differences)
    end_indices = np.minimum(len(first_mass), len(second_mass) - index_differences)
    lowest_index = int((lower_indices + indices_per_step * first_indices).min())
    mean_mass = np.zeros(
        int((lower_indices + indices_per_step * end_indices).max()) + 2 - lowest_index
    )
    target_indices = lower_indices + indices_per_step * first_indices - lowest_index
    pair_columns = [
        x.tolist()
        for x in (index_differences, first_indices, end_indices, target_indices, upper_shares)
    ]
    for difference, begin, end, start, upper_share in zip(*pair_columns, strict=True):
        pair_mass = first_mass[begin:end] * second_mass[begin + difference : end + difference]
        stop = start + indices_per_step * (end - begin - 1) + 1
        mean_mass[start:stop:indices_per_step] += (1 - upper_share) * pair_mass
        mean_mass[start + 1 : stop + 1 : indices_per_step] += upper_share * pair_mass
    # If one of the two likelihood ratios is 0, their mean is not on the grid, and is rounded to 0
    # or to infinity.
    return RatioLaw(
        step=step,
        low=indices_per_step * first.low + lowest_index,
        mass=mean_mass,
        zero=first.zero + second.zero,
        infinite=(1 - share) * (first.infinite + second.zero)
        + share * (second.infinite + first.zero),
    ).trimmed()


def _product(first: RatioLaw, second: RatioLaw) -> RatioLaw:
    """Computes the distribution of the product of two independent ratios on the same grid."""
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
    """Computes the distribution of the mean or product of `count` independent ratios, by joining
    two halves again and again.

    Args:
      single: distribution of one ratio.
      count: number of ratios.
      join: returns the distribution of the mean or the product. Its arguments are the distributions
        of two halves on the same grid, the share of the second half, and the number of ratios in
        both, which may be fractional. For 3 ratios it joins the distributions of 1 and of 2.
    """
    num_levels = (count - 1).bit_length()
    law_by_size = {1: single}
    for level in range(1, num_levels + 1):
        ratios_per_law = count * 2.0 ** (level - num_levels)
        joined_laws = {}
        for size in {math.floor(ratios_per_law), math.ceil(ratios_per_law)}:
            if size == 1:
                joined_laws[size] = single
                continue
            second_size = size - size // 2
            joined_laws[size] = join(
                law_by_size[size // 2], law_by_size[second_size], second_size / size, ratios_per_law
            )
        law_by_size = joined_laws
    return law_by_size[count]


@functools.lru_cache(maxsize=16)
def allocation_law(noise_multiplier: float, positions: int, epochs: int) -> RatioLaw:
    """Computes the distribution of the likelihood ratio after `epochs` epochs, in each of which a
    client is in one of `positions` releases.
    """
    s = 1 / noise_multiplier

    # The grid of a mean of ratios becomes finer as the mean covers more ratios, because the
    # standard deviation of its logarithm decreases. This deviation is computed as if the mean were
    # lognormal.
    def mean(first: RatioLaw, second: RatioLaw, share: float, count: float) -> RatioLaw:
        log_deviation = math.sqrt(math.log1p(math.expm1(s * s) / count))
        new_step = first.step
        if log_deviation / _POINTS_PER_DEVIATION < 0.6 * new_step:
            new_step = new_step / 2
        return _mean(first, second, share, new_step)

    # The grid of a product of ratios becomes coarser with the number of ratios. Each time that
    # number doubles, the standard deviation of the product's logarithm increases by sqrt(2).
    def product(first: RatioLaw, second: RatioLaw, share: float, count: float) -> RatioLaw:
        product_law = _product(first, second)
        log2_step_growth = math.log2(product_law.step / epoch_law.step)
        is_too_fine = log2_step_growth < 0.5 * math.log2(count) - 0.75
        return product_law.coarsened() if is_too_fine else product_law

    release_law = gaussian_law(noise_multiplier, s / _POINTS_PER_DEVIATION)
    epoch_law = _from_halves(release_law, positions, mean)
    return _from_halves(epoch_law, epochs, product)


@functools.lru_cache(maxsize=4096)
def random_allocation_epsilon(
    noise_multiplier: float, delta: float, *, positions: int, epochs: int = 1
) -> float:
    """Computes an upper bound on epsilon of `epochs` epochs, in each of which a client is in one of
    `positions` Gaussian releases.

    The sampling scheme `BallsInBins` uses this bound too, with one epoch, if the sums of columns of
    its bins are orthogonal and have the same norm.

    Args:
      noise_multiplier: stddev / sensitivity of each release; 0 gives infinity.
      delta: in [1e-15, 1).
      positions: t >= 1, the number of releases among which a client draws one uniformly, anew in
        each epoch and independently of everything else.
      epochs: E >= 1, the number of epochs.

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
    # If amplification is negligible, its gain is smaller than the error of the grid, and the bound
    # without amplification may be the smaller one.
    return min(epsilon, gaussian_epsilon(composed_multiplier, delta))


def random_allocation_curve(
    noise_multiplier: float, *, positions: int, epochs: int = 1
) -> tuple[tuple[float, float], ...]:
    """Computes the privacy curve of random allocation over `epochs` epochs, as pairs (epsilon,
    delta) that are upper bounds.

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
    rounding_factor = 1 + _ROUNDING * t * epochs
    epsilons = epsilons_of_curve(composed_multiplier)
    return tuple((e, min(1.0, max(law.deltas(e)) * rounding_factor)) for e in epsilons)


def _fits_float64(noise_multiplier: float, composed_multiplier: float) -> bool:
    """Returns whether float64 can hold the likelihood ratios of one release and of all epochs."""
    if noise_multiplier == 0:
        return False
    s = 1 / noise_multiplier
    # The grid of one release spans about 22 standard deviations of its privacy loss. Its end must
    # stay below _LARGEST_LOSS.
    if s * s + 22 * s > _LARGEST_LOSS:
        return False
    return loss_scale(composed_multiplier) + 10 / composed_multiplier <= _LARGEST_LOSS


def _least_epsilon(law: RatioLaw, delta: float) -> float:
    """Computes the least epsilon at which the deltas for removing and for adding a client are at
    most `delta`. Rounding never makes it too small.
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
