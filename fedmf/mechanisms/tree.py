"""Binary-tree aggregation, whose decoder is one of the two estimators of prefix sums that Honaker
(2015) introduced.
"""

import dataclasses
from typing import ClassVar, NamedTuple, final

import numpy as np
import scipy.linalg

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.error import loss
from fedmf.mechanisms.family import Family, register
from fedmf.mechanisms.fitting.progress import Stopping
from fedmf.mechanisms.stamped import stamp
from fedmf.participation.schema import Participation
from fedmf.workloads import Workload

DECODERS = ("full", "online")
COMPLETIONS = ("none", "virtual", "optimal")
# For at most this many rounds, a fit compares the completions of a tree, which treat nodes beyond
# the last round differently. The comparison takes a few products of dense matrices, which is
# seconds.
_MAX_ROUNDS_COMPARED = 4096


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TreeMechanism(Mechanism):
    """The mechanism of a binary tree over the rounds, in which each node is a noisy sum of the
    leaves below it. Its source is Denisov et al. 2022, App. C, Eq. 12.

    The rounds are the first leaves of the smallest tree of 2^h leaves that holds them; leaves after
    them are virtual rounds, whose input is known to be 0. The m nodes of the encoder (see
    `completion`) are numbered children before parents, left before right, so that the nodes
    finished by round t come first::

              6              row:  0  1000
          2       5                1  0100
        0   1   3   4              2  1100
        t=0 t=1 t=2 t=3            3  0010 ... 6  1111

    decoder "full" is N = pinv(C), the smallest error for this C. Its row t also uses noise of nodes
    over later rounds, which is drawn ahead (Denisov et al. 2022, Thm. 2.1). "online" is Honaker's
    estimator from below (Denisov et al. 2022, Prop. C.1): the released sum through round t uses
    only nodes whose rounds are all at or before t, so that row t of N uses only noise of finished
    nodes, as DP-FTRL of Kairouz et al. 2021 does. It takes half the memory of "full".

    `completion` determines the treatment of nodes that span both rounds and virtual rounds, where n
    is no power of two. Each value is best somewhere (docs/papers/multi-epoch.md):

    - "none": these nodes are dropped, which makes the encoder less sensitive (banded paper, Table
      2, "Optimal TreeAgg").
    - "virtual": these nodes stay, the virtual rounds run after the last round, and the last sum is
      read off the root (tree completion of the multi-epoch paper, App. D.3 and Table 1).
    - "optimal": these nodes stay, and the last row of N uses that the sums over virtual rounds are
      0. With decoder "full" this and "virtual" are the same mechanism.

    Attributes:
      rounds: n, any positive int.
      decoder: "full" or "online".
      completion: "none", "virtual" or "optimal".

    >>> TreeMechanism(rounds=2).encoder()
    array([[1., 0.],
           [0., 1.],
           [1., 1.]])
    """

    family: ClassVar[str] = "tree"
    uncertified: ClassVar[str] = "the binary tree is a fixed construction, not optimised"
    rounds: int = fields.validated(checks.rounds)
    decoder: str = fields.choice("full", "", lambda: DECODERS)
    completion: str = fields.choice("none", "", lambda: COMPLETIONS)

    def encoder(self) -> np.ndarray:
        """Returns the encoder C, a float64 array of zeros and ones of shape (m, rounds), with a row
        for each node.
        """
        _check_memory(self.rounds, self.completion)
        tree_nodes = _nodes(self.rounds, self.completion)
        C = np.zeros((len(tree_nodes), self.rounds))
        for row, node in enumerate(tree_nodes):
            C[row, node.first : node.last + 1] = 1.0
        return C

    def noising(self) -> np.ndarray:
        """Returns the noise matrix N, float64 (rounds, m). It is pinv(C) for decoder "full", and
        S^-1 B_online for "online", where S are the prefix sums and B_online the online estimates.
        """
        if self.decoder == "full":
            return _pseudo_inverse(self.rounds, self.completion)
        B = _estimates_from_below(self.rounds, self.completion)
        return np.diff(B, axis=0, prepend=0.0)


