"""Privacy amplification by Poisson sampling, that is epsilon of repeated Gaussian queries, each on
a random sample of the clients. Thm. 4 of the banded paper reduces a sampled run to such queries
(Alg. 7 of the banded paper).

Every value is an upper bound for the zero-out relation: in a neighbouring data set one client
contributes the zero vector. Zeroing a client out and removing it give the same distributions if
clients are sampled independently (Poisson) and sums are divided by a constant. So the accountant
for adding or removing a client bounds zero-out too.
"""

import functools
import math
from typing import TYPE_CHECKING

from fedmf import checks
from fedmf.privacy.curves import epsilons_of_curve
from fedmf.privacy.fixed_size import fixed_size_epsilon
from fedmf.privacy.gaussian import MAX_EPSILON, gaussian_epsilon, loss_scale
from fedmf.privacy.noise_search import least_noise_multiplier

if TYPE_CHECKING:
    from dp_accounting import pld

# dp_accounting composes losses by a Fourier transform in float64. Rounding errors change its deltas
# by up to 1e-13 for 2052 releases, measured with q near 1, where the closed form is known. Ten
# times that error is subtracted from the target delta. Targets below MIN_COMPOSED_DELTA are too
# small for this subtraction.
_COMPOSITION_ERROR = 1e-12
_ERROR_PER_COMPOSITION = 5e-16
MIN_COMPOSED_DELTA = 1e-10

# Largest noise multiplier that is passed to dp_accounting. With more noise the privacy loss of one
# release is so small beside 1 that dp_accounting understates epsilon or fails. Accounting for less
# noise than there is can only overstate epsilon.
_MAX_NOISE_MULTIPLIER = 1e6

# Steps of the finest grids to which the accountant rounds privacy losses, in units of the loss of
# one release. The larger step is for clients that are hardly ever sampled, for whom a finer grid
# would take time and change little.
_FINEST_STEP = 3e-6
_FINEST_STEP_OF_RARE_SAMPLES = 3e-5
# Steps of the grid of privacy losses are at least this number times the noise multiplier. With
# smaller steps, the deltas of neighbouring grid points would be equal up to rounding.
_ROUNDING_STEP = 1e-11
# Largest number of grids of privacy losses that are tried for one privacy curve.
_MAX_REFINEMENTS = 6


@functools.lru_cache(maxsize=4096)
def sampled_gaussian_epsilon(
    noise_multiplier: float, delta: float, *, probability: float, compositions: int
) -> float:
    """Computes epsilon of `compositions` Gaussian releases, each on a Poisson sample, by accounting
    with privacy loss distributions (PLD). This is the accounting of the banded paper, Cor. F.1.

    Args:
      noise_multiplier: stddev / sensitivity of each release; 0 gives infinity.
      delta: in [1e-15, 1); below 1e-10, where rounding would matter, the result is infinite.
      probability: q in (0, 1], the probability with which a sample contains each client.
      compositions: k >= 1, the number of releases.

    >>> epsilon = sampled_gaussian_epsilon(
    ...     0.79118 * 6**0.5, 1e-6, probability=9 / 342, compositions=228
    ... )
    >>> round(epsilon, 2)  # banded paper, Table 5
    1.0
    """
    q = float(probability)
    k = checks.integer("compositions", compositions, low=1, hint="count the releases")
    if not 0 < q <= 1:
        raise ValueError(
            f"probability={probability} must be in (0, 1]: it is the probability of one "
            "client to be in a sample"
        )
    if q == 1:
        return gaussian_epsilon(noise_multiplier / math.sqrt(k), delta)
    if noise_multiplier == 0 or delta < MIN_COMPOSED_DELTA:
        return math.inf
    if loss_scale(noise_multiplier) > MAX_EPSILON:
        return math.inf
    if _total_variation_bound(noise_multiplier, q, k) <= delta:
        return 0.0
    rounding_error = _composition_error(k)
    if delta < 10 * rounding_error:
        # With this many compositions, the rounding error of dp_accounting could exceed delta. The
        # bound for samples of fixed size has no error of this kind, and holds for Poisson samples
        # too.
        return fixed_size_epsilon(noise_multiplier, delta, probability=q, compositions=k)
    if noise_multiplier > _MAX_NOISE_MULTIPLIER:
        # The bound of `fixed_size_epsilon` holds for Poisson samples too, because each term of
        # their Renyi moments is at most the corresponding term in the bound for samples of fixed
        # size.
        renyi_epsilon = fixed_size_epsilon(noise_multiplier, delta, probability=q, compositions=k)
        epsilon_with_less_noise = sampled_gaussian_epsilon(
            _MAX_NOISE_MULTIPLIER, delta, probability=q, compositions=k
        )
        return min(renyi_epsilon, epsilon_with_less_noise)
    is_rare = k * q <= 100 * delta
    return _refined_epsilon(noise_multiplier, q, k, delta - rounding_error, is_rare=is_rare)


def _composition_error(compositions: int) -> float:
    """Returns a bound on the rounding error in a delta of dp_accounting, ten times as large as the
    error that was measured.
    """
    return max(_COMPOSITION_ERROR, _ERROR_PER_COMPOSITION * compositions)


