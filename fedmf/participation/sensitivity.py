"""The L2 sensitivity of x -> C x, where C is the encoder, to one client. It is that of the
multi-epoch paper, Def. 1.

The client contributes vectors of norm at most 1 to the rounds that its schema allows. Every value
is exact or a proven upper bound, for vectors of any dimension: a bound for scalar contributions can
be too small (multi-epoch paper, App. H.2). Below, X = C^T C, and for a set of rounds S

    sens(C)^2 = max over allowed S, max over unit vectors u_i of sum_{i, j in S} X_ij <u_i, u_j>
             <= max over allowed S of sum_{i, j in S} |X_ij|              (banded paper, Prop. E.1)

with equality if X_ij >= 0 on S (take all u_i equal: multi-epoch paper, Cor. 2.1), and if S has at
most two rounds (take u_j = sign(X_ij) u_i). Papers: "banded" is Choquette-Choo et al.
2023, "multi-epoch" is Choquette-Choo et al. 2022.
"""

from typing import Any

import numpy as np
import scipy.linalg

from fedmf import checks
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.participation.round_sets import RoundSets, of_disjoint_columns, of_matrix
from fedmf.participation.sharpening import (
    ROUNDING,
    Sensitivity,
    from_squared,
    largest_sharpened,
)
from fedmf.participation.tree_sensitivity import of_trees

# The largest entry of an encoder must be within this factor of 1, so that its square is a normal
# float64.
_MAX_MAGNITUDE = 1e100
# For runs of at most this many rounds, a Toeplitz encoder is also treated as a general matrix. The
# bounds of a general matrix are sometimes smaller than those for Toeplitz encoders.
_MAX_ROUNDS_TRIED_DENSE = 1024
# Bounds on Toeplitz encoders are sharpened for clients of at most this many rounds, because
# sharpening forms a square matrix with a row for each round of the client.
_MAX_WINDOW_SHARPENED = 4096


@with_numpy_defaults
def sensitivity_to_sets(encoder_or_mechanism: Any, sets: RoundSets) -> Sensitivity:
    """Returns the sensitivity of an encoder to one client, exactly or as the smallest upper bound
    known.

    Args:
      encoder_or_mechanism: C, float64 (m, rounds), or an object with the methods of a mechanism:
        `encoder()` and any of `binary_trees()`, `toeplitz_coefficients()`, `toeplitz_gram()` and
        `banded_rows()`.
      sets: sets of rounds of one client.

    Raises:
      TypeError: the encoder is not an array of numbers.
      ValueError: the encoder is not 2-D, not finite, or its number of columns is not sets.rounds.

    >>> sets = RoundSets(rounds=6, min_sep=2, max_participations=3, are_windows=False)
    >>> sensitivity_to_sets(np.eye(6), sets).value ** 2
    2.9999999999999996
    """
    trees = _result_of(encoder_or_mechanism, "binary_trees")
    if trees is not None:
        return of_trees(trees, sets)
    coefficients = _result_of(encoder_or_mechanism, "toeplitz_coefficients")
    if coefficients is not None:
        toeplitz_bound = _toeplitz_sensitivity(_check_magnitude(coefficients), sets)
        if toeplitz_bound.exact or sets.rounds > _MAX_ROUNDS_TRIED_DENSE:
            return toeplitz_bound
        dense_bound = sensitivity_to_sets(encoder_or_mechanism.encoder(), sets)
        return min(toeplitz_bound, dense_bound, key=lambda bound: bound.value)
    gram_column = _result_of(encoder_or_mechanism, "toeplitz_gram")
    if gram_column is not None:
        return _toeplitz_gram_sensitivity(_check_magnitude(gram_column), sets)
    banded_rows = _result_of(encoder_or_mechanism, "banded_rows")
    if banded_rows is not None and (
        banded_rows.shape[1] <= sets.min_sep or sets.max_participations == 1
    ):
        return of_disjoint_columns(_squared_column_norms(_check_magnitude(banded_rows)), sets)
    encoder = _result_of(encoder_or_mechanism, "encoder")
    if encoder is None:
        encoder = encoder_or_mechanism
    C = checks.finite_array("encoder_or_mechanism", encoder, ndim=2)
    check_columns(C.shape[1], sets.rounds)
    return of_matrix(_check_magnitude(C), sets)


def _squared_column_norms(rows: np.ndarray) -> np.ndarray:
    """Returns the squared column norms of a banded C, as a float64 array of shape (n,). C is given
    by its rows, (n, bands), with rows[t, j] = C[t, t - j].
    """
    n, bands = rows.shape
    squared_entries = np.zeros((n, bands))
    for j in range(bands):
        squared_entries[: n - j, j] = np.square(rows[j:, j])
    return squared_entries.sum(axis=1)


def _result_of(mechanism: Any, name: str) -> Any:
    """Returns the result of the mechanism's method `name`, or None if it has no such method."""
    if isinstance(mechanism, type):
        return None
    method = getattr(mechanism, name, None)
    return method() if callable(method) else None


