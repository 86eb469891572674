"""A dual bound for banded encoders that needs neither a dense matrix nor a decomposition."""

import numpy as np
import scipy.linalg

from fedmf.mechanisms.recursion import blocks_of

# Corrections of the dual point: each costs about as much as a gradient; near the optimum two are enough.
_MOST_CORRECTIONS = 8


class SymmetricBand:
    """Symmetric matrices of n rounds with `bands` bands on either side, as blocks of `length` rounds.

    A matrix is a pair (diagonal blocks, blocks below them); rounds that fill up the last block are 0.
    """

    def __init__(self, n: int, bands: int, length: int) -> None:
        self.n, self.length, self.count = n, length, -(-n // length)
        lag = np.subtract.outer(np.arange(length), np.arange(length))
        self.near, self.below = np.abs(lag) < bands, lag + length < bands

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

    def inner(self, left: tuple[np.ndarray, np.ndarray], right: tuple[np.ndarray, np.ndarray]) -> float:
        """tr(left right)."""
        return float(np.vdot(left[0], right[0]) + 2.0 * np.vdot(left[1], right[1]))

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
    columns: np.ndarray, inverse: np.ndarray, gradient: tuple[np.ndarray, np.ndarray], loss: float, classes: np.ndarray
) -> float:
    """A lower bound on tr(A^T A X^-1) over all X with at most as many bands whose classes have traces of at most 1.

    With X = C^T C, M = X^-1 A^T A X^-1 (minus the gradient of the loss along X), any symmetric E inside the band and
    Y = A X^-1 (I + K), K = -M^-1 E / 2, weak duality ||A X'^(-1/2) - Y X'^(1/2)||_F^2 >= 0 bounds every feasible X' by

        tr(A^T A X'^-1) >= 2 tr(A Y^T) - tr(Y^T Y X') >= 2 a - S,     a = loss - tr(E X) / 2,
        Y^T Y = U = M - E + G^T G / 4,     G = A^-T X E,              S >= tr(U X') for all feasible X',

    and Y scaled for the best bound gives a^2 / S. All that is needed of U is its band, and M^-1 = X A^-1 A^-T X is a
    banded matrix: the work is O(n bands^2). Since |X'_ij| <= (X'_ii + X'_jj) / 2, S is the sum over classes of the
    largest U_ii + sum_(j != i) |U_ij|, j inside the band. E is chosen, by fixed point, to leave U diagonal inside the
    band and constant on each class; at the optimum E = 0 does, so that the gap of this bound is of second order in the
    distance from there.

    Args:
      columns: C by columns, (n, bands).
      inverse: P = A^-1 by columns, (n, p).
      gradient: of the loss along the blocks of R = C P, from `NoiseRecursion.gradient`.
      loss: ||A C^-1||_F^2.
      classes: (n,) labels from 0: rounds with the same one share a budget of X_ii that sums to 1. Equal norms: each
        round has its own.
    """
    n, bands = columns.shape
    band = SymmetricBand(n, bands, gradient[0].shape[1])
    C, P = blocks_of(columns, band.length), blocks_of(inverse, band.length)
    M = band.keep(*_negative_gradient(C, P, gradient))
    X = C[0].transpose(0, 2, 1) @ C[0]
    X[:-1] += C[1].transpose(0, 2, 1) @ C[1]
    gram = (X, C[0][1:].transpose(0, 2, 1) @ C[1])
    weights = band.main(gram[0])
    best, E = -np.inf, _unwanted(band, M, weights, classes)
    for _ in range(_MOST_CORRECTIONS):
        curvature = _curvature(P, gram, E)
        target = band.keep(M[0] + 0.25 * curvature[0], M[1] + 0.25 * curvature[1])
        U = (target[0] - E[0], target[1] - E[1])
        diagonal = band.main(U[0])
        a = loss - 0.5 * band.inner(E, gram)
        S = float(_class_maxima(band.row_sums(*U) - np.abs(diagonal) + diagonal, classes).sum())
        found = a * a / S if a > 0.0 and np.isfinite(S) else -np.inf
        worth_going_on = found > best and loss - found < 0.98 * (loss - best)
        best = max(best, found)
        if not worth_going_on:
            break
        E = _unwanted(band, target, weights, classes)
    return best


