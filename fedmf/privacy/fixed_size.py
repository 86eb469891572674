"""Privacy amplification by samples of fixed size, where epsilon of repeated Gaussian queries is
computed by Renyi accounting (Wang, Balle and Kasiviswanathan 2019, Theorem 27).

Each query sums a uniform subset of exactly B of m clients. Two data sets differ in one client, and
their outputs have the distributions P and Q. A share q = B / m of the subsets contains the client.
For integer orders alpha the theorem bounds the Renyi divergence D_alpha:

    (alpha - 1) D_alpha(P, Q) <= log A
    A = 1 + sum over j = 2 .. alpha of binomial(alpha, j) q^j T_j,

    T_j = min(4 E |R - 1|^j, 2 E R^j),    R = exp(N(-s^2 / 2, s^2)),    s = sensitivity / stddev.

R is the ratio of two Gaussian densities that are one sensitivity apart. So E R^j = exp(j (j - 1)
s^2 / 2). An odd moment of |R - 1| is bounded by the geometric mean of its even neighbours.

All terms are bounded from above. |R - 1|^j decreases up to R = 1 and increases beyond, so in a cell
of a grid it is at most its value at one of the cell's ends. Terms up to j = 64 are summed one by
one. For orders above 64, the further terms are computed as one expectation, with x = q |R - 1|:

    sum over j > 64 of binomial(alpha, j) q^j 4 E |R - 1|^j = 4 E h(x)
    h(x) <= min((1 + x)^alpha, geometric series).

Only positive terms are added, as logarithms, so arbitrarily large orders can be computed. A small
epsilon needs large orders: the best one is about 2 log(1 / delta) / epsilon. (dp_accounting 0.4.3
subtracts terms that are nearly equal, and its bounds are far too large from orders 64 to 256 on.)
"""

import functools
import math

import numpy as np

from fedmf import checks
from fedmf.privacy.gaussian import check_delta, gaussian_epsilon

# In the theorem's sum, the terms with j <= 64 are computed one by one, and the later terms are
# bounded together. All whole Renyi orders below 64 are tried.
_TERMS = 64
# Above `_TERMS`, each Renyi order that is tried is this many times the previous one. An order half
# a step away from the best one makes epsilon 0.02% too large.
_ORDER_RATIO = 2.0**0.0625
# Expectations over a standard normal variable are computed on a grid of cells. Up to `_NEAR_END`
# the cells have the same width; from there to `_FAR_END`, cell ends grow by the factor
# `_FAR_RATIO`.
_CELLS_PER_DEVIATION = 256
_NEAR_END = 20.0
_FAR_RATIO = 1.005
_FAR_END = 1e9
# Larger exponents overflow in float64. Bounds that would need them are useless, so they become
# infinite.
_MAX_EXPONENT = 700.0
# Least value of 1 / noise_multiplier that is used, because the square of a smaller one may become 0
# in float64.
_MIN_INVERSE = 1e-100


