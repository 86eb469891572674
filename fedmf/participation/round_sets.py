"""The sensitivity of any matrix to one client, whose rounds are one of the sets of a schema."""

from typing import NamedTuple

import numpy as np

from fedmf import checks
from fedmf.participation.sharpening import (
    ROUNDING,
    Sensitivity,
    largest_eigenvalue,
    largest_sharpened,
    root,
)

_MAX_ROWS_AT_ONCE = 512


class RoundSets(NamedTuple):
    """The sets of rounds that one client may take part in.

    Attributes:
      rounds: of the run.
      min_sep: two rounds of one client are at least so many apart.
      max_participations: a set holds at most so many rounds.
      are_windows: rounds are exactly min_sep apart, at most max_participations in a row; otherwise
        any that keep to the limits.
    """

    rounds: int
    min_sep: int
    max_participations: int
    are_windows: bool


def of_matrix(C: np.ndarray, sets: RoundSets) -> Sensitivity:
    """Returns the sensitivity of any C, (m, rounds)."""
    b = sets.min_sep
    k = sets.max_participations
    if k > 1 and sets.are_windows:
        return _fixed_epoch(C, b, k)
    if k == 1 or _columns_apart_are_disjoint(C, b):
        return of_disjoint_columns(np.einsum("ij,ij->j", C, C), sets)
    return _min_sep(C, b, k)


def of_disjoint_columns(squared_norms: np.ndarray, sets: RoundSets) -> Sensitivity:
    """Returns the sensitivity from the squared column norms, (rounds,), where the columns of one
    client have no row in common.
    """
    b = sets.min_sep
    k = sets.max_participations
    if k == 1:
        # A single participation sees the largest column norm.
        return root(
            squared_norms.max(),
            True,
            "largest column norm of the encoder (multi-epoch paper, Sec. 2): exact",
        )
    if sets.are_windows:
        sums = np.zeros(max(len(squared_norms) - (k - 1) * b, b))
        for first in range(0, k * b, b):
            part = squared_norms[first : first + len(sums)]
            sums[: len(part)] += part
        return root(
            sums.max(), True, "sum of X over a client's rounds (multi-epoch paper, Eq. 3): exact"
        )
    value = _largest_separated_sums(squared_norms[None, :], b, k)[0]
    return root(
        value, True, "Alg. 5 of the banded paper (Thm. 2): exact, X has at most min_sep bands"
    )


def _columns_apart_are_disjoint(C: np.ndarray, b: int) -> bool:
    """Whether columns b or more rounds apart have no non-zero row in common,
    so that X_ij = 0 there.

    The test is on exact zeros of C: a tolerance would drop small true entries of X, and the noise
    would be too small.
    """
    n = C.shape[1]
    if b >= n:
        return True
    filled = C != 0.0
    used = filled.any(axis=0)
    first = np.where(used, filled.argmax(axis=0), C.shape[0])
    last = np.where(used, C.shape[0] - 1 - filled[::-1].argmax(axis=0), -1)
    first_from = np.minimum.accumulate(first[::-1])[::-1]
    if (last[:-b] < first_from[b:]).all():
        return True
    # Row counts are below 2^24, so that float32 sums of ones are exact
    counts = filled.astype(np.float32)
    return not np.triu(counts.T @ counts, b).any()


def _largest_separated_sums(weights: np.ndarray, b: int, k: int) -> np.ndarray:
    """For each non-negative row of `weights` (r, n): its largest sum over at most k indices at
    least b apart, (r,).

    Banded paper, Alg. 3 (VecSens): F[i, m] = max(v_i + F[i + b, m - 1], F[i + 1, m]), and F = 0 out
    of range; its inner loop, a running maximum from the right, is done for all rows at once.
    """
    r, n = weights.shape
    best = np.zeros((r, n + b))
    for _ in range(k):
        candidates = weights + best[:, b:]
        best[:, :n] = np.maximum.accumulate(candidates[:, ::-1], axis=1)[:, ::-1]
    return best[:, 0]


def _min_sep(C: np.ndarray, b: int, k: int) -> Sensitivity:
    n = C.shape[1]
    checks.fits_in_memory("the sensitivity of this encoder", (n, n), copies=5)
    X = C.T @ C
    magnitudes = np.abs(X)
    diagonal = np.diagonal(X)
    if k == 2:
        # Two rounds are always sign-tight, so that trying all pairs is exact.
        pairs = diagonal[:, None] + diagonal[None, :] + 2.0 * magnitudes
        apart = np.triu(np.ones((n, n), dtype=bool), b)
        value = max(diagonal.max(), pairs[apart].max())
        return root(
            value,
            True,
            "all pairs of rounds (multi-epoch paper, Eq. 3; banded paper, Prop. E.1): exact",
        )
    # Banded paper, Alg. 4 (Thm. 3); its loop runs over the rows i of X (printed: j). No client has
    # two rounds less than b apart, so that those entries may count as 0.
    lag = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    magnitudes[(lag > 0) & (lag < b)] = 0.0
    row_sums = np.concatenate(
        [
            _largest_separated_sums(magnitudes[i : i + _MAX_ROWS_AT_ONCE], b, k)
            for i in range(0, n, _MAX_ROWS_AT_ONCE)
        ]
    )
    bound = float(_largest_separated_sums(row_sums[None, :], b, k)[0])
    # Multi-epoch paper, Thm. 2.1, with the largest eigenvalue of all of X above that of each
    # pattern's submatrix. It holds for vectors as well: sum_ij X_ij <u_i, u_j> <= lambda_max *
    # sum_i |u_i|^2 <= lambda_max * k. Often the mean row sum, <= lambda_max, is too large already.
    if k * X.sum() / n < bound and (spectral := k * largest_eigenvalue(X)) < bound:
        return root(
            spectral,
            False,
            "sqrt(k) times the spectral norm (multi-epoch paper, Thm. 2.1): upper bound",
        )
    return root(bound, False, "Alg. 4 of the banded paper (Thm. 3): upper bound")


def _fixed_epoch(C: np.ndarray, b: int, k: int) -> Sensitivity:
    """Windows of k rounds spaced b apart, every start (multi-epoch paper, Sec. 2, Eq.
    3 and Thm. 2.1).
    """
    bounds = []  # of (start, window's first place in its epoch)
    grams: dict[int, np.ndarray] = {}
    # Strided columns of a large C would be read from memory once for each start
    transposed = np.ascontiguousarray(C.T)
    for start in range(b):
        columns = transposed[start::b]
        X = columns @ columns.T
        width = min(k, X.shape[0])
        sums = _window_sums(np.abs(X), width)
        slack = sums - _window_sums(X, width)
        tight = (slack <= ROUNDING * sums) | (width <= 2)
        if not tight.all():
            grams[start] = X
        bounds += [
            (s, bool(t), (start, place))
            for place, (s, t) in enumerate(zip(sums, tight, strict=True))
        ]

    def gram(window: tuple[int, int]) -> np.ndarray:
        start, place = window
        width = min(k, grams[start].shape[0])
        return grams[start][place : place + width, place : place + width]

    return largest_sharpened(bounds, gram)


def _window_sums(X: np.ndarray, width: int) -> np.ndarray:
    """Sums of the diagonal blocks X[p : p + width, p : p + width], for every place p."""
    if width == X.shape[0]:
        return np.array([X.sum()])
    # Summed directly: differences of running totals would lose digits, and a sensitivity must not
    # come out too small.
    windows = np.lib.stride_tricks.sliding_window_view(X, (width, width))
    return np.array([windows[p, p].sum() for p in range(X.shape[0] - width + 1)])
