"""Privacy losses of balls in bins and b-min-sep sampling, drawn for `fedmf.privacy.monte_carlo`.

Below, the largest weight of K patterns of b-min-sep sampling that are drawn together, by dynamic
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
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.mechanisms.banded.fit import diagonals_of
from fedmf.mechanisms.banded.recursion import columns_of_rows
from fedmf.mechanisms.base import Mechanism
from fedmf.privacy.monte_carlo import Losses, digest_of
from fedmf.privacy.sampling.cyclic import proven_bands


class BinLosses(Losses):
    """Losses of balls in bins: P = (1/b) sum_j N(m_j, sigma^2 I)
    (Choquette-Choo et al. 2024, arXiv:2410.06266).

    Only u_j = <m_j, y> counts, which is Gaussian in b dimensions with covariance sigma^2 G, G =
    (<m_j, m_k>).

    Args:
      gram: G / sigma^2, float64 (b, b).
    """

    def __init__(self, gram: np.ndarray) -> None:
        self.gram = gram
        self.bins = len(gram)
        # Of the correlations, since the root of G itself would lose small bins beside large ones. A
        # bin without a round is 0. G is singular there: a Cholesky factor would fail, and a banded
        # one would lose the corner of G.
        norms = np.sqrt(np.diagonal(gram))
        values, vectors = np.linalg.eigh(gram / np.outer(*[np.where(norms > 0, norms, 1.0)] * 2))
        self.root = norms[:, None] * vectors * np.sqrt(np.maximum(values, 0))
        if (np.abs(self.root @ self.root.T - gram) > 1e-8 * np.outer(norms, norms)).any():
            raise ValueError(
                "the Gram matrix of the bins has no square root in float64: rescale the encoder"
            )
        self.digest = digest_of("bins", gram)
        self.work = 2.0 * self.bins

    def sample(
        self, order: int, size: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """The first bin is uniform; each other falls into bin k with a probability in proportion to
        exp(sum of G[., k] of those before).
        """
        u = np.zeros((size, self.bins))
        log_factor = np.zeros(size)
        for i in range(order):
            if i == 0:
                bin_ = rng.integers(self.bins, size=size)
            else:
                chances = np.cumsum(np.exp(u), axis=1)
                total = chances[:, -1]
                log_factor += np.log(total / self.bins)
                bin_ = (chances < (rng.random(size) * total)[:, None]).sum(axis=1)
                np.minimum(bin_, self.bins - 1, out=bin_)
            u += self.gram[bin_]
        u += rng.standard_normal((size, self.bins)) @ self.root.T
        return log_factor, self.loss(u)

    def loss(self, inner: np.ndarray) -> np.ndarray:
        """L of <m_j, y> / sigma^2, float64 (size, bins), which it overwrites."""
        inner -= np.diagonal(self.gram) / 2
        largest = inner.max(axis=1)
        inner -= largest[:, None]
        return np.log(np.exp(inner, out=inner).mean(axis=1)) + largest

    def log_factor_bound(self, order: int) -> float:
        """T is the product of mean_k exp(sum of i rows of G) for i < K; by Hölder's inequality i
        times one row is the largest.
        """
        if (order - 1) * self.gram.max() > MAX_EXPONENT:
            return math.inf
        return sum(math.log(np.exp(i * self.gram).mean(axis=1).max()) for i in range(1, order))


class MinSepLosses(Losses):
    """Losses of b-min-sep sampling for an encoder of at most b bands (Dong et
    al. 2026, arXiv:2602.09338).

    With c_i the columns of C and L_i = 0 for i >= n, the log-likelihood ratio follows (Eq. 2)

        L_i = logaddexp(log(1-p) + L_(i+1), log p + (2 <c_i, y> - |c_i|^2) / (2 sigma^2) + L_(i+b)).

    The stationary start averages L_0 .. L_(b-1) with weights 1, p, .., p.

    Args:
      columns: C by columns, float64 (n, bands), [t, j] = C[t + j, t] / sigma.
      min_sep: b >= bands.
      probability: p of a client that may come, in (0, 1].
    """

    def __init__(self, columns: np.ndarray, min_sep: int, probability: float) -> None:
        self.columns = columns
        self.p = probability
        self.rounds, self.bands = columns.shape
        self.b = min_sep
        # products[d, t] = <c_t, c_(t-d)> / sigma^2
        padded = np.hstack([columns, np.zeros_like(columns)])
        self.products = np.zeros((self.bands, self.rounds))
        for d in range(self.bands):
            late = columns[d:]
            self.products[d, d:] = (late * padded[: len(late), d : d + self.bands]).sum(axis=1)
        self.digest = digest_of("min_sep", columns, min_sep, probability)
        self.work = 6.0 * self.rounds
        self.blocks = _blocks(columns)
        self.bounds: dict[int, tuple[float, float]] = {}

    def sample(
        self, order: int, size: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Round after round, m of those e patterns that may take part do, with a probability in
        proportion to

            binomial(e, p)(m) exp(m (m - 1) / 2 |c_t|^2 / sigma^2 + m h + m a).

        h is the sum of <c_t, c_s> / sigma^2 over earlier rounds s, times how many took part in s.
        The advance a makes up for what those m will add to h of the others.
        """
        n = self.rounds
        K = order
        normals = rng.standard_normal((n, size))
        inner = np.zeros((n, size))  # <c_t, y> / sigma^2
        for low, high, end, block in self.blocks:
            inner[low:high] = block.T @ normals[low:end]
        del normals
        log_factor = np.zeros(size)
        if K:
            log_factor += self._draw_patterns(K, inner, rng)
        return log_factor, self.loss(inner)

    def _draw_patterns(self, K: int, inner: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """log T, of patterns whose C x it adds to `inner`."""
        n, size = inner.shape
        b = self.b
        advance = self._best(K)[1]
        mean = np.zeros((n, size))
        total = np.zeros(size)
        taken = np.zeros(
            (n + b, size), np.int8
        )  # [t + b]: how many took part in round t, those before the first round included
        if self.b > 1:
            start = np.full(b, self.p)
            start[0] = 1.0
            for _ in range(K):  # a cool-down of s rounds is left of a participation in round s - b
                rest = rng.choice(b, size=size, p=start / start.sum())
                resting = np.flatnonzero(rest)
                taken[rest[resting], resting] += 1
        able = (K - taken[:b].sum(axis=0)).astype(np.int8)
        log_total = np.zeros(size)
        chunk = np.ones(size)
        for t in range(n):
            able += taken[t]
            weights = self._weights(K, t, advance)[:, able]
            growth = np.exp(mean[t])
            power = growth.copy()
            for m in range(1, K + 1):
                weights[m] *= power
                power *= growth
            np.cumsum(weights, axis=0, out=weights)
            chunk *= weights[-1]
            if t % 16 == 15 or t == n - 1:
                log_total += np.log(chunk)
                chunk[:] = 1.0
            drawn = rng.random(size) * weights[-1]
            some = np.flatnonzero(drawn >= weights[0])
            if len(some):
                m = np.minimum((drawn[some] >= weights[:, some]).sum(axis=0), able[some])
                taken[t + b, some] = m
                able[some] -= m.astype(np.int8)
                total[some] += m
                low, high, shape = self._reach(t)
                mean[low:high, some] += shape[:, None] * m
        inner += mean
        return log_total - advance * total

    def _reach(self, t: int) -> tuple[int, int, np.ndarray]:
        """(low, high, <c_s, c_t> / sigma^2 for low <= s < high)."""
        low = max(0, t - self.bands + 1)
        high = min(self.rounds, t + self.bands)
        before = self.products[t - np.arange(low, t), t]
        after = np.arange(t, high)
        return low, high, np.concatenate([before, self.products[after - t, after]])

    def _weights(self, K: int, t: int, advance: float) -> np.ndarray:
        """[m, e]: weight of m of e, before h."""
        m = np.arange(K + 1)
        return (
            binomial(K, self.p)
            * np.exp(m * (m - 1) / 2 * self.products[0, t] + advance * m)[:, None]
        )

    def loss(self, inner: np.ndarray) -> np.ndarray:
        """L of <c_t, y> / sigma^2, float64 (rounds, size), which it overwrites; by the recursion,
        in ratios and not in their logs.

        A ratio may overflow: L is infinite then. It cannot come back to below exp(300), or be lost
        by underflow, but for a chance of about exp(-385): the mean of each ratio under Q is 1, and
        that of its inverse under P.
        """
        n, size = inner.shape
        ratio = np.ones((n + self.b, size))
        for t in range(n - 1, -1, -1):
            term = np.exp(inner[t] - self.products[0, t] / 2, out=inner[t])
            term *= self.p
            term *= ratio[t + self.b]
            np.multiply(ratio[t + 1], 1 - self.p, out=ratio[t])
            ratio[t] += term
        if self.b > 1:
            return np.log(
                (ratio[0] + self.p * ratio[1 : self.b].sum(axis=0)) / (1 + (self.b - 1) * self.p)
            )
        return np.log(ratio[0])

    def log_factor_bound(self, order: int) -> float:
        """The bound at the advance of the order."""
        return self._best(order)[0] + (1e-6 if order > 1 else 0.0)  # for rounding

    def _best(self, K: int) -> tuple[float, float]:
        """(log of the bound on T, the advance a): the largest T where that can be computed, and
        else the bound of `_bound`.
        """
        if K not in self.bounds:
            found = self._searched(K)
            no_overflow = K * K * self.products.max() <= MAX_EXPONENT
            if min(K, self.b) > 1 and no_overflow and affordable(self.rounds, self.b, K):
                found = min(found, self._largest(K))
            self.bounds[K] = (
                found  # at once: another thread that saw the first would draw with its advance
            )
        return self.bounds[K]

    def _largest(self, K: int) -> tuple[float, float]:
        """(log of the largest T, the advance).

        It is a convex function of the advance, which is chosen for some of the rounds.
        """
        from scipy import optimize

        settings: dict[str, Any] = {"order": K}
        some = self.products[
            :, np.linspace(0, self.rounds - 1, min(self.rounds, max(64, 2 * self.b)), dtype=int)
        ]
        advance = optimize.minimize_scalar(
            lambda a: largest_log_factor(some, self.b, self.p, advance=a, blocks=8, **settings),
            bounds=(-1.0, 1.0),
            method="bounded",
            options={"xatol": 0.01},
        ).x
        return largest_log_factor(
            self.products, self.b, self.p, advance=float(advance), **settings
        ), float(advance)

    def _searched(self, K: int) -> tuple[float, float]:
        if K == 1:
            return 0.0, 0.0
        largest = self.products.max(axis=1)
        if K * (K - 1) / 2 * largest[0] + K * (K - 1) * largest[1:].max(initial=0) > MAX_EXPONENT:
            return math.inf, 0.0
        best = (math.inf, 0.0)
        advance = 0.0
        for _ in range(8):
            bound, credit = self._bound(K, advance, largest)
            best = min(best, (bound, advance))
            if not credit < MAX_EXPONENT / K or abs(credit - advance) < 1e-6 * abs(credit):
                break
            advance = max(credit, 0.0)
        return best

    def _bound(self, K: int, advance: float, largest: np.ndarray) -> tuple[float, float]:
        """(log of an upper bound on T, sum of the credits d_1, d_2, ..) for the advance a.

        T is the product over rounds of z(e, h), the sum of the weights, times exp(-a) for each
        participation. Of the patterns, s took part in the last b - 1 rounds: e <= K - s, and z
        grows with e and h. Given s, log z is convex in h. So log z less a linear credit is largest
        where all s took part in the same round, j rounds ago, with h = s X_j. Credits d_j with log
        z(K - s, s X_j) <= log z(K, 0) + s d_j for all s and j therefore give log T <= n log z(K, 0)
        + the credits of all participations - a times their number.
        """
        from scipy import special

        n = self.rounds
        b = self.b
        m = np.arange(K + 1)
        s = np.arange(K + 1)
        with np.errstate(divide="ignore"):
            log_weights = (
                np.log(binomial(K, self.p)) + (m * (m - 1) / 2 * largest[0] + advance * m)[:, None]
            )
        ages = np.zeros(b)  # X_1, X_2, .., and 0 beyond the bands
        ages[1 : self.bands] = largest[1:]
        exponents = m[:, None, None] * s[None, :, None] * ages[None, None, 1:]
        log_z = special.logsumexp(log_weights[:, K - s][:, :, None] + exponents, axis=0)  # [s, age]
        level = float(special.logsumexp(log_weights[:, K]))
        if b == 1:
            return n * level, 0.0
        credits = ((log_z[1:] - level) / s[1:, None]).max(axis=0)
        most = -(-n // b)
        later = np.cumsum(credits[::-1])[
            ::-1
        ]  # what is left of a participation's credits is negative only near the last round
        excess = max(0.0, float(credits.sum()) - advance) * K * most
        return n * level + excess + K * max(0.0, float((-later).max())), float(credits.sum())


def _blocks(columns: np.ndarray) -> list[tuple[int, int, int, np.ndarray]]:
    """(low, high, end, C[low:end, low:high] / sigma): for C^T z in a few products of matrices."""
    n, bands = columns.shape
    width = max(bands, 32)
    blocks = []
    for low in range(0, n, width):
        high = min(low + width, n)
        end = min(low + width + bands - 1, n)
        block = np.zeros((end - low, high - low))
        for j in range(bands):
            t = np.arange(low, min(high, n - j))
            block[t - low + j, t - low] = columns[t, j]
        blocks.append((low, high, end, block))
    return blocks


@functools.lru_cache(maxsize=2)
def bin_gram(mechanism: Mechanism, bins: int) -> np.ndarray:
    """Inner products of the bins' sums of columns of C, float64 (bins, bins)."""
    column = mechanism.toeplitz_coefficients()
    if column is not None:
        n = mechanism.rounds
        checks.fits_in_memory("the sums of columns by bin", (n, bins), copies=2)
        # Entry t of bin 0 is the sum of the c[t - i bins]; bin j has it j rounds later.
        padded = np.zeros(-(-n // bins) * bins)
        padded[: len(column)] = column
        first_sum = np.cumsum(padded.reshape(-1, bins), axis=0).ravel()[:n]
        sums = np.zeros((n, bins))
        for j in range(min(bins, n)):
            sums[j:, j] = first_sum[: n - j]
        return sums.T @ sums
    C = mechanism.encoder()
    sums = np.zeros((len(C), bins))
    for j in range(min(bins, C.shape[1])):
        sums[:, j] = C[:, j::bins].sum(axis=1)
    return sums.T @ sums


@functools.lru_cache(maxsize=2)
def columns_of(mechanism: Mechanism) -> np.ndarray:
    """C by columns, float64 (n, bands): [t, j] = C[t + j, t]."""
    rows = mechanism.banded_rows()
    if rows is None:
        rows = diagonals_of(mechanism.encoder(), proven_bands(mechanism))
    return columns_of_rows(rows)


# Patterns of one bound, and numbers that the choice of an advance and the bound for it may compute.
_MOST_ORDER, _MOST_WORK = 8, 1e9
# Beyond, exponentials overflow.
MAX_EXPONENT = 600.0


@functools.lru_cache(maxsize=64)
def binomial(K: int, p: float) -> np.ndarray:
    """[m, e]: the chance of m of e, each with probability p."""
    from scipy import stats

    count = np.arange(K + 1)
    return stats.binom.pmf(count[:, np.newaxis], count, p)


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
    K = order
    b = min_sep
    n = products.shape[1]
    # Axis i is pattern i, entry j its age j + 1 before the round.
    largest = np.zeros((b,) * K)
    after = np.empty_like(largest)
    each = -(-n // blocks)
    for start in range(0, n, each):
        # z grows with every product: those of a block's rounds are replaced by the largest.
        log_z = _log_z(products[:, start : start + each].max(axis=1), b, probability, K, advance)
        for _ in range(start, min(start + each, n)):
            largest += log_z
            for axis in range(K):
                old = np.moveaxis(largest, axis, 0)
                new = np.moveaxis(after, axis, 0)
                new[1:] = old[:-1]
                np.maximum(new[-1], old[-1], out=new[-1])
                new[0] = old[-1] - advance
                largest, after = after, largest
    return float(largest.max())


def _log_z(products: np.ndarray, b: int, p: float, K: int, advance: float) -> np.ndarray:
    """log z by the ages of K patterns, float64 (b, .., b)."""
    one = np.ones(b)  # exp of a pattern's part of h
    one[: len(products) - 1] = np.exp(products[1:])
    able = np.zeros((b,) * K, np.int8)
    growth = np.ones((b,) * K)
    for axis in range(K):
        shape = [1] * K
        shape[axis] = b
        able += (np.arange(b) == b - 1).reshape(shape)
        growth *= one.reshape(shape)
    chances = binomial(K, p)
    z = chances[0][able]
    power = np.ones_like(growth)
    for m in range(1, K + 1):
        power *= growth
        z += (chances[m] * math.exp(m * (m - 1) / 2 * products[0] + m * advance))[able] * power
    return np.log(z, out=z)
