"""Functions that compute the largest column norm of an encoder, and the mechanism of a mechanism's
first rounds alone.
"""

import numpy as np

from fedmf.mechanisms.banded.fit import BandedMechanism
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.dense.fit import DenseMechanism
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.mechanisms.toeplitz import ToeplitzMechanism
from fedmf.participation.schema import Participation

# Largest number of rounds for which a dense encoder is computed to take its first rounds. For more
# rounds it would take minutes.
_MAX_DENSE_ROUNDS = 8192


def column_norm(mechanism: Mechanism) -> float:
    """Returns the largest column norm of the encoder, which is the exact sensitivity to a single
    participation.
    """
    return sensitivity(mechanism, Participation(rounds=mechanism.rounds, schema="single")).value


def leading_block(mechanism: Mechanism, rounds: int) -> Mechanism:
    """Returns the mechanism of the first `rounds` rounds alone.

    Raises:
      ValueError: C is not square, as in a tree, or too large and neither Toeplitz nor banded. Then
        only the guarantee of all rounds is known.
    """
    certificate_reason = (
        f"the first {rounds} of {mechanism.rounds} rounds of a {mechanism.family} mechanism"
    )
    first_column = mechanism.toeplitz_coefficients()
    banded_rows = mechanism.banded_rows()
    if first_column is not None:
        return ToeplitzMechanism(
            rounds=rounds, coefficients=first_column[:rounds], certificate_reason=certificate_reason
        )
    if banded_rows is not None:
        return BandedMechanism(
            diagonals=banded_rows[:rounds, :rounds], certificate_reason=certificate_reason
        )
    trees = mechanism.binary_trees()
    if trees is not None and trees.num_nodes > trees.rounds:
        raise _not_lower_triangular(mechanism, (trees.num_nodes, trees.rounds))
    if mechanism.rounds > _MAX_DENSE_ROUNDS:
        raise ValueError(
            f"family={mechanism.family} has a guarantee for the first of its {mechanism.rounds} "
            f"rounds from its dense encoder alone, which takes too long for more than "
            f"{_MAX_DENSE_ROUNDS} rounds: state the guarantee of all rounds, or choose a family "
            "that never makes it (toeplitz, blt, banded)"
        )
    C = mechanism.encoder()
    if C.shape[0] != C.shape[1] or np.triu(C, 1).any():
        raise _not_lower_triangular(mechanism, C.shape)
    return DenseMechanism(matrix=C[:rounds, :rounds], certificate_reason=certificate_reason)


def _not_lower_triangular(mechanism: Mechanism, shape: tuple[int, ...]) -> ValueError:
    """Returns the error for an encoder whose first rounds alone have no known guarantee."""
    return ValueError(
        f"family={mechanism.family} has an encoder of shape {shape} that is not "
        "lower-triangular, so that nothing less than the guarantee of all its rounds is known "
        "for the first ones: state that, or choose another family"
    )
