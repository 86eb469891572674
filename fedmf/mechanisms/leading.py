"""The largest column of an encoder, and the mechanism of its first rounds."""

import numpy as np

from fedmf.mechanisms.banded.fit import BandedMechanism
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.dense.fit import DenseMechanism
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.mechanisms.toeplitz import ToeplitzMechanism
from fedmf.participation.schema import Participation

# Rounds of encoders that are formed for the guarantee of their first rounds: it takes minutes.
_MAX_DENSE_ROUNDS = 8192


def column_norm(mechanism: Mechanism) -> float:
    """Largest column norm of the encoder: the sensitivity of a single participation, exact."""
    return sensitivity(mechanism, Participation(rounds=mechanism.rounds, schema="single")).value


def leading_block(mechanism: Mechanism, rounds: int) -> Mechanism:
    """The mechanism that the first `rounds` rounds are released from.

    Raises:
      ValueError: C is not square, as a tree's, or too large and neither Toeplitz nor banded; there
        the guarantee of all rounds is the one that is known.
    """
    reason = f"the first {rounds} of {mechanism.rounds} rounds of a {mechanism.family} mechanism"
    column = mechanism.toeplitz_coefficients()
    rows = mechanism.banded_rows()
    if column is not None:
        return ToeplitzMechanism(
            rounds=rounds, coefficients=column[:rounds], certificate_reason=reason
        )
    if rows is not None:
        return BandedMechanism(diagonals=rows[:rounds, :rounds], certificate_reason=reason)
    if mechanism.rounds > _MAX_DENSE_ROUNDS:
        raise ValueError(
            f"family={mechanism.family} has a guarantee for the first of its {mechanism.rounds} "
            f"rounds from its dense encoder alone, which takes too long for more than "
            f"{_MAX_DENSE_ROUNDS} rounds: state the guarantee of all rounds, or choose a family "
            "that never makes it (toeplitz, blt, banded)"
        )
    C = mechanism.encoder()
    if C.shape[0] != C.shape[1] or np.triu(C, 1).any():
        raise ValueError(
            f"family={mechanism.family} has an encoder of shape {C.shape} that is not "
            "lower-triangular, so that nothing less than the guarantee of all its rounds is known "
            "for the first ones: state that, or choose another family"
        )
    return DenseMechanism(matrix=C[:rounds, :rounds], certificate_reason=reason)
