"""Privacy losses of balls in bins, sampled for `fedmf.privacy.loss_samples`."""

import functools
import math

import numpy as np

from fedmf import checks
from fedmf.mechanisms.base import Mechanism
from fedmf.privacy.losses import MAX_EXPONENT, Losses, digest_of

# Relative error up to which the square root of a Gram matrix reproduces it.
_ROOT_TOLERANCE = 1e-8


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
        self.root = _square_root(gram)
        self.digest = digest_of("bins", gram)
        self.work = 2.0 * self.bins

    def sample(
        self, order: int, size: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Samples (log T, L) of `order` patterns.

        The first bin is uniform. Each further one falls into bin k with a probability proportional
        to exp(sum of G[., k] over the earlier ones).
        """
        inner = np.zeros((size, self.bins))
        log_factor = np.zeros(size)
        for pattern_index in range(order):
            if pattern_index == 0:
                bin_indices = rng.integers(self.bins, size=size)
            else:
                cumulative_weights = np.cumsum(np.exp(inner), axis=1)
                total_weight = cumulative_weights[:, -1]
                log_factor += np.log(total_weight / self.bins)
                threshold = (rng.random(size) * total_weight)[:, None]
                bin_indices = (cumulative_weights < threshold).sum(axis=1)
                np.minimum(bin_indices, self.bins - 1, out=bin_indices)
            inner += self.gram[bin_indices]
        inner += rng.standard_normal((size, self.bins)) @ self.root.T
        return log_factor, self.loss(inner)

    def loss(self, inner: np.ndarray) -> np.ndarray:
        """Computes L from <m_j, y> / sigma^2, float64 (size, bins), which it overwrites."""
        inner -= np.diagonal(self.gram) / 2
        largest = inner.max(axis=1)
        inner -= largest[:, None]
        return np.log(np.exp(inner, out=inner).mean(axis=1)) + largest

    def log_factor_bound(self, order: int) -> float:
        """Computes the log of an upper bound on T.

        T is the product over i < K of mean_k exp(sum of i rows of G). By Hölder's inequality a
        factor is largest where the i rows are the same.
        """
        if (order - 1) * self.gram.max() > MAX_EXPONENT:
            return math.inf
        return sum(math.log(np.exp(i * self.gram).mean(axis=1).max()) for i in range(1, order))


def _square_root(gram: np.ndarray) -> np.ndarray:
    """Returns a matrix R with R R^T = gram.

    The root is taken of the correlations, since that of G itself would lose small bins beside large
    ones. A bin without a round is 0, so that G is singular: a Cholesky factor would fail, and a
    banded one would lose the corner of G.

    Raises:
      ValueError: R R^T is not G in float64.
    """
    norms = np.sqrt(np.diagonal(gram))
    divisors = np.where(norms > 0, norms, 1.0)
    values, vectors = np.linalg.eigh(gram / np.outer(divisors, divisors))
    root: np.ndarray = norms[:, None] * vectors * np.sqrt(np.maximum(values, 0))
    error = np.abs(root @ root.T - gram)
    if (error > _ROOT_TOLERANCE * np.outer(norms, norms)).any():
        raise ValueError(
            "the Gram matrix of the bins has no square root in float64: rescale the encoder"
        )
    return root


@functools.lru_cache(maxsize=2)
def bin_gram(mechanism: Mechanism, bins: int) -> np.ndarray:
    """Computes the inner products of the bins' sums of columns of C, float64 (bins, bins)."""
    column = mechanism.toeplitz_coefficients()
    if column is not None:
        return _toeplitz_bin_gram(column, mechanism.rounds, bins)
    C = mechanism.encoder()
    column_sums = np.zeros((len(C), bins))
    for bin_index in range(min(bins, C.shape[1])):
        column_sums[:, bin_index] = C[:, bin_index::bins].sum(axis=1)
    return column_sums.T @ column_sums


def _toeplitz_bin_gram(column: np.ndarray, rounds: int, bins: int) -> np.ndarray:
    """Computes `bin_gram` without the matrix C, from its first column c."""
    checks.fits_in_memory("the sums of columns by bin", (rounds, bins), copies=2)
    # Entry t of bin 0 is the sum over i of c[t - i bins]. Bin j has the same sums j rounds later.
    padded = np.zeros(-(-rounds // bins) * bins)
    padded[: len(column)] = column
    first_sum = np.cumsum(padded.reshape(-1, bins), axis=0).ravel()[:rounds]
    column_sums = np.zeros((rounds, bins))
    for bin_index in range(min(bins, rounds)):
        column_sums[bin_index:, bin_index] = first_sum[: rounds - bin_index]
    return column_sums.T @ column_sums
