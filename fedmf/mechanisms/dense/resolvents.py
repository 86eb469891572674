"""The dense dual's bound and gradient for workloads with a banded inverse,
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

import numpy as np

from fedmf.mechanisms.dense.classes import Blocks, Classes, inverted, transposed

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
        T, R = 0.0, forward[-1]
        for i in reversed(range(len(self._chunks))):
            if i + 1 < len(self._chunks):
                reach = self._next[i] @ forward[i]
                R = forward[i] + reach.transpose(0, 2, 1) @ R @ reach
            X = np.tensordot(weights, R, 1)
            start = 0
            for c in self._chunks[i]:
                at = slice(start, start + len(U[c]))
                G[c] = X[at, at] @ Hs[c]
                T += float(np.vdot(G[c], Hs[c]))
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
        mixed, down = np.zeros(n), np.zeros(n)
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
