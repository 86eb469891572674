"""The sensitivity of any matrix C to one client, whose rounds are one of the sets that a schema
allows.
"""

from typing import NamedTuple

import numpy as np

from fedmf import checks
from fedmf.participation.sharpening import (
    ROUNDING,
    Sensitivity,
    from_squared,
    largest_eigenvalue,
    largest_sharpened,
)

_MAX_ROWS_AT_ONCE = 512


class RoundSets(NamedTuple):
    """The sets of rounds that one client may take part in.

    Attributes:
      rounds: length of the run.
      min_sep: smallest difference between two rounds of a set.
      max_participations: largest number of rounds of a set.
      are_windows: whether consecutive rounds are exactly min_sep apart; otherwise all sets within
        the limits are allowed.
    """

    rounds: int
    min_sep: int
    max_participations: int
    are_windows: bool


def of_matrix(C: np.ndarray, sets: RoundSets) -> Sensitivity:
    """Returns the sensitivity of any encoder C, which has the shape (m, rounds), to one client."""
    b = sets.min_sep
    k = sets.max_participations
    if k > 1 and sets.are_windows:
        return _window_sensitivity(C, b, k)
    if k == 1 or _are_separated_columns_disjoint(C, b):
        return of_disjoint_columns(np.einsum("ij,ij->j", C, C), sets)
    return _separated_sensitivity(C, b, k)


def of_disjoint_columns(squared_norms: np.ndarray, sets: RoundSets) -> Sensitivity:
    """Returns the sensitivity of an encoder in which no row is non-zero in two columns of the same
    client.

    Args:
      squared_norms: squared norms of the columns, (rounds,).
      sets: rounds of one client.
    """
    b = sets.min_sep
    k = sets.max_participations
    if k == 1:
        # If each client takes part only once, the sensitivity is the largest column norm of the
        # encoder.
        return from_squared(
            squared_norms.max(),
            True,
            "largest column norm of the encoder (multi-epoch paper, Sec. 2): exact",
        )
    if sets.are_windows:
        window_sums = np.zeros(max(len(squared_norms) - (k - 1) * b, b))
        for first in range(0, k * b, b):
            shifted_norms = squared_norms[first : first + len(window_sums)]
            window_sums[: len(shifted_norms)] += shifted_norms
        return from_squared(
            window_sums.max(),
            True,
            "sum of X over a client's rounds (multi-epoch paper, Eq. 3): exact",
        )
    squared_sensitivity = _largest_separated_sums(squared_norms[None, :], b, k)[0]
    return from_squared(
        squared_sensitivity,
        True,
        "Alg. 5 of the banded paper (Thm. 2): exact, X has at most min_sep bands",
    )


def _are_separated_columns_disjoint(C: np.ndarray, b: int) -> bool:
    """Returns whether columns of C that are b or more rounds apart never have a non-zero entry in
    the same row. The entries of X = C^T C for these columns are then 0.

    The test compares with exact zeros, since a tolerance would drop small entries of X, and the
    noise would be too small.
    """
    n = C.shape[1]
    if b >= n:
        return True
    is_nonzero = C != 0.0
    has_nonzero = is_nonzero.any(axis=0)
    first_rows = np.where(has_nonzero, is_nonzero.argmax(axis=0), C.shape[0])
    last_rows = np.where(has_nonzero, C.shape[0] - 1 - is_nonzero[::-1].argmax(axis=0), -1)
    first_rows_from = np.minimum.accumulate(first_rows[::-1])[::-1]
    if (last_rows[:-b] < first_rows_from[b:]).all():
        return True
    # This product counts the rows in which both of two columns have nonzero entries. The counts are
    # below 2^24, so float32 holds them exactly.
    nonzero_indicators = is_nonzero.astype(np.float32)
    common_rows = nonzero_indicators.T @ nonzero_indicators
    return not np.triu(common_rows, b).any()


def _largest_separated_sums(weights: np.ndarray, b: int, k: int) -> np.ndarray:
    """Returns for each row of `weights` the largest sum of at most k of its entries, whose indices
    are at least b apart, as a float64 array of shape (r,).

    Banded paper, Alg. 3 (VecSens): F[i, m] = max(v_i + F[i + b, m - 1], F[i + 1, m]), and F = 0 out
    of range. Its inner loop is a running maximum from the right, here of all rows at once.

    Args:
      weights: non-negative, (r, n).
      b, k: limits on the indices.
    """
    r, n = weights.shape
    best_sums = np.zeros((r, n + b))
    for _ in range(k):
        sums_with_entry = weights + best_sums[:, b:]
        best_sums[:, :n] = np.maximum.accumulate(sums_with_entry[:, ::-1], axis=1)[:, ::-1]
    return best_sums[:, 0]


