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

import dataclasses
import heapq
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import scipy.linalg

from fedmf import checks, fields
from fedmf.mechanisms.banded.recursion import columns_of_rows
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.vector_bound import vector_sensitivity_bounds
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.participation.schema import BUDGET_ROUNDING, Participation

Name = TypeVar("Name")

# A pattern counts as sign-tight if |X| and X differ on it by rounding only, relative to the sum.
ROUNDING = 1e-12
# Multiplications that sharpening the bounds of many patterns may cost; patterns beyond it keep
# their |X| sum, which is valid. An alignment costs about as much as this many eigenvalues.
SHARPENING_BUDGET, _ALIGNMENT_COST = 2e10, 300
# A bound within this share above a value that contributions attain is called exact.
_ATTAINED = 1e-8
_SPECTRAL_AND_SUMS = (
    "smaller of |X| sums (banded paper, Prop. E.1) and k times the spectral norm "
    "(multi-epoch paper, Thm. 2.1)"
)
_ALIGNMENT = (
    "largest sum of X_ij <u_i, u_j> over unit vectors, a semidefinite program and its dual "
    "(fedmf.mechanisms.vector_bound)"
)
_MAX_ROWS_AT_ONCE = 512
# Encoders with a largest entry within this factor of 1 are squared as they are.
_MAX_MAGNITUDE = 1e100
# Rounds up to which an upper bound for a Toeplitz encoder is compared with those of its matrix.
_MAX_ROUNDS_TRIED_DENSE = 1024
# Rounds of a client up to which the bound from its Toeplitz X is sharpened, which takes the matrix.
_MAX_WINDOW_SHARPENED = 4096
# Of mechanisms in use, which never change: dense encoders take seconds, and plans ask again.
_COMPUTED: weakref.WeakKeyDictionary[Mechanism, dict[Any, Any]] = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True)
class Sensitivity(fields.Checked):
    """An L2 sensitivity for contributions of norm at most 1.

    Attributes:
      value: the sensitivity, not squared.
      exact: True if value is the sensitivity (up to rounding), False if it is an upper bound.
      method: the algorithm and its source, for people.
    """

    value: float = fields.checked(lambda name, x: checks.positive(name, x, "a norm", zero=True))
    exact: bool = fields.checked(checks.boolean)
    method: str = fields.checked(fields.plain_text)


@with_numpy_defaults
def sensitivity(encoder_or_mechanism: Any, participation: Participation) -> Sensitivity:
    """The L2 sensitivity of an encoder under a participation; exact, or the smallest upper bound
    known here.

    Args:
      encoder_or_mechanism: C, float64 (m, rounds), or a mechanism, of which C is used and nothing
        that it claims: its `toeplitz_coefficients()`, `toeplitz_gram()` or `banded_rows()` where it
        has them, otherwise its `encoder()`.
      participation: the rounds one client may take part in.

    Returns:
      The value, whether it is exact, and the algorithm.

    Raises:
      TypeError: neither an array of numbers nor a mechanism; or no Participation.
      ValueError: the encoder is not 2-D, not finite, or its number of columns
        is not participation.rounds.

    >>> import numpy as np
    >>> sensitivity(np.eye(6), Participation(rounds=6, schema="min_sep", min_sep=2)).value ** 2
    2.9999999999999996
    """
    if not isinstance(participation, Participation):
        raise TypeError(
            f"participation is of type {type(participation).__name__}: pass a fedmf.Participation"
        )
    _check_columns(getattr(encoder_or_mechanism, "rounds", participation.rounds), participation)
    kind = type(encoder_or_mechanism)
    by_identity = issubclass(kind, Mechanism) and kind.__hash__ is object.__hash__
    known = _COMPUTED.setdefault(encoder_or_mechanism, {}) if by_identity else {}
    if participation not in known:
        known[participation] = _computed(encoder_or_mechanism, participation)
    return known[participation]


def _computed(encoder_or_mechanism: Any, participation: Participation) -> Sensitivity:
    if participation.schema == "budget":
        return _budgeted(encoder_or_mechanism, participation)
    coefficients = _result_of(encoder_or_mechanism, "toeplitz_coefficients")
    if coefficients is not None:
        known = _toeplitz(_of_known_scale(coefficients), participation)
        if known.exact or participation.rounds > _MAX_ROUNDS_TRIED_DENSE:
            return known
        dense = sensitivity(encoder_or_mechanism.encoder(), participation)
        return min(known, dense, key=lambda bound: bound.value)
    gram = _result_of(encoder_or_mechanism, "toeplitz_gram")
    if gram is not None:
        return _toeplitz_gram(_of_known_scale(gram), participation)
    rows = _result_of(encoder_or_mechanism, "banded_rows")
    if rows is not None and (
        rows.shape[1] <= participation.min_sep or participation.max_participations == 1
    ):
        return _disjoint(
            np.square(columns_of_rows(_of_known_scale(rows))).sum(axis=1), participation
        )
    encoder = _result_of(encoder_or_mechanism, "encoder")
    entries = encoder_or_mechanism if encoder is None else encoder
    C = checks.array("encoder_or_mechanism", entries, ndim=2)
    _check_columns(C.shape[1], participation)
    return _dense(_of_known_scale(C), participation)


