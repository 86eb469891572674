"""Zeroing, clipping and summing of updates on the host: exact about the bound, in two passes over
blocks that fit the cache.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

# Entries that are worked on together.
_BLOCK = 32_768
_UNIT = 2.0**-53


def clip_margin(entries: int) -> float:
    """How much less than clip_norm an update of so many entries is scaled to, as a part of it, so
    that no rounding lifts it above.

    Proof, with u = 2^-53. Entries are float64, products with scales included. The computed sum of n
    squares is at least S (1 - u)^(n + 1), whatever the order of its additions, and its root is
    rounded once: the true norm is at most (1 + (n / 2 + 2) u) times the computed one, to first
    order. The factor is rounded twice, each product with it once, and a division by the largest
    entry, where squares would overflow, once more. The rest of the constant is for terms of second
    order. What squares lose below 2^-1022 is nothing beside a clip norm of 1e-20.

    >>> clip_margin(4_050_000) < 3e-10
    True
    """
    return (entries / 2 + 16) * _UNIT


class UpdateSum:
    """The sum of a round's clipped updates, and how many there are.

    Attributes:
      total: float64 (d,), the leaves one behind the other.
      clients, clipped, zeroed: updates in it, how many of them were clipped, how many zeroed.

    >>> total = UpdateSum(3)
    >>> total.add([np.array([30.0, 40.0]), np.zeros(1)], clip_norm=0.5, zeroing_norm=100.0)
    >>> total.add([np.array([1.0, np.nan]), np.zeros(1)], clip_norm=0.5, zeroing_norm=100.0)
    >>> total.total.round(6), total.clients, total.clipped, total.zeroed
    (array([0.3, 0.4, 0. ]), 2, 1, 1)
    """

    def __init__(self, size: int) -> None:
        self.total = np.zeros(size)
        self.clients = self.clipped = self.zeroed = 0

    def clear(self) -> None:
        """Begins anew, in the same memory."""
        self.total.fill(0.0)
        self.clients = self.clipped = self.zeroed = 0

    def add(
        self,
        leaves: Sequence[np.ndarray],
        *,
        clip_norm: float,
        zeroing_norm: float,
        scales: Sequence[np.ndarray] = (),
    ) -> None:
        """Adds an update: zeroed, or clipped in L2 over all leaves together.

        What is added has norm at most clip_norm, whatever the update. An interrupt leaves a part of
        it in the sum, of a norm that is no larger.

        Args:
          leaves: float arrays, d entries in all.
          clip_norm: at least 1e-20.
          zeroing_norm: an update with an entry above it counts as zero; so does one with a NaN or
            an infinity, always.
          scales: arrays of the leaves' shapes that they are multiplied by first; empty for none.
        """
        self.clients += 1
        flat = [np.ravel(leaf) for leaf in leaves]
        by = [np.ravel(scale) for scale in scales]
        target = clip_norm * (1 - clip_margin(len(self.total)))
        with np.errstate(over="ignore", invalid="ignore"):
            norm, unit = _norm(flat, by, 1.0), 1.0
            # No entry is larger than the norm, so that most updates need not be searched for one.
            if not (norm < math.inf and norm <= zeroing_norm / 2):
                largest = _largest(flat, by)
                if not (largest <= zeroing_norm and math.isfinite(largest)):
                    self.zeroed += 1
                    return
                if not math.isfinite(norm):  # squares overflow
                    norm, unit = _norm(flat, by, largest), largest
            clipped = norm * unit > target
            self.clipped += clipped
            for place, block in _blocks(flat, by, unit if clipped else 1.0):
                if clipped:
                    block *= target / norm
                self.total[place : place + len(block)] += block

    def add_clipped(
        self, leaves: Sequence[np.ndarray], clients: int, clipped: int, zeroed: int
    ) -> None:
        """Adds the sum of updates that were clipped elsewhere, and their counts."""
        self.clients += int(clients)
        self.clipped += int(clipped)
        self.zeroed += int(zeroed)
        place = 0
        for leaf in map(np.ravel, leaves):
            self.total[place : place + len(leaf)] += leaf
            place += len(leaf)


def _blocks(
    leaves: Sequence[np.ndarray], scales: Sequence[np.ndarray], unit: float
) -> Iterator[tuple[int, np.ndarray]]:
    """The entries times their scales, divided by `unit`: float64 blocks in one array that is used
    again, and the place of each in the sum.
    """
    array, place = np.empty(_BLOCK), 0
    for i, leaf in enumerate(leaves):
        for start in range(0, len(leaf), _BLOCK):
            part = leaf[start : start + _BLOCK]
            block = array[: len(part)]
            np.copyto(block, part, casting="unsafe")
            if scales:
                block *= scales[i][start : start + _BLOCK]
            if unit != 1.0:
                block /= unit
            yield place, block
            place += len(part)


def _norm(leaves: Sequence[np.ndarray], scales: Sequence[np.ndarray], unit: float) -> float:
    return math.sqrt(sum(float(np.dot(block, block)) for _, block in _blocks(leaves, scales, unit)))


def _largest(leaves: Sequence[np.ndarray], scales: Sequence[np.ndarray]) -> float:
    """The largest absolute value; a NaN where one is there."""
    ends = [np.abs(block).max() for _, block in _blocks(leaves, scales, 1.0)]
    return float(np.max(ends, initial=0.0))


def largest_norm(clients: int, clip_norm: float, entries: int) -> float:
    """The largest norm that is computed of a float64 sum of so many updates,
    each of clip_norm at most.

    Proof, with u = 2^-53. An addition moves each entry of the sum by a factor of 1 + u at most, so
    ||S_k|| <= (||S_(k-1)|| + clip_norm) (1 + u), and ||S_n|| <= n clip_norm (1 + u)^n. The sum of d
    squares is off by a factor of (1 + u)^(d + 1) at most, in any order, and its root by (1 + u)
    more. The rest is for terms of second order, and for the rounding of this bound.
    """
    return clients * clip_norm * (1 + 2.0**-53 * (clients + entries / 2 + 8))
