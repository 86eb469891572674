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
    """Returns the sensitivity of any encoder C, float64 (m, rounds), to one client."""
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
        sums = np.zeros(max(len(squared_norms) - (k - 1) * b, b))
        for first in range(0, k * b, b):
            shifted_norms = squared_norms[first : first + len(sums)]
            sums[: len(shifted_norms)] += shifted_norms
        return from_squared(
            sums.max(), True, "sum of X over a client's rounds (multi-epoch paper, Eq. 3): exact"
        )
    value = _largest_separated_sums(squared_norms[None, :], b, k)[0]
    return from_squared(
        value, True, "Alg. 5 of the banded paper (Thm. 2): exact, X has at most min_sep bands"
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
    # The product below counts the rows that two columns have in common. These counts are below
    # 2^24, so float32 holds them exactly.
    indicators = is_nonzero.astype(np.float32)
    common_rows = indicators.T @ indicators
    return not np.triu(common_rows, b).any()


def _largest_separated_sums(weights: np.ndarray, b: int, k: int) -> np.ndarray:
    """Returns for each row of `weights` the largest sum of at most k of its entries, whose indices
    are at least b apart, float64 (r,).

    Banded paper, Alg. 3 (VecSens): F[i, m] = max(v_i + F[i + b, m - 1], F[i + 1, m]), and F = 0 out
    of range. Its inner loop is a running maximum from the right, here of all rows at once.

    Args:
      weights: non-negative, (r, n).
      b, k: limits on the indices.
    """
    r, n = weights.shape
    best_sums = np.zeros((r, n + b))
    for _ in range(k):
        candidates = weights + best_sums[:, b:]
        best_sums[:, :n] = np.maximum.accumulate(candidates[:, ::-1], axis=1)[:, ::-1]
    return best_sums[:, 0]


def _separated_sensitivity(C: np.ndarray, b: int, k: int) -> Sensitivity:
    """Returns the sensitivity to one client with at most k rounds, any two of them at least b
    apart.
    """
    n = C.shape[1]
    checks.fits_in_memory("the sensitivity of this encoder", (n, n), copies=5)
    X = C.T @ C
    magnitudes = np.abs(X)
    diagonal = np.diagonal(X)
    if k == 2:
        # A client with rounds s and t attains the sum of |X_st| over its pairs of rounds if its two
        # contributions have suitable signs. The largest of these sums is therefore exact.
        pair_sums = diagonal[:, None] + diagonal[None, :] + 2.0 * magnitudes
        is_separated = np.triu(np.ones((n, n), dtype=bool), b)
        value = max(diagonal.max(), pair_sums[is_separated].max())
        return from_squared(
            value,
            True,
            "all pairs of rounds (multi-epoch paper, Eq. 3; banded paper, Prop. E.1): exact",
        )
    # Banded paper, Alg. 4 (Thm. 3), in which the loop runs over the rows i of X (printed: j). No
    # client takes part in two rounds less than b apart. So the entries of X for two different
    # rounds less than b apart count as 0.
    lags = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    magnitudes[(lags > 0) & (lags < b)] = 0.0
    sums_by_block = []
    for i in range(0, n, _MAX_ROWS_AT_ONCE):
        block = magnitudes[i : i + _MAX_ROWS_AT_ONCE]
        sums_by_block.append(_largest_separated_sums(block, b, k))
    row_sums = np.concatenate(sums_by_block)
    bound = float(_largest_separated_sums(row_sums[None, :], b, k)[0])
    # Multi-epoch paper, Thm. 2.1: k * lambda_max bounds the squared sensitivity, where lambda_max
    # is the largest eigenvalue of X. It also holds if contributions u_i are vectors: sum_ij X_ij
    # <u_i, u_j> <= lambda_max * sum_i |u_i|^2 <= lambda_max * k. The eigenvalue takes long to
    # compute, and is at least the mean row sum of X. So it is computed only if k times that mean is
    # below the bound by Alg. 4.
    if k * X.sum() / n < bound:
        spectral_bound = k * largest_eigenvalue(X)
        if spectral_bound < bound:
            return from_squared(
                spectral_bound,
                False,
                "sqrt(k) times the spectral norm (multi-epoch paper, Thm. 2.1): upper bound",
            )
    return from_squared(bound, False, "Alg. 4 of the banded paper (Thm. 3): upper bound")


def _window_sensitivity(C: np.ndarray, b: int, k: int) -> Sensitivity:
    """Returns the sensitivity to one client whose rounds are a window of k rounds exactly b apart.

    See the multi-epoch paper, Sec. 2, Eq. 3 and Thm. 2.1.
    """
    # `start` is a remainder modulo b. A window of a client's rounds is identified by its remainder,
    # and by the position of its first round among all rounds with this remainder.
    bounds: list[tuple[float, bool, tuple[int, int]]] = []
    gram_by_start: dict[int, np.ndarray] = {}
    # The transposed copy has each column of the encoder C in contiguous memory. Without the copy,
    # every pass would read strided columns of a large array.
    transposed_encoder = np.ascontiguousarray(C.T)
    for start in range(b):
        columns = transposed_encoder[start::b]
        X = columns @ columns.T
        width = min(k, X.shape[0])
        abs_sums = _window_sums(np.abs(X), width)
        slack = abs_sums - _window_sums(X, width)
        is_tight = (slack <= ROUNDING * abs_sums) | (width <= 2)
        if not is_tight.all():
            gram_by_start[start] = X
        for position, abs_sum in enumerate(abs_sums):
            bounds.append((abs_sum, bool(is_tight[position]), (start, position)))

    def gram(window: tuple[int, int]) -> np.ndarray:
        start, position = window
        X = gram_by_start[start]
        end = position + min(k, X.shape[0])
        return X[position:end, position:end]

    return largest_sharpened(bounds, gram)


def _window_sums(X: np.ndarray, width: int) -> np.ndarray:
    """Returns the sum of each diagonal block X[p : p + width, p : p + width] of a matrix X, for
    every p.
    """
    if width == X.shape[0]:
        return np.array([X.sum()])
    # Each sum is computed from the entries themselves. Differences of running totals would lose
    # digits, and the sensitivity could come out too small.
    windows = np.lib.stride_tricks.sliding_window_view(X, (width, width))
    return np.array([windows[p, p].sum() for p in range(X.shape[0] - width + 1)])
