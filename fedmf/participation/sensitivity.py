"""The L2 sensitivity of x -> C x, when one client contributes vectors of norm at most 1 to the
rounds it may (multi-epoch paper, Def. 1).

Every value is exact or a proven upper bound, for vector contributions of any dimension: a bound
that holds for scalar contributions only can be too small (multi-epoch paper, App. H.2). Below, X =
C^T C, and for a set of rounds S

    sens(C)^2 = max over allowed S, max over unit vectors u_i of sum_{i, j in S} X_ij <u_i, u_j>
             <= max over allowed S of sum_{i, j in S} |X_ij|              (banded paper, Prop. E.1)

with equality where X_ij >= 0 on S (take all u_i equal: multi-epoch paper, Cor. 2.1), and where S
has at most two rounds (take u_j = sign(X_ij) u_i). Papers: "banded" is Choquette-Choo et al.
2023, "multi-epoch" is Choquette-Choo et al. 2022.
"""

from typing import Any

import numpy as np
import scipy.linalg

from fedmf import checks
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.participation.round_sets import RoundSets, of_disjoint_columns, of_matrix
from fedmf.participation.sharpening import ROUNDING, Sensitivity, largest_sharpened, root

# Encoders with a largest entry within this factor of 1 are squared as they are.
_MAX_MAGNITUDE = 1e100
# Rounds up to which an upper bound for a Toeplitz encoder is compared with those of its matrix.
_MAX_ROUNDS_TRIED_DENSE = 1024
# Rounds of a client up to which the bound from its Toeplitz X is sharpened, which takes the matrix.
_MAX_WINDOW_SHARPENED = 4096


@with_numpy_defaults
def sensitivity_to_sets(strategy: Any, sets: RoundSets) -> Sensitivity:
    """Returns the sensitivity of an encoder to one client, whose rounds are one of the sets; exact,
    or the smallest upper bound known here.

    Args:
      strategy: C, float64 (m, rounds), or what has `encoder()` and any of
        `toeplitz_coefficients()`, `toeplitz_gram()` and `banded_rows()`, as a mechanism has.
      sets: of the participation.

    Raises:
      TypeError: no array of numbers.
      ValueError: the encoder is not 2-D, not finite, or its number of columns is not sets.rounds.

    >>> sets = RoundSets(rounds=6, min_sep=2, max_participations=3, are_windows=False)
    >>> sensitivity_to_sets(np.eye(6), sets).value ** 2
    2.9999999999999996
    """
    coefficients = _result_of(strategy, "toeplitz_coefficients")
    if coefficients is not None:
        known = _toeplitz(_of_known_scale(coefficients), sets)
        if known.exact or sets.rounds > _MAX_ROUNDS_TRIED_DENSE:
            return known
        dense = sensitivity_to_sets(strategy.encoder(), sets)
        return min(known, dense, key=lambda bound: bound.value)
    gram = _result_of(strategy, "toeplitz_gram")
    if gram is not None:
        return _toeplitz_gram(_of_known_scale(gram), sets)
    rows = _result_of(strategy, "banded_rows")
    if rows is not None and (rows.shape[1] <= sets.min_sep or sets.max_participations == 1):
        return of_disjoint_columns(_squared_column_norms(_of_known_scale(rows)), sets)
    encoder = _result_of(strategy, "encoder")
    C = checks.finite_array(
        "encoder_or_mechanism", strategy if encoder is None else encoder, ndim=2
    )
    check_columns(C.shape[1], sets.rounds)
    return of_matrix(_of_known_scale(C), sets)


def _squared_column_norms(rows: np.ndarray) -> np.ndarray:
    """Returns the squared norms of columns, (n,), from rows[t, j] = C[t, t - j], (n, bands)."""
    n, bands = rows.shape
    squares = np.zeros((n, bands))
    for o in range(bands):
        squares[: n - o, o] = np.square(rows[o:, o])
    return squares.sum(axis=1)


