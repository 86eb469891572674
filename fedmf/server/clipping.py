"""Clipping of client updates in numpy, with a proof that rounding keeps the bound, and the sum of a
round's updates.

`clip_update` is the reference that other clipping kernels are tested against. It takes two passes
over blocks that fit the cache. `clip_margin` has the proof of the bound, also for kernels that
compute in float32.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

# Number of entries of an update that are clipped at a time.
_BLOCK = 32_768
_UNIT_ROUNDOFF = 2.0**-53
_LARGEST_MARGIN = 1e-3

# A kernel that clips in float32 adds up the squares of this many entries in float32, and adds up
# these partial sums in float64. The proof in `clip_margin` uses this number.
FLOAT32_CHUNK = 32
# A float32 kernel may compare a norm only with limits of at least this number times the square root
# of the number of entries.
FLOAT32_LEAST_NORM = 1e-15
# A float32 kernel clips to (1 - FLOAT32_MARGIN) * clip_norm. The proof needs a margin of at least
# 1.09e-6.
FLOAT32_MARGIN = 1.5e-6


def clip_margin(entries: int, clients: int) -> float:
    """Returns the margin of clipping. Updates are clipped to (1 - margin) * clip_norm, so that even
    with rounding no update moves a sum by more than clip_norm.

    Proof, to first order. A kernel squares entries and adds up chunks of K squares with unit
    roundoff v; it computes everything else in float64, with u = 2^-53.

    - The computed sum of K squares is at least S (1 - v)^K, whatever the order of its additions:
      each square is rounded once, each sum K - 1 times at most, and all terms are non-negative. The
      true norm is at most (1 + K / 2 v) times the computed one, and 2 u for the root.
    - The factor clip_norm / norm is rounded to the update's precision, and so is the product of
      each entry with it: 2 v. In float64 a division by the largest entry, where squares would
      overflow, is rounded as well.
    - Numbers below the least normal number, w, may count as 0. The squares lack 2 n w at most.

    This module: v = u and K = n, which takes (n / 2 + 6) u. Products with scales are entries. What
    squares lose below w = 2^-1022 is nothing beside a clip norm of 1e-20. An addition moves each
    entry of the sum by u times itself at most: a sum of m updates, of norm at most m clip_norm, by
    m u clip_norm, all m additions by m^2 u clip_norm, and the sum with the client and the sum
    without it together by twice as much. The rest of the constant is for terms of second order.

    A kernel in float32: v = 2^-24, K = FLOAT32_CHUNK and w = 2^-126. It compares its norm with
    norms of at least FLOAT32_LEAST_NORM sqrt(n), of whose square 2 n w is at most 3e-8. In all
    (32 / 2 + 2) v + 1.5e-8 = 1.09e-6. FLOAT32_MARGIN has a third more, for the n / 32 additions of
    chunks in float64, of up to 10^11 entries, and for the sum of up to 30,000 updates.

    Args:
      entries: n, of an update.
      clients: m, the most updates of a sum.

    Raises:
      ValueError: so many clients or entries that the margin would exceed a thousandth.

    >>> clip_margin(4_050_000, 1000) < 1e-9
    True
    """
    margin = (entries / 2 + 2.0 * (clients + 1) ** 2 + 16) * _UNIT_ROUNDOFF
    if margin > _LARGEST_MARGIN:
        raise ValueError(
            f"clients_per_round={clients} updates of {entries} entries are too many for a sum in "
            "float64: use at most two million clients a round"
        )
    return margin


class ClipResult(NamedTuple):
    """A client's update after zeroing or clipping. No update is both zeroed and clipped.

    Attributes:
      values: float64 arrays in the shapes of the update.
      is_clipped: whether it was longer than clip_norm allows.
      is_zeroed: whether it counts as zero.
    """

    values: list[np.ndarray]
    is_clipped: bool
    is_zeroed: bool


def clip_update(
    leaves: Sequence[np.ndarray],
    *,
    clip_norm: float,
    zeroing_norm: float,
    scales: Sequence[np.ndarray] = (),
    max_clients: int = 1,
) -> ClipResult:
    """Zeroes an invalid update, or clips the L2 norm of an update over all arrays together.

    Norms and clipped values are computed in float64, whatever the dtype of the leaves. For every
    input the result's norm is at most clip_norm in exact arithmetic. An update of norm at
    most (1 - 2 clip_margin) clip_norm is only multiplied by its scales.

    Args:
      leaves: float arrays.
      clip_norm: at least 1e-20.
      zeroing_norm: an update with an entry above it in absolute value counts as zero; so does one
        with a NaN or an infinity, always.
      scales: arrays of the leaves' shapes, by which they are multiplied first; empty for none.
      max_clients: most clients of the sum that the result is for.

    >>> clipped = clip_update([np.array([30.0, 40.0])], clip_norm=0.5, zeroing_norm=100.0)
    >>> clipped.values[0].round(6), clipped.is_clipped, clipped.is_zeroed
    (array([0.3, 0.4]), True, False)
    """
    leaf_sizes = [leaf.size for leaf in leaves]
    clipped_values = np.zeros(sum(leaf_sizes))
    target_norm = clip_norm * (1 - clip_margin(len(clipped_values), max_clients))
    float32_memory = np.empty(len(clipped_values), np.float32)
    clipping_decision = _Clipping(leaves, scales, float32_memory, target_norm, zeroing_norm)
    for start, block in clipping_decision.blocks():
        clipped_values[start : start + len(block)] = block
    flat_leaves = np.split(clipped_values, np.cumsum(leaf_sizes)[:-1])
    shaped_leaves = [
        flat.reshape(leaf.shape) for flat, leaf in zip(flat_leaves, leaves, strict=True)
    ]
    return ClipResult(shaped_leaves, clipping_decision.is_clipped, clipping_decision.is_zeroed)


class UpdateSum:
    """The sum of a round's clipped updates, with counts of clients, clipped and zeroed updates.

    Args:
      size: entries of an update, d.
      max_clients: the most updates of a round.

    Attributes:
      total: float64 (d,), the leaves one behind the other.
      clients, clipped, zeroed: numbers of updates in the sum, of updates that were clipped, and
        of updates that count as zero.

    >>> total = UpdateSum(3, 2)
    >>> total.add([np.array([30.0, 40.0]), np.zeros(1)], clip_norm=0.5, zeroing_norm=100.0)
    >>> total.add([np.array([1.0, np.nan]), np.zeros(1)], clip_norm=0.5, zeroing_norm=100.0)
    >>> total.total.round(6), total.clients, total.clipped, total.zeroed
    (array([0.3, 0.4, 0. ]), 2, 1, 1)
    """

    def __init__(self, size: int, max_clients: int) -> None:
        self.total = np.zeros(size)
        self.clients = self.clipped = self.zeroed = 0
        self.set_margin(max_clients)
        self._float32_memory = np.empty(size, np.float32)

    def set_margin(self, max_clients: int) -> None:
        """Sets the margin of the clipping from now on, for a round of at most `max_clients`
        updates.
        """
        self._margin = clip_margin(len(self.total), max_clients)

    def clear(self) -> None:
        """Sets the sum and its counts to zero, and reuses the memory."""
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
        """Adds an update to the sum, after zeroing or clipping it as `clip_update` does.

        It moves the sum by at most clip_norm, whatever the update is, and whoever writes to its
        arrays meanwhile: they are copied first. An interrupt leaves a part of the clipped update in
        the sum, whose norm is no larger.

        Args:
          leaves: float arrays, d entries in all.
          clip_norm, zeroing_norm, scales: arguments of `clip_update`.
        """
        self.clients += 1
        target_norm = clip_norm * (1 - self._margin)
        clipping_decision = _Clipping(
            leaves, scales, self._float32_memory, target_norm, zeroing_norm
        )
        self.zeroed += clipping_decision.is_zeroed
        self.clipped += clipping_decision.is_clipped
        for start, block in clipping_decision.blocks():
            self.total[start : start + len(block)] += block

    def add_clipped(
        self, leaves: Sequence[np.ndarray], clients: int, clipped: int, zeroed: int
    ) -> None:
        """Adds a sum of updates that were clipped elsewhere, together with their counts."""
        self.clients += int(clients)
        self.clipped += int(clipped)
        self.zeroed += int(zeroed)
        leaf_start = 0
        for leaf in map(np.ravel, leaves):
            self.total[leaf_start : leaf_start + len(leaf)] += leaf
            leaf_start += len(leaf)


class _Clipping:
    """A copy of an update, with the decision whether to zero or clip it.

    A clipped update is divided by `_unit` and multiplied by `_factor`.

    Args:
      leaves: arrays of the update.
      scales: scales as `clip_update` takes them.
      float32_memory: memory for the copy of float32 leaves, of as many entries as the update.
      target: the norm that an update is clipped to.
      zeroing_norm: zeroing norm as `clip_update` takes it.
    """

    def __init__(
        self,
        leaves: Sequence[np.ndarray],
        scales: Sequence[np.ndarray],
        float32_memory: np.ndarray,
        target: float,
        zeroing_norm: float,
    ) -> None:
        self._scales = [np.ravel(scale) for scale in scales]
        self._leaves = _empty_copies(leaves, float32_memory)
        self._unit = self._factor = 1.0
        self.is_zeroed = self.is_clipped = False
        divisor = 1.0
        with np.errstate(over="ignore", invalid="ignore"):
            update_norm = _norm(_blocks(leaves, self._scales, copies=self._leaves))
            # The norm of an update is at least its largest entry. So only an update whose norm is
            # above half of zeroing_norm is searched for its largest entry.
            if not (update_norm < math.inf and update_norm <= zeroing_norm / 2):
                largest_magnitude = _largest(self._leaves, self._scales)
                if not (largest_magnitude <= zeroing_norm and math.isfinite(largest_magnitude)):
                    self.is_zeroed = True
                    return
                # The norm is infinite although the entries are finite, because their squares
                # overflow.
                if not math.isfinite(update_norm):
                    divisor = largest_magnitude
                    update_norm = _norm(_blocks(self._leaves, self._scales, unit=divisor))
            self.is_clipped = bool(update_norm * divisor > target)
        if self.is_clipped:
            self._unit = divisor
            self._factor = target / update_norm

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the clipped update in blocks, as `_blocks` does; no blocks for a zeroed update."""
        if self.is_zeroed:
            return
        for start, block in _blocks(self._leaves, self._scales, unit=self._unit):
            if self.is_clipped:
                block *= self._factor
            yield start, block


