"""Privacy losses of b-min-sep sampling, from which `fedmf.privacy.loss_samples` draws samples.

`MinSepLosses.sample` draws K patterns of participation together, round after round. In each round
some number m of the e eligible patterns takes part. Their importance weight T is a product over the
rounds of z(e, h), the sum of the weights of all possible m, times exp(-a) for each participation:

    z(e, h) = sum over m of binomial(e, p)(m) exp(m (m - 1) / 2 |c_t|^2 / sigma^2 + m h + m a).

Here c_t is column t of the encoder C, h is a sum over earlier participations of the ineligible
patterns, and a is a constant, the advance. `fedmf.privacy.sampling.min_sep_bound` bounds the
largest T.
"""

import functools
from typing import NamedTuple

import numpy as np

from fedmf.mechanisms.banded.fit import diagonals_of
from fedmf.mechanisms.banded.recursion import columns_of_rows
from fedmf.mechanisms.base import Mechanism
from fedmf.privacy.losses import MAX_EXPONENT, Losses, digest_of
from fedmf.privacy.sampling.encoder_checks import proven_bands
from fedmf.privacy.sampling.min_sep_bound import (
    FactorBound,
    binomial,
    bound_by_ages,
    bound_by_credits,
    is_affordable,
)

# Least number of columns of the encoder C in a block. Smaller blocks would make the products of
# matrices slow.
_MIN_BLOCK_WIDTH = 32
# The weight T is a product of one factor z for each round. To save time, a logarithm is taken of
# the product of this many factors, which cannot overflow.
_ROUNDS_PER_LOG = 16
# This amount is added to each bound on log T, where T is the importance weight of a sample, to
# allow for rounding errors in the computation of the bound.
_BOUND_ROUNDING = 1e-6


class _Block(NamedTuple):
    """Consecutive columns of the encoder divided by sigma, C / sigma, as a dense matrix of the rows
    in which they have entries.
    """

    first_column: int
    end_column: int
    end_row: int
    entries: np.ndarray


