"""The sensitivity of binary trees to one client, from the tree's structure alone.

A row of the encoder C is the indicator of a node, that is, of a block of rounds. So X_st is the
number of nodes that contain both s and t, and X >= 0: equal contributions are the worst
(multi-epoch paper, Cor. 2.1), and a client with the set of rounds S has the squared sensitivity

    sum over s, t in S of X_st = sum over nodes of (number of rounds of S in the node)^2

(compare Kairouz et al. 2021, App. D). The largest such sum is a maximisation over S.
"""

from typing import Protocol

import numpy as np

from fedmf import checks
from fedmf.participation.clients import ClientRounds
from fedmf.participation.round_sets import RoundSets
from fedmf.participation.separated_tree import largest_separated_sum
from fedmf.participation.sharpening import Sensitivity, from_squared

_METHOD = "squared counts of a client's rounds in the nodes of a tree (multi-epoch paper, Cor. 2.1)"


class BinaryTrees(Protocol):
    """The nodes of binary trees one after the other, as of `fedmf.noise.tree.TreeNoise`.

    Attributes:
      rounds_per_tree: rounds of one tree.
      num_trees: number of trees.
      num_levels: number of levels; a node of level l has 2^l rounds.
    """

    @property
    def rounds_per_tree(self) -> int: ...  # noqa: D102

    @property
    def num_trees(self) -> int: ...  # noqa: D102

    @property
    def num_levels(self) -> int: ...  # noqa: D102

    def level_size(self, level: int) -> int:
        """Returns the number of nodes of one tree at a level. If the last one reaches beyond the
        last round, it has fewer rounds.
        """
        ...