def _negative_gradient(
    C: tuple[np.ndarray, np.ndarray], P: tuple[np.ndarray, np.ndarray], gradient: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """M inside the band, from C M = T: T is -1/2 of the gradient along C, which is that along R times P^T.

    Entries below the band come out wrong, and are not needed for those inside it.
    """
    T = -0.5 * (gradient[0] @ P[0].transpose(0, 2, 1))
    T[1:] -= 0.5 * (gradient[1] @ P[1].transpose(0, 2, 1))
    T_below = -0.5 * (gradient[1] @ P[0][:-1].transpose(0, 2, 1))
    M, M_below = np.empty(T.shape), np.empty(T_below.shape)
    for t in range(len(T)):
        right = T[t] - C[1][t - 1] @ M_below[t - 1].T if t else T[t]
        M[t] = _solve(C[0][t], right)
        M[t] += M[t].T.copy()
        M[t] *= 0.5
        if t + 1 < len(T):
            M_below[t] = _solve(C[0][t + 1], T_below[t] - C[1][t] @ M[t])
    return M, M_below


def _solve(lower: np.ndarray, right: np.ndarray) -> np.ndarray:
    solution: np.ndarray = scipy.linalg.blas.dtrsm(1.0, lower, right, lower=1)
    return solution


def _unwanted(
    band: SymmetricBand, target: tuple[np.ndarray, np.ndarray], weights: np.ndarray, classes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`target` inside the band, without what may stay: on the main diagonal, each class's mean."""
    diagonal = band.main(target[0])
    means = np.bincount(classes, weights * diagonal) / np.bincount(classes, weights)
    E = target[0].copy()
    band.add_to_main(E, -means[classes])
    return E, target[1]


def _curvature(
    P: tuple[np.ndarray, np.ndarray], gram: tuple[np.ndarray, np.ndarray], E: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """G^T G inside the band, G = P^T X E. Column block t of G has rows in the blocks t - 2 to t + 2 only: its slab."""
    count, L, _ = E[0].shape
    X = {0: gram[0], 1: gram[1], -1: gram[1].transpose(0, 2, 1)}  # by block row - block column
    Y = {0: E[0], 1: E[1], -1: E[1].transpose(0, 2, 1)}
    V = np.zeros((count, 5 * L, L))
    for i, left in X.items():
        for j, right in Y.items():
            # Block (s, t) of Y, s = t + j, times block (s + i, s) of X; both are stored by their smaller index.
            first = max(0, -j, -j - i)
            last = min(count, count - j, count - j - i)
            if first < last:
                t = np.arange(first, last)
                s = t + j
                at = slice((2 + i + j) * L, (3 + i + j) * L)
                V[first:last, at] += left[s + min(i, 0)] @ right[t + min(j, 0)]
    G = np.zeros_like(V)
    for offset in range(-2, 3):
        # Row block u = t + offset of G is P_(u,u)^T V_u + P_(u+1,u)^T V_(u+1).
        first, last = max(0, -offset), min(count, count - offset)
        if first >= last:
            continue
        at = slice((2 + offset) * L, (3 + offset) * L)
        G[first:last, at] = P[0][first + offset : last + offset].transpose(0, 2, 1) @ V[first:last, at]
        last = min(count, count - offset - 1)
        if offset < 2 and first < last:
            after = slice((3 + offset) * L, (4 + offset) * L)
            G[first:last, at] += P[1][first + offset : last + offset].transpose(0, 2, 1) @ V[first:last, after]
    below = G[1:, : 4 * L].transpose(0, 2, 1) @ G[:-1, L:]
    return G.transpose(0, 2, 1) @ G, below


def _class_maxima(values: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The largest value of each class, or 0: a class need not use its budget."""
    largest = np.zeros(int(classes.max()) + 1)
    np.maximum.at(largest, classes, values)
    return largest
