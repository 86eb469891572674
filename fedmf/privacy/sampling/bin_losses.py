"""Privacy losses of the sampling scheme "balls in bins", from which `fedmf.privacy.loss_samples`
draws samples.
"""

import functools
import math

import numpy as np

from fedmf import checks
from fedmf.mechanisms.base import Mechanism
from fedmf.privacy.losses import MAX_EXPONENT, Losses, digest_of

# Largest accepted relative difference between a Gram matrix and the square of its computed root.
_ROOT_TOLERANCE = 1e-8


class BinLosses(Losses):
    """Privacy losses of a client that draws one of b bins, as in Choquette-Choo et al. 2024,
    arXiv:2410.06266.

    The output y has the distribution P = (1/b) sum_j N(m_j, sigma^2 I) with the client, where m_j
    is the sum of the columns of the encoder C that belong to the rounds of bin j, and Q = N(0,
    sigma^2 I) without it. The loss depends on y only through the b numbers <m_j, y>. They are
    Gaussian with covariance sigma^2 G, where G has the entries <m_j, m_k>.

    Args:
      gram: G / sigma^2, float64 array of shape (b, b).
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
        """Samples pairs (log T, L) for `order` bins that are drawn together, where T is the weight
        and L the privacy loss, as defined in `fedmf.privacy.loss_samples`.

        The first bin is uniform. Each further draw is bin k with a probability proportional to
        exp(sum of gram[j, k] over the bins j that were drawn before).
        """
        inner_products = np.zeros((size, self.bins))
        log_factor = np.zeros(size)
        for pattern_index in range(order):
            if pattern_index == 0:
                bin_indices = rng.integers(self.bins, size=size)
            else:
                cumulative_weights = np.cumsum(np.exp(inner_products), axis=1)
                total_weight = cumulative_weights[:, -1]
                log_factor += np.log(total_weight / self.bins)
                threshold = (rng.random(size) * total_weight)[:, None]
                bin_indices = (cumulative_weights < threshold).sum(axis=1)
                np.minimum(bin_indices, self.bins - 1, out=bin_indices)
            inner_products += self.gram[bin_indices]
        inner_products += rng.standard_normal((size, self.bins)) @ self.root.T
        return log_factor, self.loss(inner_products)

    def loss(self, inner: np.ndarray) -> np.ndarray:
        """Computes the privacy losses L from the inner products <m_j, y> / sigma^2, a float64 array
        of shape (size, bins), which it overwrites.
        """
        inner -= np.diagonal(self.gram) / 2
        largest_products = inner.max(axis=1)
        inner -= largest_products[:, None]
        return np.log(np.exp(inner, out=inner).mean(axis=1)) + largest_products

    def log_factor_bound(self, order: int) -> float:
        """Computes the log of an upper bound on the importance weight T of K = `order` bins.

        T is the product over i < K of mean_k exp(sum of i rows of gram). By Hölder's inequality a
        factor is largest where the i rows are the same. The result is infinite if it would
        overflow.
        """
        if (order - 1) * self.gram.max() > MAX_EXPONENT:
            return math.inf
        return sum(math.log(np.exp(i * self.gram).mean(axis=1).max()) for i in range(1, order))


def _square_root(gram: np.ndarray) -> np.ndarray:
    """Returns a matrix R with R R^T = `gram`.

    Rows and columns are first scaled to diagonal 1, since a root of the matrix itself would lose
    small bins beside large ones. A bin without a round has zeros in the matrix, which is then
    singular: a Cholesky factor would fail, and a banded one would lose the matrix' corner.

    Raises:
      ValueError: R R^T differs from the matrix in float64.
    """
    row_norms = np.sqrt(np.diagonal(gram))
    divisors = np.where(row_norms > 0, row_norms, 1.0)
    values, vectors = np.linalg.eigh(gram / np.outer(divisors, divisors))
    root: np.ndarray = row_norms[:, None] * vectors * np.sqrt(np.maximum(values, 0))
    root_error = np.abs(root @ root.T - gram)
    if (root_error > _ROOT_TOLERANCE * np.outer(row_norms, row_norms)).any():
        raise ValueError(
            "the Gram matrix of the bins has no square root in float64: rescale the encoder"
        )
    return root


@functools.lru_cache(maxsize=2)
def bin_gram(mechanism: Mechanism, bins: int) -> np.ndarray:
    """Computes the matrix of inner products of the bins, as float64 of shape (bins, bins). A bin is
    represented by the sum of the columns of the encoder C for its rounds.
    """
    toeplitz_column = mechanism.toeplitz_coefficients()
    if toeplitz_column is not None:
        return _toeplitz_bin_gram(toeplitz_column, mechanism.rounds, bins)
    C = mechanism.encoder()
    column_sums = np.zeros((len(C), bins))
    for bin_index in range(min(bins, C.shape[1])):
        column_sums[:, bin_index] = C[:, bin_index::bins].sum(axis=1)
    return column_sums.T @ column_sums


def _toeplitz_bin_gram(column: np.ndarray, rounds: int, bins: int) -> np.ndarray:
    """Computes the result of `bin_gram` for a Toeplitz encoder from its first column c, without
    making the dense matrix.
    """
    checks.fits_in_memory("the sums of columns by bin", (rounds, bins), copies=2)
    # Entry t of the sum of bin 0 is the sum over i of c[t - i bins]. The sum of bin j has the same
    # entries, shifted by j rounds.
    padded_coefficients = np.zeros(-(-rounds // bins) * bins)
    padded_coefficients[: len(column)] = column
    sum_of_bin_0 = np.cumsum(padded_coefficients.reshape(-1, bins), axis=0).ravel()[:rounds]
    column_sums = np.zeros((rounds, bins))
    for bin_index in range(min(bins, rounds)):
        column_sums[bin_index:, bin_index] = sum_of_bin_0[: rounds - bin_index]
    return column_sums.T @ column_sums
