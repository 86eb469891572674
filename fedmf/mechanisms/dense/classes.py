"""Operations on matrices over rounds that are sorted into classes, where class i has the rounds i,
i + b, i + 2b and so on. Some of these matrices are zero across classes, and stored as blocks.

Rounds of one class are those of one client. For workloads with banded inverse this module
evaluates the bound of the dense dual and its gradient without any n x n matrix.

With K = A^-1 of p bands and P = K K^T, S = (H^T A^T A H)^(1/2) is the inverse square root of H^-1 P
H^-T. A rational function that approximates x^(-1/2) on its spectrum gives, for U = H H^T,

    S = sum_j w_j H^T R_j H,    X(U) = H^-T S H^-1 = sum_j w_j R_j,    R_j = (P + s_j U)^-1

with shifts s_j and weights w_j > 0.

P couples rounds less than p apart, U rounds of one class. Taken from both ends of a period, 0, b -
1, 1, b - 2, ..., classes that P couples are at most 2 (p - 1) places apart: P + s U is block
tridiagonal, and the blocks of R_j within classes follow from a recursion over blocks. With q poles
this costs O(q n (p k)^2), k rounds a class, against O(n^3).

The poles are those of Hale, Higham and Trefethen, "Computing A^alpha, log(A), and related matrix
functions by contour integrals", SIAM J. Numer. Anal. 46 (2008), Sec. 5 (method 3), whose error
falls like exp(-2 pi^2 q / (log(condition) + 3)).
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

# A matrix whose entry [s, t] is 0 unless the rounds s and t belong to the same class. For each
# group of classes of equal size, the list holds the classes' diagonal blocks, a float64 array of
# shape (classes, size, size).
Blocks = list[np.ndarray]


class ClassGroup(NamedTuple):
    """A group of classes of rounds that have the same size and follow each other."""

    rows: slice
    classes: int
    size: int

    def class_slices(self) -> Iterator[slice]:
        """Yields the slice of rows that each class has in class order."""
        for first in range(self.rows.start, self.rows.stop, self.size):
            yield slice(first, first + self.size)


class Classes:
    """The division of n rounds into b classes, where class i has the rounds i, i + b, i + 2b and so
    on. Their size is ceil(n / b), and one less for some of them if b does not divide n.

    Attributes:
      order: (n,) the rounds in class order: all of class 0, then all of class 1, ...
      groups: the classes of the larger size, then those of the smaller, if any.
      count: b, the number of classes.
      largest: k, the size of class 0.

    >>> classes = Classes(5, 2)
    >>> classes.order.tolist(), [(group.classes, group.size) for group in classes.groups]
    ([0, 2, 4, 1, 3], [(1, 3), (1, 2)])
    """

    def __init__(self, rounds: int, min_sep: int) -> None:
        n = rounds
        b = min_sep
        self.order = np.concatenate([np.arange(i, n, b) for i in range(b)])
        self.count = b
        self.largest = -(-n // b)
        num_larger = n - (self.largest - 1) * b
        num_larger_rounds = num_larger * self.largest
        class_groups = [
            ClassGroup(slice(0, num_larger_rounds), num_larger, self.largest),
            ClassGroup(slice(num_larger_rounds, n), b - num_larger, self.largest - 1),
        ]
        self.groups = [group for group in class_groups if group.classes]

    def apply(self, blocks: Blocks, M: np.ndarray) -> np.ndarray:
        """Returns K M, float64 (n, m), for the block-diagonal matrix K with these blocks and any M,
        (n, m).
        """
        products = np.empty(M.shape)
        for (rows, classes, size), block in zip(self.groups, blocks, strict=True):
            if size == 1:
                np.multiply(block[:, :, 0], M[rows], out=products[rows])
            else:
                class_products = block @ M[rows].reshape(classes, size, -1)
                products[rows] = class_products.reshape(classes * size, -1)
        return products

    def congruence(self, blocks: Blocks, M: np.ndarray) -> np.ndarray:
        """Returns K M K^T for the block-diagonal matrix K with these blocks and a symmetric M, (n,
        n).
        """
        return self.apply(blocks, self.apply(blocks, M).T)

    def gram_blocks(self, V: np.ndarray, weights: np.ndarray) -> Blocks:
        """Returns the diagonal blocks of V diag(weights) V^T for V of shape (n, m)."""
        diagonal_blocks = []
        for rows, classes, size in self.groups:
            class_rows = V[rows].reshape(classes, size, -1)
            if size == 1:
                squared_rows = np.einsum("cim,cim,m->ci", class_rows, class_rows, weights)
                diagonal_blocks.append(squared_rows[:, :, None])
            else:
                diagonal_blocks.append((class_rows * weights) @ class_rows.transpose(0, 2, 1))
        return diagonal_blocks

    def blocks(self, M: np.ndarray) -> Blocks:
        """Returns copies of the diagonal blocks of M, (n, n)."""
        diagonal_blocks = []
        for group in self.groups:
            group_blocks = np.empty((group.classes, group.size, group.size))
            for c, class_slice in enumerate(group.class_slices()):
                group_blocks[c] = M[class_slice, class_slice]
            diagonal_blocks.append(group_blocks)
        return diagonal_blocks

    def clear_pairs(self, M: np.ndarray) -> None:
        """Sets M[i, j] = 0 in place for all pairs of distinct rounds i, j in the same class, where
        M is a matrix (n, n).
        """
        main_diagonal = np.diagonal(M).copy()
        for group in self.groups:
            for class_slice in group.class_slices():
                M[class_slice, class_slice] = 0.0
        np.fill_diagonal(M, main_diagonal)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Returns the sum of `values` over each class, float64 (b,). The values, (n,), are in class
        order.
        """
        group_sums = [
            values[rows].reshape(classes, size).sum(1) for rows, classes, size in self.groups
        ]
        return np.concatenate(group_sums)

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Repeats the value of each class for each of its rounds. The result, (n,), is in class
        order.
        """
        class_sizes = np.concatenate([np.full(group.classes, group.size) for group in self.groups])
        return np.repeat(values, class_sizes)

    def split_by_group(self, values: np.ndarray) -> list[np.ndarray]:
        """Splits an array with one value for each class, (b,), into one array for each group of
        classes.
        """
        return np.split(values, np.cumsum([group.classes for group in self.groups])[:-1])

    def in_time_order(self, M: np.ndarray) -> np.ndarray:
        """Returns the matrix M with its rows and columns sorted by time instead of by class."""
        class_position = np.empty_like(self.order)
        class_position[self.order] = np.arange(len(self.order))
        return M[np.ix_(class_position, class_position)]


def transpose_blocks(blocks: Blocks) -> Blocks:
    """Returns the blocks of the transposed block-diagonal matrix."""
    return [block.transpose(0, 2, 1) for block in blocks]


def invert_blocks(blocks: Blocks) -> Blocks:
    """Returns the blocks of the inverse of a block-diagonal matrix."""
    return [_inverse_of(block) for block in blocks]


def _inverse_of(block: np.ndarray) -> np.ndarray:
    """Returns the inverses of the matrices in `block`, float64 (classes, size, size)."""
    if block.shape[1] == 1:
        return 1.0 / block
    return np.linalg.inv(block)


# Relative accuracy of the rational approximation of x^(-1/2). It is far below any tolerance, so
# that line searches see a smooth function.
_ACCURACY = 1e-11
# Least number of rounds in a block. Smaller blocks cost more in calls than they save in arithmetic.
_MIN_BLOCK_ROUNDS = 8
# If a block has more than this fraction of all rounds, an eigendecomposition takes no more time
# than the rational approximation.
_MAX_BLOCK_FRACTION = 1.0 / 20.0


class Resolvents:
    """The blocks of P = K K^T, where K is the inverse of the workload A. From them the dual bound's
    T and its derivative dT / dH are evaluated, as the module docstring describes.
    """

    def __init__(self, inverse_diagonals: np.ndarray, classes: Classes, chunk_size: int) -> None:
        self.classes = classes
        self._K = inverse_diagonals
        n, p = inverse_diagonals.shape
        # Row d of P_diagonals holds a diagonal of P, with P_diagonals[d, t] = P[t, t + d].
        P_diagonals = np.zeros((p, n))
        for d in range(p):
            for j in range(p - d):
                P_diagonals[d, : n - d] += (
                    inverse_diagonals[: n - d, j] * inverse_diagonals[d:, j + d]
                )
        class_positions = np.arange(classes.count)
        # The classes of rounds are taken from both ends in turn: 0, b - 1, 1, b - 2, ..., where b
        # is the number of classes.
        folded_classes = np.where(
            class_positions % 2 == 0, class_positions // 2, classes.count - 1 - class_positions // 2
        )
        self._chunks = [
            folded_classes[first : first + chunk_size]
            for first in range(0, classes.count, chunk_size)
        ]
        chunk_rounds = [
            np.concatenate([np.arange(c, n, classes.count) for c in chunk])
            for chunk in self._chunks
        ]

        def P_block(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
            lags = np.abs(rows[:, None] - columns)
            earlier_indices = np.minimum(rows[:, None], columns)
            return np.where(lags < p, P_diagonals[np.minimum(lags, p - 1), earlier_indices], 0.0)

        self._diagonal_blocks = [P_block(rounds, rounds) for rounds in chunk_rounds]
        self._lower_blocks = [
            P_block(next_rounds, rounds) for rounds, next_rounds in itertools.pairwise(chunk_rounds)
        ]

    @classmethod
    def for_workload(
        cls, inverse_diagonals: np.ndarray | None, classes: Classes
    ) -> "Resolvents | None":
        """Returns the resolvents for the fast evaluation of a workload's dual bound. Returns None
        if its inverse is not banded, or if the blocks are so large that an eigendecomposition is
        faster.
        """
        if inverse_diagonals is None:
            return None
        n, p = inverse_diagonals.shape
        chunk_size = max(2 * (p - 1), -(-_MIN_BLOCK_ROUNDS // classes.largest))
        if chunk_size * classes.largest > n * _MAX_BLOCK_FRACTION:
            return None
        return cls(inverse_diagonals, classes, chunk_size)

    def evaluate(self, H: Blocks, A: np.ndarray) -> tuple[float, Blocks]:
        """Returns T = tr((H^T A^T A H)^(1/2)) and its derivative dT / dH for a factor H. The
        workload A, (n, n) with its columns in class order, only bounds the spectrum.
        """
        shifts, weights = inverse_root(*self._spectrum(H, A))
        H_by_class = list(itertools.chain.from_iterable(H))
        U_by_class = [class_block @ class_block.T for class_block in H_by_class]
        forward: list[np.ndarray] = []
        for i, chunk in enumerate(self._chunks):
            P_block = self._diagonal_blocks[i]
            shifted_blocks = np.broadcast_to(P_block, (len(shifts), *P_block.shape)).copy()
            class_start = 0
            for c in chunk:
                class_slice = slice(class_start, class_start + len(U_by_class[c]))
                shifted_blocks[:, class_slice, class_slice] += shifts[:, None, None] * U_by_class[c]
                class_start = class_slice.stop
            if i:
                lower_block = self._lower_blocks[i - 1]
                shifted_blocks -= lower_block @ forward[-1] @ lower_block.T
            forward.append(np.linalg.inv(shifted_blocks))
        G_by_class: list[np.ndarray] = [np.empty(0)] * self.classes.count
        T = 0.0
        R = forward[-1]
        for i in reversed(range(len(self._chunks))):
            if i + 1 < len(self._chunks):
                transfer = self._lower_blocks[i] @ forward[i]
                R = forward[i] + transfer.transpose(0, 2, 1) @ R @ transfer
            X = np.tensordot(weights, R, 1)
            class_start = 0
            for c in self._chunks[i]:
                class_slice = slice(class_start, class_start + len(U_by_class[c]))
                G_by_class[c] = X[class_slice, class_slice] @ H_by_class[c]
                T += np.vdot(G_by_class[c], H_by_class[c])
                class_start = class_slice.stop
        group_ends = np.cumsum([group.classes for group in self.classes.groups])
        G = [np.array(G_by_class[end - len(h) : end]) for h, end in zip(H, group_ends, strict=True)]
        return T, G

    def _spectrum(self, H: Blocks, A: np.ndarray) -> tuple[float, float]:
        """Returns a lower and an upper bound on the eigenvalues of H^-1 P H^-T, where H is a factor
        of the dual matrix, from row sums of absolute values.
        """
        H_magnitudes = [np.abs(block) for block in H]
        unit_column = np.ones((len(A), 1))
        A_sums = np.abs(A) @ self.classes.apply(H_magnitudes, unit_column)
        gram_sums = self.classes.apply(transpose_blocks(H_magnitudes), np.abs(A).T @ A_sums)
        inverse_magnitudes = [np.abs(block) for block in invert_blocks(H)]
        K_magnitudes = np.abs(self._K)
        inverse_sums = np.empty_like(unit_column)
        inverse_sums[self.classes.order] = self.classes.apply(
            transpose_blocks(inverse_magnitudes), unit_column
        )
        n, p = K_magnitudes.shape
        K_transposed_sums = np.zeros(n)
        P_sums = np.zeros(n)
        for j in range(p):
            K_transposed_sums[: n - j] += K_magnitudes[j:, j] * inverse_sums[j:, 0]
        for j in range(p):
            P_sums[j:] += K_magnitudes[j:, j] * K_transposed_sums[: n - j]
        product_row_sums = self.classes.apply(inverse_magnitudes, P_sums[self.classes.order, None])
        return float(1.0 / gram_sums.max()), float(product_row_sums.max())


def inverse_root(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns a rational approximation of x^(-1/2) on [low, high], as positive shifts s and weights
    w for which the sum of w_j / (x + s_j) is close to x^(-1/2).

    >>> shifts, weights = inverse_root(1e-4, 10.0)
    >>> float(abs((weights / (0.25 + shifts)).sum() - 2.0)) < 1e-10
    True
    """
    # scipy.special is imported here, since importing it is slow and `fedmf --help` must not wait
    # for it.
    from scipy import special

    range_ratio = min(low / high, 0.5)
    # The shifts below sqrt(low high), which are half of all, follow from elliptic functions, which
    # are accurate here even if their parameter is near 1. The reflection u -> K - u gives the
    # larger shifts.
    num_low_shifts = int(
        np.ceil(-np.log(_ACCURACY) * (3.0 - np.log(range_ratio)) / (4.0 * np.pi**2))
    )
    K = special.ellipkm1(range_ratio)
    u = (np.arange(num_low_shifts) + 0.5) * K / (2 * num_low_shifts)
    sn, cn, dn, _ = special.ellipj(u, 1.0 - range_ratio)
    low_shifts = low * np.square(sn / cn)
    slopes = np.concatenate([dn / np.square(cn), dn / np.square(sn) / np.sqrt(range_ratio)])
    shifts = np.concatenate([low_shifts, low * (low / range_ratio) / low_shifts])
    return shifts, K * np.sqrt(low) / (np.pi * num_low_shifts) * slopes
