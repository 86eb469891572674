"""The loss of a banded encoder, with its gradient along the band and a lower bound on it.

`StructuredLoss` is for workloads with banded inverse, `DenseLoss` for any workload.
"""

import numpy as np
import scipy.linalg

from fedmf.mechanisms.banded.bound import banded_bound, dual_bound
from fedmf.mechanisms.banded.recursion import (
    NoiseRecursion,
    columns_of_blocks,
    columns_of_rows,
    is_precise,
    rows_of_columns,
)

# Least number of rounds in a block. Smaller blocks cost more in calls than they save in arithmetic.
_MIN_BLOCK_ROUNDS = 64


class ImpreciseRecursion(ArithmeticError):
    """The error that is raised if the recursion for the noise covariances loses too many digits."""


class StructuredLoss:
    """The loss ||A C^-1||_F^2 of a banded encoder C, for a workload A with banded inverse. C is
    given by columns, float64 (n, bands), with columns[j, o] = C[j + o, j].

    It costs O(n bands^2) work and O(n bands) memory, by the recursion over the noise process.
    """

    def __init__(self, inverse_diagonals: np.ndarray, bands: int) -> None:
        self.n, self.p = inverse_diagonals.shape
        self.bands = bands
        self.inverse = inverse_diagonals
        self.inverse_columns = columns_of_rows(inverse_diagonals)
        self.width = min(self.n, bands + self.p - 1)

    def evaluate(self, columns: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the loss and its gradient, float64 (n, bands). Gradient entries beyond the last
        row of the encoder C are 0.
        """
        recursion = NoiseRecursion(self._product(columns))
        R_gradient = columns_of_blocks(recursion.gradient(), self.n, self.width)
        gradient = np.zeros((self.n, self.bands))
        # This loop applies the adjoint (transpose) of the linear function that `_product` computes.
        for j in range(self.p):
            num_fitting_bands = min(self.bands, self.width - j)
            gradient[j:, :num_fitting_bands] += (
                R_gradient[: self.n - j, j : j + num_fitting_bands] * self.inverse[j:, j, None]
            )
        return recursion.squared_errors().sum(), clear_outside(gradient)

    def bound(
        self, columns: np.ndarray, classes: np.ndarray, tolerance: float
    ) -> tuple[float, float]:
        """Returns the loss of C, and a lower bound on the loss of every banded encoder whose
        squared column norms sum to at most 1 in each class.

        A bound within the relative `tolerance` need not be made sharper.

        Raises:
          ImpreciseRecursion: the recursion loses digits for this workload.
        """
        with np.errstate(all="ignore"):
            recursion = NoiseRecursion(self._product(columns))
        squared_errors = recursion.squared_errors()
        if not is_precise(squared_errors, rows_of_columns(columns), self.inverse):
            raise ImpreciseRecursion
        loss = squared_errors.sum()
        lower_bound = banded_bound(
            columns, self.inverse_columns, recursion, loss, classes, tolerance
        )
        # Far from the optimum the first bound can be useless, so a second bound is computed from
        # the diagonal entries A_ii / C_ii of A C^-1 alone. Since the squared column norms of a
        # class sum to at most 1, the loss is at least the sum over classes of (the class's sum of
        # |A_ii|)^2.
        diagonal_sums = np.bincount(classes, 1.0 / np.abs(self.inverse[:, 0]))
        return loss, max(lower_bound, float(diagonal_sums @ diagonal_sums))

    def _product(self, columns: np.ndarray) -> np.ndarray:
        """Returns the product R = C P by columns, where P = A^-1 is the inverse of the workload.
        Its entries are R[l + o, l] = sum_j C[l + o, l + j] P[l + j, l].
        """
        R = np.zeros((self.n, self.width))
        for j in range(self.p):
            num_fitting_bands = min(self.bands, self.width - j)
            R[: self.n - j, j : j + num_fitting_bands] += (
                columns[j:, :num_fitting_bands] * self.inverse[j:, j, None]
            )
        return R


class DenseLoss:
    """The loss ||A C^-1||_F^2 of a banded encoder C, given by columns, for any workload A, in O(n^2
    bands) time. In blocks of at least bands - 1 rounds, C is non-zero on the diagonal and right
    below it only.
    """

    def __init__(self, A: np.ndarray, bands: int) -> None:
        self.A = A
        self.n = A.shape[0]
        self.bands = bands
        block_rounds = max(bands - 1, _MIN_BLOCK_ROUNDS)
        self.blocks = [
            slice(first, min(first + block_rounds, self.n))
            for first in range(0, self.n, block_rounds)
        ]

    def evaluate(self, columns: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the loss and its gradient, as `StructuredLoss.evaluate` does."""
        C, band = self._with_band_view()
        band[:] = columns
        B = self._decoder(C)
        # Let B = A C^-1 and W = C^-1 B^T. The gradient of ||B||^2 with respect to C is -2 B^T W^T.
        # Its entries inside the band need only the blocks of W on the diagonal and to the right of
        # it.
        G, G_band = self._with_band_view()
        previous_block = self.blocks[0]
        previous_W = np.empty((0, 0))
        for block in self.blocks:
            Bt = B[block.start :, block].T
            Bt_columns = Bt.copy(order="F")
            if block is not previous_block:
                previous_W = previous_W[:, block.start - previous_block.start :]
                Bt_columns -= C[block, previous_block] @ previous_W
                G[block, previous_block] = Bt @ previous_W.T
            W = scipy.linalg.blas.dtrsm(1.0, C[block, block], Bt_columns, lower=1, overwrite_b=1)
            G[block, block] = Bt @ W.T
            previous_W = W
            previous_block = block
        return np.einsum("ij,ij->", B, B), clear_outside(-2.0 * G_band)

    def bound(
        self, columns: np.ndarray, classes: np.ndarray, tolerance: float
    ) -> tuple[float, float]:
        """Returns the loss and a lower bound, as `StructuredLoss.bound` does, in O(n^3) time.

        At the optimum M = X^-1 A^T A X^-1 vanishes inside the band, off the diagonal, and its
        diagonal is constant on each class: there the derivative of the loss along X, -M, is zero
        along every feasible direction. U is M with these properties imposed; tr(U X) <= the sum of
        its constants for every feasible X.
        """
        C, band = self._with_band_view()
        band[:] = columns
        B = self._decoder(C)
        loss = np.einsum("ij,ij->", B, B)
        # W is C^-1 B^T, where C is the encoder and B = A C^-1 the decoder.
        W = scipy.linalg.blas.dtrsm(1.0, C, B.T, lower=1)
        M = W @ W.T
        squared_norms = np.einsum("ij,ij->i", columns, columns)
        class_means = np.bincount(classes, squared_norms * np.diagonal(M)) / np.bincount(
            classes, squared_norms
        )
        class_diagonal = np.diag(class_means[classes])
        is_in_band = np.tri(self.n, k=self.bands - 1, dtype=bool)
        M[is_in_band & is_in_band.T] = 0.0
        # Far from the optimum U = diagonal + M can be indefinite, where M has the entries of U
        # outside the band. M is then scaled down until U is positive definite.
        for fraction in (1.0, 0.9, 0.5, 0.0):
            lower_bound = dual_bound(self.A, class_diagonal + fraction * M)
            if lower_bound is not None:
                return loss, lower_bound * np.trace(class_diagonal) / class_means.sum()
        raise ValueError(
            "workload is too ill-conditioned to certify a fit in float64: rescale its rows"
        )

    def _decoder(self, C: np.ndarray) -> np.ndarray:
        """Returns the lower-triangular decoder B = A C^-1. It solves B C = A from the last block of
        columns to the first.
        """
        B = np.zeros((self.n, self.n))
        for index in reversed(range(len(self.blocks))):
            current_block = self.blocks[index]
            remaining_columns = self.A[current_block.start :, current_block].copy(order="F")
            if index + 1 < len(self.blocks):
                following_block = self.blocks[index + 1]
                later_product = (
                    B[following_block.start :, following_block] @ C[following_block, current_block]
                )
                remaining_columns[following_block.start - current_block.start :] -= later_product
            B[current_block.start :, current_block] = scipy.linalg.blas.dtrsm(
                1.0,
                C[current_block, current_block],
                remaining_columns,
                side=1,
                lower=1,
                overwrite_b=1,
            )
        return B

    def _with_band_view(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns a zero (n, n) matrix in Fortran order, and a view of its band. Entry [j, o] of
        the view is entry [j + o, j] of the matrix, or padding below its last row.
        """
        # Row j of `padded_matrix` stores column j of the matrix, so that each row of the band's
        # view is contiguous in memory.
        padded_matrix = np.zeros((self.n, self.n + self.bands))
        row_stride, entry_stride = padded_matrix.strides
        band_view = np.lib.stride_tricks.as_strided(
            padded_matrix, (self.n, self.bands), (row_stride + entry_stride, entry_stride)
        )
        return padded_matrix.T[: self.n], band_view


def clear_outside(columns: np.ndarray) -> np.ndarray:
    """Sets the entries of `columns` that lie below the last row of the matrix to 0 in place."""
    n, bands = columns.shape
    for o in range(1, bands):
        columns[n - o :, o] = 0.0
    return columns