def fit_tree(
    workload: Workload,
    participation: Participation,
    stopping: Stopping,
    *,
    decoder: str = "full",
    restarts: int = 1,
    completion: str | None = None,
) -> Mechanism:
    """Returns the mechanism of one binary tree over the run, or of `restarts` trees over equal
    parts of it, with the options that `fedmf.fit` describes.

    Args:
      workload, participation: used to compare completions.
      decoder: "full" or "online", see `TreeMechanism`.
      restarts: 1 for a `TreeMechanism`; more for a `StampedMechanism` of one that spans rounds /
        restarts rounds (multi-epoch paper, App. D.4). N = pinv(C) of each part is the
        pseudo-inverse of the whole, so that "full" is optimal there, too.
      completion: completion of a tree whose number of rounds is no power of two, see
        `TreeMechanism`. None takes the one with the smallest loss, and "none", without a
        comparison, for more than 4096 rounds.
      stopping: not used.

    Raises:
      TypeError, ValueError: an option is of the wrong kind or out of range; restarts do not divide
        the rounds; the matrices of so many rounds do not fit into memory.
    """
    n = workload.rounds
    checks.one_of("decoder", decoder, DECODERS)
    restarts = checks.integer(
        "restarts", restarts, low=1, high=n, hint="it is a number of equal parts of the run"
    )
    if n % restarts:
        raise ValueError(
            f"restarts={restarts} does not cut {n} rounds into equal parts: choose a divisor, or "
            f"another number of rounds, such as {n - n % restarts}"
        )
    rounds_per_tree = n // restarts
    if completion is not None:
        completions = [checks.one_of("completion", completion, COMPLETIONS)]
    else:
        completions = _compared_completions(n, rounds_per_tree, decoder)
    for name in completions:
        _check_memory(rounds_per_tree, name, decoder)
    candidate_trees: list[Mechanism] = [
        TreeMechanism(rounds=rounds_per_tree, decoder=decoder, completion=name)
        for name in completions
    ]
    if restarts > 1:
        candidate_trees = [stamp(tree, restarts, decoder="restarted") for tree in candidate_trees]
    if len(candidate_trees) == 1:
        return candidate_trees[0]
    return min(candidate_trees, key=lambda tree: loss(tree, workload, participation))


def _compared_completions(rounds: int, rounds_per_tree: int, decoder: str) -> list[str]:
    """Returns the completions that a fit compares, to choose the best of them."""
    is_complete = rounds_per_tree & (rounds_per_tree - 1) == 0
    if is_complete or rounds > _MAX_ROUNDS_COMPARED:
        return ["none"]
    if decoder == "online":
        return list(COMPLETIONS)
    # With decoder "full", the tree completions "optimal" and "virtual" give the same noise, so only
    # one of them is compared.
    return ["none", "virtual"]


class _Node(NamedTuple):
    """A node of the tree over `leaves` leaves, where the rounds from `first` to `last` are in the
    run, with the indices of its children.
    """

    first: int
    last: int
    leaves: int
    children: tuple[int, ...]


def _nodes(rounds: int, completion: str) -> list[_Node]:
    """Returns the nodes of the tree in the order of the encoder's rows, with children before
    parents, and left before right.
    """
    nodes: list[_Node] = []

    def add_subtree(first: int, leaves: int) -> tuple[int, ...]:
        """Adds the nodes of a subtree of the binary tree to the list. Returns the index of its root
        in a tuple, or () if the root is dropped.
        """
        if first >= rounds:
            return ()
        child_indices: tuple[int, ...] = ()
        if leaves > 1:
            child_leaves = leaves // 2
            child_indices = add_subtree(first, child_leaves) + add_subtree(
                first + child_leaves, child_leaves
            )
        if completion == "none" and first + leaves > rounds:
            return ()
        nodes.append(_Node(first, min(first + leaves, rounds) - 1, leaves, child_indices))
        return (len(nodes) - 1,)

    add_subtree(0, 1 << (rounds - 1).bit_length())
    return nodes


def _num_nodes(rounds: int, completion: str) -> int:
    """Returns the number of nodes that `_nodes` would list.

    >>> [_num_nodes(5, completion) for completion in ("none", "virtual")]
    [8, 11]
    """
    level_range = range((rounds - 1).bit_length() + 1)
    if completion == "none":
        return sum(rounds >> level for level in level_range)
    return sum(-(-rounds >> level) for level in level_range)


def _check_memory(rounds: int, completion: str, decoder: str | None = None) -> None:
    """Raises TooLargeForMemory if a matrix of the tree does not fit into memory. It checks the
    noise matrix N with this decoder, or the encoder if `decoder` is None. It lists no nodes.
    """
    encoder_shape = (_num_nodes(rounds, completion), rounds)
    if decoder == "full":
        decoder_hint = "take decoder='online', which needs half of it and makes more noise"
        matrix_text = "the full decoder of this tree"
        checks.fits_in_memory(matrix_text, encoder_shape[::-1], copies=2, otherwise=decoder_hint)
    elif decoder == "online":
        checks.fits_in_memory("the online decoder of this tree", encoder_shape[::-1])
    else:
        checks.fits_in_memory("the encoder of this tree", encoder_shape)


