"""Upper bounds on the importance weight T of b-min-sep sampling, for K patterns of participation
that are drawn together.

T is a product over rounds of a factor z(e, h), times exp(-a) for each participation, where the
number a is called the advance (`fedmf.privacy.sampling.min_sep_losses` defines both). e is the
number of eligible patterns, and h a sum over the ineligible ones. Both follow from the ages of the
patterns: the age is the number of rounds since a pattern last took part, where b means b or more.
There are two bounds:

- By ages: the largest log T up to a round, as a function of the ages, follows from the one of the
  round before by a maximum over all choices of patterns that take part. This is dynamic programming
  in b^K states.
- By credits: a closed form for any K, described at `_credit_bound`.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from fedmf.privacy.losses import MAX_EXPONENT

# The bound by ages is computed for at most _MAX_ORDER participation patterns (sets of a client's
# rounds), and only if its computation, including the search for the advance a (a constant in the
# weight T), takes at most _MAX_WORK numbers.
_MAX_ORDER = 8
_MAX_WORK = 1e9
# Rounds are grouped into blocks, and the factor z of the weight T is computed once for each block.
# The search for the advance (a constant in T) uses _SEARCH_BLOCKS blocks, and the final bound
# _BLOCKS.
_BLOCKS = 64
_SEARCH_BLOCKS = 8
# The advance, a constant in the weight T, is chosen for a bound by credits by a fixed-point
# iteration with at most this many steps.
_CREDIT_STEPS = 8


class FactorBound(NamedTuple):
    """The log of an upper bound on the importance weight T, and the constant in T (the advance a)
    for which it holds.
    """

    log_factor: float
    advance: float


@functools.lru_cache(maxsize=64)
def binomial(K: int, p: float) -> np.ndarray:
    """Returns binomial probabilities as a matrix. Entry [m, e] is the probability that m of e
    patterns take part, each with probability p, for m and e in 0 .. K.
    """
    from scipy import stats

    success_counts = np.arange(K + 1)
    return stats.binom.pmf(success_counts[:, np.newaxis], success_counts, p)


def is_affordable(rounds: int, min_sep: int, order: int) -> bool:
    """Returns whether `bound_by_ages` takes seconds at most, including its search for the
    advance.
    """
    # The search for the constant a in the weight T (the advance) computes about eight bounds, each
    # on a part of the rounds. Computing the factor z for a block takes as long as ten rounds or
    # more.
    num_steps = rounds + 8 * max(_BLOCKS, 2 * min_sep) + 20 * _BLOCKS
    return order <= _MAX_ORDER and (order + 1) * num_steps * float(min_sep) ** order <= _MAX_WORK


def bound_by_ages(products: np.ndarray, min_sep: int, p: float, order: int) -> FactorBound:
    """Computes a bound on the importance weight T from the ages of patterns (the rounds since each
    last took part), with the advance that makes it least.

    log T is a convex function of the advance. The advance is chosen on a subset of the rounds.

    Args:
      products: entry [d, t] is the inner product <c_t, c_(t-d)> / sigma^2 of two columns of the
        encoder, float64 of shape (bands, rounds), none negative.
      min_sep: b >= bands, at least 2.
      p: probability with which an eligible client takes part.
      order: K, the number of patterns.
    """
    from scipy import optimize

    rounds = products.shape[1]
    num_rounds = min(rounds, max(_BLOCKS, 2 * min_sep))
    some_rounds = np.linspace(0, rounds - 1, num_rounds, dtype=int)
    some_products = products[:, some_rounds]

    def log_factor_at(advance: float) -> float:
        return largest_log_factor(
            some_products, min_sep, p, order=order, advance=advance, blocks=_SEARCH_BLOCKS
        )

    search = optimize.minimize_scalar(
        log_factor_at, bounds=(-1.0, 1.0), method="bounded", options={"xatol": 0.01}
    )
    advance = float(search.x)
    log_factor = largest_log_factor(products, min_sep, p, order=order, advance=advance)
    return FactorBound(log_factor, advance)


def largest_log_factor(
    products: np.ndarray,
    min_sep: int,
    probability: float,
    *,
    order: int,
    advance: float,
    blocks: int = _BLOCKS,
) -> float:
    """Computes the bound on the importance weight T from the ages of patterns, for a given advance
    (a constant in T). If there are at most `blocks` rounds, it is the largest log T of any
    patterns.

    Args:
      products: entry [d, t] is the inner product <c_t, c_(t-d)> / sigma^2 of two columns of the
        encoder, float64 of shape (bands, rounds), none negative.
      min_sep: b >= bands, at least 2.
      probability: probability with which an eligible client takes part.
      order: K, the number of patterns.
      advance: a.
      blocks: about the number of blocks of rounds, for each of which z is computed once.
    """
    K = order
    b = min_sep
    n = products.shape[1]
    # Entries are the largest log T so far, where T is the importance weight, for each combination
    # of ages. Index j on axis i means that participation pattern i last took part j + 1 rounds
    # before the current round.
    largest_logs = np.zeros((b,) * K)
    updated_logs = np.empty_like(largest_logs)
    block_size = -(-n // blocks)
    for start in range(0, n, block_size):
        # The factor z of the weight T increases with every inner product of encoder columns. So
        # replacing the products of all rounds of a block by the largest ones can only raise the
        # bound.
        block_products = products[:, start : start + block_size].max(axis=1)
        log_z = _log_z(block_products, b, probability, K, advance)
        for _ in range(start, min(start + block_size, n)):
            largest_logs += log_z
            for axis in range(K):
                logs_by_age = np.moveaxis(largest_logs, axis, 0)
                updated_logs_by_age = np.moveaxis(updated_logs, axis, 0)
                updated_logs_by_age[1:] = logs_by_age[:-1]
                np.maximum(updated_logs_by_age[-1], logs_by_age[-1], out=updated_logs_by_age[-1])
                updated_logs_by_age[0] = logs_by_age[-1] - advance
                largest_logs, updated_logs = updated_logs, largest_logs
    return float(largest_logs.max())


def _log_z(products: np.ndarray, b: int, p: float, K: int, advance: float) -> np.ndarray:
    """Computes log z, where z is the factor of one round in the importance weight T, for all
    combinations of the ages of K patterns, float64 of shape (b, .., b).
    """
    # A participation pattern that is ineligible multiplies exp(h) by this factor, which depends on
    # the pattern's age, the number of rounds since it last took part.
    growth_by_age = np.ones(b)
    growth_by_age[: len(products) - 1] = np.exp(products[1:])
    num_eligible = np.zeros((b,) * K, np.int8)
    growth = np.ones((b,) * K)
    is_eligible = np.arange(b) == b - 1
    for axis in range(K):
        axis_shape = [1] * K
        axis_shape[axis] = b
        num_eligible += is_eligible.reshape(axis_shape)
        growth *= growth_by_age.reshape(axis_shape)
    probabilities = binomial(K, p)
    z = probabilities[0][num_eligible]
    growth_power = np.ones_like(growth)
    for m in range(1, K + 1):
        growth_power *= growth
        term_weights = probabilities[m] * math.exp(m * (m - 1) / 2 * products[0] + m * advance)
        z += term_weights[num_eligible] * growth_power
    return np.log(z, out=z)


def bound_by_credits(
    largest_products: np.ndarray, K: int, *, rounds: int, min_sep: int, p: float
) -> FactorBound:
    """Computes a bound on the importance weight T from credits (bounds on how much one
    participation raises it), with an advance near the sum of the credits.

    Args:
      largest_products: entry d is the largest inner product <c_t, c_(t-d)> / sigma^2 over all
        rounds t, float64 of shape (bands,).
      K: number of patterns.
      rounds, min_sep: n and b.
      p: probability with which an eligible client takes part.
    """
    if K == 1:
        return FactorBound(0.0, 0.0)
    largest_exponent = K * (K - 1) / 2 * largest_products[0]
    largest_exponent += K * (K - 1) * largest_products[1:].max(initial=0)
    if largest_exponent > MAX_EXPONENT:
        return FactorBound(math.inf, 0.0)
    best_bound = FactorBound(math.inf, 0.0)
    advance = 0.0
    for _ in range(_CREDIT_STEPS):
        log_factor, credit = _credit_bound(
            largest_products, K, advance, rounds=rounds, min_sep=min_sep, p=p
        )
        best_bound = min(best_bound, FactorBound(log_factor, advance))
        if not credit < MAX_EXPONENT / K or abs(credit - advance) < 1e-6 * abs(credit):
            break
        advance = max(credit, 0.0)
    return best_bound


def _credit_bound(
    largest_products: np.ndarray, K: int, advance: float, *, rounds: int, min_sep: int, p: float
) -> tuple[float, float]:
    """Computes the bound on the importance weight T from credits, for an advance a. Returns the log
    of the bound, and the sum of the credits d_1, d_2, .. of one participation.

    If s of the patterns took part in the last b - 1 rounds, then e <= K - s, and z grows with e and
    h. Given s, log z is convex in h. So log z less a linear credit is largest where all s took part
    in the same round, j rounds ago. Then h = s X_j, where X_j is the largest inner product of two
    columns j rounds apart. Credits d_j with log z(K - s, s X_j) <= log z(K, 0) + s d_j for all s
    and j therefore give log T <= n log z(K, 0) + the credits of all participations - a times their
    number.
    """
    from scipy import special

    n = rounds
    b = min_sep
    m = np.arange(K + 1)
    s = np.arange(K + 1)
    with np.errstate(divide="ignore"):
        log_weights = (
            np.log(binomial(K, p)) + (m * (m - 1) / 2 * largest_products[0] + advance * m)[:, None]
        )
    log_z_without_credits = float(special.logsumexp(log_weights[:, K]))
    if b == 1:
        return n * log_z_without_credits, 0.0
    # Entry j is X_j, the largest inner product of two encoder columns j rounds apart. It is 0 if j
    # is at least the number of bands.
    product_by_age = np.zeros(b)
    product_by_age[1 : len(largest_products)] = largest_products[1:]
    exponents = m[:, None, None] * s[None, :, None] * product_by_age[None, None, 1:]
    # Entry [s, j - 1] is the log of the weight's factor z in a round, if s of the K patterns took
    # part j rounds ago and the other patterns are eligible.
    log_z = special.logsumexp(log_weights[:, K - s][:, :, None] + exponents, axis=0)
    credit_by_age = ((log_z[1:] - log_z_without_credits) / s[1:, None]).max(axis=0)
    total_credit = float(credit_by_age.sum())
    most_participations = -(-n // b)
    # A participation adds one credit (a bound on how much it raises log z) in each of the next
    # b - 1 rounds. Near the last round it adds only its first credits, which may raise the bound.
    remaining_credits = np.cumsum(credit_by_age[::-1])[::-1]
    excess_of_credits = max(0.0, total_credit - advance) * K * most_participations
    log_factor = (
        n * log_z_without_credits
        + excess_of_credits
        + K * max(0.0, float((-remaining_credits).max()))
    )
    return log_factor, total_credit
