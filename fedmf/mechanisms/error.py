"""Error of a mechanism on a workload: what is left after privacy, at unit noise multiplier and unit
clip norm.
"""

from typing import Any

import numpy as np

from fedmf import checks
from fedmf.mechanisms.banded.recursion import (
    NoiseRecursion,
    columns_of_rows,
    is_precise,
    squared_rows_by_solving,
)
from fedmf.mechanisms.base import Mechanism, check_mechanism
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.noise.buffers import Buffers
from fedmf.noise.stream import NoiseStream
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.participation.schema import Participation
from fedmf.workloads import Workload, check_workload

_MAX_ROUNDS_SOLVED_AT_ONCE = 256


@with_numpy_defaults
def loss(mechanism: Any, workload: Workload, participation: Participation) -> float:
    """Total expected squared error, sensitivity^2 * ||A N||_F^2 (Denisov et al. 2022, Eq. 2;
    multi-epoch paper, Eq. 4).

    Args:
      mechanism: any mechanism of this package.
      workload: A, on which error is measured.
      participation: under which the sensitivity is taken; where only an upper bound of it is known
        the loss is one as well.

    Returns:
      The loss, at noise multiplier 1 and clip norm 1.

    Raises:
      TypeError: workload is not a Workload.
      ValueError: the three are not for the same number of rounds, or the noise
        grows beyond float64.

    >>> from fedmf.mechanisms.identity import IdentityMechanism
    >>> from fedmf.workloads import prefix_sum
    >>> loss(IdentityMechanism(rounds=3), prefix_sum(3), Participation(rounds=3, schema="single"))
    6.0
    """
    return float(np.sum(_scaled_rows(mechanism, workload, participation)))


@with_numpy_defaults
def rmse(mechanism: Any, workload: Workload, participation: Participation) -> float:
    """Root of the mean squared error over the rounds.

    Args:
      mechanism, workload, participation: as for `loss`.

    Returns:
      sqrt(loss / rounds).

    Raises:
      TypeError, ValueError: as `loss`.
    """
    return float(np.sqrt(loss(mechanism, workload, participation) / workload.rounds))


@with_numpy_defaults
def per_round_error(mechanism: Any, workload: Workload, participation: Participation) -> np.ndarray:
    """Standard deviation of the error of each round's query, at noise multiplier 1 and clip norm 1.

    Args:
      mechanism, workload, participation: as for `loss`.

    Returns:
      Float64 (rounds,), whose squares sum to `loss`.

    Raises:
      TypeError, ValueError: as `loss`.

    >>> from fedmf.mechanisms.identity import IdentityMechanism
    >>> from fedmf.workloads import prefix_sum
    >>> once = Participation(rounds=4, schema="single")
    >>> float(per_round_error(IdentityMechanism(rounds=4), prefix_sum(4), once)[3])
    2.0
    """
    return np.sqrt(_scaled_rows(mechanism, workload, participation))


@with_numpy_defaults
def max_error(mechanism: Any, workload: Workload, participation: Participation) -> float:
    """The error of the worst round.

    Args:
      mechanism, workload, participation: as for `loss`.

    Returns:
      The largest of `per_round_error`.

    Raises:
      TypeError, ValueError: as `loss`.
    """
    return float(np.sqrt(_scaled_rows(mechanism, workload, participation).max()))


def _scaled_rows(mechanism: Any, workload: Workload, participation: Participation) -> np.ndarray:
    """sensitivity^2 times the squared norm of each row of A N, (rounds,)."""
    check_workload(workload)
    check_mechanism(mechanism)
    if mechanism.rounds != workload.rounds:
        raise ValueError(
            f"workload {workload.name!r} has rounds={workload.rounds} but the mechanism has "
            f"rounds={mechanism.rounds}: make both for the same number of rounds"
        )
    squares = sensitivity(mechanism, participation).value ** 2 * squared_rows(mechanism, workload)
    if not np.isfinite(squares).all():
        raise ValueError(
            "mechanism has noise that grows beyond what float64 holds: N = C^-1 of this "
            f"{mechanism.family} mechanism explodes over its "
            f"{mechanism.rounds} rounds; choose other coefficients, or fit one"
        )
    return squares


def squared_rows(mechanism: Mechanism, workload: Workload) -> np.ndarray:
    """The squared norm of each row of A N, (rounds,); A need not be made where it
    is a structured one.
    """
    rows = _toeplitz_rows(mechanism, workload)
    if rows is None:
        rows = _banded_rows(mechanism, workload)
    if rows is not None:
        return rows
    stream = mechanism.stream()
    if stream.buffers is not None and workload.inverse_diagonals is not None:
        rows = _toeplitz_gram_rows(mechanism, stream.buffers, workload)
        return _streamed_rows(stream, workload.inverse_diagonals) if rows is None else rows
    # What a stream has of N took as long as N itself.
    N = stream.contraction
    if N is None:
        N = mechanism.noising()
    if workload.inverse_diagonals is not None:
        return _solved_rows(workload.inverse_diagonals, N)
    return _matrix_rows(workload.matrix, N)