def check_columns(columns: int, rounds: int) -> None:
    """Raises ValueError unless the encoder has one column for each round."""
    if columns != rounds:
        raise ValueError(
            f"encoder has {columns} columns but participation has rounds={rounds}: "
            "make both for the same number of rounds"
        )


def _check_magnitude(entries: np.ndarray) -> np.ndarray:
    """Returns the entries of an encoder, or raises ValueError if their squares would overflow or
    underflow.
    """
    largest_magnitude = float(np.abs(entries).max())
    if largest_magnitude and not 1.0 / _MAX_MAGNITUDE <= largest_magnitude <= _MAX_MAGNITUDE:
        raise ValueError(
            f"encoder has entries of up to {largest_magnitude:.3g}, whose squares lose digits in "
            "float64: divide it by that"
        )
    return entries


def _toeplitz_sensitivity(c: np.ndarray, sets: RoundSets) -> Sensitivity:
    """Returns the sensitivity of a lower-triangular Toeplitz encoder C in about O(n) time, from c,
    the first column of C up to its last non-zero entry.

    With c_t >= 0 and not increasing, X_ij = sum over s <= n - 1 - max(i, j) of c_s c_(s + |i - j|)
    is non-negative, and no larger for a larger max(i, j) or a larger |i - j|. The m-th round (from
    0) of any client with gaps of at least b is at or after m b, and its m-th and l-th rounds are at
    least |m - l| b apart. So each X_ij of its pattern is at most the one of the pattern 0, b, ...,
    (k - 1) b, which every schema allows; and with X >= 0 equal contributions are the worst. So the
    sensitivity is the norm of the sum of those k columns (McMahan, Xu and Zhang 2024; Kalinin and
    Lampert 2024, Thm. 2). For any c, |X_ij| is at most the X_ij of a non-negative, non-increasing
    c' >= |c|, so that c' gives an upper bound (banded paper, Prop. E.1). The smallest c' is the
    running maximum of |c| from the right.
    """
    n = sets.rounds
    b = sets.min_sep
    k = sets.max_participations
    if k == 1:
        # The other columns of a Toeplitz encoder are copies of the first one, shifted down and cut
        # off at the end.
        return from_squared(
            float(c @ c), True, "norm of the first column, the largest of a Toeplitz encoder: exact"
        )
    if len(c) <= b:
        # No row is non-zero in two columns of the same client (banded paper, Thm. 2), so the
        # squared norms of a client's columns add up. The sum is largest for rounds 0, b, 2b, ...,
        # whose columns are cut off least.
        num_whole = min(k, (n - len(c)) // b + 1)
        cut_squared_norms = np.array([c[: n - m * b] @ c[: n - m * b] for m in range(num_whole, k)])
        squared_sensitivity = num_whole * float(c @ c) + float(cut_squared_norms.sum())
        return from_squared(
            squared_sensitivity,
            True,
            "column norms of a Toeplitz encoder of at most min_sep bands "
            "(banded paper, Thm. 2): exact",
        )
    decreasing_coefficients = np.maximum.accumulate(np.abs(c)[::-1])[::-1]
    # The decreasing coefficients are at least the absolute values of the encoder's coefficients, so
    # their sensitivity bounds that of the encoder. The bound counts as exact if both are equal up
    # to rounding.
    is_exact = bool(np.abs(decreasing_coefficients - c).max() <= ROUNDING * c[0])
    method_note = "(McMahan et al. 2024): exact" if is_exact else "above |C|: upper bound"
    method = f"rounds 0, b, 2b, ... of a decreasing Toeplitz encoder {method_note}"
    return from_squared(_squared_sum_of_columns(decreasing_coefficients, n, b, k), is_exact, method)


def _squared_sum_of_columns(c: np.ndarray, n: int, b: int, k: int) -> float:
    """Returns the squared norm of the sum of columns 0, b, ..., (k - 1) b of a lower-triangular
    Toeplitz matrix.

    Args:
      c: non-negative first column; entries after its end are 0.
      n: number of rounds.
      b, k: spacing and number of the columns.
    """
    # The first column of the encoder and the sum of a client's columns are cut into rows of b
    # entries. Each row of the sum is then a sum of k consecutive rows of the first column.
    rows_of_column = np.zeros((-(-n // b), b))
    rows_of_column.ravel()[: len(c)] = c
    if k >= len(rows_of_column):
        sums_of_rows = np.cumsum(rows_of_column, axis=0)
    else:
        # Each sum of k consecutive rows is the end of one block of k rows plus the beginning of the
        # next block. Differences of running totals would lose digits.
        blocks_of_rows = np.zeros((-(-len(rows_of_column) // k), k, b))
        blocks_of_rows.reshape(-1, b)[: len(rows_of_column)] = rows_of_column
        sums_of_rows = np.cumsum(blocks_of_rows, axis=1)
        sums_to_block_end = np.cumsum(blocks_of_rows[:, ::-1], axis=1)[:, ::-1]
        sums_of_rows[1:, :-1] += sums_to_block_end[:-1, 1:]
        sums_of_rows = sums_of_rows.reshape(-1, b)
    sum_of_columns = sums_of_rows.ravel()[:n]
    return float(sum_of_columns @ sum_of_columns)


def _toeplitz_gram_sensitivity(x: np.ndarray, sets: RoundSets) -> Sensitivity:
    """Returns the sensitivity of an encoder C with a Toeplitz X = C^T C, X_ij = x_|i - j|, from its
    first column x alone.

    All windows of k rounds have the same X, and shorter ones are no worse: another round, with a
    contribution orthogonal to the others, makes the client's sum larger. Without windows the bound
    is `_largest_spread_sum`.
    """
    n = sets.rounds
    b = sets.min_sep
    k = min(sets.max_participations, -(-n // b))
    if k > 2 and not sets.are_windows:
        squared_sensitivity, is_exact = _largest_spread_sum(x, b, k)
        kind_text = "exact" if is_exact else "upper bound"
        return from_squared(
            squared_sensitivity,
            is_exact,
            f"each pair of rounds of a Toeplitz X by itself (banded paper, Prop. E.1): {kind_text}",
        )
    if k <= 2:
        squared_sensitivity = x[0]
        if k == 2:
            # A client with two rounds attains this sum if its two contributions have suitable
            # signs. If `sets.are_windows`, the two rounds are exactly b apart.
            pair_entries = x[b : b + 1] if sets.are_windows else x[b:]
            squared_sensitivity = 2.0 * (x[0] + np.abs(pair_entries).max())
        return from_squared(
            squared_sensitivity,
            True,
            "pairs of rounds of a Toeplitz X (multi-epoch paper, Eq. 3): exact",
        )
    window_row = x[::b][:k]
    # In the matrix X of a client's k rounds, entry 0 of `window_row` occurs k times, and every
    # other entry j occurs 2 (k - j) times.
    num_entries = 2.0 * np.arange(k, 0, -1.0)
    num_entries[0] = k
    sum_of_magnitudes = float(num_entries @ np.abs(window_row))
    is_tight = sum_of_magnitudes - float(num_entries @ window_row) <= ROUNDING * sum_of_magnitudes
    if not is_tight and k > _MAX_WINDOW_SHARPENED:
        return from_squared(
            sum_of_magnitudes,
            False,
            "sum of |X| over a client's rounds (banded paper, Prop. E.1): upper bound",
        )
    return largest_sharpened(
        [(sum_of_magnitudes, is_tight, 0)], lambda _: scipy.linalg.toeplitz(window_row)
    )


def _largest_spread_sum(x: np.ndarray, b: int, k: int) -> tuple[float, bool]:
    """Returns an upper bound on the squared sensitivity of an encoder C with a Toeplitz X = C^T C,
    X_ij = x_|i - j|, and whether the bound is attained.

    The client has at most k rounds, at least b apart. Of m rounds, the i-th and the (i + j)-th are
    at least j b apart, and at most n - 1 - (m - 1 - j) b, since the m - 1 - j rounds outside them
    take at least b each. Replace |x| by the smallest sequence above it that falls and then rises.
    Between these two distances it is at most the larger of its values at both ends. The sum over
    all pairs bounds the sum of |X_ij|, and so the squared sensitivity (banded paper, Prop. E.1).
    The result is the largest bound over m. An m below k matters only if another round may not fit
    in, where n <= m (2 b - 1); otherwise that round, with a contribution orthogonal to the others,
    makes the client's sum larger. The rounds 0, b, 2 b, ... attain the bound if the nearer end has
    the larger value for every pair, and no x there is negative.
    """
    n = len(x)
    magnitudes = np.abs(x)
    lowest_index = int(magnitudes.argmin())
    magnitudes[: lowest_index + 1] = np.maximum.accumulate(magnitudes[: lowest_index + 1][::-1])[
        ::-1
    ]
    magnitudes[lowest_index:] = np.maximum.accumulate(magnitudes[lowest_index:])
    sums_by_participations = []
    for m in {*range(-(-n // (2 * b - 1)), k), k}:
        j = np.arange(1, m)
        nearest_magnitudes = magnitudes[j * b]
        farthest_magnitudes = magnitudes[n - 1 - (m - 1 - j) * b]
        squared_sum = m * magnitudes[0] + 2.0 * float(
            (m - j) @ np.maximum(nearest_magnitudes, farthest_magnitudes)
        )
        is_attained = bool(
            (nearest_magnitudes >= farthest_magnitudes).all()
            and (nearest_magnitudes == x[j * b]).all()
        )
        sums_by_participations.append((squared_sum, is_attained))
    return max(sums_by_participations)
