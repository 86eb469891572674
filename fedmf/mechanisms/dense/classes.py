"""Rounds in the order of their clients: the classes i, i + b, i + 2b, ... and matrices that are
zero across them.

The dense dual's bound and gradient for workloads with a banded inverse,
without any n x n matrix.

With K = A^-1 of p bands and P = K K^T, S = (H^T A^T A H)^(1/2) is the inverse square root of H^-1 P
H^-T, and a rational function that is near x^(-1/2) on its spectrum gives, for U = H H^T,

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

# A matrix that is zero across classes: for each group its diagonal blocks,
# float64 (classes, size, size).
Blocks = list[np.ndarray]


class Group(NamedTuple):
    """Classes of one size that follow each other in class order."""

    rows: slice
    classes: int
    size: int

    def places(self) -> Iterator[slice]:
        """The places of each class, in class order."""
        for first in range(self.rows.start, self.rows.stop, self.size):
            yield slice(first, first + self.size)


class Classes:
    """The b classes of n rounds, whose sizes are ceil(n / b) and, where b does not
    divide n, one less.

    Attributes:
      order: (n,) the rounds in class order: all of class 0, then all of class 1, ...
      groups: the classes of the larger size, then those of the smaller, if any.
      count: b.
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
        larger = n - (self.largest - 1) * b
        split = larger * self.largest
        groups = [
            Group(slice(0, split), larger, self.largest),
            Group(slice(split, n), b - larger, self.largest - 1),
        ]
        self.groups = [group for group in groups if group.classes]

    def apply(self, blocks: Blocks, M: np.ndarray) -> np.ndarray:
        """The product of a matrix that is zero across classes and M, (n, m)."""
        product = np.empty(M.shape)
        for (rows, classes, size), block in zip(self.groups, blocks, strict=True):
            if size == 1:
                np.multiply(block[:, :, 0], M[rows], out=product[rows])
            else:
                product[rows] = (block @ M[rows].reshape(classes, size, -1)).reshape(
                    classes * size, -1
                )
        return product

    def congruence(self, blocks: Blocks, M: np.ndarray) -> np.ndarray:
        """K M K^T for K given by `blocks` and a symmetric M, (n, n)."""
        return self.apply(blocks, self.apply(blocks, M).T)

    def gram_blocks(self, V: np.ndarray, weights: np.ndarray) -> Blocks:
        """The diagonal blocks of V diag(weights) V^T, for V of shape (n, m)."""
        diagonal = []
        for rows, classes, size in self.groups:
            part = V[rows].reshape(classes, size, -1)
            if size == 1:
                diagonal.append(np.einsum("cim,cim,m->ci", part, part, weights)[:, :, None])
            else:
                diagonal.append((part * weights) @ part.transpose(0, 2, 1))
        return diagonal

    def blocks(self, M: np.ndarray) -> Blocks:
        """The diagonal blocks of M, (n, n), copied."""
        diagonal = []
        for group in self.groups:
            block = np.empty((group.classes, group.size, group.size))
            for c, at in enumerate(group.places()):
                block[c] = M[at, at]
            diagonal.append(block)
        return diagonal

    def clear_pairs(self, M: np.ndarray) -> None:
        """Sets M[i, j] = 0 for distinct i, j of one class, in place."""
        diagonal = np.diagonal(M).copy()
        for group in self.groups:
            for at in group.places():
                M[at, at] = 0.0
        np.fill_diagonal(M, diagonal)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Sums over each class of values in class order: (n,) -> (b,)."""
        return np.concatenate(
            [values[rows].reshape(classes, size).sum(1) for rows, classes, size in self.groups]
        )

    def spread(self, values: np.ndarray) -> np.ndarray:
        """One value a class -> one a round, in class order: (b,) -> (n,)."""
        sizes = np.concatenate([np.full(group.classes, group.size) for group in self.groups])
        return np.repeat(values, sizes)

    def grouped(self, values: np.ndarray) -> list[np.ndarray]:
        """One value a class, (b,), split into groups."""
        return np.split(values, np.cumsum([group.classes for group in self.groups])[:-1])

    def in_time_order(self, M: np.ndarray) -> np.ndarray:
        """M with rows and columns in class order, as rounds."""
        place = np.empty_like(self.order)
        place[self.order] = np.arange(len(self.order))
        return M[np.ix_(place, place)]


def transposed(blocks: Blocks) -> Blocks:
    """The transposed matrix."""
    return [block.transpose(0, 2, 1) for block in blocks]


def inverted(blocks: Blocks) -> Blocks:
    """The inverse matrix."""
    return [1.0 / block if block.shape[1] == 1 else np.linalg.inv(block) for block in blocks]


# Relative accuracy of the rational function: far below any tolerance, so that line searches see a
# smooth function.
_ACCURACY = 1e-11
# Blocks smaller than this cost more in calls than they save in arithmetic.
_MIN_BLOCK_ROUNDS = 8
# Above this many rounds in a block, relative to all, the eigendecomposition is no slower.
_MAX_BLOCK_SHARE = 1.0 / 20.0


class Resolvents:
    """P in blocks of classes, and the evaluation of T and dT / dH; see the module."""

    def __init__(self, inverse_diagonals: np.ndarray, classes: Classes, chunk: int) -> None:
        self.classes = classes
        self._K = inverse_diagonals
        n, p = inverse_diagonals.shape
        # couplings[d, t] = P[t, t + d]
        couplings = np.zeros((p, n))
        for d in range(p):
            for j in range(p - d):
                couplings[d, : n - d] += (
                    inverse_diagonals[: n - d, j] * inverse_diagonals[d:, j + d]
                )
        ends = np.arange(classes.count)
        folded = np.where(ends % 2 == 0, ends // 2, classes.count - 1 - ends // 2)
        self._chunks = [folded[i : i + chunk] for i in range(0, classes.count, chunk)]
        rounds = [
            np.concatenate([np.arange(c, n, classes.count) for c in chunk])
            for chunk in self._chunks
        ]

        def coupling(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
            apart = np.abs(rows[:, None] - columns)
            first = np.minimum(rows[:, None], columns)
            return np.where(apart < p, couplings[np.minimum(apart, p - 1), first], 0.0)

        self._own = [coupling(here, here) for here in rounds]
        self._next = [coupling(after, here) for here, after in itertools.pairwise(rounds)]

    @classmethod
    def suited(cls, inverse_diagonals: np.ndarray | None, classes: Classes) -> "Resolvents | None":
        """Those of a workload, if its inverse is banded and its blocks are small enough to pay."""
        if inverse_diagonals is None:
            return None
        n, p = inverse_diagonals.shape
        chunk = max(2 * (p - 1), -(-_MIN_BLOCK_ROUNDS // classes.largest))
        if chunk * classes.largest > n * _MAX_BLOCK_SHARE:
            return None
        return cls(inverse_diagonals, classes, chunk)

    def evaluate(self, H: Blocks, A: np.ndarray) -> tuple[float, Blocks]:
        """T and dT / dH; A, (n, n) with its columns in class order, only bounds the spectrum."""
        shifts, weights = inverse_root(*self._spectrum(H, A))
        Hs = [h[c] for h in H for c in range(len(h))]
        U = [h @ h.T for h in Hs]
        forward: list[np.ndarray] = []
        for i, chunk in enumerate(self._chunks):
            block = np.broadcast_to(self._own[i], (len(shifts), *self._own[i].shape)).copy()
            start = 0
            for c in chunk:
                at = slice(start, start + len(U[c]))
                block[:, at, at] += shifts[:, None, None] * U[c]
                start = at.stop
            if i:
                block -= self._next[i - 1] @ forward[-1] @ self._next[i - 1].T
            forward.append(np.linalg.inv(block))
        G: list[np.ndarray] = [np.empty(0)] * self.classes.count
        T = 0.0
        R = forward[-1]
        for i in reversed(range(len(self._chunks))):
            if i + 1 < len(self._chunks):
                reach = self._next[i] @ forward[i]
                R = forward[i] + reach.transpose(0, 2, 1) @ R @ reach
            X = np.tensordot(weights, R, 1)
            start = 0
            for c in self._chunks[i]:
                at = slice(start, start + len(U[c]))
                G[c] = X[at, at] @ Hs[c]
                T += np.vdot(G[c], Hs[c])
                start = at.stop
        ends = np.cumsum([group.classes for group in self.classes.groups])
        return T, [np.array(G[end - len(h) : end]) for h, end in zip(H, ends, strict=True)]

    def _spectrum(self, H: Blocks, A: np.ndarray) -> tuple[float, float]:
        """Bounds on the spectrum of H^-1 P H^-T, from row sums of absolute values."""
        magnitudes = [np.abs(h) for h in H]
        ones = np.ones((len(A), 1))
        through = np.abs(A) @ self.classes.apply(magnitudes, ones)
        largest = self.classes.apply(transposed(magnitudes), np.abs(A).T @ through).max()
        inverses = [np.abs(h) for h in inverted(H)]
        K = np.abs(self._K)
        up = np.empty_like(ones)
        up[self.classes.order] = self.classes.apply(transposed(inverses), ones)
        n, p = K.shape
        mixed = np.zeros(n)
        down = np.zeros(n)
        for j in range(p):
            mixed[: n - j] += K[j:, j] * up[j:, 0]
        for j in range(p):
            down[j:] += K[j:, j] * mixed[: n - j]
        most = self.classes.apply(inverses, down[self.classes.order, None]).max()
        return float(1.0 / largest), float(most)


def inverse_root(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Shifts s and weights w, all positive, with sum_j w_j / (x + s_j) near x^(-1/2)
    on [low, high].

    >>> shifts, weights = inverse_root(1e-4, 10.0)
    >>> float(abs((weights / (0.25 + shifts)).sum() - 2.0)) < 1e-10
    True
    """
    # Imported here because it is slow to import, and `fedmf --help` must not wait for it.
    from scipy import special

    ratio = min(low / high, 0.5)
    # Half the poles, in s below sqrt(low high): there the elliptic functions of a parameter near 1
    # are accurate. The others are their mirror images, u -> K - u.
    half = int(np.ceil(-np.log(_ACCURACY) * (3.0 - np.log(ratio)) / (4.0 * np.pi**2)))
    K = special.ellipkm1(ratio)
    sn, cn, dn, _ = special.ellipj((np.arange(half) + 0.5) * K / (2 * half), 1.0 - ratio)
    shifts = low * np.square(sn / cn)
    slopes = np.concatenate([dn / np.square(cn), dn / np.square(sn) / np.sqrt(ratio)])
    return np.concatenate([shifts, low * (low / ratio) / shifts]), K * np.sqrt(low) / (
        np.pi * half
    ) * slopes
