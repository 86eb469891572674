"""The largest sum over the nodes of binary trees of (number of a client's rounds in the node)^2,
for at most k rounds, any two of them at least b apart.

Let A be the smallest power of two above b. Blocks of fewer than A rounds have at most one of the
client's rounds, and those of A rounds at most two. Moving each round to the earliest place that its
block of A rounds and its predecessor allow changes no count in blocks of A rounds or more, and a
round is in no fewer smaller nodes than before. So some best set has all rounds at such places, and
depends on the numbers of rounds in the blocks of A rounds alone. For each node and each offset at
which a round may come first, a dynamic program finds the largest sum for every number of rounds in
the node and every offset that it leaves to the next node.
"""

from typing import NamedTuple, Protocol

import numpy as np

# Largest number of multiplications, or of what takes as long, of an exact computation.
_EXACT_BUDGET = 1e8
# Largest number of multiplications for the sums of a node alone, from which bounds begin.
_BOTTOM_BUDGET = 1e7
# Cost of one call of a function of numpy, in multiplications.
_CALL_COST = 5e3
# Largest number of offsets that an exact computation tells apart.
_MAX_OFFSETS = 400
# Number of prices of a round that are tried for a bound on several trees.
_NUM_PRICES = 24
# Largest number of rounds of a client for which bounds tell the numbers of rounds in nodes apart.
_MAX_COUNTED_ROUNDS = 5000


class _Trees(Protocol):
    """The attributes of `fedmf.participation.tree_sensitivity.BinaryTrees`."""

    @property
    def rounds_per_tree(self) -> int: ...

    @property
    def num_trees(self) -> int: ...

    @property
    def num_levels(self) -> int: ...

    def level_size(self, level: int) -> int: ...


class _TooCostly(Exception):
    """Raised when an exact computation would take too long."""


class _BaseBlock(NamedTuple):
    """A block of at most A rounds.

    Attributes:
      size: number of its rounds.
      nodes_by_offset: for each part of the block, its end and the number of smaller nodes that each
        of its rounds is in.
      is_node: whether the block itself is a node.
    """

    size: int
    nodes_by_offset: tuple[tuple[int, int], ...]
    is_node: bool

    def smaller_nodes(self, offset: int) -> int:
        """Returns the number of smaller nodes that the round at this offset is in."""
        return next(count for end, count in self.nodes_by_offset if offset < end)


def largest_separated_sum(trees: _Trees, b: int, k: int) -> tuple[float, bool]:
    """Returns the largest sum, or an upper bound if it would take too long, and whether it is
    exact.

    Args:
      trees: the nodes.
      b: smallest difference between two rounds of a client.
      k: largest number of rounds of a client.
    """
    try:
        sums = _SeparatedSums(trees, b, k, _EXACT_BUDGET)
        if trees.num_trees == 1:
            return float(sums.by_count().max()), True
        return _largest_sum_of_trees(sums.table_of_each_tree(), trees, b, k)
    except _TooCostly:
        return _upper_bound(trees, b, k), False


