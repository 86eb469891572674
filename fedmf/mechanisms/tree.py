"""Binary-tree aggregation with Honaker's two decoders."""

import dataclasses
from typing import Any, ClassVar, final

import numpy as np
import scipy.linalg

from fedmf import _checks
from fedmf.mechanisms.base import Mechanism, check_certificate
from fedmf.mechanisms.certificate import Certificate
from fedmf.mechanisms.stream import NoiseStream

DECODERS = ("online", "full")


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TreeMechanism(Mechanism):
    """The binary tree over the rounds, each node a noisy sum of its leaves (Denisov et al. 2022, App. C, Eq. 12).

    The rounds are the first leaves of the smallest tree of 2^h leaves that holds them. Nodes that also span leaves
    beyond the last round are dropped: they would never be finished, and yet raise the sensitivity (with this reading
    the "Optimal TreeAgg" row of the banded paper's Table 2, n = 2052, comes out as printed). The m nodes that remain
    are numbered children before parents, left before right, so that the nodes finished by round t come first:

              6              row:  0  1000
          2       5                1  0100
        0   1   3   4              2  1100
        t=0 t=1 t=2 t=3            3  0010 ... 6  1111

    decoder "online" is Honaker's estimator from below (Prop. C.1): the released sum through round t uses only nodes
    whose rounds are all at or before t, so row t of N uses only noise of finished nodes, as DP-FTRL of Kairouz et al.
    2021 does. "full" is N = pinv(C), the smallest error for this C. Its row t also uses noise of nodes over later
    rounds. That is no obstacle: noise does not depend on data and is drawn ahead, and N (C x + Z) = x + N Z still
    adds to round t an input of round t only (Denisov et al. 2022, Thm. 2.1).

    Attributes:
      rounds: n, any positive int.
      decoder: "online" or "full".

    >>> TreeMechanism(rounds=2).encoder()
    array([[1., 0.],
           [0., 1.],
           [1., 1.]])
    """

    family: ClassVar[str] = "tree"
    rounds: int
    decoder: str = "online"
    certificate: Certificate | None = None
    certificate_reason: str = "the binary tree is a fixed construction, not optimised"

    def __post_init__(self) -> None:
        n = _checks.integer("rounds", self.rounds, low=1, way_out="pass the number of rounds, a positive int")
        object.__setattr__(self, "rounds", n)
        _checks.one_of("decoder", self.decoder, DECODERS)
        check_certificate(self.certificate, self.certificate_reason)

    @property
    def bands(self) -> int:
        """`rounds`: C has no band structure."""
        return self.rounds

    def encoder(self) -> np.ndarray:
        """C, float64 (m, rounds) of zeros and ones; m is 2 * rounds - 1 for a power of two."""
        nodes = _nodes(self.rounds)
        C = np.zeros((len(nodes), self.rounds))
        for row, node in enumerate(nodes):
            C[row, node.first : node.last + 1] = 1.0
        return C

    def noising(self) -> np.ndarray:
        """N, float64 (rounds, m): pinv(C) for "full", S^-1 B_online for "online" with S the prefix sums."""
        if self.decoder == "full":
            C = self.encoder()
            # C holds a row for each leaf, so that C^T C >= I: its Cholesky factor is safe, and cheaper than an SVD.
            return scipy.linalg.cho_solve(scipy.linalg.cho_factor(C.T @ C), C.T)
        B = _estimates_from_below(self.rounds)
        return np.diff(B, axis=0, prepend=0.0)

    def stream(self) -> NoiseStream:
        """The rows of N over the tree's nodes."""
        N = self.noising()
        return NoiseStream(rounds=self.rounds, sources=N.shape[1], contraction=N)

    def state(self) -> dict[str, np.ndarray]:
        """The number of rounds and the decoder's name."""
        return {"rounds": np.array(self.rounds), "decoder": np.array(self.decoder)}

    @classmethod
    def from_state(cls, state: dict[str, np.ndarray], **certificate: Any) -> "TreeMechanism":
        """The inverse of `state`."""
        return cls(rounds=state["rounds"].item(), decoder=state["decoder"].item(), **certificate)


@dataclasses.dataclass(frozen=True)
class _Node:
    """The rounds first..last below a node, and its children's places in the order of nodes."""

    first: int
    last: int
    children: tuple[int, ...]


def _nodes(rounds: int) -> list[_Node]:
    """The tree's nodes that span rounds only, children before parents, left before right."""
    nodes: list[_Node] = []

    def add(first: int, leaves: int) -> tuple[int, ...]:
        if first >= rounds:
            return ()
        children = () if leaves == 1 else add(first, leaves // 2) + add(first + leaves // 2, leaves // 2)
        if first + leaves > rounds:
            return ()
        nodes.append(_Node(first, first + leaves - 1, children))
        return (len(nodes) - 1,)

    add(0, 1 << (rounds - 1).bit_length())
    return nodes


def _estimates_from_below(rounds: int) -> np.ndarray:
    """B_online, (rounds, m): row t is the best estimate of the sum through round t from nodes finished by then.

    Within one finished subtree the estimates combine upwards (Honaker 2015, Sec. 3.2): a node's own noisy sum has
    variance 1, the children's estimates together have theirs, and weights are inverse to variances. Finished subtrees
    that share no rounds have independent noise, so the sum of their roots' estimates is best.
    """
    nodes = _nodes(rounds)
    variances = np.ones(len(nodes))
    # A subtree's nodes are consecutive and end with its root: each estimate holds the weights of those nodes only.
    estimates: list[np.ndarray] = []
    for place, node in enumerate(nodes):
        children = list(node.children)
        if children:
            from_children = variances[children].sum()
            # The variance of the best estimate is also the weight of the node's own sum.
            variances[place] = from_children / (1.0 + from_children)
        below = [(1.0 - variances[place]) * estimates[child] for child in children]
        estimates.append(np.concatenate([*below, variances[place : place + 1]]))
    B = np.zeros((rounds, len(nodes)))
    largest: dict[int, int] = {}  # first round -> place of the largest finished subtree that begins there
    place = 0
    for t in range(rounds):
        while place < len(nodes) and nodes[place].last <= t:
            largest[nodes[place].first] = place
            place += 1
        first = 0
        while first <= t:
            root = largest[first]
            B[t, root + 1 - len(estimates[root]) : root + 1] = estimates[root]
            first = nodes[root].last + 1
    return B
