"""Lower bounds on the losses of banded encoders, computed by weak duality.

`dual_bound` is for any workload. `banded_bound`, for workloads with banded inverse, needs neither a
dense matrix nor a decomposition.
"""

import itertools
from typing import NamedTuple

import numpy as np
import scipy.linalg

from fedmf.mechanisms.banded.recursion import NoiseRecursion, blocks_of, invert_block


def dual_bound(A: np.ndarray, U: np.ndarray) -> float | None:
    """Returns a lower bound on tr(A^T A X^-1) over all positive-definite X with tr(U X) = tr(U),
    where A is the workload and X = C^T C; or None if U is not positive definite.

    For any such X, tr(A^T A X^-1) + tr(U X) >= 2 tr((A U A^T)^(1/2)), whose right side is the
    minimum of the left over all positive-definite X. With tr(U X) = tr(U) this bounds the loss by 2
    T - tr(U), T = tr((A U A^T)^(1/2)). U may be scaled freely, and the best scale, (T / tr U)^2,
    gives T^2 / tr(U). For diagonal U this is Denisov et al. 2022, Eq. 8.

    tr(U X) = tr(U) for every X with unit diagonal if U is diagonal; and for every such X with
    `bands` bands if U is zero at 0 < |i - j| < bands.

    Args:
      A: the workload, (n, n).
      U: symmetric, (n, n).
    """
    factor, info = scipy.linalg.lapack.dpotrf(U, lower=True, clean=True)
    if info != 0:
        return None
    # T is the sum of the singular values of A U^(1/2), where A is the workload and U the dual
    # matrix. Eigenvalues of A U A^T would be faster, but the small ones have lost half their
    # digits.
    T = scipy.linalg.svdvals(A @ factor, overwrite_a=True, check_finite=False).sum()
    return T * T / np.trace(U)


# The bound is raised by corrections D of the dual matrix. At most _MAX_CORRECTIONS are computed,
# each with at most _MAX_STEPS steps of conjugate gradients.
_MAX_CORRECTIONS = 5
_MAX_STEPS = 60
# Conjugate gradients stop at a residual of this fraction of the tolerated gap: _FIRST_RESIDUAL for
# the first correction, _LATER_RESIDUAL for the others.
_FIRST_RESIDUAL = 0.3
_LATER_RESIDUAL = 0.1
# If the gap between loss and bound exceeds the tolerated gap by more than this factor, no further
# correction of the dual matrix is computed. It would not be worth its cost.
_MAX_GAP_RATIO = 30.0


class BandBlocks(NamedTuple):
    """A symmetric banded matrix, stored as its blocks on the diagonal and the blocks right below
    them.
    """

    diagonal: np.ndarray
    below: np.ndarray