def _pseudo_inverse(rounds: int, completion: str) -> np.ndarray:
    """Returns the pseudo-inverse pinv(C) = (C^T C)^-1 C^T of the encoder C, float64 (rounds, m).
    The column of a node is the sum of the columns of its children.
    """
    _check_memory(rounds, completion, "full")
    tree_nodes = _nodes(rounds, completion)
    X = np.zeros((rounds, rounds))
    for node in tree_nodes:
        X[node.first : node.last + 1, node.first : node.last + 1] += 1.0
    # The encoder C has a row for each leaf, so X - I is positive semidefinite, where X = C^T C. The
    # Cholesky factorization of X therefore cannot fail, and it is cheaper than an SVD of C.
    lower_triangle, _ = scipy.linalg.lapack.dpotri(scipy.linalg.cholesky(X, lower=True), lower=True)
    gram_inverse = np.tril(lower_triangle) + np.tril(lower_triangle, -1).T
    pseudo_inverse_columns = np.empty((len(tree_nodes), rounds))
    for index, node in enumerate(tree_nodes):
        if node.children:
            pseudo_inverse_columns[index] = pseudo_inverse_columns[list(node.children)].sum(axis=0)
        else:
            pseudo_inverse_columns[index] = gram_inverse[node.first]
    return np.ascontiguousarray(pseudo_inverse_columns.T)


def _estimates_from_below(rounds: int, completion: str) -> np.ndarray:
    """Returns the online decoder B, which estimates each prefix sum from finished nodes only,
    float64 (rounds, m). Row t is the best estimate of the sum of rounds 0..t from the nodes that
    are finished by round t.

    Within one finished subtree the estimates combine upwards (Honaker 2015, Sec. 3.2): a node's own
    noisy sum has variance 1, its children's estimates have a joint variance, and weights are
    inverse to variances. Finished subtrees that share no rounds have independent noise, so that the
    sum of their roots' estimates is best. Nodes that reach into virtual rounds, if the encoder has
    them, are finished with the last round.
    """
    _check_memory(rounds, completion, "online")
    tree_nodes = _nodes(rounds, completion)
    subtree_estimates = _subtree_estimates(tree_nodes, completion)
    B = np.zeros((rounds, len(tree_nodes)))
    # The index of the largest finished subtree that begins in each round.
    largest_subtrees: dict[int, int] = {}
    num_finished = 0
    for t in range(rounds):
        while num_finished < len(tree_nodes) and tree_nodes[num_finished].last <= t:
            largest_subtrees[tree_nodes[num_finished].first] = num_finished
            num_finished += 1
        first_round = 0
        while first_round <= t:
            root_index = largest_subtrees[first_round]
            B[t, root_index + 1 - len(subtree_estimates[root_index]) : root_index + 1] = (
                subtree_estimates[root_index]
            )
            first_round = tree_nodes[root_index].last + 1
    return B


def _subtree_estimates(nodes: list[_Node], completion: str) -> list[np.ndarray]:
    """Returns for each node the best estimate of its sum, as the weights of the nodes in its
    subtree.

    The nodes of a subtree are consecutive and end with its root, so that the weights of an estimate
    are those of the last nodes up to the root.
    """
    variances = np.ones(len(nodes))
    estimates: list[np.ndarray] = []
    for index, node in enumerate(nodes):
        child_indices = list(node.children)
        if child_indices:
            # The best estimate of a node's sum combines the node's own noisy sum with the estimates
            # of its children. With completion "virtual", the variance v of a node of 2 m leaves
            # follows from 1 / v(2 m) = 1 + 1 / (2 v(m)), v(1) = 1. Otherwise a virtual child adds
            # no variance.
            if completion == "virtual":
                children_variance = node.leaves / (node.leaves - 1.0)
            else:
                children_variance = variances[child_indices].sum()
            # The variance of the best estimate is also the weight of the node's own noisy sum.
            variances[index] = children_variance / (1.0 + children_variance)
        child_weights = [(1.0 - variances[index]) * estimates[child] for child in child_indices]
        estimates.append(np.concatenate([*child_weights, variances[index : index + 1]]))
    return estimates


register(
    Family(
        mechanism=TreeMechanism,
        fit=fit_tree,
        label="Tree ({decoder} Honaker)",
        color="#00795b",
        help={
            "decoder": "Honaker's estimator: full or online",
            "restarts": "trees one after the other",
            "completion": "nodes beyond the last round: none, virtual or optimal",
        },
        choices={"decoder": DECODERS, "completion": COMPLETIONS},
    )
)
