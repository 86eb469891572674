"""A block recursion that computes the errors of banded encoders, and their gradient, without a
dense matrix.

With A^-1 = P of p bands and C of b bands, R = C P has at most b + p - 1 bands and A N = A C^-1 =
R^-1: the error y of the queries solves R y = z. Cut the rounds into blocks of at least b + p - 2;
then R has blocks D_t on its diagonal and E_t left of it only, and y is a block autoregression,

    D_t y_t + E_t y_(t-1) = z_t,    Sigma_t = Cov(y_t) = D_t^-1 (I + E_t Sigma_(t-1) E_t^T) D_t^-T.

The diagonal of Sigma_t holds the squared errors of the rounds of block t at unit noise: O(n (b +
p)^2) work for all of them, of which only two products a block are sequential.

Banded matrices are stored by columns here: columns[j, o] = M[j + o, j], 0 where j + o >= n.
"""

import numpy as np
import scipy.linalg

from fedmf import checks

# Least number of rounds in a block. Smaller blocks cost more in calls than they save in arithmetic.
_MIN_BLOCK_ROUNDS = 32
# Triangular systems are solved for this many rounds to check the results of the recursion.
# _MAX_RELATIVE_ERROR is the largest relative error that is accepted.
_NUM_SAMPLED_ROUNDS = 33
_MAX_RELATIVE_ERROR = 1e-6


def columns_of_rows(rows: np.ndarray) -> np.ndarray:
    """Converts a banded matrix M from storage by rows, rows[t, j] = M[t, t - j], to storage by
    columns, columns[j, o] = M[j + o, j]. Both arrays are float64 (n, bands).

    >>> columns_of_rows(np.array([[1.0, 0.0], [2.0, 3.0]]))
    array([[1., 3.],
           [2., 0.]])
    """
    n, bands = rows.shape
    band_columns = np.zeros((n, bands))
    for o in range(bands):
        band_columns[: n - o, o] = rows[o:, o]
    return band_columns


def rows_of_columns(columns: np.ndarray) -> np.ndarray:
    """Converts the columns of a banded matrix to its rows, the inverse of `columns_of_rows`."""
    n, bands = columns.shape
    band_rows = np.zeros((n, bands))
    for o in range(bands):
        band_rows[o:, o] = columns[: n - o, o]
    return band_rows


