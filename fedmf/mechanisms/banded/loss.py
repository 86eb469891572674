"""The loss of a banded encoder, its gradient along the band, and its dual bound: by structure, or
for any workload.
"""

import numpy as np
import scipy.linalg

from fedmf.mechanisms.banded.bound import banded_bound
from fedmf.mechanisms.banded.recursion import (
    NoiseRecursion,
    columns_of_blocks,
    columns_of_rows,
    is_precise,
    rows_of_columns,
)

# Blocks smaller than this cost more in calls than they save in arithmetic.
_MIN_BLOCK_ROUNDS = 64


class ImpreciseRecursion(ArithmeticError):
    """The recursion over the noise process loses digits for this workload."""


class StructuredLoss:
    """||A C^-1||_F^2 for C by columns, columns[j, o] = C[j + o, j], (n, bands), and for an A with
    banded inverse.

    O(n bands^2) work and O(n bands) memory, by the recursion over the noise process.
    """

    def __init__(self, inverse_diagonals: np.ndarray, bands: int) -> None:
        self.n, self.p = inverse_diagonals.shape
        self.bands = bands
        self.inverse = inverse_diagonals
        self.inverse_columns = columns_of_rows(inverse_diagonals)
        self.width = min(self.n, bands + self.p - 1)

    def evaluate(self, columns: np.ndarray) -> tuple[float, np.ndarray]:
        """The loss and its gradient, (n, bands), 0 outside C."""
        recursion = NoiseRecursion(self._product(columns))
        along_R = columns_of_blocks(recursion.gradient(), self.n, self.width)
        gradient = np.zeros((self.n, self.bands))
        for j in range(self.p):  # the adjoint of _product
            upto = min(self.bands, self.width - j)
            gradient[j:, :upto] += along_R[: self.n - j, j : j + upto] * self.inverse[j:, j, None]
        return float(recursion.squared_errors().sum()), clear_outside(gradient)

    def bound(
        self, columns: np.ndarray, classes: np.ndarray, tolerance: float
    ) -> tuple[float, float]:
        """The loss and a lower bound on that of every C whose classes have squared column norms
        that sum to at most 1.

        A bound within the relative `tolerance` need not be made sharper. ImpreciseRecursion where
        digits are lost.
        """
        with np.errstate(all="ignore"):
            recursion = NoiseRecursion(self._product(columns))
        squares = recursion.squared_errors()
        if not is_precise(squares, rows_of_columns(columns), self.inverse):
            raise ImpreciseRecursion
        loss = float(squares.sum())
        bound = banded_bound(columns, self.inverse_columns, recursion, loss, classes, tolerance)
        # Far from the optimum that can be useless. The main diagonal of A C^-1 alone, with entries
        # A_ii / C_ii and C_ii at most the norm of column i, bounds the loss by the squares of the
        # classes' sums of |A_ii|.
        diagonal = np.bincount(classes, 1.0 / np.abs(self.inverse[:, 0]))
        return loss, max(bound, float(diagonal @ diagonal))

    def _product(self, columns: np.ndarray) -> np.ndarray:
        """R = C P by columns: R[l + o, l] = sum_j C[l + o, l + j] P[l + j, l]."""
        R = np.zeros((self.n, self.width))
        for j in range(self.p):
            upto = min(self.bands, self.width - j)
            R[: self.n - j, j : j + upto] += columns[j:, :upto] * self.inverse[j:, j, None]
        return R


