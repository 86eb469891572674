"""The largest column of an encoder, and the mechanism of its first rounds."""

import numpy as np

from fedmf.mechanisms.banded.fit import BandedMechanism
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.dense.fit import DenseMechanism
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.mechanisms.toeplitz import ToeplitzMechanism
from fedmf.participation.schema import Participation


def column_norm(mechanism: Mechanism) -> float:
    """Largest column norm of the encoder: the sensitivity of a single participation, exact."""
    return sensitivity(mechanism, Participation(rounds=mechanism.rounds, schema="single")).value


def leading_block(mechanism: Mechanism, rounds: int) -> Mechanism:
    """The mechanism that the first `rounds` rounds are released from.

    Raises:
      ValueError: C is not square, as a tree's; there the guarantee of all rounds
        is the one that is known.
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
    C = mechanism.encoder()
    if C.shape[0] != C.shape[1] or np.triu(C, 1).any():
        raise ValueError(
            f"family={mechanism.family} has an encoder of shape {C.shape} that is not "
            "lower-triangular, so that nothing less than the guarantee of all its rounds is known "
            "for the first ones: state that, or choose another family"
        )
    return DenseMechanism(matrix=C[:rounds, :rounds], certificate_reason=reason)