def _budgeted(encoder_or_mechanism: Any, participation: Participation) -> Sensitivity:
    """The budget itself, for any C: sum over s, t of X_st <u_s, u_t> is at most that of |X_st|,
    which the schema bounds.
    """
    assert participation.budget is not None
    most = sensitivity(
        encoder_or_mechanism, Participation(rounds=participation.rounds, schema="every_round")
    )
    value = participation.budget * (1 + BUDGET_ROUNDING)
    if most.value <= value:
        return most
    return Sensitivity(
        value=value,
        exact=False,
        method="participation budget (banded paper, Prop. E.1): upper bound",
    )


def _result_of(mechanism: Any, name: str) -> Any:
    """What the mechanism's method of this name returns; None of an array, which has none."""
    method = None if isinstance(mechanism, type) else getattr(mechanism, name, None)
    return method() if callable(method) else None


def _check_columns(columns: int, participation: Participation) -> None:
    if columns != participation.rounds:
        raise ValueError(
            f"encoder has {columns} columns but participation has rounds={participation.rounds}: "
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


def _dense(C: np.ndarray, participation: Participation) -> Sensitivity:
    """The sensitivity of any C, (m, rounds)."""
    b, k = participation.min_sep, participation.max_participations
    if k > 1 and _in_windows(participation):
        return _fixed_epoch(C, b, k)
    if k == 1 or _columns_apart_are_disjoint(C, b):
        return _disjoint(np.einsum("ij,ij->j", C, C), participation)
    return _min_sep(C, b, k)


def _in_windows(participation: Participation) -> bool:
    """Whether the rounds of a client are exactly min_sep apart."""
    return (
        participation.schema in ("fixed_epoch", "every_round")
        or participation.max_participations == participation.rounds
    )


def _disjoint(squared_norms: np.ndarray, participation: Participation) -> Sensitivity:
    """The sensitivity from the squared column norms, (rounds,), where those of one client have no
    row in common.
    """
    b, k = participation.min_sep, participation.max_participations
    if k == 1:
        # A single participation sees the largest column norm.
        return _root(
            squared_norms.max(),
            True,
            "largest column norm of the encoder (multi-epoch paper, Sec. 2): exact",
        )
    if _in_windows(participation):
        sums = np.zeros(max(len(squared_norms) - (k - 1) * b, b))
        for first in range(0, k * b, b):
            part = squared_norms[first : first + len(sums)]
            sums[: len(part)] += part
        return _root(
            sums.max(), True, "sum of X over a client's rounds (multi-epoch paper, Eq. 3): exact"
        )
    value = _largest_separated_sums(squared_norms[None, :], b, k)[0]
    return _root(
        value, True, "Alg. 5 of the banded paper (Thm. 2): exact, X has at most min_sep bands"
    )


def _root(squared: float, exact: bool, method: str) -> Sensitivity:
    return Sensitivity(value=float(np.sqrt(squared)), exact=bool(exact), method=method)


def _toeplitz(c: np.ndarray, participation: Participation) -> Sensitivity:
    """The sensitivity of the lower-triangular Toeplitz C of n rounds with first column c, 0 after
    its end; O(n) or so.

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
    n, b, k = participation.rounds, participation.min_sep, participation.max_participations
    if k == 1:
        # Later columns are the first one cut short.
        return _root(
            float(c @ c), True, "norm of the first column, the largest of a Toeplitz encoder: exact"
        )
    if len(c) <= b:
        # Columns of one client have no row in common (banded paper, Thm. 2); the m-th of them is at
        # most the m b-th.
        whole = min(k, (n - len(c)) // b + 1)
        cut = np.array([c[: n - m * b] @ c[: n - m * b] for m in range(whole, k)])
        squared = whole * float(c @ c) + float(cut.sum())
        return _root(
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
    return _root(_squared_sum_of_columns(decreasing, n, b, k), exact, method)


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


def _toeplitz_gram(x: np.ndarray, participation: Participation) -> Sensitivity:
    """The sensitivity of an encoder whose X_ij = x_|i - j|, from x alone.

    Under fixed_epoch every window of k rounds has the same X, and no shorter one counts: a round
    more, with a contribution orthogonal to all others, makes a client's sum larger. Under min_sep
    the bound is `_largest_spread_sum`.
    """
    n, b, k = participation.rounds, participation.min_sep, participation.max_participations
    k = min(k, -(-n // b))
    if k > 2 and not _in_windows(participation):
        squared, exact = _largest_spread_sum(x, b, k)
        return _root(
            squared,
            exact,
            "each pair of rounds of a Toeplitz X by itself (banded paper, Prop. E.1): "
            + ("exact" if exact else "upper bound"),
        )
    if k <= 2:
        # Two rounds are always sign-tight; in windows they are b apart.
        apart = x[b : b + 1] if _in_windows(participation) else x[b:]
        pairs = 2.0 * (x[0] + np.abs(apart).max()) if k == 2 else x[0]
        return _root(
            pairs, True, "pairs of rounds of a Toeplitz X (multi-epoch paper, Eq. 3): exact"
        )
    client = x[::b][:k]
    pairs = 2.0 * np.arange(k, 0, -1.0)  # of rounds so many places apart
    pairs[0] = k
    total = float(pairs @ np.abs(client))
    tight = total - float(pairs @ client) <= ROUNDING * total
    if not tight and k > _MAX_WINDOW_SHARPENED:
        return _root(
            total, False, "sum of |X| over a client's rounds (banded paper, Prop. E.1): upper bound"
        )
    return largest_sharpened([(total, tight, 0)], lambda _: scipy.linalg.toeplitz(client))


def _largest_spread_sum(x: np.ndarray, b: int, k: int) -> tuple[float, bool]:
    """An upper bound on the squared sensitivity of X_ij = x_|i - j| to a client with at most k
    rounds at least b apart, and whether contributions attain it.

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
        return _root(
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
    if k * X.sum() / n < bound and (spectral := k * _largest_eigenvalue(X)) < bound:
        return _root(
            spectral,
            False,
            "sqrt(k) times the spectral norm (multi-epoch paper, Thm. 2.1): upper bound",
        )
    return _root(bound, False, "Alg. 4 of the banded paper (Thm. 3): upper bound")


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


def largest_sharpened(
    bounds: Iterable[tuple[float, bool, Name]],
    gram: Callable[[Name], np.ndarray],
    multiplications: float = SHARPENING_BUDGET,
) -> Sensitivity:
    """The sensitivity to one client that takes part in all rounds of one of some sets.

    Args:
      bounds: of each set the sum of |X|, whether that of X is the same (or it has at most two
        rounds), and its name.
      gram: name of a set -> its X, float64 (k, k).
      multiplications: how many sharpening the bounds may cost.

    >>> largest_sharpened(
    ...     [(3.0, False, "near"), (2.0, True, "one")],
    ...     lambda name: np.array([[1.0, -0.5], [-0.5, 1.0]])
    ... ).exact
    True
    """
    heap = [(-s, tight, name) for s, tight, name in bounds]
    heapq.heapify(heap)
    spectral: set[Any] = set()
    attained: dict[Any, float] = {}
    # Best first: the largest |X| sum is the answer if it is tight;
    # otherwise sharpen it and look again.
    while True:
        negative, tight_here, name = heap[0]
        if tight_here:
            return _root(
                -negative, True, "sum of X over a client's rounds (multi-epoch paper, Eq. 3): exact"
            )
        if name in attained:
            exact = -negative <= attained[name] * (1.0 + _ATTAINED)
            return _root(-negative, exact, f"{_ALIGNMENT}: {'exact' if exact else 'upper bound'}")
        X = gram(name)
        cost = len(X) ** 3 * (_ALIGNMENT_COST if name in spectral else 1)
        if multiplications < cost:
            return _root(-negative, False, f"{_SPECTRAL_AND_SUMS}: upper bound")
        multiplications -= cost
        if name in spectral:
            attained[name], sharper = vector_sensitivity_bounds(X)
        else:
            spectral.add(name)
            sharper = len(X) * _largest_eigenvalue(X)
        heapq.heapreplace(heap, (-min(-negative, sharper), False, name))


def _window_sums(X: np.ndarray, width: int) -> np.ndarray:
    """Sums of the diagonal blocks X[p : p + width, p : p + width], for every place p."""
    if width == X.shape[0]:
        return np.array([X.sum()])
    # Summed directly: differences of running totals would lose digits, and a sensitivity must not
    # come out too small.
    windows = np.lib.stride_tricks.sliding_window_view(X, (width, width))
    return np.array([windows[p, p].sum() for p in range(X.shape[0] - width + 1)])


def _largest_eigenvalue(X: np.ndarray) -> float:
    n = X.shape[0]
    return float(scipy.linalg.eigvalsh(X, subset_by_index=(n - 1, n - 1))[0])