class DenseLoss:
    """The same for any A: C still has blocks on its diagonal and right below it only, and an
    evaluation costs O(n^2 bands).
    """

    def __init__(self, A: np.ndarray, bands: int) -> None:
        self.A, self.n, self.bands = A, A.shape[0], bands
        size = max(bands - 1, _MIN_BLOCK_ROUNDS)
        self.blocks = [slice(first, min(first + size, self.n)) for first in range(0, self.n, size)]

    def evaluate(self, columns: np.ndarray) -> tuple[float, np.ndarray]:
        """As in StructuredLoss."""
        C, band = self._with_band_view()
        band[:] = columns
        B = self._decoder(C)
        # d||B||^2 = -2 <B, B dC C^-1>: the gradient with respect to C is -2 B^T W^T with W = C^-1
        # B^T. Its entries inside the band need W on and right of the diagonal blocks only, solved
        # from the first block of rows on.
        G, gradient = self._with_band_view()
        before, W_before = self.blocks[0], np.empty((0, 0))
        for block in self.blocks:
            Bt = B[block.start :, block].T
            right = Bt.copy(order="F")
            if block is not before:
                W_before = W_before[:, block.start - before.start :]
                right -= C[block, before] @ W_before
                G[block, before] = Bt @ W_before.T
            W = scipy.linalg.blas.dtrsm(1.0, C[block, block], right, lower=1, overwrite_b=1)
            G[block, block] = Bt @ W.T
            W_before, before = W, block
        return float(np.einsum("ij,ij->", B, B)), clear_outside(-2.0 * gradient)

    def bound(
        self, columns: np.ndarray, classes: np.ndarray, tolerance: float
    ) -> tuple[float, float]:
        """As in StructuredLoss; O(n^3).

        At the optimum M = X^-1 A^T A X^-1 vanishes inside the band, off the diagonal, and its
        diagonal is constant on each class: there the derivative of the loss along X, -M, is zero
        along every feasible direction. U is M made so; tr(U X) <= the sum of its constants for
        every feasible X.
        """
        C, band = self._with_band_view()
        band[:] = columns
        B = self._decoder(C)
        loss = float(np.einsum("ij,ij->", B, B))
        W = scipy.linalg.blas.dtrsm(1.0, C, B.T, lower=1)  # C^-1 B^T
        M = W @ W.T
        weights = np.einsum("ij,ij->i", columns, columns)
        means = np.bincount(classes, weights * np.diagonal(M)) / np.bincount(classes, weights)
        diagonal = np.diag(means[classes])
        within = np.tri(self.n, k=self.bands - 1, dtype=bool)
        M[within & within.T] = 0.0
        # Far from the optimum U can be indefinite: then keep as much of its outer part as leaves it
        # positive definite.
        for share in (1.0, 0.9, 0.5, 0.0):
            bound = dual_bound(self.A, diagonal + share * M)
            if bound is not None:
                return loss, bound * float(np.trace(diagonal)) / float(means.sum())
        raise ValueError(
            "workload is too ill-conditioned to certify a fit in float64: rescale its rows"
        )

    def _decoder(self, C: np.ndarray) -> np.ndarray:
        """B = A C^-1, lower-triangular: B C = A, solved from the last block of columns back."""
        B = np.zeros((self.n, self.n))
        for place in reversed(range(len(self.blocks))):
            block = self.blocks[place]
            right = self.A[block.start :, block].copy(order="F")
            if place + 1 < len(self.blocks):
                after = self.blocks[place + 1]
                right[after.start - block.start :] -= B[after.start :, after] @ C[after, block]
            B[block.start :, block] = scipy.linalg.blas.dtrsm(
                1.0, C[block, block], right, side=1, lower=1, overwrite_b=1
            )
        return B

    def _with_band_view(self) -> tuple[np.ndarray, np.ndarray]:
        """A zero (n, n) matrix in Fortran order, and a view of its band: [j, o] is [j + o,
        j], or padding.
        """
        # Row j holds column j, so that the view's rows are contiguous
        padded = np.zeros((self.n, self.n + self.bands))
        across, along = padded.strides
        view = np.lib.stride_tricks.as_strided(
            padded, (self.n, self.bands), (across + along, along)
        )
        return padded.T[: self.n], view


def dual_bound(A: np.ndarray, U: np.ndarray) -> float | None:
    """A lower bound on tr(A^T A X^-1) over positive-definite X with tr(U X) = tr(U); None for an
    indefinite U.

    For any such X, tr(A^T A X^-1) + tr(U X) >= 2 tr((A U A^T)^(1/2)), whose right side is the
    minimum of the left over all positive-definite X. With tr(U X) = tr(U) this bounds the loss by 2
    T - tr(U), T = tr((A U A^T)^(1/2)). U may be scaled freely, and the best scale, (T / tr U)^2,
    gives T^2 / tr(U). For diagonal U this is Denisov et al. 2022, Eq. 8.

    tr(U X) = tr(U) for every X with unit diagonal if U is diagonal; and for every such X with
    `bands` bands if U is zero at 0 < |i - j| < bands.

    Args:
      A: workload, (n, n).
      U: symmetric, (n, n).
    """
    factor, info = scipy.linalg.lapack.dpotrf(U, lower=True, clean=True)
    if info != 0:
        return None
    # T is the sum of singular values of A U^(1/2); from the eigenvalues of A U A^T half the digits
    # of the small ones would be lost.
    T = float(scipy.linalg.svdvals(A @ factor, overwrite_a=True, check_finite=False).sum())
    return T * T / float(np.trace(U))


def clear_outside(columns: np.ndarray) -> np.ndarray:
    """Zeroes, in place, the entries of `columns` below the last row of the matrix."""
    n, bands = columns.shape
    for o in range(1, bands):
        columns[n - o :, o] = 0.0
    return columns