@functools.lru_cache(maxsize=4096)
def fixed_size_epsilon(
    noise_multiplier: float, delta: float, *, probability: float, compositions: int
) -> float:
    """Computes an upper bound on epsilon, for the replacement of one client, of `compositions`
    Gaussian releases, each on a new uniform subset of fixed size.

    Args:
      noise_multiplier: stddev of each release, divided by the largest distance of two clients'
        contributions; 0 gives infinity.
      delta: in [1e-15, 1).
      probability: q in (0, 1], the size of a sample over the population.
      compositions: k >= 1, the number of releases.

    >>> round(fixed_size_epsilon(50.0, 1e-6, probability=0.01, compositions=100), 4)
    0.0144
    """
    k = checks.integer("compositions", compositions, low=1, hint="count the releases")
    delta = check_delta(delta)
    q = float(probability)
    if not 0 < q <= 1:
        raise ValueError(
            f"probability={probability} must be in (0, 1]: it is the share of "
            "the clients in a sample"
        )
    if q == 1:
        return gaussian_epsilon(noise_multiplier / math.sqrt(k), delta)
    if noise_multiplier * noise_multiplier * _MAX_EXPONENT <= 1:
        return math.inf
    s = max(1 / noise_multiplier, _MIN_INVERSE)
    # Epsilon is 0 if delta is at least the total variation distance. By the inequality of
    # Bretagnolle and Huber this distance is at most sqrt(1 - exp(-D)), where D is the Renyi
    # divergence of order 2.
    if k * _log_sum(s, q, 2) <= -math.log1p(-delta * delta):
        return 0.0

    def epsilon_of_order(order: int) -> float:
        # The conversion of a Renyi divergence to epsilon is that of Canonne, Kamath and Steinke
        # 2020, Proposition 12.
        return (
            k * _log_sum(s, q, order) / (order - 1)
            + math.log1p(-1 / order)
            - math.log(delta * order) / (order - 1)
        )

    def epsilon_of_large_order(i: int) -> float:
        return epsilon_of_order(round(_TERMS * _ORDER_RATIO**i))

    def decreases_at(i: int) -> bool:
        return epsilon_of_large_order(i + 1) < epsilon_of_large_order(i)

    # As a function of the Renyi order, epsilon first decreases and then increases. So the order
    # with the smallest epsilon can be found by bisection.
    low_index = 0
    high_index = 1
    while decreases_at(high_index):
        low_index = high_index
        high_index = 2 * high_index
    while high_index - low_index > 1:
        middle_index = (low_index + high_index) // 2
        if decreases_at(middle_index):
            low_index = middle_index
        else:
            high_index = middle_index
    epsilons = [epsilon_of_order(order) for order in range(2, _TERMS)]
    return max(
        0.0, min(epsilon_of_large_order(low_index), epsilon_of_large_order(high_index), *epsilons)
    )


@functools.lru_cache(maxsize=1)
def _cells() -> tuple[np.ndarray, np.ndarray]:
    """Returns the grid of cells for a standard normal variable.

    Returns:
      The ends of the cells, and upper bounds on the logs of the cells' probabilities. The second
      array has two more entries at its end, for the probabilities below the first end and above the
      last one.
    """
    from scipy import special

    num_near = _NEAR_END * _CELLS_PER_DEVIATION
    near_ends = np.arange(-num_near, num_near + 1) / _CELLS_PER_DEVIATION
    num_far = math.ceil(math.log(_FAR_END / _NEAR_END, _FAR_RATIO))
    far_ends = _NEAR_END * _FAR_RATIO ** np.arange(1, num_far)
    cell_ends = np.concatenate([-far_ends[::-1], near_ends, far_ends])
    distance_to_zero = np.minimum(np.abs(cell_ends[:-1]), np.abs(cell_ends[1:]))
    tail_probability = special.ndtr(-np.abs(cell_ends))
    with np.errstate(divide="ignore"):
        log_difference = np.log(np.abs(np.diff(tail_probability)))
        log_mass = np.where(
            distance_to_zero < _NEAR_END, log_difference, special.log_ndtr(-distance_to_zero)
        )
    return cell_ends, np.concatenate([log_mass, special.log_ndtr([cell_ends[0], -cell_ends[-1]])])


def _log_distance(s: float) -> np.ndarray:
    """Computes log |R - 1| at the ends of the cells, where R is the ratio of two Gaussian densities
    at distance s.
    """
    log_ratio = s * _cells()[0] - s * s / 2
    with np.errstate(divide="ignore"):
        return np.maximum(log_ratio, 0) + np.log(-np.expm1(-np.abs(log_ratio)))


