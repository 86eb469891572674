"""The loss of a banded encoder, its gradient along the band, and its dual bound: by structure, or
for any workload.

The dual bound by structure needs neither a dense matrix nor a decomposition.
"""

import itertools

import numpy as np
import scipy.linalg

from fedmf.mechanisms.banded.recursion import (
    NoiseRecursion,
    blocks_of,
    columns_of_blocks,
    columns_of_rows,
    is_precise,
    lower_inverse,
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
        return recursion.squared_errors().sum(), clear_outside(gradient)

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
        loss = squares.sum()
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
        self.A = A
        self.n = A.shape[0]
        self.bands = bands
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
        before = self.blocks[0]
        W_before = np.empty((0, 0))
        for block in self.blocks:
            Bt = B[block.start :, block].T
            right = Bt.copy(order="F")
            if block is not before:
                W_before = W_before[:, block.start - before.start :]
                right -= C[block, before] @ W_before
                G[block, before] = Bt @ W_before.T
            W = scipy.linalg.blas.dtrsm(1.0, C[block, block], right, lower=1, overwrite_b=1)
            G[block, block] = Bt @ W.T
            W_before = W
            before = block
        return np.einsum("ij,ij->", B, B), clear_outside(-2.0 * gradient)

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
        loss = np.einsum("ij,ij->", B, B)
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
                return loss, bound * np.trace(diagonal) / means.sum()
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
    T = scipy.linalg.svdvals(A @ factor, overwrite_a=True, check_finite=False).sum()
    return T * T / np.trace(U)


def clear_outside(columns: np.ndarray) -> np.ndarray:
    """Zeroes, in place, the entries of `columns` below the last row of the matrix."""
    n, bands = columns.shape
    for o in range(1, bands):
        columns[n - o :, o] = 0.0
    return columns


# Corrections of the dual point, and steps of conjugate gradients for each.
_MAX_CORRECTIONS, _MAX_STEPS = 5, 60
# Shares of the gap aimed at that may be left to the residual of conjugate gradients,
# first and then.
_RESIDUALS = (0.3, 0.1)
# A gap this many times the one aimed at is not worth a second correction.
_MAX_GAP_RATIO = 30.0

Blocks = tuple[np.ndarray, np.ndarray]


class SymmetricBand:
    """Symmetric matrices of n rounds with `bands` bands on either side,
    as blocks of `length` rounds.

    A matrix is a pair (diagonal blocks, blocks below them); rounds that fill up
    the last block are 0.
    """

    def __init__(self, n: int, bands: int, length: int) -> None:
        self.n = n
        self.length = length
        self.count = -(-n // length)
        lag = np.subtract.outer(np.arange(length), np.arange(length))
        self.near = np.abs(lag) < bands
        self.below = lag + length < bands

    def keep(self, diagonal: np.ndarray, below: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Zeroes, in place, what lies outside the band."""
        np.multiply(diagonal, self.near, out=diagonal)
        np.multiply(below, self.below, out=below)
        last = self.n - (self.count - 1) * self.length
        diagonal[-1, last:] = 0.0
        diagonal[-1, :, last:] = 0.0
        if len(below):
            below[-1, last:] = 0.0
        return diagonal, below

    def inner(
        self, left: tuple[np.ndarray, np.ndarray], right: tuple[np.ndarray, np.ndarray]
    ) -> float:
        """tr(left right)."""
        return np.vdot(left[0], right[0]) + 2.0 * np.vdot(left[1], right[1])

    def row_sums(self, diagonal: np.ndarray, below: np.ndarray) -> np.ndarray:
        """Sums of the magnitudes of each row, (n,)."""
        sums = np.abs(diagonal).sum(axis=2)
        sums[1:] += np.abs(below).sum(axis=2)
        sums[:-1] += np.abs(below).sum(axis=1)
        return sums.reshape(-1)[: self.n]

    def main(self, diagonal: np.ndarray) -> np.ndarray:
        """The main diagonal, (n,), a copy."""
        return np.einsum("tii->ti", diagonal).reshape(-1)[: self.n].copy()

    def add_to_main(self, diagonal: np.ndarray, values: np.ndarray) -> None:
        """Adds (n,) values to the main diagonal in place."""
        padded = np.zeros(self.count * self.length)
        padded[: self.n] = values
        np.einsum("tii->ti", diagonal)[...] += padded.reshape(self.count, self.length)


def banded_bound(
    columns: np.ndarray,
    inverse: np.ndarray,
    recursion: NoiseRecursion,
    loss: float,
    classes: np.ndarray,
    tolerance: float,
) -> float:
    """A lower bound on tr(A^T A X^-1) over all X with at most as many bands whose classes have
    traces of at most 1.

    Let X = C^T C, M = X^-1 A^T A X^-1 (minus the gradient of the loss along X) and Y = A X^-1 (I -
    D) for any symmetric D. Then ||A X'^(-1/2) - Y X'^(1/2)||_F^2 >= 0 bounds every feasible X':

        tr(A^T A X'^-1) >= 2 tr(A Y^T) - tr(Y^T Y X') >= 2 a - S,   a = loss - tr(D M X),
        Y^T Y = U = (I - D) M (I - D),                           S >= tr(U X') for all feasible X',

    and Y scaled for the best bound gives a^2 / S. Since |X'_ij| <= (X'_ii + X'_jj) / 2, S may be
    the sum over classes of the largest U_ii + sum_(j != i) |U_ij|, j inside the band. At the
    optimum M is diagonal inside the band and constant on each class. Near it a small D with as many
    bands makes U so: D M + M D = M + D M D there, a linear equation solved by conjugate gradients,
    and again with the new right side. The gap of the bound is then tr(D M D X), of second order in
    the distance from the optimum. All of this needs M within three times its band only: O(n
    bands^2) work.

    Args:
      columns: C by columns, (n, bands).
      inverse: P = A^-1 by columns, (n, p).
      recursion: that of R = C P.
      loss: ||A C^-1||_F^2.
      classes: (n,) labels from 0: rounds with the same one share a budget of X_ii that sums to 1.
        Equal norms: each round has its own.
      tolerance: relative gap beyond which a sharper bound is of no use.

    Returns:
      The bound; -inf where float64 finds none.
    """
    n, bands = columns.shape
    length = recursion.covariances.shape[1]
    band = SymmetricBand(n, bands, length)
    C = blocks_of(columns, length)
    P = blocks_of(inverse, length)
    M = _negative_gradient(C, P, recursion.gradient(reach=4))
    scale = band.main(M[0])
    if not (np.isfinite(scale).all() and scale.min() > 0.0):
        return -np.inf
    X = C[0].transpose(0, 2, 1) @ C[0]
    X[:-1] += C[1].transpose(0, 2, 1) @ C[1]
    gram = (X, C[0][1:].transpose(0, 2, 1) @ C[1])
    best = -np.inf
    target = band.keep(M[0].copy(), M[1].copy())
    D = (np.zeros_like(target[0]), np.zeros_like(target[1]))
    for correction in range(_MAX_CORRECTIONS):
        enough = _RESIDUALS[min(correction, 1)] * tolerance * loss
        D = _solve(band, M, D, _unwanted(band, target, classes), classes, enough)
        MD = {i: block_product(M, D, i) for i in (-1, 0, 1, 2)}
        curvature = _sandwich(D, MD)
        target = band.keep(M[0] + curvature[0], M[1] + curvature[1])
        both = band.keep(*_symmetric_part(MD))
        U = (target[0] - both[0], target[1] - both[1])
        diagonal = band.main(U[0])
        a = loss - (np.vdot(gram[0], MD[0]) + np.vdot(gram[1], MD[1][:-1]))
        a -= np.vdot(gram[1].transpose(0, 2, 1), MD[-1][1:])
        S = _class_maxima(band.row_sums(*U) - np.abs(diagonal) + diagonal, classes).sum()
        bound = a * a / S if a > 0.0 and np.isfinite(S) else -np.inf
        worth_going_on = bound > best and loss - bound < 0.9 * (loss - best)
        best = max(best, bound)
        if (
            not worth_going_on
            or not tolerance * best < loss - best < _MAX_GAP_RATIO * tolerance * best
        ):
            break
    return best


def _negative_gradient(C: Blocks, P: Blocks, gradient: list[np.ndarray]) -> list[np.ndarray]:
    """Blocks of M up to three below the diagonal, from C M = T: T = -1/2 of the gradient along C,
    that along R times P^T.
    """
    inverses = np.stack([lower_inverse(block) for block in C[0]])
    T = []
    for here, further in itertools.pairwise(gradient):
        T.append(-0.5 * (here @ P[0][: len(here)].transpose(0, 2, 1)))
        T[-1][1:] -= 0.5 * (further @ P[1][: len(further)].transpose(0, 2, 1))
    M = np.empty_like(T[0])
    below = np.empty_like(T[1])
    for t in range(len(M)):
        right = T[0][t] - C[1][t - 1] @ below[t - 1].T if t else T[0][t]
        block = inverses[t] @ right
        M[t] = 0.5 * (block + block.T)
        if t + 1 < len(M):
            below[t] = inverses[t + 1] @ (T[1][t] - C[1][t] @ M[t])
    blocks = [M, below]
    for q in (2, 3):
        blocks.append(inverses[q:] @ (T[q] - C[1][q - 1 :] @ blocks[-1][:-1]))
    return blocks


def _solve(
    band: SymmetricBand,
    M: list[np.ndarray],
    start: Blocks,
    right: Blocks,
    classes: np.ndarray,
    enough: float,
) -> Blocks:
    """D with D M + M D = right, where it matters, by preconditioned conjugate gradients.

    The operator is self-adjoint and positive definite on the matrices that `_unwanted` keeps: tr(D
    (D M + M D)) = 2 tr(D M D). Stops when the magnitudes of the residual sum to `enough`.
    """
    scales = np.zeros(band.count * band.length)
    scales[: band.n] = band.main(M[0])
    scales[band.n :] = 1.0
    d = scales.reshape(band.count, band.length)
    weights = (d[:, :, None] + d[:, None, :], d[1:, :, None] + d[:-1, None, :])

    def apply(D: Blocks) -> Blocks:
        products = {i: block_product(M, D, i) for i in (-1, 0, 1)}
        return _unwanted(band, band.keep(*_symmetric_part(products)), classes)

    D = (start[0].copy(), start[1].copy())
    taken = apply(D) if D[0].any() or D[1].any() else (0.0, 0.0)
    residual = (right[0] - taken[0], right[1] - taken[1])
    direction: Blocks | None = None
    before = 1.0
    for _ in range(_MAX_STEPS):
        if band.row_sums(*residual).sum() <= enough:
            break
        z = _unwanted(band, (residual[0] / weights[0], residual[1] / weights[1]), classes)
        now = band.inner(residual, z)
        direction = (
            z
            if direction is None
            else (z[0] + now / before * direction[0], z[1] + now / before * direction[1])
        )
        image = apply(direction)
        curvature = band.inner(direction, image)
        if not curvature > 0.0:
            break
        for mine, step in zip(D, direction, strict=True):
            mine += now / curvature * step
        for mine, step in zip(residual, image, strict=True):
            mine -= now / curvature * step
        before = now
    return D


def _symmetric_part(products: dict[int, np.ndarray]) -> Blocks:
    """M D + D M on and right below the diagonal, from the blocks of M D."""
    return products[0] + products[0].transpose(0, 2, 1), products[1][:-1] + products[-1][
        1:
    ].transpose(0, 2, 1)


def _sandwich(D: Blocks, MD: dict[int, np.ndarray]) -> Blocks:
    """D M D on and right below the diagonal, from the blocks (t + i, t) of M D."""
    Dt = (D[0].transpose(0, 2, 1), D[1].transpose(0, 2, 1))
    diagonal = Dt[0] @ MD[0]
    diagonal[:-1] += Dt[1] @ MD[1][:-1]
    diagonal[1:] += D[1] @ MD[-1][1:]
    below = D[1] @ MD[0][:-1] + Dt[0][1:] @ MD[1][:-1]
    below[:-1] += Dt[1][1:] @ MD[2][:-2]
    return diagonal, below


def _unwanted(band: SymmetricBand, target: Blocks, classes: np.ndarray) -> Blocks:
    """`target`, inside the band, without what may stay: on the main diagonal, each class's mean."""
    means = np.bincount(classes, band.main(target[0])) / np.bincount(classes)
    rest = target[0].copy()
    band.add_to_main(rest, -means[classes])
    return rest, target[1]


def _class_maxima(values: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The largest value of each class, or 0: a class need not use its budget."""
    largest = np.zeros(int(classes.max()) + 1)
    np.maximum.at(largest, classes, values)
    return largest


def block_product(S: list[np.ndarray], D: tuple[np.ndarray, np.ndarray], i: int) -> np.ndarray:
    """Blocks (t + i, t) of S D, (count, length, length), 0 where there is none; S and D symmetric.

    Args:
      S: S[q][t] is the block (t + q, t), q from 0 to at least abs(i) + 1.
      D: likewise, for q = 0 and 1; further ones are 0.
      i: which blocks.
    """
    count = len(S[0])
    product = np.zeros(S[0].shape)
    for j in (-1, 0, 1):  # through the block row t + j of D
        first = max(0, -i, -j)
        last = min(count, count - i, count - j)
        if first >= last:
            continue
        q = i - j
        left = (
            S[q][first + j : last + j] if q >= 0 else S[-q][first + i : last + i].transpose(0, 2, 1)
        )
        right = D[j][first:last] if j >= 0 else D[1][first - 1 : last - 1].transpose(0, 2, 1)
        product[first:last] += left @ right
    return product