class SymmetricBand:
    """Operations on symmetric (n, n) matrices with `bands` bands on either side of the diagonal,
    stored in blocks of `length` rounds. Entries that pad the last block are 0.
    """

    def __init__(self, n: int, bands: int, length: int) -> None:
        self.n = n
        self.length = length
        self.count = -(-n // length)
        block_lags = np.subtract.outer(np.arange(length), np.arange(length))
        self.is_in_diagonal_band = np.abs(block_lags) < bands
        self.is_in_below_band = block_lags + length < bands

    def clear_outside_band(self, matrix: BandBlocks) -> BandBlocks:
        """Sets the entries outside the band to 0 in place, and returns the matrix."""
        diagonal_blocks, below_blocks = matrix
        np.multiply(diagonal_blocks, self.is_in_diagonal_band, out=diagonal_blocks)
        np.multiply(below_blocks, self.is_in_below_band, out=below_blocks)
        last_block_length = self.n - (self.count - 1) * self.length
        diagonal_blocks[-1, last_block_length:] = 0.0
        diagonal_blocks[-1, :, last_block_length:] = 0.0
        if len(below_blocks):
            below_blocks[-1, last_block_length:] = 0.0
        return matrix

    def inner_product(self, left: BandBlocks, right: BandBlocks) -> float:
        """Returns tr(L R), the inner product of the two symmetric matrices `left` and `right`."""
        below_product = np.vdot(left.below, right.below)
        return np.vdot(left.diagonal, right.diagonal) + 2.0 * below_product

    def row_sums(self, matrix: BandBlocks) -> np.ndarray:
        """Returns the sum of the absolute values in each row, float64 (n,)."""
        below_magnitudes = np.abs(matrix.below)
        row_magnitudes = np.abs(matrix.diagonal).sum(axis=2)
        row_magnitudes[1:] += below_magnitudes.sum(axis=2)
        row_magnitudes[:-1] += below_magnitudes.sum(axis=1)
        return row_magnitudes.reshape(-1)[: self.n]

    def main_diagonal(self, matrix: BandBlocks) -> np.ndarray:
        """Returns a copy of the main diagonal, float64 (n,)."""
        return np.einsum("tii->ti", matrix.diagonal).reshape(-1)[: self.n].copy()

    def add_to_main_diagonal(self, diagonal_blocks: np.ndarray, values: np.ndarray) -> None:
        """Adds `values`, float64 (n,), to the main diagonal in place."""
        padded_values = np.zeros(self.count * self.length)
        padded_values[: self.n] = values
        np.einsum("tii->ti", diagonal_blocks)[...] += padded_values.reshape(self.count, self.length)


def banded_bound(
    columns: np.ndarray,
    inverse: np.ndarray,
    recursion: NoiseRecursion,
    loss: float,
    classes: np.ndarray,
    tolerance: float,
) -> float:
    """Returns a lower bound on tr(A^T A X^-1) over all feasible X = C^T C, where A is the workload.
    X is feasible if it has at most as many bands as C, and its diagonal sums to at most 1 over each
    class of rounds.

    Let X = C^T C, M = X^-1 A^T A X^-1 (minus the gradient of the loss along X) and Y = A X^-1 (I -
    D) for any symmetric D. Then ||A X'^(-1/2) - Y X'^(1/2)||_F^2 >= 0 bounds every feasible X':

        tr(A^T A X'^-1) >= 2 tr(A Y^T) - tr(Y^T Y X') >= 2 a - S,   a = loss - tr(D M X),
        Y^T Y = U = (I - D) M (I - D),                           S >= tr(U X') for all feasible X',

    and Y scaled for the best bound gives a^2 / S. Since |X'_ij| <= (X'_ii + X'_jj) / 2, S may be
    the sum over classes of the largest U_ii + sum_(j != i) |U_ij|, j inside the band. At the
    optimum M is diagonal inside the band and constant on each class. Near it a small D with as many
    bands gives U this property: D M + M D = M + D M D there, a linear equation solved by conjugate
    gradients, and again with the new right side. The gap of the bound is then tr(D M D X), of
    second order in the distance from the optimum. All of this needs M within three times its band
    only: O(n bands^2) work.

    Args:
      columns: C by columns, (n, bands).
      inverse: P = A^-1 by columns, (n, p).
      recursion: the recursion of R = C P.
      loss: ||A C^-1||_F^2.
      classes: (n,) labels from 0: rounds with the same label share a budget of X_ii that sums to 1.
        With equal norms each round has its own label.
      tolerance: relative gap below which a sharper bound is of no use.

    Returns:
      The bound; -inf where float64 finds none.
    """
    n, bands = columns.shape
    block_length = recursion.covariances.shape[1]
    band = SymmetricBand(n, bands, block_length)
    C = BandBlocks(*blocks_of(columns, block_length))
    P = BandBlocks(*blocks_of(inverse, block_length))
    M = _negative_gradient(C, P, recursion.gradient(max_offset=4))
    gradient_diagonal = band.main_diagonal(BandBlocks(M[0], M[1]))
    if not (np.isfinite(gradient_diagonal).all() and gradient_diagonal.min() > 0.0):
        return -np.inf
    gram_blocks = _gram(C)
    best_bound = -np.inf
    target = band.clear_outside_band(BandBlocks(M[0].copy(), M[1].copy()))
    D = BandBlocks(np.zeros_like(target.diagonal), np.zeros_like(target.below))
    residual_fraction = _FIRST_RESIDUAL
    for _ in range(_MAX_CORRECTIONS):
        max_residual = residual_fraction * tolerance * loss
        D = _solve(band, M, D, _without_class_means(band, target, classes), classes, max_residual)
        residual_fraction = _LATER_RESIDUAL
        MD = {i: block_product(M, D, i) for i in (-1, 0, 1, 2)}
        DMD = _sandwich(D, MD)
        target = band.clear_outside_band(BandBlocks(M[0] + DMD.diagonal, M[1] + DMD.below))
        symmetric = band.clear_outside_band(_symmetric_part(MD))
        U = BandBlocks(target.diagonal - symmetric.diagonal, target.below - symmetric.below)
        U_diagonal = band.main_diagonal(U)
        a = loss - (np.vdot(gram_blocks.diagonal, MD[0]) + np.vdot(gram_blocks.below, MD[1][:-1]))
        a -= np.vdot(gram_blocks.below.transpose(0, 2, 1), MD[-1][1:])
        row_costs = band.row_sums(U) - np.abs(U_diagonal) + U_diagonal
        S = _class_maxima(row_costs, classes).sum()
        new_bound = -np.inf
        if a > 0.0 and np.isfinite(S):
            new_bound = a * a / S
        has_improved = new_bound > best_bound and loss - new_bound < 0.9 * (loss - best_bound)
        best_bound = max(best_bound, new_bound)
        max_gap = tolerance * best_bound
        if not has_improved or not max_gap < loss - best_bound < _MAX_GAP_RATIO * max_gap:
            break
    return best_bound


def _gram(C: BandBlocks) -> BandBlocks:
    """Returns the gram matrix X = C^T C of the encoder C in blocks."""
    X = C.diagonal.transpose(0, 2, 1) @ C.diagonal
    X[:-1] += C.below.transpose(0, 2, 1) @ C.below
    return BandBlocks(X, C.diagonal[1:].transpose(0, 2, 1) @ C.below)


def _negative_gradient(
    C: BandBlocks, P: BandBlocks, R_gradient: list[np.ndarray]
) -> list[np.ndarray]:
    """Returns the blocks of M, the negative gradient of the loss along X = C^T C, up to three below
    the diagonal. They solve C M = T, where T is -1/2 times the gradient along C. That gradient is G
    P^T, where P is the inverse of the workload and G the gradient along R = C P.
    """
    block_inverses = np.stack([invert_block(diagonal_block) for diagonal_block in C.diagonal])
    T_blocks = []
    for gradient, next_gradient in itertools.pairwise(R_gradient):
        result_block = -0.5 * (gradient @ P.diagonal[: len(gradient)].transpose(0, 2, 1))
        result_block[1:] -= 0.5 * (next_gradient @ P.below[: len(next_gradient)].transpose(0, 2, 1))
        T_blocks.append(result_block)
    M = np.empty_like(T_blocks[0])
    M_below = np.empty_like(T_blocks[1])
    for t in range(len(M)):
        T_remainder = T_blocks[0][t]
        if t:
            T_remainder = T_blocks[0][t] - C.below[t - 1] @ M_below[t - 1].T
        result_block = block_inverses[t] @ T_remainder
        M[t] = 0.5 * (result_block + result_block.T)
        if t + 1 < len(M):
            M_below[t] = block_inverses[t + 1] @ (T_blocks[1][t] - C.below[t] @ M[t])
    M_blocks = [M, M_below]
    for q in (2, 3):
        M_blocks.append(block_inverses[q:] @ (T_blocks[q] - C.below[q - 1 :] @ M_blocks[-1][:-1]))
    return M_blocks


def _solve(
    band: SymmetricBand,
    M: list[np.ndarray],
    start: BandBlocks,
    right_side: BandBlocks,
    classes: np.ndarray,
    max_residual: float,
) -> BandBlocks:
    """Solves D M + M D = right_side for a correction D by preconditioned conjugate gradients. D is
    banded, and its main diagonal has mean 0 over each class, as in the results of the function
    `_without_class_means`.

    The operator is self-adjoint and positive definite there: tr(D (D M + M D)) = 2 tr(D M D).
    Conjugate gradients stop when the magnitudes of the residual sum to `max_residual`.
    """
    diagonal_scales = np.zeros(band.count * band.length)
    diagonal_scales[: band.n] = band.main_diagonal(BandBlocks(M[0], M[1]))
    diagonal_scales[band.n :] = 1.0
    d = diagonal_scales.reshape(band.count, band.length)
    scale_sums = BandBlocks(d[:, :, None] + d[:, None, :], d[1:, :, None] + d[:-1, None, :])

    def apply_operator(D: BandBlocks) -> BandBlocks:
        MD = {i: block_product(M, D, i) for i in (-1, 0, 1)}
        return _without_class_means(band, band.clear_outside_band(_symmetric_part(MD)), classes)

    D = BandBlocks(start.diagonal.copy(), start.below.copy())
    residual = BandBlocks(right_side.diagonal.copy(), right_side.below.copy())
    if D.diagonal.any() or D.below.any():
        image = apply_operator(D)
        residual = BandBlocks(right_side.diagonal - image.diagonal, right_side.below - image.below)
    direction: BandBlocks | None = None
    last_product = 1.0
    for _ in range(_MAX_STEPS):
        if band.row_sums(residual).sum() <= max_residual:
            break
        scaled_residual = BandBlocks(
            residual.diagonal / scale_sums.diagonal, residual.below / scale_sums.below
        )
        scaled_z = _without_class_means(band, scaled_residual, classes)
        product = band.inner_product(residual, scaled_z)
        if direction is None:
            direction = scaled_z
        else:
            ratio = product / last_product
            direction = BandBlocks(
                scaled_z.diagonal + ratio * direction.diagonal,
                scaled_z.below + ratio * direction.below,
            )
        image = apply_operator(direction)
        curvature = band.inner_product(direction, image)
        if not curvature > 0.0:
            break
        step_length = product / curvature
        for D_blocks, direction_blocks in zip(D, direction, strict=True):
            D_blocks += step_length * direction_blocks
        for residual_blocks, image_blocks in zip(residual, image, strict=True):
            residual_blocks -= step_length * image_blocks
        last_product = product
    return D


def _symmetric_part(products: dict[int, np.ndarray]) -> BandBlocks:
    """Returns M D + D M, given the blocks of the product M D of two symmetric matrices."""
    diagonal_blocks = products[0] + products[0].transpose(0, 2, 1)
    below_blocks = products[1][:-1] + products[-1][1:].transpose(0, 2, 1)
    return BandBlocks(diagonal_blocks, below_blocks)


def _sandwich(D: BandBlocks, MD: dict[int, np.ndarray]) -> BandBlocks:
    """Returns D M D for symmetric matrices D and M, given the blocks (t + i, t) of the product M
    D.
    """
    diagonal_transposed = D.diagonal.transpose(0, 2, 1)
    below_transposed = D.below.transpose(0, 2, 1)
    diagonal_blocks = diagonal_transposed @ MD[0]
    diagonal_blocks[:-1] += below_transposed @ MD[1][:-1]
    diagonal_blocks[1:] += D.below @ MD[-1][1:]
    below_blocks = D.below @ MD[0][:-1] + diagonal_transposed[1:] @ MD[1][:-1]
    below_blocks[:-1] += below_transposed[1:] @ MD[2][:-2]
    return BandBlocks(diagonal_blocks, below_blocks)


def _without_class_means(
    band: SymmetricBand, target: BandBlocks, classes: np.ndarray
) -> BandBlocks:
    """Returns the banded matrix `target` after subtracting from its main diagonal the mean over
    each class of rounds. The correction D is to remove this part of the gradient.
    """
    class_means = np.bincount(classes, band.main_diagonal(target)) / np.bincount(classes)
    diagonal_blocks = target.diagonal.copy()
    band.add_to_main_diagonal(diagonal_blocks, -class_means[classes])
    return BandBlocks(diagonal_blocks, target.below)


def _class_maxima(values: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Returns the largest of the values of each class of rounds, or 0 if they are all negative. A
    class need not use its budget.
    """
    class_maxima = np.zeros(int(classes.max()) + 1)
    np.maximum.at(class_maxima, classes, values)
    return class_maxima


def block_product(S: list[np.ndarray], D: BandBlocks, i: int) -> np.ndarray:
    """Returns the blocks (t + i, t) of the product S D of two symmetric matrices, float64 (count,
    length, length). Entry t is 0 if there is no block (t + i, t).

    Args:
      S: S[q][t] is the block (t + q, t), q from 0 to at least abs(i) + 1.
      D: the blocks for q = 0 and 1; those further away are 0.
      i: offset of the blocks.
    """
    num_blocks = len(S[0])
    product_blocks = np.zeros(S[0].shape)
    # Each iteration adds the products of blocks of S with the blocks of D in block row t + j.
    for j in (-1, 0, 1):
        first_block = max(0, -i, -j)
        end_block = min(num_blocks, num_blocks - i, num_blocks - j)
        if first_block >= end_block:
            continue
        block_offset = i - j
        if block_offset >= 0:
            left_blocks = S[block_offset][first_block + j : end_block + j]
        else:
            left_blocks = S[-block_offset][first_block + i : end_block + i].transpose(0, 2, 1)
        if j >= 0:
            right_blocks = D[j][first_block:end_block]
        else:
            right_blocks = D.below[first_block - 1 : end_block - 1].transpose(0, 2, 1)
        product_blocks[first_block:end_block] += left_blocks @ right_blocks
    return product_blocks