def of_trees(trees: BinaryTrees, sets: RoundSets) -> Sensitivity:
    """Returns the sensitivity of the encoder of binary trees to one client.

    Args:
      trees: the nodes, for as many rounds as the sets.
      sets: sets of rounds of one client.
    """
    b = sets.min_sep
    k = min(sets.max_participations, -(-sets.rounds // b))
    if k == 1:
        # Round 0 is in a node of every level.
        return from_squared(trees.num_levels, True, f"{_METHOD}: exact")
    if k == sets.rounds:
        return from_squared(_sum_of_squared_sizes(trees), True, f"{_METHOD}: exact")
    if sets.are_windows:
        return from_squared(_largest_window_sum(trees, b, k), True, f"{_METHOD}: exact")
    squared_bound, is_exact = largest_separated_sum(trees, b, k)
    if not is_exact:
        # Some bounds are attained by rounds exactly b apart.
        is_exact = squared_bound <= _sum_of_one_client(trees, np.arange(0, k * b, b))
    bound_kind = "exact" if is_exact else "upper bound"
    return from_squared(squared_bound, is_exact, f"{_METHOD}: {bound_kind}")


def squared_counts(trees: BinaryTrees, clients: ClientRounds) -> np.ndarray:
    """Returns the squared sensitivity to each client, which is the sum over nodes of the squared
    number of the client's rounds in the node, float64 (clients,).

    Args:
      trees: the nodes.
      clients: clients with increasing rounds of the run.
    """
    m = trees.rounds_per_tree
    sums = np.zeros(len(clients))
    if not len(clients):
        return sums
    client_rounds = clients.rounds.astype(np.int64)
    client_of_entry = np.repeat(np.arange(len(clients)), clients.counts)
    local_rounds = client_rounds % m
    for level in range(trees.num_levels):
        local_nodes = local_rounds >> level
        is_in_node = local_nodes < trees.level_size(level)
        # Rounds of a client in one node are consecutive entries.
        node_of_entry = (client_rounds // m) * m + local_nodes
        is_first = np.ones(len(client_rounds), bool)
        is_first[1:] = np.diff(node_of_entry) != 0
        is_first[clients.starts] = True
        first_entries = np.flatnonzero(is_first)
        counts = np.diff(np.append(first_entries, len(client_rounds))) * is_in_node[first_entries]
        sums += np.bincount(
            client_of_entry[first_entries], np.square(counts.astype(float)), len(clients)
        )
    return sums


def pair_counts(trees: BinaryTrees, rounds: np.ndarray) -> np.ndarray:
    """Returns the entries of X = C^T C between the given rounds, float64 (len(rounds),
    len(rounds)): the number of nodes that contain both rounds.
    """
    m = trees.rounds_per_tree
    X = np.zeros((len(rounds), len(rounds)))
    for level in range(trees.num_levels):
        local_nodes = (rounds % m) >> level
        node_of_round = (rounds // m) * m + local_nodes
        is_same_node = node_of_round[:, None] == node_of_round
        X += is_same_node & (local_nodes < trees.level_size(level))
    return X


def shared_counts(trees: BinaryTrees, partners: np.ndarray) -> np.ndarray:
    """Returns for every round t the sum of X_ts over the given rounds s, float64 (rounds,)."""
    m = trees.rounds_per_tree
    num_trees = trees.num_trees
    sums = np.zeros((num_trees, m))
    for level in range(trees.num_levels):
        local_nodes = (partners % m) >> level
        num_nodes = trees.level_size(level)
        is_in_node = local_nodes < num_nodes
        node_of_partner = ((partners // m) * num_nodes + local_nodes)[is_in_node]
        partner_counts = np.bincount(node_of_partner, minlength=num_trees * num_nodes)
        counts_by_node = partner_counts.reshape(num_trees, num_nodes)
        counts_by_round = np.repeat(counts_by_node, 1 << level, axis=1)[:, :m]
        sums[:, : counts_by_round.shape[1]] += counts_by_round
    return sums.ravel()


def _sum_of_one_client(trees: BinaryTrees, rounds: np.ndarray) -> float:
    """Returns the sum over nodes of the squared number of the given rounds in the node."""
    client_rounds = ClientRounds(rounds=rounds, starts=np.zeros(1, np.int64))
    return float(squared_counts(trees, client_rounds)[0])


def _sum_of_squared_sizes(trees: BinaryTrees) -> float:
    """Returns the sum over all nodes of the squared number of their rounds."""
    m = trees.rounds_per_tree
    tree_sum = 0
    for level in range(trees.num_levels):
        num_complete = m >> level
        tree_sum += num_complete << (2 * level)
        if trees.level_size(level) > num_complete:
            tree_sum += (m - (num_complete << level)) ** 2
    return float(trees.num_trees * tree_sum)


def _largest_window_sum(trees: BinaryTrees, b: int, k: int) -> float:
    """Returns the largest sum of squared counts of any k rounds that are exactly b apart.

    Rounds of one remainder modulo b are in one column of a table. The window from row i on has p
    rounds in the node of its first round. Further rounds of the window in the column add to the sum
    as if all rounds from the beginning of their node on were in the window, and they are.
    """
    m = trees.rounds_per_tree
    n = m * trees.num_trees
    num_rows = -(-n // b)
    checks.fits_in_memory("the sensitivity of this tree", (num_rows, b), copies=10)
    table_rounds = np.arange(num_rows * b).reshape(num_rows, b)
    local_rounds = table_rounds % m
    tree_starts = table_rounds - local_rounds
    # Windows that begin in later rows are parts of these.
    start_rows = np.arange(max(num_rows - k, 0) + 1)[:, None]
    window_ends = np.minimum(start_rows[:, 0] + k, num_rows)
    columns = np.arange(b)
    window_sums = np.zeros((len(start_rows), b), np.int64)
    added_counts = np.zeros((num_rows, b), np.int64)
    sums_before = np.zeros((num_rows + 1, b), np.int64)
    for level in range(trees.num_levels):
        local_nodes = local_rounds >> level
        is_in_node = (local_nodes < trees.level_size(level)) & (table_rounds < n)
        if 1 << level <= b:
            # A node of so few rounds has at most one round of a window.
            added_counts += is_in_node
            continue
        node_starts = tree_starts + (local_nodes << level)
        node_ends = np.minimum(node_starts + (1 << level), tree_starts + m)[: len(start_rows)]
        first_rows = (node_starts + (b - 1 - columns)) // b
        # A round adds 2 i + 1 to the squared count of a node that has i earlier rounds.
        level_counts = 2 * (np.arange(num_rows)[:, None] - first_rows) + 1
        level_counts[~is_in_node] = 0
        np.cumsum(level_counts, axis=0, out=sums_before[1:])
        end_rows = np.minimum((node_ends + (b - 1 - columns)) // b, window_ends[:, None])
        first_counts = np.where(is_in_node[: len(start_rows)], end_rows - start_rows, 0)
        window_sums += np.square(first_counts) + sums_before[window_ends]
        window_sums -= np.take_along_axis(sums_before, end_rows, axis=0)
    np.cumsum(added_counts, axis=0, out=sums_before[1:])
    window_sums += sums_before[window_ends] - sums_before[: len(start_rows)]
    return float(window_sums.max())