def _separated_sensitivity(C: np.ndarray, b: int, k: int) -> Sensitivity:
    """Returns the sensitivity to one client with at most k rounds, any two of them at least b
    apart.
    """
    n = C.shape[1]
    checks.fits_in_memory("the sensitivity of this encoder", (n, n), copies=5)
    X = C.T @ C
    absolute_X = np.abs(X)
    squared_norms = np.diagonal(X)
    if k == 2:
        # If a client has only two rounds, its contributions can have signs for which X_st counts
        # with its absolute value. The largest sum over two rounds is therefore exact.
        pair_sums = squared_norms[:, None] + squared_norms[None, :] + 2.0 * absolute_X
        is_separated = np.triu(np.ones((n, n), dtype=bool), b)
        squared_sensitivity = max(squared_norms.max(), pair_sums[is_separated].max())
        return from_squared(
            squared_sensitivity,
            True,
            "all pairs of rounds (multi-epoch paper, Eq. 3; banded paper, Prop. E.1): exact",
        )
    # This is the banded paper, Alg. 4 (Thm. 3), with the loop over the rows i of X (printed: j).
    # Entries of X for two different rounds less than b apart count as 0, because no client takes
    # part in both.
    lags = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    absolute_X[(lags > 0) & (lags < b)] = 0.0
    row_sums_by_block = []
    for i in range(0, n, _MAX_ROWS_AT_ONCE):
        row_block = absolute_X[i : i + _MAX_ROWS_AT_ONCE]
        row_sums_by_block.append(_largest_separated_sums(row_block, b, k))
    row_sums_of_X = np.concatenate(row_sums_by_block)
    squared_bound = float(_largest_separated_sums(row_sums_of_X[None, :], b, k)[0])
    # By the multi-epoch paper, Thm. 2.1, k times the largest eigenvalue of X bounds the squared
    # sensitivity. The eigenvalue is at least the mean row sum of X, so it is computed only if k
    # times that mean is below the bound by Alg. 4.
    if k * X.sum() / n < squared_bound:
        spectral_bound = k * largest_eigenvalue(X)
        if spectral_bound < squared_bound:
            return from_squared(
                spectral_bound,
                False,
                "sqrt(k) times the spectral norm (multi-epoch paper, Thm. 2.1): upper bound",
            )
    return from_squared(squared_bound, False, "Alg. 4 of the banded paper (Thm. 3): upper bound")


def _window_sensitivity(C: np.ndarray, b: int, k: int) -> Sensitivity:
    """Returns the sensitivity to one client whose rounds are a window of k rounds exactly b apart.

    See the multi-epoch paper, Sec. 2, Eq. 3 and Thm. 2.1.
    """
    # `start` is a remainder of rounds modulo b. A client's rounds are identified by their
    # remainder, and by the position of the first one among all rounds with this remainder.
    bounds: list[tuple[float, bool, tuple[int, int]]] = []
    gram_by_start: dict[int, np.ndarray] = {}
    # The transposed copy has each column of the encoder C in contiguous memory, which makes the
    # products faster.
    transposed_encoder = np.ascontiguousarray(C.T)
    for start in range(b):
        window_columns = transposed_encoder[start::b]
        X = window_columns @ window_columns.T
        window_width = min(k, X.shape[0])
        abs_sums = _window_sums(np.abs(X), window_width)
        sum_difference = abs_sums - _window_sums(X, window_width)
        is_tight = (sum_difference <= ROUNDING * abs_sums) | (window_width <= 2)
        if not is_tight.all():
            gram_by_start[start] = X
        for position, abs_sum in enumerate(abs_sums):
            bounds.append((abs_sum, bool(is_tight[position]), (start, position)))

    def gram(window: tuple[int, int]) -> np.ndarray:
        start, position = window
        X = gram_by_start[start]
        end_position = position + min(k, X.shape[0])
        return X[position:end_position, position:end_position]

    return largest_sharpened(bounds, gram)


def _window_sums(X: np.ndarray, width: int) -> np.ndarray:
    """Returns the sum of every square block of `width` rows and columns on the diagonal of a matrix
    X.
    """
    if width == X.shape[0]:
        return np.array([X.sum()])
    # Each sum is computed from the entries themselves. Differences of running totals would lose
    # digits, and could make the sensitivity too small.
    diagonal_blocks = np.lib.stride_tricks.sliding_window_view(X, (width, width))
    return np.array([diagonal_blocks[p, p].sum() for p in range(X.shape[0] - width + 1)])
