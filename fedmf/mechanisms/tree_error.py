"""The errors of trees on a workload whose inverse is banded, for any number of rounds.

With the workload A and the noise x of a tree, y = A x follows from the recurrence A^-1 y = x. Its
state s after a round has the last q values of y, where A^-1 has q + 1 bands: over a block of rounds

    s after = transition s before + response,   response linear in the x of the block.

The nodes of a level are computed together, from the leaves to the root and back. Every array has
the axes (trees, nodes of the level, ...).
"""

from typing import NamedTuple

import numpy as np

from fedmf import checks
from fedmf.noise.tree import TreeNoise, complete_variances

# Number of float64 arrays of the shape (rounds, q, q) that are needed at the same time.
_NUM_COPIES = 14
# Matrices of up to so many columns are multiplied column by column, which is faster than `matmul`.
_MAX_ADDED_PRODUCTS = 4


def squared_rows_of_trees(trees: TreeNoise, inverse: np.ndarray) -> np.ndarray:
    """Returns the squared norm of each row of A N, float64 (rounds,), which is the variance of y.

    Args:
      trees: the noise, whose noise matrix is N.
      inverse: the rows of A^-1, float64 (rounds, bands).

    Raises:
      TooLargeForMemory: the bands are too many for the memory.
    """
    rounds, bands = inverse.shape
    q = max(1, bands - 1)
    checks.fits_in_memory("the errors of this tree", (rounds, q, q), copies=_NUM_COPIES)
    transitions = np.zeros((rounds, q, q))
    transitions[:, 0, : bands - 1] = -inverse[:, 1:] / inverse[:, :1]
    transitions[:, np.arange(1, q), np.arange(q - 1)] = 1.0
    # The response of the state to the x of its round.
    impulses = np.zeros((rounds, q))
    impulses[:, 0] = 1.0 / inverse[:, 0]
    shape = (trees.num_trees, trees.rounds_per_tree)
    transitions = transitions.reshape(*shape, q, q)
    impulses = impulses.reshape(*shape, q)
    if trees.decoder == "full":
        return _full_rows(trees, transitions, impulses).ravel()
    return _online_rows(trees, transitions, impulses).ravel()


class _OnlineLevel(NamedTuple):
    """The complete nodes of a level.

    Attributes:
      transition: of the node's rounds.
      covariance: of the response to x of the node's rounds, if the tree ended with the node.
      with_estimate: covariance of that response and the estimate of the node's sum.
    """

    transition: np.ndarray
    covariance: np.ndarray
    with_estimate: np.ndarray


def _online_rows(trees: TreeNoise, transitions: np.ndarray, impulses: np.ndarray) -> np.ndarray:
    """Returns the variances of y for decoder "online", (trees, rounds).

    When a node with weight w finishes, its estimate w z + (1 - w) (sum of its children's estimates)
    differs from the sum of its children's estimates by a change that is independent of the node's
    estimate. The change is part of the x of the node's last round.
    """
    m = trees.rounds_per_tree
    variances = complete_variances(m.bit_length())
    leaves = _OnlineLevel(transitions, _outer(impulses, impulses), impulses)
    levels = [leaves]
    for level in range(1, m.bit_length()):
        left, right = _halves(levels[-1], m >> level)
        with_children = _times(right.transition, left.with_estimate) + right.with_estimate
        covariance = _carried(right.transition, left.covariance) + right.covariance
        last_impulses = impulses[:, (1 << level) - 1 :: 1 << level]
        weight = variances[level]
        change_covariance = -weight * _outer(with_children, last_impulses)
        covariance += change_covariance + _transposed(change_covariance)
        change_variance = weight**2 * (1.0 + 2.0 * variances[level - 1])
        covariance += change_variance * _outer(last_impulses, last_impulses)
        levels.append(
            _OnlineLevel(
                _product(right.transition, left.transition),
                covariance,
                (1.0 - weight) * with_children,
            )
        )
    transition, covariance = _whole_tree(levels, m)
    if trees.has_cut_nodes:
        earlier_transition, earlier_covariance = _whole_tree(levels, m - 1)
        transition = _product(transitions[:, -1], earlier_transition)
        covariance = _after_last_round(
            trees, levels, earlier_covariance, transitions[:, -1], impulses[:, -1]
        )
    # Largest finished nodes are independent, so that the covariance of the state before a node
    # follows from that before the largest finished node before it.
    before_nodes = _states_before_trees(transition, covariance)[:, None]
    for level in reversed(range(len(levels))):
        num_nodes = m >> level
        num_left = (num_nodes + 1) // 2
        left_halves = slice(0, 2 * num_left, 2)
        before_halves = np.empty((trees.num_trees, num_nodes + 1, *before_nodes.shape[2:]))
        before_halves[:, ::2] = before_nodes
        before_halves[:, 1::2] = (
            _carried(levels[level].transition[:, left_halves], before_nodes[:, :num_left])
            + levels[level].covariance[:, left_halves]
        )
        before_nodes = before_halves
    squared_norms = before_nodes[:, 1:, 0, 0].copy()
    if trees.has_cut_nodes:
        last_covariance = _carried(transition, before_nodes[:, 0]) + covariance
        squared_norms[:, -1] = last_covariance[:, 0, 0]
    return squared_norms


