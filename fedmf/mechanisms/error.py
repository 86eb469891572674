"""The error that the noise of a mechanism causes on a workload, at noise multiplier 1 and clip norm
1.
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
from fedmf.mechanisms.tree_error import squared_rows_of_trees
from fedmf.noise.buffers import Buffers
from fedmf.noise.stream import NoiseStream
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.participation.schema import Participation
from fedmf.workloads import Workload, check_workload

# Number of rounds whose rows of A N are computed together.
_BLOCK_ROUNDS = 256
_MAX_ROUNDS_SOLVED_AT_ONCE = 256


@with_numpy_defaults
def loss(mechanism: Any, workload: Workload, participation: Participation) -> float:
    """Returns the total expected squared error, sensitivity^2 * ||A N||_F^2, where A is the
    workload and N the noise matrix. The formula is that of Denisov et al. 2022, Eq. 2, and of the
    multi-epoch paper, Eq. 4.

    Args:
      mechanism: any mechanism of this package.
      workload: the query A whose error is measured.
      participation: the participation of the sensitivity. If only an upper bound of the sensitivity
        is known, the loss is an upper bound as well.

    Returns:
      The loss, at noise multiplier 1 and clip norm 1.

    Raises:
      TypeError: workload is not a Workload.
      ValueError: the numbers of rounds of the three differ, or the noise grows beyond float64.

    >>> from fedmf.mechanisms.identity import IdentityMechanism
    >>> from fedmf.workloads import prefix_sum
    >>> loss(IdentityMechanism(rounds=3), prefix_sum(3), Participation(rounds=3, schema="single"))
    6.0
    """
    return float(np.sum(_scaled_rows(mechanism, workload, participation)))


@with_numpy_defaults
def rmse(mechanism: Any, workload: Workload, participation: Participation) -> float:
    """Returns the root mean squared error of the workload over all rounds, at noise multiplier 1
    and clip norm 1.

    Args:
      mechanism, workload, participation: as for `loss`.

    Returns:
      sqrt(loss / rounds).

    Raises:
      TypeError: workload is not a Workload.
      ValueError: the numbers of rounds of the three differ, or the noise grows beyond float64.
    """
    return float(np.sqrt(loss(mechanism, workload, participation) / workload.rounds))


@with_numpy_defaults
def per_round_error(mechanism: Any, workload: Workload, participation: Participation) -> np.ndarray:
    """Returns for each round the standard deviation of the error of its query, at noise multiplier
    1 and clip norm 1.

    Args:
      mechanism, workload, participation: as for `loss`.

    Returns:
      Float64 (rounds,), whose squares sum to `loss`.

    Raises:
      TypeError: workload is not a Workload.
      ValueError: the numbers of rounds of the three differ, or the noise grows beyond float64.

    >>> from fedmf.mechanisms.identity import IdentityMechanism
    >>> from fedmf.workloads import prefix_sum
    >>> once = Participation(rounds=4, schema="single")
    >>> float(per_round_error(IdentityMechanism(rounds=4), prefix_sum(4), once)[3])
    2.0
    """
    return np.sqrt(_scaled_rows(mechanism, workload, participation))


@with_numpy_defaults
def max_error(mechanism: Any, workload: Workload, participation: Participation) -> float:
    """Returns the error of the worst round, which is the largest entry of `per_round_error`.

    Args:
      mechanism, workload, participation: as for `loss`.

    Returns:
      The largest of `per_round_error`.

    Raises:
      TypeError: workload is not a Workload.
      ValueError: the numbers of rounds of the three differ, or the noise grows beyond float64.
    """
    return float(np.sqrt(_scaled_rows(mechanism, workload, participation).max()))


def _scaled_rows(mechanism: Any, workload: Workload, participation: Participation) -> np.ndarray:
    """Returns sensitivity^2 times the squared norm of each row of A N, float64 (rounds,), where A
    is the workload and N the noise matrix.
    """
    check_workload(workload)
    check_mechanism(mechanism)
    if mechanism.rounds != workload.rounds:
        raise ValueError(
            f"workload {workload.name!r} has rounds={workload.rounds} but the mechanism has "
            f"rounds={mechanism.rounds}: make both for the same number of rounds"
        )
    scaled_norms = sensitivity(mechanism, participation).value ** 2 * squared_rows(
        mechanism, workload
    )
    if not np.isfinite(scaled_norms).all():
        raise ValueError(
            "mechanism has noise that grows beyond what float64 holds: N = C^-1 of this "
            f"{mechanism.family} mechanism explodes over its "
            f"{mechanism.rounds} rounds; choose other coefficients, or fit one"
        )
    return scaled_norms


def squared_rows(mechanism: Mechanism, workload: Workload) -> np.ndarray:
    """Returns the squared norm of each row of A N, float64 (rounds,), where A is the workload and N
    the noise matrix. A structured A is not formed.
    """
    squared_norms = _toeplitz_rows(mechanism, workload)
    if squared_norms is None:
        squared_norms = _banded_rows(mechanism, workload)
    if squared_norms is not None:
        return squared_norms
    stream = mechanism.stream()
    if stream.tree is not None and workload.inverse_diagonals is not None:
        return squared_rows_of_trees(stream.tree, workload.inverse_diagonals)
    if stream.buffers is not None and workload.inverse_diagonals is not None:
        squared_norms = _toeplitz_gram_rows(mechanism, stream.buffers, workload)
        if squared_norms is None:
            squared_norms = _streamed_rows(stream, workload.inverse_diagonals)
        return squared_norms
    # The stream may have computed the noise matrix N already. Computing N again would take as long
    # as creating the stream.
    N = stream.contraction
    if N is None:
        N = mechanism.noising()
    if workload.inverse_diagonals is not None:
        return _solved_rows(workload.inverse_diagonals, N)
    return _matrix_rows(workload.matrix, N)


def _solved_rows(inverse: np.ndarray, N: np.ndarray) -> np.ndarray:
    """Returns the squared norm of each row of A N, float64 (rounds,), from the noise matrix N and
    the rows of the inverse workload A^-1, (rounds, bands). Row t of A N follows from row t of N and
    the previous rows of A N.
    """
    n, bands = inverse.shape
    squared_norms = np.empty(n)
    # The most recent rows of A N, the newest first, where A is the workload and N the noise matrix.
    previous_rows = np.zeros((bands - 1, N.shape[1]))
    for t in range(n):
        error_row = (N[t] - inverse[t, 1:] @ previous_rows) / inverse[t, 0]
        squared_norms[t] = error_row @ error_row
        if bands > 1:
            previous_rows[1:] = previous_rows[:-1]
            previous_rows[0] = error_row
    return squared_norms


def _matrix_rows(A: np.ndarray, N: np.ndarray) -> np.ndarray:
    """Returns the squared norm of each row of A N, float64 (rounds,), for any lower-triangular
    workload A and any noise matrix N.
    """
    n = len(A)
    squared_norms = []
    for first_round in range(0, n, _BLOCK_ROUNDS):
        end_round = min(first_round + _BLOCK_ROUNDS, n)
        AN = A[first_round:end_round, :end_round] @ N[:end_round]
        squared_norms.append(np.einsum("ij,ij->i", AN, AN))
    return np.concatenate(squared_norms)


def _toeplitz_rows(mechanism: Any, workload: Workload) -> np.ndarray | None:
    """Returns the squared norm of each row of A N, float64 (rounds,), in O(rounds) time if the
    workload A and the noise matrix N are both Toeplitz; otherwise None.

    A N is Toeplitz as well, and row t holds the first t + 1 entries of its first column: the
    noising coefficients run through A, that is through the recurrence of A^-1.
    """
    noising_column = mechanism.noising_coefficients()
    if noising_column is None or workload.coefficients is None:
        return None
    if workload.inverse_diagonals is None:
        return None
    import scipy.signal

    error_column = scipy.signal.lfilter([1.0], workload.inverse_diagonals[-1], noising_column)
    return np.cumsum(np.square(error_column))


def _toeplitz_gram_rows(
    mechanism: Mechanism, buffers: Buffers, workload: Workload
) -> np.ndarray | None:
    """Returns the squared norm of each row of A N, float64 (rounds,), if the workload A and X = C^T
    C are Toeplitz, where C is the encoder and N the noise matrix; otherwise None.

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
    inverse_column = workload.inverse_diagonals[-1]
    first_column = buffers.first_column()
    scaled_column = first_column * first_column[0]
    reversed_column = np.append(0.0, scaled_column[:0:-1])
    positive_sums = np.cumsum(np.square(scipy.signal.lfilter([1.0], inverse_column, scaled_column)))
    negative_sums = np.cumsum(
        np.square(scipy.signal.lfilter([1.0], inverse_column, reversed_column))
    )
    return (positive_sums - negative_sums) / scaled_column[0]


