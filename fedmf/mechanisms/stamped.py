"""Stamped mechanisms, which divide a run into equal parts and repeat one mechanism in each part."""

import dataclasses
import functools
from typing import Any, ClassVar, Self, final

import numpy as np
import scipy.linalg

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism, check_mechanism
from fedmf.mechanisms.family import Family, register
from fedmf.mechanisms.storage import mechanism_of
from fedmf.noise.stream import NoiseStream, check_left_inverse
from fedmf.noise.tree import TreeNoise
from fedmf.numpy_errors import with_numpy_defaults

DECODERS = ("optimal", "restarted")


@with_numpy_defaults
def stamp(mechanism: Mechanism, times: int, decoder: str = "optimal") -> "StampedMechanism":
    """Returns a mechanism of times * mechanism.rounds rounds that repeats `mechanism` `times`
    times, as `StampedMechanism` describes.

    Args:
      mechanism: the mechanism of one part of the run.
      times: number of parts, a positive int.
      decoder: "optimal" or "restarted".

    Returns:
      The mechanism, without a certificate.

    Raises:
      TypeError, ValueError: an argument is of the wrong kind or out of range.

    >>> from fedmf.mechanisms.tree import TreeMechanism
    >>> stamp(TreeMechanism(rounds=2), 2).encoder()
    array([[1., 0., 0., 0.],
           [0., 1., 0., 0.],
           [1., 1., 0., 0.],
           [0., 0., 1., 0.],
           [0., 0., 0., 1.],
           [0., 0., 1., 1.]])
    """
    check_mechanism(mechanism)
    return StampedMechanism(part=mechanism, times=times, decoder=decoder)


def _check_part(name: str, value: Any) -> Mechanism:
    """Returns `value` if it is a mechanism, and raises TypeError otherwise."""
    check_mechanism(value, name)
    return value


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class StampedMechanism(Mechanism):
    """A mechanism that repeats a shorter mechanism, which its attribute `part` holds, until the run
    ends. Its encoder is block-diagonal: the Kronecker product I (x) C, with a copy of the part's
    encoder C in each block (multi-epoch paper, Choquette-Choo et al. 2022, App. D.4).

        | C        |                 | N        |
        |    C     |   and noising   |    N     |      three parts
        |       C  |                 |       N  |

    decoder "optimal" is the pseudo-inverse I (x) pinv(C), the smallest error for this encoder for
    any workload. "restarted" repeats the part's N, so that a tree with Honaker's online decoder
    stays online. They differ where C has more rows than columns (tree, fft) and N is not its
    pseudo-inverse.

    The paper's restarted decoder of prefix sums has the part's B on its block diagonal and, below
    it, copies of B's last row: the sums of finished parts are fixed. That is this N. With S the
    prefix sums over all rounds and S_p over one part, S (I (x) N) has S_p N = B on the diagonal,
    and below it 1 1^T N = 1 (1^T S_p^-1 B); the last row of S_p is 1^T, and so 1^T S_p^-1 B is the
    last row of B.

    Attributes:
      part: the mechanism that is repeated.
      times: s, the number of parts.
      decoder: "optimal" or "restarted".
    """

    family: ClassVar[str] = "stamped"
    uncertified: ClassVar[str] = (
        "stamped, not optimised as a whole: a certificate of its part is with the part"
    )
    part: Mechanism = fields.validated(_check_part)
    times: int = fields.validated(
        functools.partial(checks.integer, low=1, hint="pass the number of parts, a positive int")
    )
    decoder: str = fields.choice("optimal", "", lambda: DECODERS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds > checks.MAX_ROUNDS:
            raise ValueError(
                f"times={self.times} parts of {self.part.rounds} rounds are more than the "
                f"{checks.MAX_ROUNDS} rounds of the longest run: repeat it less often"
            )

    @property
    def rounds(self) -> int:
        """The number of rounds of the run, which is times * part.rounds."""
        return self.times * self.part.rounds

    @property
    def bands(self) -> int:
        """The number of diagonals of the encoder, which is the same as in the part."""
        return self.part.bands

    def encoder(self) -> np.ndarray:
        """Returns the block-diagonal encoder I (x) C, float64 (times * m, rounds)."""
        return self._repeat_block("encoder", self.part.encoder())

    def noising(self) -> np.ndarray:
        """Returns the block-diagonal noise matrix N, float64 (rounds, times * m), which has one
        block for each part.
        """
        return self._repeat_block("noising matrix", self._noising_of_part())

    def banded_rows(self) -> np.ndarray | None:
        """Returns the banded rows of the part, repeated for every part, or None if the part is not
        banded. Entries before the first round of a part are zero.
        """
        part_rows = self.part.banded_rows()
        if part_rows is None:
            return None
        return np.tile(part_rows, (self.times, 1))

    def binary_trees(self) -> TreeNoise | None:
        """Returns the trees of all parts if the part is a tree, and otherwise None. The decoder
        "optimal" of trees is their decoder "full".
        """
        trees = self.part.binary_trees()
        if trees is None:
            return None
        num_trees = self.times * trees.num_trees
        decoder = trees.decoder if self.decoder == "restarted" else "full"
        return dataclasses.replace(trees, num_trees=num_trees, decoder=decoder)

    def stream(self) -> NoiseStream:
        """Returns the recipe that computes the noise vectors, which is that of trees if the part is
        a tree.
        """
        trees = self.binary_trees()
        if trees is None:
            return super().stream()
        return NoiseStream(rounds=self.rounds, sources=trees.num_nodes, tree=trees)

    def state(self) -> dict[str, np.ndarray]:
        """Returns the arrays that a mechanism file stores, which are the decoder, the number of
        repetitions, and the entries of the repeated mechanism's own file.
        """
        part_entries = {f"part_{name}": array for name, array in self.part.entries().items()}
        return {"times": np.array(self.times), "decoder": np.array(self.decoder), **part_entries}

    @classmethod
    def from_state(cls, state: dict[str, Any], certificate: dict[str, Any]) -> Self:
        """Builds the mechanism from the arrays that `state` returned."""
        scalar_fields = {name: state.pop(name).item() for name in ("times", "decoder")}
        part_entries = {name.removeprefix("part_"): array for name, array in state.items()}
        return cls(part=mechanism_of(part_entries), **scalar_fields, **certificate)

    def _noising_of_part(self) -> np.ndarray:
        """Returns the noise matrix of one part, which is one block of the whole noise matrix."""
        trees = self.binary_trees()
        if trees is not None:
            trees_of_part = dataclasses.replace(trees, num_trees=trees.num_trees // self.times)
            return trees_of_part.matrix()
        if self.decoder == "restarted":
            return self.part.noising()
        C = self.part.encoder()
        if C.shape[0] == C.shape[1]:
            return self.part.noising()
        # If C has full column rank and C = Q R, then pinv(C) = R^-1 Q^T. The rank is full, since
        # the part has a noise matrix N with N C = I.
        Q, R = scipy.linalg.qr(C, mode="economic")
        return check_left_inverse(scipy.linalg.solve_triangular(R, Q.T), C)

    def _repeat_block(self, what: str, block: np.ndarray) -> np.ndarray:
        """Returns the block-diagonal matrix with a copy of `block` for every part. Error messages
        call it `what`.
        """
        m, n = block.shape
        checks.fits_in_memory(
            f"the {what} of a mechanism stamped {self.times} times",
            (self.times * m, self.times * n),
        )
        return scipy.linalg.block_diag(*[block] * self.times)


register(Family(mechanism=StampedMechanism, label="Stamped"))