def _whole_tree(levels: list[_OnlineLevel], rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the transition and the covariance of the first `rounds` rounds of each tree."""
    q = levels[0].transition.shape[-1]
    transition = np.broadcast_to(np.eye(q), (len(levels[0].transition), q, q))
    covariance = np.zeros(transition.shape)
    for level in reversed(range(rounds.bit_length())):
        if rounds >> level & 1:
            node = (rounds >> level) - 1
            node_transition = levels[level].transition[:, node]
            covariance = _carried(node_transition, covariance) + levels[level].covariance[:, node]
            transition = _product(node_transition, transition)
    return transition, covariance


def _after_last_round(
    trees: TreeNoise,
    levels: list[_OnlineLevel],
    earlier_covariance: np.ndarray,
    last_transition: np.ndarray,
    last_impulse: np.ndarray,
) -> np.ndarray:
    """Returns the covariance of the response to all x of each tree, where the nodes that reach
    beyond its last round finish with that round.

    Args:
      trees, levels: the trees and their complete nodes.
      earlier_covariance: of the response to all x but the last.
      last_transition, last_impulse: those of the last round.
    """
    m = trees.rounds_per_tree
    deviations, weights = trees.coefficients(m - 1, m)
    noise_variance = deviations[0] ** 2
    with_noise = np.zeros(last_impulse.shape)
    variances = complete_variances(trees.num_levels)
    for level in reversed(range((m - 1).bit_length())):
        if (m - 1) >> level & 1:
            node = ((m - 1) >> level) - 1
            with_noise = _times(levels[level].transition[:, node], with_noise)
            with_noise += weights[0, level] * levels[level].with_estimate[:, node]
            noise_variance += weights[0, level] ** 2 * variances[level]
    cross_covariance = _outer(_times(last_transition, with_noise), last_impulse)
    covariance = _carried(last_transition, earlier_covariance)
    covariance += cross_covariance + _transposed(cross_covariance)
    return covariance + noise_variance * _outer(last_impulse, last_impulse)


class _FullLevel(NamedTuple):
    """The nodes of a level, for decoder "full".

    Attributes:
      transition: of the node's rounds.
      slope: the response to x of the node's rounds has the mean slope times their sum.
      covariance: of that response, given the sum.
    """

    transition: np.ndarray
    slope: np.ndarray
    covariance: np.ndarray


def _full_rows(trees: TreeNoise, transitions: np.ndarray, impulses: np.ndarray) -> np.ndarray:
    """Returns the variances of y for decoder "full", (trees, rounds).

    Given the sum of x over a node, the x of its rounds are independent of all others. So only the
    joint covariance of the state before a node and of the node's sum matters within it.
    """
    leaves = _FullLevel(transitions, impulses, np.zeros(transitions.shape))
    levels = [leaves]
    for level in range(1, trees.num_levels):
        levels.append(_parents(trees, level, levels[-1]))
    transition, covariance = _whole_forest(trees, levels)
    state = _states_before_trees(transition, covariance)
    q = state.shape[-1]
    num_trees = trees.num_trees
    # Covariance of the state before each node, covariance of that state and the node's sum, and
    # variance of the sum.
    before = np.zeros((num_trees, 0, q, q))
    with_sum = np.zeros((num_trees, 0, q))
    sum_variances = np.zeros(0)
    for level in reversed(range(trees.num_levels)):
        if before.shape[1]:
            before, with_sum, sum_variances = _children(
                trees, level, levels[level], before, with_sum, sum_variances
            )
        if before.shape[1] < trees.level_size(level):
            # The last node of this level is the root of its rounds.
            before = np.concatenate([before, state[:, None]], axis=1)
            with_sum = np.concatenate([with_sum, np.zeros((num_trees, 1, q))], axis=1)
            sum_variances = np.append(sum_variances, trees.node_variances[level][-1])
            state = _after_root(trees, level, levels[level], state)
    after = _carried(transitions, before)
    cross_covariance = _outer(_times(transitions, with_sum), impulses)
    after += cross_covariance + _transposed(cross_covariance)
    after += sum_variances[:, None, None] * _outer(impulses, impulses)
    return after[..., 0, 0]


def _parents(trees: TreeNoise, level: int, children: _FullLevel) -> _FullLevel:
    """Returns the nodes of a level, from those of the level below."""
    num_parents = trees.level_size(level)
    num_pairs = min(children.transition.shape[1] // 2, num_parents)
    left, right = _halves(children, num_pairs)
    shares, split_variances = _splits(trees, level)
    shares = shares[:num_pairs, None]
    left_slope = _times(right.transition, left.slope)
    difference = left_slope - right.slope
    covariance = _carried(right.transition, left.covariance) + right.covariance
    covariance += split_variances[:num_pairs, None, None] * _outer(difference, difference)
    parents = _FullLevel(
        _product(right.transition, left.transition),
        shares * left_slope + (1.0 - shares) * right.slope,
        covariance,
    )
    if num_parents == num_pairs:
        return parents
    # The last node has no rounds in its right half.
    last_arrays = [array[:, 2 * num_pairs : 2 * num_pairs + 1] for array in children]
    return _FullLevel(
        *(np.concatenate(pair, axis=1) for pair in zip(parents, last_arrays, strict=True))
    )


def _splits(trees: TreeNoise, level: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns for each node of a level the share of its sum that is the mean of its left half's
    sum, and the variance of that sum, given the node's sum.
    """
    num_parents = trees.level_size(level)
    child_variances = np.append(trees.node_variances[level - 1], 0.0)[: 2 * num_parents]
    left_variances = child_variances[::2]
    right_variances = child_variances[1::2]
    shares = left_variances / (left_variances + right_variances)
    return shares, shares * right_variances


def _children(
    trees: TreeNoise,
    level: int,
    nodes: _FullLevel,
    before: np.ndarray,
    with_sum: np.ndarray,
    sum_variances: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the covariances before the nodes of a level, from those before their parents.

    Args:
      trees: the trees.
      level: level of the nodes.
      nodes: all nodes of the level.
      before, with_sum, sum_variances: covariances of the parents, as `_full_rows` has them.
    """
    num_parents = before.shape[1]
    num_children = min(2 * num_parents, trees.level_size(level))
    shares, split_variances = _splits(trees, level + 1)
    left_variances = shares**2 * sum_variances + split_variances
    right_variances = (1.0 - shares) ** 2 * sum_variances + split_variances
    both_covariances = shares * (1.0 - shares) * sum_variances - split_variances
    left_with_sum = shares[:, None] * with_sum
    transition, slope, covariance = (array[:, : 2 * num_parents : 2] for array in nodes)
    cross_covariance = _outer(_times(transition, left_with_sum), slope)
    right_before = _carried(transition, before) + covariance
    right_before += cross_covariance + _transposed(cross_covariance)
    right_before += left_variances[:, None, None] * _outer(slope, slope)
    right_with_sum = _times(transition, (1.0 - shares)[:, None] * with_sum)
    right_with_sum += both_covariances[:, None] * slope
    return (
        _interleaved(before, right_before, num_children),
        _interleaved(left_with_sum, right_with_sum, num_children),
        _interleaved(left_variances[None], right_variances[None], num_children)[0],
    )


def _interleaved(left: np.ndarray, right: np.ndarray, num_children: int) -> np.ndarray:
    """Returns the entries of left and right halves by turns, of the first `num_children` nodes."""
    stacked = np.stack([left, right], axis=2)
    return stacked.reshape(len(left), -1, *left.shape[2:])[:, :num_children]


def _whole_forest(trees: TreeNoise, levels: list[_FullLevel]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the transition and the covariance of each tree's rounds, whose roots are
    independent.
    """
    q = levels[0].transition.shape[-1]
    transition = np.broadcast_to(np.eye(q), (trees.num_trees, q, q))
    covariance = np.zeros(transition.shape)
    num_covered = 0
    for level in reversed(range(trees.num_levels)):
        if trees.level_size(level) > num_covered:
            covariance = _after_root(trees, level, levels[level], covariance)
            transition = _product(levels[level].transition[:, -1], transition)
            num_covered += 1
        num_covered = min(2 * num_covered, trees.level_size(max(level - 1, 0)))
    return transition, covariance


def _after_root(trees: TreeNoise, level: int, nodes: _FullLevel, state: np.ndarray) -> np.ndarray:
    """Returns the covariance of the state after the last node of a level, a root, from that before
    it.
    """
    transition, slope, covariance = (array[:, -1] for array in nodes)
    root_variance = trees.node_variances[level][-1]
    return _carried(transition, state) + covariance + root_variance * _outer(slope, slope)


def _states_before_trees(transition: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Returns the covariance of the state before each tree, (trees, q, q), from the transition and
    the covariance of each tree's rounds. Different trees are independent.
    """
    num_trees = len(transition)
    states = np.zeros(covariance.shape)
    if num_trees == 1:
        return states
    first_transition = transition[0 : num_trees - 1 : 2]
    first_covariance = covariance[0 : num_trees - 1 : 2]
    second_transition = transition[1::2]
    pair_states = _states_before_trees(
        _product(second_transition, first_transition),
        _carried(second_transition, first_covariance) + covariance[1::2],
    )
    num_pairs = len(pair_states)
    states[0 : 2 * num_pairs : 2] = pair_states
    states[1::2] = _carried(first_transition, pair_states) + first_covariance
    if num_trees > 2 * num_pairs:
        last_state = _carried(transition[-2], states[-2])
        states[-1] = last_state + covariance[-2]
    return states


def _halves(nodes: NamedTuple, num_parents: int) -> tuple:
    """Returns the left and the right halves of the first `num_parents` nodes of the level above."""
    left = type(nodes)(*(array[:, 0 : 2 * num_parents : 2] for array in nodes))
    right = type(nodes)(*(array[:, 1 : 2 * num_parents : 2] for array in nodes))
    return left, right


def _product(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Returns the matrix products A B."""
    if A.shape[-1] > _MAX_ADDED_PRODUCTS:
        return A @ B
    product = A[..., :1] * B[..., :1, :]
    for i in range(1, A.shape[-1]):
        product += A[..., i : i + 1] * B[..., i : i + 1, :]
    return product


def _times(A: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Returns the products of matrices and vectors."""
    return _product(A, v[..., None])[..., 0]


def _carried(A: np.ndarray, S: np.ndarray) -> np.ndarray:
    """Returns A S A^T."""
    return _product(_product(A, S), _transposed(A))


def _transposed(A: np.ndarray) -> np.ndarray:
    """Returns the transposed matrices."""
    return np.swapaxes(A, -1, -2)


def _outer(v: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Returns the outer products of vectors."""
    return v[..., :, None] * w[..., None, :]