def _solved_rows(inverse: np.ndarray, N: np.ndarray) -> np.ndarray:
    """The squared norm of each row of A N, (rounds,), from the rows of A^-1, (rounds, bands).

    Row t of A N follows from row t of N and the rows of A N before it.
    """
    n, bands = inverse.shape
    squares = np.empty(n)
    recent = np.zeros((bands - 1, N.shape[1]))  # rows of A N, the newest first
    for t in range(n):
        row = (N[t] - inverse[t, 1:] @ recent) / inverse[t, 0]
        squares[t] = row @ row
        if bands > 1:
            recent[1:] = recent[:-1]
            recent[0] = row
    return squares


def _matrix_rows(A: np.ndarray, N: np.ndarray) -> np.ndarray:
    """The squared norm of each row of A N, (rounds,), without what is above A's diagonal."""
    n = len(A)
    squares = []
    for first in range(0, n, _MAX_ROUNDS_SOLVED_AT_ONCE):
        end = min(first + _MAX_ROUNDS_SOLVED_AT_ONCE, n)
        AN = A[first:end, :end] @ N[:end]
        squares.append(np.einsum("ij,ij->i", AN, AN))
    return np.concatenate(squares)


def _toeplitz_rows(mechanism: Any, workload: Workload) -> np.ndarray | None:
    """The squared norm of each row of A N, (rounds,), where both are Toeplitz, in O(rounds);
    otherwise None.

    A N is Toeplitz as well, and row t holds the first t + 1 entries of its first column: the
    noising coefficients run through A, that is through the recurrence of A^-1.
    """
    noise = mechanism.noising_coefficients()
    if noise is None or workload.coefficients is None or workload.inverse_diagonals is None:
        return None
    import scipy.signal

    column = scipy.signal.lfilter([1.0], workload.inverse_diagonals[-1], noise)
    return np.cumsum(np.square(column))


def _toeplitz_gram_rows(
    mechanism: Mechanism, buffers: Buffers, workload: Workload
) -> np.ndarray | None:
    """The squared norm of each row of A N, (rounds,), where X = C^T C and A are Toeplitz; otherwise
    None.

    With x the first column of X^-1, Gohberg and Semencul (1972) have X^-1 = (L L^T - U U^T) / x_0
    for the lower-triangular Toeplitz matrices of (x_0, ..., x_(n-1)) and (0, x_(n-1), ..., x_1).
    Row t of A N has the squared norm of row t of A X^-1 A^T; A L and A U are Toeplitz as well, and
    row t of each holds the first t + 1 entries of its first column. As N is causal, x = N N[0, 0]
    e_0: the noise of one draw.
    """
    if mechanism.toeplitz_gram() is None or workload.coefficients is None:
        return None
    import scipy.signal

    assert workload.inverse_diagonals is not None
    inverse = workload.inverse_diagonals[-1]
    first_column = buffers.first_column()
    column = first_column * first_column[0]
    reversed_column = np.append(0.0, column[:0:-1])
    gains = np.cumsum(np.square(scipy.signal.lfilter([1.0], inverse, column)))
    losses = np.cumsum(np.square(scipy.signal.lfilter([1.0], inverse, reversed_column)))
    return (gains - losses) / column[0]


def _banded_rows(mechanism: Any, workload: Workload) -> np.ndarray | None:
    """The squared norm of each row of A N, (rounds,), where C and A^-1 are banded; otherwise None.

    In O(rounds bands^2), or in O(rounds^2 bands) where that loses digits.
    """
    rows = mechanism.banded_rows()
    if rows is None or workload.inverse_diagonals is None:
        return None
    inverse = workload.inverse_diagonals
    # A N = (C A^-1)^-1, since a square C has N = C^-1.
    with np.errstate(all="ignore"):
        squares = NoiseRecursion(
            columns_of_rows(checks.banded_product(rows, inverse))
        ).squared_errors()
        if is_precise(squares, rows, inverse):
            return squares
        parts = np.array_split(np.arange(len(rows)), -(-len(rows) // _MAX_ROUNDS_SOLVED_AT_ONCE))
        return np.concatenate([squared_rows_by_solving(rows, inverse, part) for part in parts])


def _streamed_rows(stream: NoiseStream, inverse: np.ndarray) -> np.ndarray:
    """The squared norm of each row of A N, (rounds,), where N is made from running sums and A^-1 is
    banded.

    In O(rounds (sums + bands)^3): the covariance of the sums and of the last errors of the workload
    is known before round 0, where it is 0, and moves on from round to round.
    """
    n, p = inverse.shape
    r = stream.width
    unknowns = np.eye(r + p)  # the draw, the sums, and p - 1 errors, the newest first
    squares = np.empty(n)
    covariance = np.zeros((r + p - 1, r + p - 1))
    for t in range(n):
        row, sums = stream.step(t, unknowns[0], unknowns[1 : r + 1])
        error = (row - inverse[t, 1:] @ unknowns[r + 1 :]) / inverse[t, 0]
        after = np.vstack([sums, error, unknowns[r + 1 :]])[: r + p - 1]
        squares[t] = error[0] ** 2 + error[1:] @ covariance @ error[1:]
        covariance = after[:, 1:] @ covariance @ after[:, 1:].T + np.outer(after[:, 0], after[:, 0])
    return squares
