"""Epsilon of repeated Gaussian queries on a random sample: what Thm. 4 of the banded paper reduces
a sampled run to (Alg. 7 of the banded paper).

Every value is an upper bound, for the zero-out relation: in a neighbouring data set one client
contributes the zero vector. Zeroing a client out and removing it give the same distributions where
clients are drawn independently (Poisson) and the divisor is fixed, so that the add/remove
accountant speaks of zero-out there.
"""

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedmf import checks
from fedmf.privacy.curves import epsilons_of_curve
from fedmf.privacy.fixed_size import fixed_size_epsilon
from fedmf.privacy.gaussian import (
    MAX_EPSILON,
    MIN_DELTA,
    check_delta,
    check_epsilon,
    gaussian_epsilon,
    loss_scale,
)

if TYPE_CHECKING:
    import dp_accounting

# dp_accounting composes losses by a Fourier transform in float64, whose rounding moves a delta by
# up to 1e-13 either way (2052 releases; docs/accounting.md). It is asked for a smaller delta by ten
# times that, and for none that is not well above.
_COMPOSITION_ERROR, _ERROR_OF_A_COMPOSITION = 1e-12, 5e-16
MIN_COMPOSED_DELTA = 1e-10

# With more noise the loss of one release is nothing beside 1, and dp_accounting says less than is
# true, or fails. Less noise only overstates.
_MOST_NOISE = 1e6

# Renyi orders: dense where guarantees of epsilon 0.1 to 20 have their optimum, sparse beyond.
_ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [2**i for i in range(6, 17)]