class MinSepLosses(Losses):
    """Privacy losses of b-min-sep sampling for an encoder with at most b bands, as in Dong et al.
    2026, arXiv:2602.09338.

    The log-likelihood ratio of an output y follows from a recursion (Eq. 2), where c_i are the
    columns of the encoder C, and L_i = 0 for i >= n:

        L_i = logaddexp(log(1-p) + L_(i+1), log p + (2 <c_i, y> - |c_i|^2) / (2 sigma^2) + L_(i+b)).

    The stationary start averages L_0 .. L_(b-1) with weights 1, p, .., p.

    Args:
      columns: the columns of C / sigma, float64 of shape (n, bands); entry [t, j] is
        C[t + j, t] / sigma.
      min_sep: b >= bands.
      probability: p in (0, 1], with which an eligible client takes part.
    """

    def __init__(self, columns: np.ndarray, min_sep: int, probability: float) -> None:
        self.columns = columns
        self.p = probability
        self.rounds, self.bands = columns.shape
        self.b = min_sep
        self.products = _column_products(columns)
        self.digest = digest_of("min_sep", columns, min_sep, probability)
        self.work = 6.0 * self.rounds
        self._blocks = _blocks(columns)
        self._bound_by_order: dict[int, FactorBound] = {}

    def sample(
        self, order: int, size: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws samples of (log T, L) for `order` patterns that are drawn together, where T is the
        importance weight and L the privacy loss.

        In each round m of the e eligible patterns take part, with a probability proportional to

            binomial(e, p)(m) exp(m (m - 1) / 2 |c_t|^2 / sigma^2 + m h + m a).

        h is the sum of <c_t, c_s> / sigma^2 over earlier rounds s, times the number of patterns
        that took part in s. The m patterns will also raise h in later rounds; the advance a makes
        up for that.
        """
        n = self.rounds
        normal_draws = rng.standard_normal((n, size))
        # Entries are the inner products <c_t, y> / sigma^2, where c_t is column t of the encoder
        # and y the noisy output.
        inner_products = np.zeros((n, size))
        for block in self._blocks:
            normal_rows = normal_draws[block.first_column : block.end_row]
            inner_products[block.first_column : block.end_column] = block.entries.T @ normal_rows
        del normal_draws
        log_factor = np.zeros(size)
        if order:
            log_factor += self._draw_patterns(order, inner_products, rng)
        return log_factor, self.loss(inner_products)

    def _draw_patterns(self, K: int, inner: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draws K participation patterns for each sample, and returns the logs of their importance
        weights T. It adds the patterns' contribution to `inner`: the inner products of the columns
        c_t of the encoder C with C x / sigma^2.
        """
        n, size = inner.shape
        b = self.b
        advance = self._bound(K).advance
        mean_products = np.zeros((n, size))
        num_participations = np.zeros(size)
        # Row t + b has the number of participation patterns that take part in round t. The first b
        # rows are for rounds before the run; a pattern that takes part in one of them is ineligible
        # at the start of the run.
        taking_part = np.zeros((n + b, size), np.int8)
        if b > 1:
            self._draw_earlier_participations(K, taking_part, rng)
        num_eligible = (K - taking_part[:b].sum(axis=0)).astype(np.int8)
        log_factor = np.zeros(size)
        factor_product = np.ones(size)
        for t in range(n):
            num_eligible += taking_part[t]
            pattern_weights = self._weights(K, t, advance)[:, num_eligible]
            growth = np.exp(mean_products[t])
            growth_power = growth.copy()
            for m in range(1, K + 1):
                pattern_weights[m] *= growth_power
                growth_power *= growth
            np.cumsum(pattern_weights, axis=0, out=pattern_weights)
            factor_product *= pattern_weights[-1]
            if t % _ROUNDS_PER_LOG == _ROUNDS_PER_LOG - 1 or t == n - 1:
                log_factor += np.log(factor_product)
                factor_product[:] = 1.0
            threshold = rng.random(size) * pattern_weights[-1]
            active_samples = np.flatnonzero(threshold >= pattern_weights[0])
            if len(active_samples):
                is_above = threshold[active_samples] >= pattern_weights[:, active_samples]
                m = np.minimum(is_above.sum(axis=0), num_eligible[active_samples])
                taking_part[t + b, active_samples] = m
                num_eligible[active_samples] -= m.astype(np.int8)
                num_participations[active_samples] += m
                low, high, products = self._products_around(t)
                mean_products[low:high, active_samples] += products[:, None] * m
        inner += mean_products
        return log_factor - advance * num_participations

    def _draw_earlier_participations(
        self, K: int, taking_part: np.ndarray, rng: np.random.Generator
    ) -> None:
        """Draws, for each of K patterns, whether the client took part shortly before round 0, so
        that it is ineligible in the first rounds.

        The draws follow the stationary state. A participation in round s - b, before the start at
        round 0, leaves s ineligible rounds.
        """
        wait_weights = np.full(self.b, self.p)
        wait_weights[0] = 1.0
        size = taking_part.shape[1]
        for _ in range(K):
            wait_rounds = rng.choice(self.b, size=size, p=wait_weights / wait_weights.sum())
            waiting_samples = np.flatnonzero(wait_rounds)
            taking_part[wait_rounds[waiting_samples], waiting_samples] += 1

    def _products_around(self, t: int) -> tuple[int, int, np.ndarray]:
        """Returns the inner products of column t with all columns that overlap it.

        Returns:
          (low, high, products), where products has <c_s, c_t> / sigma^2 for low <= s < high.
        """
        first_round = max(0, t - self.bands + 1)
        end_round = min(self.rounds, t + self.bands)
        earlier_products = self.products[t - np.arange(first_round, t), t]
        later_rounds = np.arange(t, end_round)
        later_products = self.products[later_rounds - t, later_rounds]
        return first_round, end_round, np.concatenate([earlier_products, later_products])

    def _weights(self, K: int, t: int, advance: float) -> np.ndarray:
        """Returns, as entry [m, e] of a matrix, the weight of the case that m out of e eligible
        patterns take part in round t. They lack the factor exp(m h).
        """
        m = np.arange(K + 1)
        return (
            binomial(K, self.p)
            * np.exp(m * (m - 1) / 2 * self.products[0, t] + advance * m)[:, None]
        )

    def loss(self, inner: np.ndarray) -> np.ndarray:
        """Computes the privacy losses L by the recursion over rounds, on likelihood ratios and not
        on their logs.

        A ratio may overflow, and L is then infinite. Only with probability about exp(-385) would a
        ratio that overflows have come back to below exp(300), or a ratio be lost by underflow,
        because the mean of each ratio under Q is 1, and so is that of its inverse under P.

        Args:
          inner: the inner products <c_t, y> / sigma^2, float64 of shape (rounds, size), which are
            overwritten.
        """
        n, size = inner.shape
        likelihood_ratio = np.ones((n + self.b, size))
        for t in range(n - 1, -1, -1):
            log_likelihood_term = np.exp(inner[t] - self.products[0, t] / 2, out=inner[t])
            log_likelihood_term *= self.p
            log_likelihood_term *= likelihood_ratio[t + self.b]
            np.multiply(likelihood_ratio[t + 1], 1 - self.p, out=likelihood_ratio[t])
            likelihood_ratio[t] += log_likelihood_term
        if self.b == 1:
            return np.log(likelihood_ratio[0])
        stationary_sum = likelihood_ratio[0] + self.p * likelihood_ratio[1 : self.b].sum(axis=0)
        return np.log(stationary_sum / (1 + (self.b - 1) * self.p))

    def log_factor_bound(self, order: int) -> float:
        """Computes the log of an upper bound on the importance weight T of `order` participation
        patterns, for the advance with which `sample` draws them.
        """
        rounding = _BOUND_ROUNDING if order > 1 else 0.0
        return self._bound(order).log_factor + rounding

    def _bound(self, K: int) -> FactorBound:
        """Returns a bound on the importance weight T of K patterns of participation. It is the
        bound by credits or, if it can be computed in time and is smaller, the bound by ages.
        """
        if K not in self._bound_by_order:
            factor_bound = bound_by_credits(
                self.products.max(axis=1), K, rounds=self.rounds, min_sep=self.b, p=self.p
            )
            fits_float64 = K * K * self.products.max() <= MAX_EXPONENT
            if min(K, self.b) > 1 and fits_float64 and is_affordable(self.rounds, self.b, K):
                factor_bound = min(factor_bound, bound_by_ages(self.products, self.b, self.p, K))
            # The bound is stored only when it is final. Otherwise another thread could read a bound
            # that is not final, and draw its samples with another advance (a constant in the
            # importance weight).
            self._bound_by_order[K] = factor_bound
        return self._bound_by_order[K]


def _column_products(columns: np.ndarray) -> np.ndarray:
    """Computes the inner products of columns of C / sigma. Entry [d, t] is <c_t, c_(t-d)> /
    sigma^2, float64 of shape (bands, rounds).
    """
    rounds, bands = columns.shape
    padded_columns = np.hstack([columns, np.zeros_like(columns)])
    inner_products = np.zeros((bands, rounds))
    for d in range(bands):
        later_columns = columns[d:]
        earlier_columns = padded_columns[: len(later_columns), d : d + bands]
        inner_products[d, d:] = (later_columns * earlier_columns).sum(axis=1)
    return inner_products


def _blocks(columns: np.ndarray) -> list[_Block]:
    """Splits C / sigma, where C is the encoder, into blocks of columns, so that the product of its
    transpose with a matrix takes a few products of dense matrices.
    """
    n, bands = columns.shape
    block_width = max(bands, _MIN_BLOCK_WIDTH)
    blocks = []
    for first_column in range(0, n, block_width):
        end_column = min(first_column + block_width, n)
        end_row = min(first_column + block_width + bands - 1, n)
        block_entries = np.zeros((end_row - first_column, end_column - first_column))
        for j in range(bands):
            t = np.arange(first_column, min(end_column, n - j))
            block_entries[t - first_column + j, t - first_column] = columns[t, j]
        blocks.append(_Block(first_column, end_column, end_row, block_entries))
    return blocks


@functools.lru_cache(maxsize=2)
def columns_of(mechanism: Mechanism) -> np.ndarray:
    """Returns the columns of the encoder C as float64 of shape (n, bands). Entry [t, j] is C[t + j,
    t].
    """
    banded_rows = mechanism.banded_rows()
    if banded_rows is None:
        banded_rows = diagonals_of(mechanism.encoder(), proven_bands(mechanism))
    return columns_of_rows(banded_rows)
