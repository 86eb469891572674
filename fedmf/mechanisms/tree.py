"""Binary-tree aggregation, whose decoder is one of the two estimators of prefix sums that Honaker
(2015) introduced.
"""

import dataclasses
from typing import ClassVar, final

import numpy as np

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.error import loss
from fedmf.mechanisms.family import Family, register
from fedmf.mechanisms.fitting.progress import Stopping
from fedmf.mechanisms.stamped import stamp
from fedmf.noise.stream import NoiseStream
from fedmf.noise.tree import COMPLETIONS, DECODERS, TreeNoise
from fedmf.participation.schema import Participation
from fedmf.workloads import Workload

# For at most this many rounds, a fit compares the completions of a tree, which treat nodes beyond
# the last round differently. For more rounds the comparison would take seconds.
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

    def binary_trees(self) -> TreeNoise:
        """Returns the tree, whose nodes are the rows of C."""
        return TreeNoise(
            rounds_per_tree=self.rounds, decoder=self.decoder, completion=self.completion
        )

    def encoder(self) -> np.ndarray:
        """Returns the encoder C, a float64 array of zeros and ones of shape (m, rounds), with a row
        for each node.
        """
        tree = self.binary_trees()
        checks.fits_in_memory("the encoder of this tree", (tree.num_nodes, self.rounds), copies=2)
        return tree.node_sums(np.eye(self.rounds))

    def noising(self) -> np.ndarray:
        """Returns the noise matrix N, float64 (rounds, m). It is pinv(C) for decoder "full", and
        S^-1 B_online for "online", where S are the prefix sums and B_online the online estimates.
        """
        tree = self.binary_trees()
        matrix_text = f"the {self.decoder} decoder of this tree"
        checks.fits_in_memory(matrix_text, (self.rounds, tree.num_nodes))
        return tree.matrix()

    def stream(self) -> NoiseStream:
        """Returns the recipe that computes the noise vectors from the draws of the nodes."""
        tree = self.binary_trees()
        return NoiseStream(rounds=self.rounds, sources=tree.num_nodes, tree=tree)


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
      TypeError, ValueError: an option is of the wrong kind or out of range, or restarts do not
        divide the rounds.
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