def _banded_rows(mechanism: Any, workload: Workload) -> np.ndarray | None:
    """Returns the squared norm of each row of A N, float64 (rounds,), if the encoder C and the
    inverse workload A^-1 are banded; otherwise None.

    It takes O(rounds bands^2), or O(rounds^2 bands) where that loses digits.
    """
    encoder_rows = mechanism.banded_rows()
    if encoder_rows is None or workload.inverse_diagonals is None:
        return None
    inverse_rows = workload.inverse_diagonals
    # For a square encoder C, the noise matrix is N = C^-1, and therefore A N = (C A^-1)^-1 for the
    # workload A.
    with np.errstate(all="ignore"):
        product_columns = columns_of_rows(checks.banded_product(encoder_rows, inverse_rows))
        squared_norms = NoiseRecursion(product_columns).squared_errors()
        if is_precise(squared_norms, encoder_rows, inverse_rows):
            return squared_norms
        num_blocks = -(-len(encoder_rows) // _BLOCK_ROUNDS)
        round_blocks = np.array_split(np.arange(len(encoder_rows)), num_blocks)
        return np.concatenate(
            [
                squared_rows_by_solving(encoder_rows, inverse_rows, round_block)
                for round_block in round_blocks
            ]
        )


def _streamed_rows(stream: NoiseStream, inverse: np.ndarray) -> np.ndarray:
    """Returns the squared norm of each row of A N, float64 (rounds,), if the noise N Z is computed
    from running sums and the inverse workload A^-1 is banded.

    It takes O(rounds (sums + bands)^3): the covariance of the sums and of the last errors of the
    workload is 0 before round 0, and is updated from round to round.
    """
    n, p = inverse.shape
    num_sums = stream.width
    # The error of round t is linear in the round's draw, the running sums, and the last p - 1
    # errors, where p is the number of bands of A^-1. A unit vector represents each of these random
    # quantities.
    unknown_rows = np.eye(num_sums + p)
    squared_norms = np.empty(n)
    covariance = np.zeros((num_sums + p - 1, num_sums + p - 1))
    for t in range(n):
        noise_row, sums = stream.step(t, unknown_rows[0], unknown_rows[1 : num_sums + 1])
        error_weights = (noise_row - inverse[t, 1:] @ unknown_rows[num_sums + 1 :]) / inverse[t, 0]
        squared_norms[t] = (
            error_weights[0] ** 2 + error_weights[1:] @ covariance @ error_weights[1:]
        )
        transition = np.vstack([sums, error_weights, unknown_rows[num_sums + 1 :]])[
            : num_sums + p - 1
        ]
        draw_vector = transition[:, 0]
        carried_weights = transition[:, 1:]
        covariance = carried_weights @ covariance @ carried_weights.T + np.outer(
            draw_vector, draw_vector
        )
    return squared_norms
