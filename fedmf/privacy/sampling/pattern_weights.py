"""The largest weight of K patterns of b-min-sep sampling that are drawn together, by dynamic
programming over how long each has rested.

`MinSepLosses.sample` draws the patterns round after round. The factor T of what it drew is a
product over rounds of z(e, h), the sum of the weights of the numbers m that may take part, times
exp(-a) for each participation:

    z(e, h) = sum over m of binomial(e, p)(m) exp(m (m - 1) / 2 |c_t|^2 / sigma^2 + m h + m a).

e, how many may take part, and h, a sum over those that rest, follow from the patterns' ages: the
rounds since each last took part, b standing for b or more. So the largest log T up to round t is a
function of the ages then, and that of the next round is the largest over who takes part.
"""

import functools
import math

import numpy as np

# Patterns of one bound, and numbers that the choice of an advance and the bound for it may compute.
_MOST_ORDER, _MOST_WORK = 8, 1e9
# Beyond, exponentials overflow.
MAX_EXPONENT = 600.0


@functools.lru_cache(maxsize=64)
def binomial(K: int, p: float) -> np.ndarray:
    """[m, e]: the chance of m of e, each with probability p."""
    from scipy import stats

    return np.array([[stats.binom.pmf(m, e, p) for e in range(K + 1)] for m in range(K + 1)])


def affordable(rounds: int, min_sep: int, order: int) -> bool:
    """Whether `largest_log_factor` takes seconds at most, with some eight trials of an advance on
    fewer rounds.
    """
    steps = rounds + 8 * max(64, 2 * min_sep) + 20 * 64  # a z of a block costs ten steps and more
    return order <= _MOST_ORDER and (order + 1) * steps * float(min_sep) ** order <= _MOST_WORK


def largest_log_factor(
    products: np.ndarray,
    min_sep: int,
    probability: float,
    *,
    order: int,
    advance: float,
    blocks: int = 64,
) -> float:
    """An upper bound on log T, and log T itself for some patterns where there are at
    most `blocks` rounds.

    Args:
      products: <c_t, c_(t-d)> / sigma^2, float64 (bands, rounds), [d, t], none negative.
      min_sep: b >= bands, at least 2.
      probability: p.
      order: K.
      advance: a.
      blocks: of rounds that share a z, about.
    """
    K, b, n = order, min_sep, products.shape[1]
    # Axis i is pattern i, entry j its age j + 1 before the round.
    largest = np.zeros((b,) * K)
    after, each = np.empty_like(largest), -(-n // blocks)
    for start in range(0, n, each):
        # z grows with every product: those of a block's rounds are replaced by the largest.
        log_z = _log_z(products[:, start : start + each].max(axis=1), b, probability, K, advance)
        for _ in range(start, min(start + each, n)):
            largest += log_z
            for axis in range(K):
                old, new = np.moveaxis(largest, axis, 0), np.moveaxis(after, axis, 0)
                new[1:] = old[:-1]
                np.maximum(new[-1], old[-1], out=new[-1])
                new[0] = old[-1] - advance
                largest, after = after, largest
    return float(largest.max())


def _log_z(products: np.ndarray, b: int, p: float, K: int, advance: float) -> np.ndarray:
    """log z by the ages of K patterns, float64 (b, .., b)."""
    one = np.ones(b)  # exp of a pattern's part of h
    one[: len(products) - 1] = np.exp(products[1:])
    able, growth = np.zeros((b,) * K, np.int8), np.ones((b,) * K)
    for axis in range(K):
        shape = [1] * K
        shape[axis] = b
        able += (np.arange(b) == b - 1).reshape(shape)
        growth *= one.reshape(shape)
    chances = binomial(K, p)
    z, power = chances[0][able], np.ones_like(growth)
    for m in range(1, K + 1):
        power *= growth
        z += (chances[m] * math.exp(m * (m - 1) / 2 * products[0] + m * advance))[able] * power
    return np.log(z, out=z)