def _log_expectation(
    log_values: np.ndarray, log_at_zero: np.ndarray | float, log_beyond: np.ndarray | float
) -> np.ndarray:
    """Computes the log of an upper bound on the expectation of a positive function of the ratio R.

    Args:
      log_values: logs of the function at the ends of the cells, float64 of shape (.., ends); the
        function decreases up to R = 1 and increases beyond.
      log_at_zero: log of the function at R = 0.
      log_beyond: log of a bound on the part of the expectation beyond the last end.
    """
    from scipy import special

    _, log_mass = _cells()
    log_inside = np.maximum(log_values[..., :-1], log_values[..., 1:]) + log_mass[:-2]
    log_outside = np.stack(np.broadcast_arrays(log_at_zero + log_mass[-2], log_beyond), axis=-1)
    return special.logsumexp(np.concatenate([log_inside, log_outside], axis=-1), axis=-1)


def _log_power(s: float, j: np.ndarray | float) -> np.ndarray | float:
    """Computes the log of the moment E R^j of the ratio R."""
    return j * (j - 1) / 2 * s * s


def _log_power_beyond(s: float, j: np.ndarray | float) -> np.ndarray | float:
    """Computes the log of the part of the moment E R^j that lies beyond the last cell, where R is
    the ratio of two Gaussian densities.
    """
    from scipy import special

    return _log_power(s, j) + special.log_ndtr(j * s - _cells()[0][-1])


@functools.lru_cache(maxsize=16)
def _log_terms(s: float) -> np.ndarray:
    """Computes the logs of the factors T_j of the theorem for j from 2 to 64, float64 of shape
    (63,).
    """
    j = np.arange(2.0, _TERMS + 1)
    even_powers = j[::2]
    log_moments = _log_expectation(
        even_powers[:, None] * _log_distance(s), 0.0, _log_power_beyond(s, even_powers)
    )
    log_moments[0] = math.log(math.expm1(s * s))
    log_odd_moments = (log_moments[:-1] + log_moments[1:]) / 2
    log_moments = np.append(np.stack([log_moments[:-1], log_odd_moments], axis=1), log_moments[-1])
    return np.minimum(math.log(4) + log_moments, math.log(2) + _log_power(s, j))


@functools.lru_cache(maxsize=4096)
def _log_sum(s: float, q: float, order: int) -> float:
    """Computes the log of the sum A in the theorem's bound on the Renyi divergence of an order."""
    from scipy import special

    a = float(order)
    j = np.arange(2.0, min(order, _TERMS) + 1)
    log_terms = _log_binomial(a, len(j) + 1) + j * math.log(q) + _log_terms(s)[: len(j)]
    if order > _TERMS:
        log_terms = np.append(log_terms, math.log(4) + _log_rest(s, q, a))
    return float(np.logaddexp(0, special.logsumexp(log_terms)))


def _log_binomial(a: float, largest: int) -> np.ndarray:
    """Computes the logs of the binomial coefficients (a over j) for j from 2 to `largest`."""
    i = np.arange(largest)
    return np.cumsum(np.log(a - i) - np.log1p(i))[1:]


def _log_rest(s: float, q: float, a: float) -> float:
    """Computes the log of E h(q |R - 1|), which bounds the terms of the sum A beyond j = 64."""
    J = _TERMS + 1
    log_x = math.log(q) + _log_distance(s)
    # There are two bounds on the sum of the terms beyond J, of which the smaller one is used. If
    # term_ratio, an upper bound on the ratio of successive terms, is below 1, the sum is at most a
    # geometric series. In any case it is at most (1 + x)^a. The limit of 30 avoids overflow.
    term_ratio = (a - J) / (J + 1) * np.exp(np.minimum(log_x, 30.0))
    with np.errstate(divide="ignore"):
        log_series = _log_binomial(a, J)[-1] + J * log_x - np.log(np.maximum(1 - term_ratio, 0))
    log_h = np.minimum(log_series, a * np.logaddexp(0, log_x))
    log_beyond = np.logaddexp(_cells()[1][-1], math.log(q) + _log_power_beyond(s, a))
    return float(_log_expectation(log_h, a * math.log1p(q), log_beyond))