def _largest_sum_of_trees(table: np.ndarray, trees: _Trees, b: int, k: int) -> tuple[float, bool]:
    """Returns the largest sum over several trees one after the other, or an upper bound, and
    whether it is exact.

    For any price p >= 0 of a round, the largest sum is at most p k plus the largest sum minus the
    price of its rounds, without a limit on their number. Without a limit, the offsets between the
    trees are all that a tree depends on.

    Args:
      table: the table of each tree, for all offsets.
      trees, b, k: as of `largest_separated_sum`.
    """
    num_trees = trees.num_trees
    counts = np.arange(table.shape[2])
    is_limit_void = k >= min(
        num_trees * int(counts[-1]), -(-num_trees * trees.rounds_per_tree // b)
    )
    if is_limit_void:
        return _chained_sum(table.max(axis=2), num_trees), True
    chain_cost = _CALL_COST * table[0].size + float(table[0].size) * len(table) * k
    if num_trees * chain_cost <= _EXACT_BUDGET:
        sums = table[:1]
        for _ in range(num_trees - 1):
            sums = _joined_tables(sums, table, k)
        return float(sums.max()), True
    if len(table) ** 3 * num_trees.bit_length() * _NUM_PRICES > _EXACT_BUDGET:
        raise _TooCostly
    highest_price = float(np.max(table[:, :, 1:] / counts[1:]))
    bounds = []
    for price in np.linspace(0.0, highest_price, _NUM_PRICES):
        priced_sums = (table - price * counts).max(axis=2)
        bounds.append(_chained_sum(priced_sums, num_trees) + float(price) * k)
    return min(bounds), False


def _chained_sum(sums: np.ndarray, num_trees: int) -> float:
    """Returns the largest sum over trees one after the other, from the largest sum of a tree for
    each offset before and after it, float64 (offsets, offsets).
    """
    sums_after = np.full(len(sums), -np.inf)
    sums_after[0] = 0.0
    power = sums
    while num_trees:
        if num_trees & 1:
            sums_after = (sums_after[:, None] + power).max(axis=0)
        num_trees >>= 1
        if num_trees:
            power = np.stack([(row[:, None] + power).max(axis=0) for row in power])
    return float(sums_after.max())


class _SeparatedSums:
    """The dynamic program over the nodes of some trees.

    A table has the shape (offsets, offsets, counts): entry [s, e, c] is the largest sum of the
    nodes in a block with c rounds, of which the first one is at offset s or later, and which leave
    offset e to the next block; -inf if there is no such set.

    Args:
      trees, b, k: as of `largest_separated_sum`.
      budget: largest number of multiplications.
    """

    def __init__(self, trees: _Trees, b: int, k: int, budget: float) -> None:
        self._trees = trees
        self._min_sep = b
        self._max_rounds = k
        self._budget = budget
        self._base_level = b.bit_length()
        self._blocks = self._base_blocks()
        self._offsets = self._reached_offsets()
        self._index_by_offset = {offset: index for index, offset in enumerate(self._offsets)}
        self._all_offsets = tuple(range(len(self._offsets)))
        self._node_tables: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}

    def by_count(self) -> np.ndarray:
        """Returns the largest sum in the first tree for each number of rounds of a client, float64
        (counts,).

        Raises:
          _TooCostly: it would take too long.
        """
        return self._tree_table((0,))[0].max(axis=0)

    def table_of_each_tree(self) -> np.ndarray:
        """Returns the table of one tree for all offsets, or raises _TooCostly."""
        return self._tree_table(self._all_offsets)

    def _base_blocks(self) -> tuple[_BaseBlock, ...]:
        """Returns the complete block of A rounds, and the last one of a tree if it has fewer."""
        m = self._trees.rounds_per_tree
        base_level = self._base_level
        base_size = 1 << base_level
        complete_block = _BaseBlock(base_size, ((base_size, base_level),), is_node=True)
        rest = m % base_size
        if not rest:
            return (complete_block,)
        if self._has_cut_nodes:
            is_node = self._trees.num_levels > base_level
            num_smaller = min(base_level, self._trees.num_levels)
            return complete_block, _BaseBlock(rest, ((rest, num_smaller),), is_node)
        ends: list[tuple[int, int]] = []
        for level in reversed(range(base_level)):
            if rest >> level & 1:
                end = (rest >> level) << level
                ends.append((end, level + 1))
        return complete_block, _BaseBlock(rest, tuple(ends), is_node=False)

    @property
    def _has_cut_nodes(self) -> bool:
        top_level = self._trees.num_levels - 1
        return self._trees.rounds_per_tree >> top_level == 0

    def _transitions(self, block: _BaseBlock, s: int) -> list[tuple[int, int, float]]:
        """Returns the sets of rounds in a block of which the first one is at offset s or later.

        Returns:
          For each set its number of rounds, the offset that it leaves to the next block, and its
          sum.
        """
        b = self._min_sep
        transitions = [(0, max(0, s - block.size), 0.0)]
        node_sum = 0.0
        for count in (1, 2):
            offset = s + (count - 1) * b
            if offset >= block.size:
                break
            node_sum += block.smaller_nodes(offset)
            block_sum = node_sum + block.is_node * count**2
            transitions.append((count, max(0, offset + b - block.size), block_sum))
        return transitions

    def _reached_offsets(self) -> list[int]:
        """Returns the offsets that blocks leave to the next ones, in increasing order."""
        num_trees = self._trees.num_trees
        blocks_of_tree = -(-self._trees.rounds_per_tree >> self._base_level)
        # No block follows the last one of a single tree.
        blocks = self._blocks[:1] if num_trees == 1 else self._blocks
        # After a client's last round, offsets do not matter where counts are limited. Between trees
        # they are not.
        max_earlier = self._max_rounds - int(num_trees == 1)
        fewest_rounds = {0: 0}
        new_offsets = {0}
        for _ in range(blocks_of_tree * num_trees):
            next_offsets = set()
            for s in new_offsets:
                for block in blocks:
                    for count, e, _ in self._transitions(block, s):
                        num_rounds = fewest_rounds[s] + count
                        is_fewer = num_rounds < fewest_rounds.get(e, max_earlier + 1)
                        if is_fewer:
                            fewest_rounds[e] = num_rounds
                            next_offsets.add(e)
            if len(fewest_rounds) > _MAX_OFFSETS:
                raise _TooCostly
            if not next_offsets:
                break
            new_offsets = next_offsets
        return sorted(fewest_rounds)

    def _tree_table(self, rows: tuple[int, ...]) -> np.ndarray:
        """Returns the rows of the table of one tree that begin at these offsets."""
        m = self._trees.rounds_per_tree
        top_level = self._trees.num_levels - 1
        if self._has_cut_nodes and top_level >= self._base_level:
            return self._cut_table(top_level, m, rows)
        table = None
        for level in range(m.bit_length() - 1, self._base_level - 1, -1):
            if m >> level & 1:
                node_rows = rows if table is None else self._all_offsets
                table = self._followed(table, self._node_table(level, node_rows))
        if len(self._blocks) > 1:
            block_rows = rows if table is None else self._all_offsets
            table = self._followed(table, self._base_table(self._blocks[1], block_rows))
        assert table is not None
        return table

    def _followed(self, table: np.ndarray | None, next_table: np.ndarray) -> np.ndarray:
        """Returns the table of two blocks one after the other, of which the first may be none."""
        if table is None:
            return next_table
        return self._joined(table, next_table)

    def _node_table(self, level: int, rows: tuple[int, ...]) -> np.ndarray:
        """Returns the rows of the table of a complete node that begin at these offsets."""
        if level == self._base_level:
            return self._base_table(self._blocks[0], rows)
        if (level, rows) not in self._node_tables:
            left_half = self._node_table(level - 1, rows)
            right_half = self._node_table(level - 1, self._all_offsets)
            self._node_tables[level, rows] = _with_node(self._joined(left_half, right_half))
        return self._node_tables[level, rows]

    def _cut_table(self, level: int, size: int, rows: tuple[int, ...]) -> np.ndarray:
        """Returns the rows of the table of a node of which only the first `size` rounds are in the
        run.
        """
        if size == 1 << level:
            return self._node_table(level, rows)
        if level == self._base_level:
            return self._base_table(self._blocks[1], rows)
        half_size = 1 << (level - 1)
        if size <= half_size:
            return _with_node(self._cut_table(level - 1, size, rows))
        right_half = self._cut_table(level - 1, size - half_size, self._all_offsets)
        return _with_node(self._joined(self._node_table(level - 1, rows), right_half))

    def _base_table(self, block: _BaseBlock, rows: tuple[int, ...]) -> np.ndarray:
        """Returns the rows of the table of a block of at most A rounds."""
        num_counts = min(2, self._max_rounds) + 1
        table = np.full((len(rows), len(self._offsets), num_counts), -np.inf)
        for row, index in enumerate(rows):
            for count, e, block_sum in self._transitions(block, self._offsets[index]):
                if count >= num_counts:
                    continue
                # An offset that is not reached follows the client's last round, after which offsets
                # do not matter.
                column = self._index_by_offset.get(e, 0)
                table[row, column, count] = max(table[row, column, count], block_sum)
        return table

    def _joined(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Returns the table of two blocks one after the other."""
        num_rows, num_offsets, left_counts = left.shape
        right_counts = right.shape[2]
        num_calls = num_offsets * min(left_counts, right_counts)
        num_products = num_rows * num_offsets**2 * left_counts * right_counts
        self._budget -= num_products + _CALL_COST * num_calls
        if self._budget < 0.0:
            raise _TooCostly
        return _joined_tables(left, right, self._max_rounds)


def _joined_tables(left: np.ndarray, right: np.ndarray, max_rounds: int) -> np.ndarray:
    """Returns the table of two blocks one after the other, for at most `max_rounds` rounds."""
    num_rows, num_offsets, left_counts = left.shape
    right_counts = right.shape[2]
    num_counts = min(left_counts + right_counts - 2, max_rounds) + 1
    table = np.full((num_rows, num_offsets, num_counts), -np.inf)
    for middle in range(num_offsets):
        if left_counts <= right_counts:
            for count in range(left_counts):
                width = min(right_counts, num_counts - count)
                sums = left[:, middle, count, None, None] + right[middle, :, :width]
                window = table[:, :, count : count + width]
                np.maximum(window, sums, out=window)
        else:
            for count in range(right_counts):
                width = min(left_counts, num_counts - count)
                sums = left[:, middle, None, :width] + right[middle, :, count, None]
                window = table[:, :, count : count + width]
                np.maximum(window, sums, out=window)
    is_reached = np.isfinite(table).any(axis=(0, 1))
    return table[:, :, : int(np.flatnonzero(is_reached)[-1]) + 1]


def _with_node(table: np.ndarray) -> np.ndarray:
    """Returns the table of a block that is a node itself, which adds the squared count."""
    return table + np.square(np.arange(table.shape[2], dtype=float))


class _OneNode(NamedTuple):
    """A tree of 2^level rounds, as `_Trees`."""

    level: int

    @property
    def rounds_per_tree(self) -> int:
        """The number of rounds."""
        return 1 << self.level

    @property
    def num_trees(self) -> int:
        """The number of trees, which is 1."""
        return 1

    @property
    def num_levels(self) -> int:
        """The number of levels."""
        return self.level + 1

    def level_size(self, level: int) -> int:
        """Returns the number of nodes at a level."""
        return 1 << (self.level - level)


def _upper_bound(trees: _Trees, b: int, k: int) -> float:
    """Returns an upper bound on the largest sum. It ignores that rounds in different nodes of some
    level must be b apart, except that a node of 2^l rounds has at most ceil(2^l / b) of the
    client's rounds.
    """
    base_level = b.bit_length()
    top_level = trees.num_levels - 1
    if top_level < base_level:
        # Each node has at most one of the client's rounds.
        return float(k * trees.num_levels)
    # The exact sums of single nodes, up to the highest level for which they are cheap.
    sums_by_level = {base_level - 1: np.array([0.0, float(base_level)])}
    for level in range(base_level, top_level + 1):
        try:
            sums = _SeparatedSums(_OneNode(level), b, k, _BOTTOM_BUDGET)
            sums_by_level[level] = sums.by_count()
        except _TooCostly:
            break
    bound = _bound_by_levels(trees, b, k, sums_by_level)
    if min(k, -(-trees.rounds_per_tree // b)) <= _MAX_COUNTED_ROUNDS:
        bound = min(bound, _bound_by_counts(trees, b, k, sums_by_level))
    return bound


def _bound_by_levels(trees: _Trees, b: int, k: int, sums_by_level: dict[int, np.ndarray]) -> float:
    """Returns the sum over levels of the largest sum of squared counts on the level alone. Levels
    up to the last one in `sums_by_level` count together, with the largest sum in a node for each of
    its rounds.
    """
    bottom_level = max(sums_by_level)
    node_sums = sums_by_level[bottom_level]
    bound = k * float((node_sums[1:] / np.arange(1, len(node_sums))).max())
    for level in range(bottom_level + 1, trees.num_levels):
        max_count = -(-(1 << level) // b)
        num_nodes = trees.level_size(level) * trees.num_trees
        num_full = min(k // max_count, num_nodes)
        rest = k - num_full * max_count
        if num_full == num_nodes:
            rest = 0
        bound += float(num_full) * max_count**2 + float(rest) ** 2
    return bound


def _bound_by_counts(trees: _Trees, b: int, k: int, sums_by_level: dict[int, np.ndarray]) -> float:
    """Returns the largest sum over the numbers of rounds in nodes, where the halves of a node above
    the last level in `sums_by_level` may have any numbers of rounds.
    """
    m = trees.rounds_per_tree
    base_level = b.bit_length()
    sums_by_level = dict(sums_by_level)
    for level in range(max(sums_by_level) + 1, trees.num_levels):
        max_count = min(k, -(-(1 << level) // b), -(-m // b))
        half_sums = sums_by_level[level - 1]
        joined_sums = _joined_sums(half_sums, half_sums, max_count)
        sums_by_level[level] = joined_sums + np.square(np.arange(len(joined_sums), dtype=float))
    top_level = trees.num_levels - 1
    tree_sums = sums_by_level[top_level]
    if m >> top_level and m != 1 << top_level:
        # A round in none of the nodes of A rounds or more is in at most that many smaller ones.
        num_rest = -(-(m % (1 << base_level)) // b)
        tree_sums = base_level * np.arange(num_rest + 1.0)
        for level in range(base_level, trees.num_levels):
            if m >> level & 1:
                max_count = min(k, -(-m // b))
                tree_sums = _joined_sums(tree_sums, sums_by_level[level], max_count)
    num_trees = trees.num_trees
    if k > _MAX_COUNTED_ROUNDS:
        ratio = float((tree_sums[1:] / np.arange(1, len(tree_sums))).max())
        return min(num_trees * float(tree_sums.max()), k * ratio)
    sums = np.zeros(1)
    while num_trees:
        if num_trees & 1:
            sums = _joined_sums(sums, tree_sums, k)
        num_trees >>= 1
        if num_trees:
            tree_sums = _joined_sums(tree_sums, tree_sums, k)
    return float(sums.max())


def _joined_sums(left: np.ndarray, right: np.ndarray, max_count: int) -> np.ndarray:
    """Returns for each number of rounds the largest sum of an entry of `left` and one of `right`
    whose numbers of rounds add up to it, up to `max_count`.
    """
    num_counts = min(len(left) + len(right) - 2, max_count) + 1
    sums = np.full(num_counts, -np.inf)
    for count, left_sum in enumerate(left[:num_counts].tolist()):
        width = min(len(right), num_counts - count)
        np.maximum(
            sums[count : count + width],
            left_sum + right[:width],
            out=sums[count : count + width],
        )
    return sums
