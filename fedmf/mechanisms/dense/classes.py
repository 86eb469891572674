"""Rounds in the order of their clients: the classes i, i + b, i + 2b, ... and matrices that are
zero across them.
"""

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
        n, b = rounds, min_sep
        self.order = np.concatenate([np.arange(i, n, b) for i in range(b)])
        self.count, self.largest = b, -(-n // b)
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
        for rows, classes, size in self.groups:
            block = np.empty((classes, size, size))
            for c in range(classes):
                at = slice(rows.start + c * size, rows.start + (c + 1) * size)
                block[c] = M[at, at]
            diagonal.append(block)
        return diagonal

    def clear_pairs(self, M: np.ndarray) -> None:
        """Sets M[i, j] = 0 for distinct i, j of one class, in place."""
        diagonal = np.diagonal(M).copy()
        for rows, classes, size in self.groups:
            for c in range(classes):
                at = slice(rows.start + c * size, rows.start + (c + 1) * size)
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