@functools.lru_cache(maxsize=4096)
def sampled_gaussian_epsilon(
    noise_multiplier: float, delta: float, *, probability: float, compositions: int
) -> float:
    """Epsilon of `compositions` Gaussian releases, each on a Poisson sample: PLD accounting (banded
    paper, Cor. F.1).

    Args:
      noise_multiplier: of each release, stddev over its sensitivity; 0 gives infinity.
      delta: in [1e-15, 1); below 1e-10, where rounding would count, the result is infinite.
      probability: q in (0, 1], with which each client is in a sample, independently.
      compositions: k >= 1.

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
            f"probability={probability} must be in (0, 1]: it is the chance of one "
            "client to be in a sample"
        )
    if q == 1:
        return gaussian_epsilon(noise_multiplier / math.sqrt(k), delta)
    if noise_multiplier == 0 or delta < MIN_COMPOSED_DELTA:
        return math.inf
    scale = loss_scale(noise_multiplier)
    if scale > MAX_EPSILON:
        return math.inf
    if _total_variation_bound(noise_multiplier, q, k) <= delta:
        return 0.0
    error = max(_COMPOSITION_ERROR, _ERROR_OF_A_COMPOSITION * k)
    if delta < 10 * error:  # which the rounding of so many compositions could take up
        return fixed_size_epsilon(noise_multiplier, delta, probability=q, compositions=k)
    if noise_multiplier > _MOST_NOISE:
        # The Renyi moments of a Poisson sample are those sums with E (R - 1)^j in place of T_j,
        # which is no less.
        by_renyi = fixed_size_epsilon(noise_multiplier, delta, probability=q, compositions=k)
        return min(
            by_renyi, sampled_gaussian_epsilon(_MOST_NOISE, delta, probability=q, compositions=k)
        )
    # dp_accounting rounds losses up, so that a coarse grid can only overstate epsilon: by about k /
    # 16 times the square of interval over the whole loss's deviation. A grid as fine as that asks
    # for takes 1e-5 to 1e-4 of epsilon; a fixed 1e-4 took 30% of small ones and many seconds for
    # large ones. Coarse grids are cheap, so epsilon is found by refining. An epsilon that is
    # nothing beside the loss of one release would take more points than there is memory for: there
    # the last step overstates it, by up to 2e-4 at 2052 releases. Where a client is hardly ever
    # drawn each point costs the same and less depends on it.
    share = min(1e-3, 6e-3 / math.sqrt(k))
    interval = 1e-3 * scale
    finest = 3e-6 if k * q > 100 * delta else 3e-5
    # Else the deltas of neighbouring points are equal but for rounding
    finest = max(finest, 1e-11 * noise_multiplier)
    epsilon = math.inf
    while True:
        found = float(
            _sampled_accountant(noise_multiplier, q, k, interval).get_epsilon(delta - error)
        )
        epsilon = min(epsilon, found)  # of much noise, rounding makes fine grids the worse ones
        wanted = max(share * epsilon, finest * scale)
        if epsilon == 0 or interval <= 2 * wanted:  # a finer grid gives no more
            return epsilon
        if share * epsilon < finest * scale:
            # Of an epsilon that is 0 a coarser grid often says so
            wanted = max(wanted, interval / 16)
        # Powers of two, so that other deltas find the same accountants.
        interval = 2.0 ** math.floor(math.log2(wanted))


@functools.lru_cache(maxsize=256)
def sampled_gaussian_curve(
    noise_multiplier: float, *, probability: float, compositions: int
) -> tuple[tuple[float, float], ...]:
    """(epsilon, delta) of `compositions` Gaussian releases, each on a Poisson sample: upper bounds.

    Args:
      noise_multiplier, probability, compositions: as of `sampled_gaussian_epsilon`, q below 1.

    Returns:
      Pairs of growing epsilon; none where the accountant has no answer.

    >>> curve = sampled_gaussian_curve(1.0, probability=0.1, compositions=1)
    >>> round(curve[0][1], 4)  # 0.1 (2 Phi(1/2) - 1)
    0.0383
    """
    sigma = noise_multiplier
    q = probability
    k = compositions
    if q == 1 or sigma == 0 or loss_scale(sigma) > MAX_EPSILON or sigma > _MOST_NOISE:
        return ()
    error = max(_COMPOSITION_ERROR, _ERROR_OF_A_COMPOSITION * k)
    least = min(1.0, _total_variation_bound(sigma, q, k))
    if least < 1e3 * error:
        return ((0.0, least),)
    epsilons = epsilons_of_curve(sigma / math.sqrt(k))
    interval = 2.0 ** math.floor(math.log2(1e-3 * loss_scale(sigma)))
    best = [1.0] * len(epsilons)
    for _ in range(6):
        # Coarse grids only overstate; a finer one is tried until it gives no more.
        before = best[0]
        try:
            accountant = _sampled_accountant(sigma, q, k, interval)
            found = [float(delta) + error for delta in accountant.get_delta(epsilons)]
        except ValueError:  # "deltas are not in non-increasing order", of losses in the hundreds
            break
        best = [min(pair) for pair in zip(best, found, strict=True)]
        if best[0] > 0.998 * before or interval < 1e-11 * sigma:
            break
        interval /= 4
    best[0] = min(best[0], least)
    return tuple(zip(epsilons, best, strict=True))


def _total_variation_bound(noise_multiplier: float, q: float, k: int) -> float:
    """A bound on delta at epsilon 0.

    A client is drawn at all with probability k q at most, and in one release it shows as the
    Gaussian does. Or by Pinsker's inequality, where the divergence of one release is at most log(1
    + q^2 (exp(s^2) - 1)), that of order 2.
    """
    s = 1 / noise_multiplier
    divergence = k * math.log1p(q * q * math.expm1(s * s)) if s < 1 else math.inf
    return min(k * q * math.erf(s / math.sqrt(8)), math.sqrt(divergence / 2))


@functools.lru_cache(maxsize=16)
def _sampled_accountant(noise_multiplier: float, q: float, k: int, interval: float) -> Any:
    """The composed privacy loss: it takes a second or more, and answers for every delta (group
    privacy asks for many).
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
    """Least noise multiplier of each release, to 1e-5 relative, with which
    `sampled_gaussian_epsilon` is at most epsilon.

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


def least_noise_multiplier(
    epsilon_of: Callable[[float], float],
    epsilon: float,
    *,
    relative: float = 1e-5,
    name: str = "epsilon",
) -> float:
    """The least noise multiplier, to `relative`, that a decreasing `epsilon_of` maps to at most
    `epsilon`. Never too small.

    `name` is what errors call it: of a risk, no noise is claimed to be enough.

    >>> round(least_noise_multiplier(lambda sigma: 3 / sigma, 2.0), 3)
    1.5
    """
    from scipy import optimize

    epsilon = check_epsilon(epsilon)
    upper = 1.0
    while epsilon_of(upper) > epsilon:
        upper *= 2
        if upper > 1e6:
            raise ValueError(
                f"{name}={epsilon} cannot be reached with noise multipliers below 1e6: ask for a "
                f"larger {name}{' or delta' * (name == 'epsilon')}"
            )
    lower = upper / 2
    while (reached := epsilon_of(lower)) <= epsilon:
        if lower < 0.1 and name != "epsilon":
            raise ValueError(
                f"{name}={epsilon} is reached with hardly any noise, because a given client is "
                "hardly ever drawn, and those that are have no protection: ask for an epsilon, or "
                f"for a smaller {name}"
            )
        if lower < 0.1 and reached == 0:
            raise ValueError(
                "delta is at least the probability that a given client is ever drawn, and no noise "
                "at all would do: lower delta below it"
            )
        lower, upper = lower / 2, lower

    def excess(log_sigma: float) -> float:
        return math.log(min(max(epsilon_of(math.exp(log_sigma)), 1e-9), 1e9)) - math.log(epsilon)

    sigma = math.exp(optimize.brentq(excess, math.log(lower), math.log(upper), xtol=relative / 4))
    # The search ends on either side.
    while epsilon_of(sigma) > epsilon:
        sigma *= 1 + relative / 2
    return sigma


def event_rdp_epsilon(event: "dp_accounting.DpEvent", delta: float) -> float:
    """Epsilon of an event by Renyi accounting, for add/remove; infinite without noise."""
    return float(_rdp_accountant(event).get_epsilon(check_delta(delta)))


@functools.lru_cache(maxsize=16)
def _rdp_accountant(event: "dp_accounting.DpEvent") -> Any:
    """The composed Renyi divergences, which answer for every delta."""
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(_ORDERS)
    accountant.compose(event)
    return accountant


def group_epsilon(
    epsilon_at: Callable[[float], float], delta: float, clients: int, *, least: float = MIN_DELTA
) -> float:
    """Epsilon at `delta` for a group of `clients` from that of one client at any delta.

    If one client has (e, d), then g have (g e, d (exp(g e) - 1) / (exp(e) - 1)): Vadhan 2017, Lemma
    2.2. The d is searched for, down to `least`; infinite if none is small enough.

    >>> round(group_epsilon(lambda d: gaussian_epsilon(4.0, d), 1e-6, 2), 2) >= gaussian_epsilon(
    ...     2.0, 1e-6
    ... )
    True
    """
    check_delta(delta)
    if clients == 1:
        return epsilon_at(delta)

    def whole(d: float) -> tuple[float, float]:
        e = epsilon_at(d)
        if e == 0:
            return 0.0, clients * d
        if math.isinf(e) or clients * e > 700:
            return math.inf, math.inf
        return clients * e, d * math.expm1(clients * e) / math.expm1(e)

    if delta / clients < least:
        return math.inf
    low = math.log(least)
    high = math.log(delta / clients)
    best = math.inf
    for _ in range(24):
        middle = (low + high) / 2
        e, d = whole(math.exp(middle))
        if d <= delta:
            best, low = min(best, e), middle
        else:
            high = middle
    return best
