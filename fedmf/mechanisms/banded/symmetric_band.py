"""Symmetric banded matrices as blocks, and what the dual bound of banded encoders does with them."""

import numpy as np


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
        first, last = max(0, -i, -j), min(count, count - i, count - j)
        if first >= last:
            continue
        q = i - j
        left = S[q][first + j : last + j] if q >= 0 else S[-q][first + i : last + i].transpose(0, 2, 1)
        right = D[j][first:last] if j >= 0 else D[1][first - 1 : last - 1].transpose(0, 2, 1)
        product[first:last] += left @ right
    return product