def _empty_copies(leaves: Sequence[np.ndarray], float32_memory: np.ndarray) -> list[np.ndarray]:
    """Returns an empty vector for the copy of each array, of float64 for a float64 array and
    otherwise of float32.
    """
    leaf_ends = np.cumsum([leaf.size for leaf in leaves])
    float32_vectors = np.split(float32_memory, leaf_ends[:-1])
    leaf_copies = []
    for leaf, float32_vector in zip(leaves, float32_vectors, strict=True):
        leaf_copy = np.empty(leaf.size) if leaf.dtype == np.float64 else float32_vector
        leaf_copies.append(leaf_copy)
    return leaf_copies


def _blocks(
    leaves: Sequence[np.ndarray],
    scales: Sequence[np.ndarray],
    *,
    unit: float = 1.0,
    copies: Sequence[np.ndarray] = (),
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields pairs of a start index in the flat update and a float64 block of its scaled entries,
    divided by `unit`. All blocks share one array.

    With `copies` each entry is read once, into them.
    """
    block_memory = np.empty(_BLOCK)
    leaf_start = 0
    for i, leaf in enumerate(map(np.ravel, leaves)):
        for start in range(0, len(leaf), _BLOCK):
            leaf_block = leaf[start : start + _BLOCK]
            if copies:
                copied_block = copies[i][start : start + _BLOCK]
                np.copyto(copied_block, leaf_block, casting="unsafe")
                leaf_block = copied_block
            scaled_block = block_memory[: len(leaf_block)]
            np.copyto(scaled_block, leaf_block, casting="unsafe")
            if scales:
                scaled_block *= scales[i][start : start + _BLOCK]
            if unit != 1.0:
                scaled_block /= unit
            yield leaf_start + start, scaled_block
        leaf_start += len(leaf)


def _norm(blocks: Iterable[tuple[int, np.ndarray]]) -> float:
    """Returns the L2 norm of all blocks together; infinity if a square overflows."""
    return math.sqrt(sum(float(np.dot(block, block)) for _, block in blocks))


def _largest(leaves: Sequence[np.ndarray], scales: Sequence[np.ndarray]) -> float:
    """Returns the largest absolute value of the scaled entries; NaN if an entry is NaN."""
    block_maxima = [np.abs(block).max() for _, block in _blocks(leaves, scales)]
    return float(np.max(block_maxima, initial=0.0))


def largest_norm(clients: int, clip_norm: float, entries: int) -> float:
    """Returns an upper bound on the norm, as computed, of a float64 sum of `clients` updates, each
    of which has a norm of at most clip_norm.

    Proof, with u = 2^-53. An addition moves each entry of the sum by a factor of 1 + u at most, so
    ||S_k|| <= (||S_(k-1)|| + clip_norm) (1 + u), and ||S_n|| <= n clip_norm (1 + u)^n. The sum of d
    squares is off by a factor of (1 + u)^(d + 1) at most, in any order, and its root by (1 + u)
    more. The rest is for terms of second order, and for the rounding of this bound.
    """
    return clients * clip_norm * (1 + _UNIT_ROUNDOFF * (clients + entries / 2 + 8))