def _refined_epsilon(
    noise_multiplier: float, q: float, k: int, delta: float, *, is_rare: bool
) -> float:
    """Computes epsilon on finer and finer grids of losses, until a finer grid gains little.

    dp_accounting rounds losses up to the grid, so that a coarse grid only overstates epsilon: by
    about k / 16 times the square of interval over the deviation of the whole loss. The last grid
    overstates epsilon by 1e-5 to 1e-4, relatively. A constant interval of 1e-4 would overstate
    small epsilons by 30% and take many seconds for large ones. For an epsilon that is negligible
    beside the loss of one release, the finest useful grid would not fit into memory. The last grid
    then overstates it by up to 2e-4 at 2052 releases.
    """
    typical_loss_size = loss_scale(noise_multiplier)
    relative_step = min(1e-3, 6e-3 / math.sqrt(k))
    finest_step = _FINEST_STEP_OF_RARE_SAMPLES if is_rare else _FINEST_STEP
    finest_step = max(finest_step, _ROUNDING_STEP * noise_multiplier)
    finest_grid_step = finest_step * typical_loss_size
    grid_step = 1e-3 * typical_loss_size
    epsilon = math.inf
    while True:
        accountant = _sampled_accountant(noise_multiplier, q, k, grid_step)
        # The smallest epsilon of all grids is used, because with much noise, rounding errors can
        # make the result of a finer grid worse.
        epsilon = min(epsilon, float(accountant.get_epsilon(delta)))
        next_grid_step = max(relative_step * epsilon, finest_grid_step)
        if epsilon == 0 or grid_step <= 2 * next_grid_step:
            return epsilon
        if relative_step * epsilon < finest_grid_step:
            # The grid step decreases by a factor of 16 at most, because a coarse grid often shows
            # already that epsilon is 0.
            next_grid_step = max(next_grid_step, grid_step / 16)
        # The grid steps are powers of two, so that calls with other deltas find their accountants
        # in the cache.
        grid_step = 2.0 ** math.floor(math.log2(next_grid_step))


@functools.lru_cache(maxsize=256)
def sampled_gaussian_curve(
    noise_multiplier: float, *, probability: float, compositions: int
) -> tuple[tuple[float, float], ...]:
    """Computes the privacy curve of `compositions` Gaussian releases, each on a Poisson sample, as
    pairs (epsilon, delta) that are upper bounds.

    Args:
      noise_multiplier, probability, compositions: as in `sampled_gaussian_epsilon`, q below 1.

    Returns:
      Pairs with increasing epsilon; empty if the accountant has no answer.

    >>> curve = sampled_gaussian_curve(1.0, probability=0.1, compositions=1)
    >>> round(curve[0][1], 4)  # 0.1 (2 Phi(1/2) - 1)
    0.0383
    """
    sigma = noise_multiplier
    q = probability
    k = compositions
    if q == 1 or sigma == 0 or loss_scale(sigma) > MAX_EPSILON or sigma > _MAX_NOISE_MULTIPLIER:
        return ()
    rounding_error = _composition_error(k)
    total_variation = min(1.0, _total_variation_bound(sigma, q, k))
    if total_variation < 1e3 * rounding_error:
        return ((0.0, total_variation),)
    epsilons = epsilons_of_curve(sigma / math.sqrt(k))
    grid_step = 2.0 ** math.floor(math.log2(1e-3 * loss_scale(sigma)))
    best_deltas = [1.0] * len(epsilons)
    for _ in range(_MAX_REFINEMENTS):
        # A coarse grid of privacy losses can only overstate delta. So the grid is refined until a
        # finer one lowers delta only a little.
        previous_delta = best_deltas[0]
        try:
            accountant = _sampled_accountant(sigma, q, k, grid_step)
            deltas = [float(delta) + rounding_error for delta in accountant.get_delta(epsilons)]
        except ValueError:
            # For privacy losses in the hundreds, dp_accounting raises "deltas are not in
            # non-increasing order". The deltas of the coarser grids are then the result.
            break
        best_deltas = [min(pair) for pair in zip(best_deltas, deltas, strict=True)]
        if best_deltas[0] > 0.998 * previous_delta or grid_step < _ROUNDING_STEP * sigma:
            break
        grid_step /= 4
    best_deltas[0] = min(best_deltas[0], total_variation)
    return tuple(zip(epsilons, best_deltas, strict=True))


def _total_variation_bound(noise_multiplier: float, q: float, k: int) -> float:
    """Computes an upper bound on delta at epsilon 0, which is the total variation distance.

    The result is the smaller one of two bounds. The union bound: a client is sampled with
    probability k q at most, and one release with the client has the total variation of the
    Gaussian. Pinsker's inequality for the Renyi divergence of order 2, which is at most
    log(1 + q^2 (exp(s^2) - 1)) for one release, where s = 1 / noise_multiplier.
    """
    s = 1 / noise_multiplier
    union_bound = k * q * math.erf(s / math.sqrt(8))
    if s >= 1:
        return union_bound
    renyi_divergence = k * math.log1p(q * q * math.expm1(s * s))
    return min(union_bound, math.sqrt(renyi_divergence / 2))


@functools.lru_cache(maxsize=16)
def _sampled_accountant(
    noise_multiplier: float, q: float, k: int, interval: float
) -> "pld.PLDAccountant":
    """Returns the accountant of k composed releases, which rounds losses to multiples of
    `interval`.

    The composition takes a second or more. After it, the accountant computes epsilon for any delta.
    """
    import dp_accounting
    from dp_accounting import pld

    accountant = pld.PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=interval
    )
    accountant.compose(
        dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(noise_multiplier)), k
    )
    return accountant


def sampled_gaussian_noise_multiplier(
    epsilon: float, delta: float, *, probability: float, compositions: int
) -> float:
    """Computes the least noise multiplier of each release for which `sampled_gaussian_epsilon` is
    at most `epsilon`, with a relative error of 1e-5.

    >>> sigma = sampled_gaussian_noise_multiplier(2.0, 1e-6, probability=18 / 342, compositions=114)
    >>> round(sigma / 6**0.5, 3)  # banded paper, Table 5: 0.64708
    0.647
    """
    return least_noise_multiplier(
        lambda s: sampled_gaussian_epsilon(
            s, delta, probability=probability, compositions=compositions
        ),
        epsilon,
    )