def _result_of(mechanism: Any, name: str) -> Any:
    """Returns what the mechanism's method of this name does; None of an array, which has none."""
    method = None if isinstance(mechanism, type) else getattr(mechanism, name, None)
    return method() if callable(method) else None


def check_columns(columns: int, rounds: int) -> None:
    """Refuses an encoder of another number of rounds."""
    if columns != rounds:
        raise ValueError(
            f"encoder has {columns} columns but participation has rounds={rounds}: "
            "make both for the same number of rounds"
        )


def _of_known_scale(entries: np.ndarray) -> np.ndarray:
    """Returns the entries, refused where squares overflow, or underflow to a sensitivity of 0."""
    largest = float(np.abs(entries).max())
    if largest and not 1.0 / _MAX_MAGNITUDE <= largest <= _MAX_MAGNITUDE:
        raise ValueError(
            f"encoder has entries of up to {largest:.3g}, whose squares lose digits in "
            "float64: divide it by that"
        )
    return entries


def _toeplitz(c: np.ndarray, sets: RoundSets) -> Sensitivity:
    """Returns the sensitivity of the lower-triangular Toeplitz C of n rounds with first column c, 0
    after its end; O(n) or so.

    With c_t >= 0 and not increasing, X_ij = sum over s <= n - 1 - max(i, j) of c_s c_(s + |i - j|)
    is non-negative, and no larger for a larger max(i, j) or a larger |i - j|. The m-th round (from
    0) of any client with gaps of at least b is at or after m b, and its m-th and l-th rounds are at
    least |m - l| b apart. So each X_ij of its pattern is at most the one of the pattern 0, b, ...,
    (k - 1) b, which every schema allows; and X >= 0 puts equal contributions first. The sensitivity
    is the norm of the sum of those k columns (McMahan, Xu and Zhang 2024; Kalinin and Lampert 2024,
    Thm. 2). For any c, |X_ij| is at most the X_ij of a non-negative, non-increasing c' >= |c|, so
    that c' gives an upper bound (banded paper, Prop. E.1); its smallest is the running maximum of
    |c| from the right.
    """
    n = sets.rounds
    b = sets.min_sep
    k = sets.max_participations
    if k == 1:
        # Later columns are the first one cut short.
        return root(
            float(c @ c), True, "norm of the first column, the largest of a Toeplitz encoder: exact"
        )
    if len(c) <= b:
        # Columns of one client have no row in common (banded paper, Thm. 2); the m-th of them is at
        # most the m b-th.
        whole = min(k, (n - len(c)) // b + 1)
        cut = np.array([c[: n - m * b] @ c[: n - m * b] for m in range(whole, k)])
        squared = whole * float(c @ c) + float(cut.sum())
        return root(
            squared,
            True,
            "column norms of a Toeplitz encoder of at most min_sep bands "
            "(banded paper, Thm. 2): exact",
        )
    decreasing = np.maximum.accumulate(np.abs(c)[::-1])[::-1]
    # Only rounding may make it larger than c, and then it errs on the safe side.
    exact = bool(np.abs(decreasing - c).max() <= ROUNDING * c[0])
    kind = "(McMahan et al. 2024): exact" if exact else "above |C|: upper bound"
    method = f"rounds 0, b, 2b, ... of a decreasing Toeplitz encoder {kind}"
    return root(_squared_sum_of_columns(decreasing, n, b, k), exact, method)


def _squared_sum_of_columns(c: np.ndarray, n: int, b: int, k: int) -> float:
    """The squared norm of the sum of the columns 0, b, ..., (k - 1) b of the Toeplitz matrix of c,
    c >= 0.
    """
    # Row by row of b rounds, the sum is that of the last k rows of c, cut into rows of b as well.
    rows = np.zeros((-(-n // b), b))
    rows.ravel()[: len(c)] = c
    if k >= len(rows):
        sums = np.cumsum(rows, axis=0)
    else:
        # Sums of k rows as the end of one block of k rows and the beginning of the next: without
        # differences, which would lose digits, and a sensitivity must not come out too small.
        blocks = np.zeros((-(-len(rows) // k), k, b))
        blocks.reshape(-1, b)[: len(rows)] = rows
        sums = np.cumsum(blocks, axis=1)
        ends = np.cumsum(blocks[:, ::-1], axis=1)[:, ::-1]
        sums[1:, :-1] += ends[:-1, 1:]
        sums = sums.reshape(-1, b)
    total = sums.ravel()[:n]
    return float(total @ total)


def _toeplitz_gram(x: np.ndarray, sets: RoundSets) -> Sensitivity:
    """Returns the sensitivity of an encoder whose X_ij = x_|i - j|, from x alone.

    Under fixed_epoch every window of k rounds has the same X, and no shorter one counts: a round
    more, with a contribution orthogonal to all others, makes a client's sum larger. Under min_sep
    the bound is `_largest_spread_sum`.
    """
    n = sets.rounds
    b = sets.min_sep
    k = min(sets.max_participations, -(-n // b))
    if k > 2 and not sets.are_windows:
        squared, exact = _largest_spread_sum(x, b, k)
        return root(
            squared,
            exact,
            "each pair of rounds of a Toeplitz X by itself (banded paper, Prop. E.1): "
            + ("exact" if exact else "upper bound"),
        )
    if k <= 2:
        # Two rounds are always sign-tight; in windows they are b apart.
        apart = x[b : b + 1] if sets.are_windows else x[b:]
        pairs = 2.0 * (x[0] + np.abs(apart).max()) if k == 2 else x[0]
        return root(
            pairs, True, "pairs of rounds of a Toeplitz X (multi-epoch paper, Eq. 3): exact"
        )
    client = x[::b][:k]
    pairs = 2.0 * np.arange(k, 0, -1.0)  # of rounds so many places apart
    pairs[0] = k
    total = float(pairs @ np.abs(client))
    tight = total - float(pairs @ client) <= ROUNDING * total
    if not tight and k > _MAX_WINDOW_SHARPENED:
        return root(
            total, False, "sum of |X| over a client's rounds (banded paper, Prop. E.1): upper bound"
        )
    return largest_sharpened([(total, tight, 0)], lambda _: scipy.linalg.toeplitz(client))


def _largest_spread_sum(x: np.ndarray, b: int, k: int) -> tuple[float, bool]:
    """Returns an upper bound on the squared sensitivity of X_ij = x_|i - j| to a client with at
    most k rounds at least b apart, and whether contributions attain it.

    Of m rounds, two that are j places apart are at least j b apart, and at most n - 1 - (m - 1 - j)
    b: the others, j - 1 between them and m - 1 - j outside, take at least b each. There |x| is at
    most the larger of its values at the two ends, once it is replaced by the smallest sequence
    above it that falls and then rises. Added up over all pairs, that bounds the sum of |X_ij|, and
    so the squared sensitivity (banded paper, Prop. E.1). It remains to try numbers of rounds m.
    Fewer than k matter only where no other round fits in, as a round more, with a contribution
    orthogonal to all others, makes a client's sum larger: where n <= m (2 b - 1). The rounds 0, b,
    2 b, ... attain the bound where the nearer end always decides, and no x there is negative.
    """
    n = len(x)
    lowest, sizes = int(np.abs(x).argmin()), np.abs(x)
    sizes[: lowest + 1] = np.maximum.accumulate(sizes[: lowest + 1][::-1])[::-1]
    sizes[lowest:] = np.maximum.accumulate(sizes[lowest:])
    bounds = []
    for m in {*range(-(-n // (2 * b - 1)), k), k}:
        j = np.arange(1, m)
        nearest, farthest = sizes[j * b], sizes[n - 1 - (m - 1 - j) * b]
        squared = m * sizes[0] + 2.0 * float((m - j) @ np.maximum(nearest, farthest))
        attained = bool((nearest >= farthest).all() and (nearest == x[j * b]).all())
        bounds.append((squared, attained))
    return max(bounds)
