"""Scores by which an attacker guesses from the releases which canaries were included."""

from collections.abc import Callable

import numpy as np

from fedmf import checks
from fedmf.audits.whitening import causal_factor
from fedmf.mechanisms.base import Mechanism

# Largest number of entries, over several columns, that one convolution filters.
_MAX_FILTERED_ENTRIES = 2**20


def release_scores(
    mechanism: Mechanism, rounds: np.ndarray, projections: np.ndarray, clip_norm: float
) -> np.ndarray:
    """Returns the log-likelihood ratio of "included" to "not included" for each canary.

    The ratios are right up to a positive factor. The noise matrix N is C^-1, or a pseudoinverse.
    Column j of x has the contributions of canary j to the rounds, and y_j the releases along it.

    In coordinates in which the noise is white according to the mechanism, N N^T = L L^T, an
    included canary j adds a_j = L^-1 x_j, and <a_j, S^-1 (L^-1 y_j - a_j / 2)> is its
    log-likelihood ratio for noise of covariance S. The claim is that S is the identity. S is
    estimated from the projections here, with shrinkage towards the identity for few canaries, so
    that noise with another covariance than claimed makes the scores more accurate.

    Args:
      mechanism: with N, (n, m).
      rounds: bool (n, canaries), the rounds in which each canary took part.
      projections: float64 (n, canaries), the released sum of each round along the direction of each
        canary.
      clip_norm: norm of a canary's update.

    Raises:
      ValueError: N would have to be formed, and does not fit into memory.
    """
    whiten_columns = _whitener(mechanism)
    whitened_signals = clip_norm * whiten_columns(rounds.astype(np.float64))
    whitened_releases = whiten_columns(projections)
    return (
        whitened_signals
        * _solve_covariance(whitened_releases, whitened_releases - whitened_signals / 2)
    ).sum(axis=0)


def _whitener(mechanism: Mechanism) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function that makes columns of correlated noise independent.

    It multiplies them by L^-1, where L L^T = N N^T for the noise matrix N. For Toeplitz and banded
    mechanisms the function multiplies by the encoder C, since L then equals N = C^-1 up to the
    signs of its columns. For trees L^-1 has a recurrence.
    """
    import scipy.linalg
    import scipy.signal

    n = mechanism.rounds
    coefficients = mechanism.toeplitz_coefficients()
    banded_rows = mechanism.banded_rows()
    if coefficients is not None:

        def filtered(columns: np.ndarray) -> np.ndarray:
            """Multiplies columns by the encoder C, in batches that fit into memory."""
            batch_width = max(1, _MAX_FILTERED_ENTRIES // n)
            batch_starts = range(0, columns.shape[1], batch_width)
            column_batches = [columns[:, start : start + batch_width] for start in batch_starts]
            filtered_batches = [
                scipy.signal.oaconvolve(coefficients[:, None], batch, axes=0)
                for batch in column_batches
            ]
            return np.hstack([product[:n] for product in filtered_batches])

        return filtered
    if banded_rows is not None:
        return lambda columns: checks.banded_times(banded_rows, columns)
    trees = mechanism.binary_trees()
    if trees is not None:
        return trees.draws_of
    # Memory is needed for the noise matrix N, which may have twice as many columns as rounds, for
    # its QR factors, and for the causal factor L.
    memory_hint = "audit the canaries of a run with fewer rounds"
    checks.fits_in_memory("the audit of these canaries", (n, n), copies=6, hint=memory_hint)
    L = causal_factor(mechanism.noising())
    return lambda columns: scipy.linalg.solve_triangular(L, columns, lower=True, check_finite=False)


def _solve_covariance(y: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Returns S^-1 times the columns, where S is an estimate of the covariance of y.

    The estimate is S = y y^T / m + c I for the m columns of y. The shrinkage c is the sum of
    squares of y divided by m^2. By the Woodbury identity the matrix that is inverted has the
    smaller dimension of y.
    """
    import scipy.linalg

    n, m = y.shape
    shrinkage = float(np.square(y).sum()) / m**2 or 1.0
    if n <= m:
        S = y @ y.T / m + shrinkage * np.eye(n)
        return scipy.linalg.solve(S, columns, assume_a="pos")
    inner_matrix = y.T @ y + m * shrinkage * np.eye(m)
    return (
        columns - y @ scipy.linalg.solve(inner_matrix, y.T @ columns, assume_a="pos")
    ) / shrinkage
