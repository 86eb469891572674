"""Noise of binary trees, which a few running sums compute for any number of rounds.

A tree over m rounds has a node for every block of 2^l rounds that begins at a multiple of 2^l; l is
the node's level. Each node has an independent draw z, and the noise of the sum of its rounds is
estimated from the draws (Honaker 2015, Sec. 3; Denisov et al. 2022, App. C).
"""

import dataclasses
import functools

import numpy as np
import scipy.linalg

from fedmf import checks, fields

DECODERS = ("full", "online")
COMPLETIONS = ("none", "virtual", "optimal")
# Number of columns of a noise matrix that are computed at a time.
_BLOCK_SOURCES = 512
# Number of rounds whose coefficients are computed together, and are stored until others are read.
_CHUNK_ROUNDS = 4096
# For blocks of at most this many rounds, the running sums of the last blocks are stored.
_MAX_CACHED_ROUNDS = 32


def complete_variances(num_levels: int) -> np.ndarray:
    """Returns for each level the variance of the best estimate of a complete node's sum from the
    node and the nodes below it, float64 (num_levels,).

    A node's own draw has variance 1, and the estimates of its two children are independent. So the
    variance v(l) follows from 1 / v(l) = 1 + 1 / (2 v(l - 1)), v(0) = 1 (Honaker 2015, Sec. 3.2).

    >>> complete_variances(3)
    array([1.        , 0.66666667, 0.57142857])
    """
    return 1.0 / (2.0 - 0.5 ** np.arange(num_levels))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreeNoise(fields.Checked):
    """The noise x of binary trees one after the other, each over the same number of rounds m. See
    `fedmf.mechanisms.TreeMechanism` for decoders and completions.

    Its noise matrix N has a column for each node's draw, children before parents and left before
    right. The rows of N Z are also computed from one draw u_t a round, with the same distribution.
    With t counted from the first round of its tree, the ones in the binary digits of t name the
    largest finished nodes, one for each digit, and

        x_t = deviation(t) u_t + sum over the ones j of t of weights(t)[j] D_j
        D_j = sum of x over the finished node of level j

    so that the state has a sum D_j for each level j.

    Proof for "online": the estimate E_l of a finished node is a weighted sum of the draws that end
    in its last round and of the estimates of its finished left halves, which are the D_j. The
    released sum through round t is the sum of the estimates of the largest finished nodes, and x_t
    is its change. The draws that end in round t, the trailing ones of t and one more, are in no
    earlier x, so that one draw with the same variance takes their place.

    Proof for "full": x has the density exp(-1/2 sum over nodes of (sum of x over the node)^2), as
    N N^T = (C^T C)^-1. Given the rounds before t, the mean and the variance of x_t follow from a
    recursion down the nodes that contain t: each is its half with t, plus a D_j if that is the
    right half, or else a later half, whose sum has variance v and depends on nothing else.

    Attributes:
      rounds_per_tree: m.
      num_trees: number of trees.
      decoder: "full" or "online".
      completion: "none", "virtual" or "optimal".

    >>> noise = TreeNoise(rounds_per_tree=4, decoder="online")
    >>> noise.num_nodes, noise.width
    (7, 2)
    """

    rounds_per_tree: int = fields.validated(checks.rounds)
    num_trees: int = fields.validated(checks.rounds, 1)
    decoder: str = fields.choice("full", "", lambda: DECODERS)
    completion: str = fields.choice("none", "", lambda: COMPLETIONS)

    @property
    def rounds(self) -> int:
        """The number of rounds of all trees."""
        return self.num_trees * self.rounds_per_tree

    @property
    def has_cut_nodes(self) -> bool:
        """True if nodes that reach beyond the last round of a tree are nodes of it."""
        m = self.rounds_per_tree
        return self.completion != "none" and m & (m - 1) > 0

    @property
    def num_levels(self) -> int:
        """The number of levels of a tree."""
        m = self.rounds_per_tree
        return m.bit_length() + int(self.has_cut_nodes)

    @property
    def width(self) -> int:
        """The number of running sums, which is that of the levels of nodes that are read later."""
        return self.num_levels - 1

    @property
    def num_nodes(self) -> int:
        """The number of nodes of all trees, which is that of independent draws."""
        return self.num_trees * sum(map(self.level_size, range(self.num_levels)))

    def level_size(self, level: int) -> int:
        """Returns the number of nodes of one tree at a level."""
        if self.has_cut_nodes:
            return -(-self.rounds_per_tree >> level)
        return self.rounds_per_tree >> level

    def node_indices(self, level: int) -> np.ndarray:
        """Returns the columns of N that the nodes at a level of one tree have, ints (nodes,).

        Nodes are numbered in the order in which they finish. By round t, sum over l of
        floor(t / 2^l) nodes have finished. Nodes that reach beyond the last round finish last.
        """
        m = self.rounds_per_tree
        num_complete = m >> level
        last_rounds = (np.arange(1, num_complete + 1) << level) - 1
        node_indices = np.full(num_complete, level)
        for lower_level in range(self.num_levels):
            node_indices += last_rounds >> lower_level
        if self.level_size(level) == num_complete:
            return node_indices
        num_complete_nodes = sum(m >> lower_level for lower_level in range(m.bit_length()))
        first_cut_level = (m & -m).bit_length()
        return np.append(node_indices, num_complete_nodes + level - first_cut_level)

    @functools.cached_property
    def node_variances(self) -> list[np.ndarray]:
        """The variance of the best estimate of each node's sum from the node and the nodes below
        it, for each level float64 (nodes,). It is also the weight of the node's own draw in it.
        """
        complete_by_level = complete_variances(self.num_levels)
        variances_by_level: list[np.ndarray] = []
        for level in range(self.num_levels):
            node_variances = np.full(self.level_size(level), complete_by_level[level])
            is_cut = self.level_size(level) > self.rounds_per_tree >> level
            is_exact = self.decoder == "full" or self.completion == "optimal"
            if is_cut and is_exact:
                # The virtual rounds of the last node have no noise.
                first_child = 2 * (self.level_size(level) - 1)
                children_variance = variances_by_level[-1][first_child:].sum()
                node_variances[-1] = children_variance / (1.0 + children_variance)
            variances_by_level.append(node_variances)
        return variances_by_level

    def coefficients(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the deviations, float64 (rounds,), and the weights, float64 (rounds, width), of
        the rounds from start to stop - 1. The weight of a digit of t that is 0 is 0.
        """
        chunk = start // _CHUNK_ROUNDS
        if stop > (chunk + 1) * _CHUNK_ROUNDS:
            return self._coefficients_of(np.arange(start, stop))
        deviations, weights = _chunk_coefficients(self, chunk)
        first_round = chunk * _CHUNK_ROUNDS
        return (
            deviations[start - first_round : stop - first_round],
            weights[start - first_round : stop - first_round],
        )

    def _coefficients_of(self, rounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the coefficients of the given rounds, as `coefficients` does."""
        local_rounds = rounds % self.rounds_per_tree
        if self.decoder == "full":
            return self._full_coefficients(local_rounds)
        round_coefficients = self._online_table[self._online_kinds(local_rounds)]
        return round_coefficients[:, 0], round_coefficients[:, 1:]

    def pattern(self, start: int, stop: int) -> tuple[bytes, ...]:
        """Returns bytes that are equal for blocks of rounds of equal coefficients whose rounds
        finish nodes of the same levels.
        """
        if self.decoder == "full":
            return (np.array([start, stop]).tobytes(),)
        local_rounds = np.arange(start, stop) % self.rounds_per_tree
        return (self._online_kinds(local_rounds).tobytes(),)

    @property
    def has_patterns(self) -> bool:
        """Whether many blocks of rounds have the same pattern, as `pattern` returns it."""
        return self.decoder == "online"

    def round_kinds(self) -> np.ndarray:
        """Returns an int for each round, ints (rounds,), where rounds with equal ints have equal
        coefficients and finish nodes of the same levels.
        """
        local_rounds = np.arange(self.rounds_per_tree)
        if self.has_patterns:
            local_rounds = self._online_kinds(local_rounds)
        return np.tile(local_rounds, self.num_trees)

    def _online_kinds(self, local_rounds: np.ndarray) -> np.ndarray:
        """Returns the row of `_online_table` of each round of a tree, ints (rounds,)."""
        round_kinds = _trailing_ones(local_rounds)
        if self.has_cut_nodes:
            round_kinds[local_rounds == self.rounds_per_tree - 1] = self.num_levels
        return round_kinds

    @functools.cached_property
    def _online_table(self) -> np.ndarray:
        """The coefficients of rounds by the number of their trailing ones, for decoder "online",
        and in the last row those of the last round, in which nodes that reach beyond it finish.
        """
        m = self.rounds_per_tree
        complete_by_level = complete_variances(self.num_levels)
        table_rows = [
            self._merge_coefficients(complete_by_level[: num_ones + 1], (1 << num_ones) - 1)
            for num_ones in range(self.num_levels)
        ]
        last_variances = np.array([variances[-1] for variances in self.node_variances])
        table_rows.append(self._merge_coefficients(last_variances, m - 1))
        return np.stack(table_rows)

    def _merge_coefficients(self, variances: np.ndarray, finished: int) -> np.ndarray:
        """Returns the deviation and the weights of a round in which one node of each level
        finishes.

        Args:
          variances: the weight of each of these nodes' draws in its estimate, from level 0 up.
          finished: an int whose ones are the levels of the left halves of these nodes.
        """
        # The share of a node's estimate that remains in the estimate of the last of these nodes.
        shares = np.append(np.cumprod((1.0 - variances)[:0:-1])[::-1], 1.0)
        coefficients = np.zeros(1 + self.width)
        coefficients[0] = np.linalg.norm(shares * variances)
        for level in range(len(variances) - 1):
            if finished >> level & 1:
                coefficients[1 + level] = shares[level] - 1.0
        return coefficients

    def _full_coefficients(self, local_rounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the coefficients of rounds of a tree for decoder "full".

        From the root down, the sum of x over the node of level l that contains t has a normal
        density of precision alpha given the rounds before t and the nodes of level l and above.
        """
        precision = np.zeros(len(local_rounds))
        kept_shares = np.zeros((len(local_rounds), self.num_levels))
        for level in reversed(range(self.num_levels)):
            node_index = local_rounds >> level
            variances = self.node_variances[level]
            # The other half of the node above has variance 0 if it is finished or virtual.
            sibling = np.minimum(node_index + 1, len(variances) - 1)
            is_later = (node_index % 2 == 0) & (node_index + 1 < len(variances))
            later_variance = np.where(is_later, variances[sibling], 0.0)
            precision_above = precision / (1.0 + precision * later_variance)
            is_node = node_index < len(variances)
            kept_shares[:, level] = precision_above / (1.0 + precision_above)
            precision = np.where(is_node, 1.0 + precision_above, 0.0)
        weights = -np.cumprod(kept_shares, axis=1)[:, : self.width]
        weights *= local_rounds[:, None] >> np.arange(self.width) & 1
        return 1.0 / np.sqrt(precision), weights

    def step(self, t: int, u: np.ndarray, S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the noise x_t of round t and the running sums after it.

        Args:
          t: round.
          u: draw of round t.
          S: running sums before the round, (width, ...).
        """
        deviations, weights = self.coefficients(t, t + 1)
        noise_vector = deviations[0] * u + np.tensordot(weights[0], S, axes=1)
        num_ones = int(_trailing_ones(np.array([t % self.rounds_per_tree]))[0])
        if num_ones < self.width:
            S = S.copy()
            S[num_ones] = noise_vector + S[:num_ones].sum(axis=0)
        return noise_vector, S

    def block(self, start: int, stop: int) -> np.ndarray:
        """Returns the matrix M for which [rows; sums after them] = M [draws; sums before them], for
        the rounds from start to stop - 1, float64 (rounds + width, rounds + width).
        """
        num_rounds = stop - start
        deviations, weights = self.coefficients(start, stop)
        num_ones = _trailing_ones(np.arange(start, stop) % self.rounds_per_tree)
        if num_rounds <= _MAX_CACHED_ROUNDS:
            sums_before_rounds = _cached_running_sums(num_ones.tobytes(), self.width)
        else:
            sums_before_rounds = _running_sums(num_ones, self.width)
        sums = sums_before_rounds[-1]
        rows = (weights[:, None] @ sums_before_rounds[:-1])[:, 0]
        M = np.empty((num_rounds + self.width, num_rounds + self.width))
        M[:num_rounds] = scipy.linalg.solve_triangular(
            np.eye(num_rounds) - rows[:, :num_rounds],
            np.hstack([np.diag(deviations), rows[:, num_rounds:]]),
            lower=True,
            unit_diagonal=True,
            check_finite=False,
        )
        M[num_rounds:] = sums[:, :num_rounds] @ M[:num_rounds]
        M[num_rounds:, num_rounds:] += sums[:, num_rounds:]
        return M

    def draws_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the draws u of the rounds from the noise x of all rounds, float64 (rounds, d)."""
        draws = np.empty(rows.shape)
        rows_by_tree = rows.reshape(self.num_trees, self.rounds_per_tree, -1)
        draws_by_tree = draws.reshape(rows_by_tree.shape)
        sums_by_level = [rows_by_tree]
        for level in range(1, self.width):
            sums_by_level.append(_pair_sums(sums_by_level[-1], self.rounds_per_tree >> level))
        for start in range(0, self.rounds_per_tree, _CHUNK_ROUNDS):
            stop = min(start + _CHUNK_ROUNDS, self.rounds_per_tree)
            deviations, weights = self.coefficients(start, stop)
            chunk_draws = rows_by_tree[:, start:stop].copy()
            for level in range(self.width):
                reading_rounds = np.flatnonzero(weights[:, level])
                finished_nodes = (start + reading_rounds >> level) - 1
                chunk_draws[:, reading_rounds] -= (
                    weights[reading_rounds, level, None] * sums_by_level[level][:, finished_nodes]
                )
            draws_by_tree[:, start:stop] = chunk_draws / deviations[:, None]
        return draws

    def node_sums(self, values: np.ndarray) -> np.ndarray:
        """Returns C x, the sum of each node's rounds of x, float64 (nodes, d), where C is the
        encoder.

        Args:
          values: x, float64 (rounds, d).
        """
        level_sums = values.reshape(self.num_trees, self.rounds_per_tree, -1)
        sums = np.empty((self.num_trees, self.num_nodes // self.num_trees, level_sums.shape[2]))
        for level in range(self.num_levels):
            if level:
                level_sums = _pair_sums(level_sums, self.level_size(level))
            sums[:, self.node_indices(level)] = level_sums
        return sums.reshape(self.num_nodes, -1)

    def apply(self, node_draws: np.ndarray) -> np.ndarray:
        """Returns N Z, float64 (rounds, d), from the draws Z of all nodes, float64 (nodes, d)."""
        draws_by_tree = node_draws.reshape(self.num_trees, -1, node_draws.shape[-1])
        estimates: list[np.ndarray] = []
        for level, variances in enumerate(self.node_variances):
            level_draws = draws_by_tree[:, self.node_indices(level)]
            if level:
                child_estimates = _pair_sums(estimates[-1], self.level_size(level))
                own_weights = variances[:, None]
                level_draws = own_weights * level_draws + (1.0 - own_weights) * child_estimates
            estimates.append(level_draws)
        if self.decoder == "full":
            noise = self._smoothed(estimates)
        else:
            noise = np.diff(self._released_sums(estimates), axis=1, prepend=0.0)
        return noise.reshape(self.rounds, -1)

    def _smoothed(self, estimates: list[np.ndarray]) -> np.ndarray:
        """Returns the best estimate of each round from all nodes, (trees, rounds, d).

        From the root down, the difference between a node's best estimate and the estimates of its
        children is divided among the children in proportion to their variances (Honaker 2015,
        Sec. 3.3).
        """
        best_estimates = estimates[-1]
        for level in reversed(range(self.num_levels - 1)):
            child_estimates = estimates[level].copy()
            num_parents = best_estimates.shape[1]
            num_children = min(2 * num_parents, child_estimates.shape[1])
            difference = best_estimates - _pair_sums(child_estimates, num_parents)
            parents = np.arange(num_children) // 2
            variances = self.node_variances[level][:num_children]
            shares = variances / np.bincount(parents, variances)[parents]
            child_estimates[:, :num_children] += shares[:, None] * difference[:, parents]
            best_estimates = child_estimates
        return best_estimates

    def _released_sums(self, estimates: list[np.ndarray]) -> np.ndarray:
        """Returns the estimate of the sum of the rounds 0..t of each tree from the nodes that have
        finished by round t, (trees, rounds, d).
        """
        num_rounds = np.arange(1, self.rounds_per_tree + 1)
        sums = np.zeros(estimates[0].shape)
        for level in range(self.rounds_per_tree.bit_length()):
            reading_rounds = np.flatnonzero(num_rounds >> level & 1)
            node_index = (num_rounds[reading_rounds] >> level) - 1
            sums[:, reading_rounds] += estimates[level][:, node_index]
        if self.has_cut_nodes:
            sums[:, -1] = estimates[-1][:, 0]
        return sums

    def matrix(self) -> np.ndarray:
        """Returns the noise matrix N, float64 (rounds, nodes). The caller checks the memory."""
        one_tree = dataclasses.replace(self, num_trees=1)
        m = self.rounds_per_tree
        num_nodes = one_tree.num_nodes
        N = np.zeros((self.num_trees, m, self.num_trees, num_nodes))
        for first_node in range(0, num_nodes, _BLOCK_SOURCES):
            end_node = min(first_node + _BLOCK_SOURCES, num_nodes)
            unit_draws = np.eye(num_nodes, end_node - first_node, -first_node)
            tree_columns = one_tree.apply(unit_draws)
            for tree in range(self.num_trees):
                N[tree, :, tree, first_node:end_node] = tree_columns
        return N.reshape(self.rounds, self.num_nodes)

    def causal_matrix(self) -> np.ndarray:
        """Returns the lower-triangular matrix that computes x from the draws u, float64 (rounds,
        rounds). The caller checks the memory.
        """
        n = self.rounds
        L = np.zeros((n, n))
        sums = np.zeros((self.width, n))
        for t, u in enumerate(np.eye(n)):
            L[t], sums = self.step(t, u, sums)
        return L


@functools.lru_cache(maxsize=4)
def _chunk_coefficients(noise: TreeNoise, chunk: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the coefficients of one chunk of rounds, of those that the trees have."""
    first_round = chunk * _CHUNK_ROUNDS
    end_round = min(first_round + _CHUNK_ROUNDS, noise.rounds)
    return noise._coefficients_of(np.arange(first_round, end_round))


def _running_sums(num_ones: np.ndarray, width: int) -> np.ndarray:
    """Returns the running sums before each round of a block and after it, as linear functions of
    the rows of the block and of the sums before it, float64 (rounds + 1, width, rounds + width).

    Args:
      num_ones: the number of trailing ones of each round, which is the level of the node whose sum
        the round completes.
      width: number of running sums.
    """
    num_rounds = len(num_ones)
    sums_before_rounds = np.empty((num_rounds + 1, width, num_rounds + width))
    sums = np.eye(width, num_rounds + width, num_rounds)
    sums_before_rounds[0] = sums
    for i, level in enumerate(num_ones.tolist()):
        if level < width:
            sums[level] = sums[:level].sum(axis=0)
            sums[level, i] += 1.0
        sums_before_rounds[i + 1] = sums
    return sums_before_rounds


@functools.lru_cache(maxsize=32)
def _cached_running_sums(num_ones: bytes, width: int) -> np.ndarray:
    """Returns `_running_sums`, read-only, for the bytes of `num_ones`."""
    sums_before_rounds = _running_sums(np.frombuffer(num_ones, np.int64), width)
    sums_before_rounds.setflags(write=False)
    return sums_before_rounds


def _trailing_ones(values: np.ndarray) -> np.ndarray:
    """Returns the number of ones at the end of the binary digits of each int, ints (len(values),).

    >>> _trailing_ones(np.array([0, 1, 2, 3, 7]))
    array([0, 1, 0, 2, 3])
    """
    lowest_zeros = ~values & (values + 1)
    return np.frexp(lowest_zeros.astype(np.float64))[1].astype(np.int64) - 1


def _pair_sums(values: np.ndarray, num_parents: int) -> np.ndarray:
    """Returns the sums of the two children of each node, (trees, num_parents, d). The last node may
    have one child.
    """
    num_pairs = min(values.shape[1] // 2, num_parents)
    sums = values[:, 0 : 2 * num_pairs : 2] + values[:, 1 : 2 * num_pairs : 2]
    if num_parents > num_pairs:
        sums = np.concatenate([sums, values[:, 2 * num_pairs : 2 * num_pairs + 1]], axis=1)
    return sums