def blocks_of(columns: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the non-zero blocks of a banded matrix, in two arrays. D (count, length, length)
    holds the blocks on the diagonal. E (count - 1, length, length) holds those below, where E[t] is
    left of D[t + 1]. Both are transposed views.

    The last block is padded by the identity.
    """
    n, bands = columns.shape
    num_blocks = -(-n // length)
    # Row i of slab t holds column t * length + i of the matrix, from the first row of its block on.
    # The column's entries in D[t] come first, then those in E[t].
    column_slabs = np.zeros((num_blocks, length, 2 * length))
    padded_rows = np.zeros((num_blocks * length, bands))
    padded_rows[:n] = columns
    padded_rows[n:, 0] = 1.0
    _band_view(column_slabs, bands)[...] = padded_rows.reshape(num_blocks, length, bands)
    return column_slabs[:, :, :length].transpose(0, 2, 1), column_slabs[:-1, :, length:].transpose(
        0, 2, 1
    )


def _band_view(slabs: np.ndarray, bands: int) -> np.ndarray:
    """Returns the view of the slabs whose entry [t, i, o] is entry (i + o, i) of block t."""
    num_blocks, block_length, _ = slabs.shape
    block_stride, row_stride, entry_stride = slabs.strides
    return np.lib.stride_tricks.as_strided(
        slabs,
        (num_blocks, block_length, bands),
        (block_stride, row_stride + entry_stride, entry_stride),
    )


def columns_of_blocks(blocks: list[np.ndarray], n: int, bands: int) -> np.ndarray:
    """Joins the blocks [D, E] of `blocks_of` into the columns of a banded matrix, float64 (n,
    bands). Entries below the last row are 0.
    """
    D, E = blocks
    num_blocks, block_length, _ = D.shape
    column_slabs = np.zeros((num_blocks, block_length, 2 * block_length))
    column_slabs[:, :, :block_length] = D.transpose(0, 2, 1)
    column_slabs[:-1, :, block_length:] = E.transpose(0, 2, 1)
    band_columns = _band_view(column_slabs, bands).reshape(num_blocks * block_length, bands)[:n]
    for o in range(1, bands):
        band_columns[n - o :, o] = 0.0
    return band_columns


def squared_rows_by_solving(
    rows: np.ndarray, inverse: np.ndarray, rounds: np.ndarray
) -> np.ndarray:
    """Computes the squared norms of some rows of A C^-1, where A is the workload and C the encoder.
    `rounds` has the indices of these rows, in increasing order, `rows` the rows of C, (n, bands),
    and `inverse` the rows of P = A^-1, (n, p).

    Each takes two triangular solves. The recursion below computes the covariance of errors y, of
    which R = C P takes differences: where they are small beside y, as where a learning rate rises
    again after it fell, it loses twice the digits that a solve loses.

    >>> prefix = np.array([[1.0, 0.0], [1.0, -1.0], [1.0, -1.0]])
    >>> squared_rows_by_solving(np.ones((3, 1)), prefix, np.array([0, 2]))
    array([1., 3.])
    """
    n = int(rounds[-1]) + 1  # Later rounds have no effect on row rounds[-1].
    solution = np.zeros((n, len(rounds)))
    solution[rounds, np.arange(len(rounds))] = 1.0
    for matrix_rows in (inverse[:n], rows[:n]):
        solution, _ = scipy.linalg.lapack.dtbtrs(
            columns_of_rows(matrix_rows).T, solution, uplo="L", trans="T"
        )
    return np.einsum("ij,ij->j", solution, solution)


def is_precise(squares: np.ndarray, rows: np.ndarray, inverse: np.ndarray) -> bool:
    """Returns whether `squares`, the squared norms of the rows of A C^-1, have a relative error of
    at most 1e-6 in a sample of the rounds. A is the workload and C the encoder; `rows` and
    `inverse` are as in `squared_rows_by_solving`.
    """
    sampled_rounds = np.linspace(0, len(squares) - 1, _NUM_SAMPLED_ROUNDS).round().astype(np.int64)
    sampled_rounds = np.unique(sampled_rounds)
    solved_squares = squared_rows_by_solving(rows, inverse, sampled_rounds)
    absolute_errors = np.abs(squares[sampled_rounds] - solved_squares)
    # The comparison is written so that a NaN counts as imprecise.
    return bool((absolute_errors <= _MAX_RELATIVE_ERROR * solved_squares).all())


class NoiseRecursion:
    """The recursion for the covariances Sigma_t of the errors R^-1 Z in each block t of rounds, and
    its adjoint recursion for the gradient. R = C A^-1 is given by columns, where C is the encoder
    and A the workload.

    Attributes:
      covariances: Sigma, (blocks, length, length).
      inverses: D_t^-1, (blocks, length, length).
      transfers: D_t^-1 E_t from the second block on.

    >>> # The inverse of prefix sums
    >>> R_columns = np.array([[1.0, -1.0], [1.0, -1.0], [1.0, 0.0]])
    >>> NoiseRecursion(R_columns).squared_errors()
    array([1., 2., 3.])
    """

    def __init__(self, columns: np.ndarray) -> None:
        self.rounds, bands = columns.shape
        block_length = min(self.rounds, max(bands - 1, _MIN_BLOCK_ROUNDS))
        checks.fits_in_memory(
            "the recursion over a banded encoder", (self.rounds, block_length), copies=6
        )
        D, E = blocks_of(columns, block_length)
        self.inverses = np.stack([invert_block(block) for block in D])
        self.transfers = self.inverses[1:] @ E
        self.covariances = self.inverses @ self.inverses.transpose(0, 2, 1)
        for t, F in enumerate(self.transfers):
            self.covariances[t + 1] += F @ self.covariances[t] @ F.T

    def squared_errors(self) -> np.ndarray:
        """Returns the squared norms of the rows of R^-1, where R = C A^-1, float64 (rounds,)."""
        return np.einsum("tii->ti", self.covariances).reshape(-1)[: self.rounds]

    def gradient(self, max_offset: int = 1) -> list[np.ndarray]:
        """Returns blocks of the derivative of ||R^-1||_F^2 along R = C A^-1, which is -2 R^-T R^-1
        R^-T. Item q of the list holds the blocks that are q below the diagonal, for q =
        0..max_offset.

        Each is (blocks - q, length, length), the first two are for D and E. lam[t], the derivative
        along Sigma_t of the errors of all rounds from block t on, runs backwards: lam[t] = I +
        F_(t+1)^T lam[t+1] F_(t+1), F_t = D_t^-1 E_t.
        """
        padded_weights = np.zeros(self.inverses.shape[0] * self.inverses.shape[1])
        padded_weights[: self.rounds] = 1.0  # The rounds that pad the last block have no weight.
        adjoint = np.zeros(self.inverses.shape)
        np.einsum("tii->ti", adjoint)[...] = padded_weights.reshape(self.inverses.shape[:2])
        for t in range(len(self.transfers) - 1, -1, -1):
            transfer = self.transfers[t]
            adjoint[t] += transfer.T @ adjoint[t + 1] @ transfer
        Y = self.inverses.transpose(0, 2, 1) @ adjoint
        Y *= -2.0
        gradient_blocks = [Y @ self.covariances]
        offset_covariances = self.covariances
        for q in range(1, max_offset + 1):
            # The covariances of blocks of the noise y follow from Cov(y_(t+q), y_t) = -F_(t+q)
            # Cov(y_(t+q-1), y_t), where F_t is transfers[t - 1].
            offset_covariances = -self.transfers[q - 1 :] @ offset_covariances[:-1]
            gradient_blocks.append(Y[q:] @ offset_covariances)
        return gradient_blocks


def invert_block(block: np.ndarray) -> np.ndarray:
    """Returns the inverse of a lower-triangular matrix, which is lower-triangular as well."""
    return scipy.linalg.lapack.dtrtri(block, lower=1)[0]
