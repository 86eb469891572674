"""Zeroing, clipping and summing of updates on the host: exact about the bound, in two passes over
blocks that fit the cache.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

# Entries that are worked on together.
_BLOCK = 32_768
_UNIT = 2.0**-53
_LARGEST_MARGIN = 1e-3


def clip_margin(entries: int, clients: int) -> float:
    """How much less than clip_norm an update of so many entries is scaled to, as a part of it, so
    that no rounding moves a sum of so many clients by more with it than without it.

    Proof, with u = 2^-53, to first order. Entries are float64, products with scales included. The
    computed sum of n squares is at least S (1 - u)^(n + 1), whatever the order of its additions,
    and its root is rounded once: the true norm is at most (1 + (n / 2 + 2) u) times the computed
    one. The factor is rounded twice, each product with it once, and a division by the largest
    entry, where squares would overflow, once more. An addition moves each entry of the sum by u
    times itself at most: a sum of m updates, of norm at most m clip_norm, by m u clip_norm, all m
    additions by m^2 u clip_norm, and that of the sum with the client and that without it together
    by twice as much. The rest of the constant is for terms of second order. What squares lose below
    2^-1022 is nothing beside a clip norm of 1e-20.

    Raises:
      ValueError: so many clients or entries that the margin would be no small one.

    >>> clip_margin(4_050_000, 1000) < 1e-9
    True
    """
    margin = (entries / 2 + 2.0 * (clients + 1) ** 2 + 16) * _UNIT
    if margin > _LARGEST_MARGIN:
        raise ValueError(
            f"clients_per_round={clients} updates of {entries} entries are too many for a sum in "
            "float64: use at most two million clients a round"
        )
    return margin


class UpdateSum:
    """The sum of a round's clipped updates, and how many there are.

    Args:
      size: entries of an update, d.
      clients: updates of a round at most.

    Attributes:
      total: float64 (d,), the leaves one behind the other.
      clients, clipped, zeroed: updates in it, how many of them were clipped, how many zeroed.

    >>> total = UpdateSum(3, 2)
    >>> total.add([np.array([30.0, 40.0]), np.zeros(1)], clip_norm=0.5, zeroing_norm=100.0)
    >>> total.add([np.array([1.0, np.nan]), np.zeros(1)], clip_norm=0.5, zeroing_norm=100.0)
    >>> total.total.round(6), total.clients, total.clipped, total.zeroed
    (array([0.3, 0.4, 0. ]), 2, 1, 1)
    """

    def __init__(self, size: int, clients: int) -> None:
        self.total = np.zeros(size)
        self.clients = self.clipped = self.zeroed = 0
        self.expect(clients)
        self._own = np.empty(size, np.float32)

    def expect(self, clients: int) -> None:
        """Clips from now on for a round of so many updates at most."""
        self._margin = clip_margin(len(self.total), clients)

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

        It moves the sum by at most clip_norm, whatever the update, and whatever becomes of its
        arrays meanwhile: they are copied first. An interrupt leaves a part of it in the sum, of a
        norm that is no larger.

        Args:
          leaves: float arrays, d entries in all.
          clip_norm: at least 1e-20.
          zeroing_norm: an update with an entry above it counts as zero; so does one with a NaN or
            an infinity, always.
          scales: arrays of the leaves' shapes that they are multiplied by first; empty for none.
        """
        self.clients += 1
        by = [np.ravel(scale) for scale in scales]
        target = clip_norm * (1 - self._margin)
        with np.errstate(over="ignore", invalid="ignore"):
            flat = self._room(leaves)
            norm, unit = _norm(_blocks(leaves, by, 1.0, flat)), 1.0
            # No entry is larger than the norm, so that most updates need not be searched for one.
            if not (norm < math.inf and norm <= zeroing_norm / 2):
                largest = _largest(flat, by)
                if not (largest <= zeroing_norm and math.isfinite(largest)):
                    self.zeroed += 1
                    return
                if not math.isfinite(norm):  # squares overflow
                    norm, unit = _norm(_blocks(flat, by, largest)), largest
            clipped = norm * unit > target
            self.clipped += clipped
            for place, block in _blocks(flat, by, unit if clipped else 1.0):
                if clipped:
                    block *= target / norm
                self.total[place : place + len(block)] += block

    def _room(self, leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Vectors for copies of the leaves, which nobody else writes to, of float32 or float64."""
        ends = np.cumsum([leaf.size for leaf in leaves])
        parts = np.split(self._own, ends[:-1])
        return [
            np.empty(leaf.size) if leaf.dtype == np.float64 else part
            for leaf, part in zip(leaves, parts, strict=True)
        ]

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
    leaves: Sequence[np.ndarray],
    scales: Sequence[np.ndarray],
    unit: float,
    copies: Sequence[np.ndarray] = (),
) -> Iterator[tuple[int, np.ndarray]]:
    """The entries times their scales, divided by `unit`: float64 blocks in one array that is used
    again, and the place of each in the sum.

    With `copies` each entry is read once, into them.
    """
    array, place = np.empty(_BLOCK), 0
    for i, leaf in enumerate(map(np.ravel, leaves)):
        for start in range(0, len(leaf), _BLOCK):
            part = leaf[start : start + _BLOCK]
            if copies:
                own = copies[i][start : start + _BLOCK]
                np.copyto(own, part, casting="unsafe")
                part = own
            block = array[: len(part)]
            np.copyto(block, part, casting="unsafe")
            if scales:
                block *= scales[i][start : start + _BLOCK]
            if unit != 1.0:
                block /= unit
            yield place, block
            place += len(part)


def _norm(blocks: Iterable[tuple[int, np.ndarray]]) -> float:
    return math.sqrt(sum(float(np.dot(block, block)) for _, block in blocks))


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
