"""The mechanism with independent noise in every round, as in DP-SGD and DP-FedAvg."""

import dataclasses
from typing import ClassVar, final

import numpy as np

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.family import Family, register
from fedmf.mechanisms.fitting.progress import Stopping
from fedmf.participation.schema import Participation
from fedmf.workloads import Workload


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class IdentityMechanism(Mechanism):
    """The mechanism with encoder and noise matrix C = N = I, whose noise is independent in every
    round. It is the banded mechanism with one band (banded paper, Sec. 1 and 4).

    Attributes:
      rounds: n, a positive int.

    >>> IdentityMechanism(rounds=2).encoder()
    array([[1., 0.],
           [0., 1.]])
    """

    family: ClassVar[str] = "identity"
    uncertified: ClassVar[str] = "the identity has no free parameters to optimise"
    rounds: int = fields.validated(checks.rounds)

    @property
    def bands(self) -> int:
        """The number of diagonals of the encoder, which is 1."""
        return 1

    def encoder(self) -> np.ndarray:
        """Returns the encoder C = I, float64 (rounds, rounds)."""
        checks.fits_in_memory("the encoder of the identity", (self.rounds, self.rounds))
        return np.eye(self.rounds)

    def noising(self) -> np.ndarray:
        """Returns the noise matrix N = I, float64 (rounds, rounds)."""
        return self.encoder()

    def banded_rows(self) -> np.ndarray:
        """Returns the rows of the encoder, a single band of ones."""
        return np.ones((self.rounds, 1))

    def toeplitz_coefficients(self) -> np.ndarray:
        """Returns the coefficients of the encoder, a single 1."""
        return np.ones(1)

    def noising_coefficients(self) -> np.ndarray:
        """Returns the first column of the noise matrix, which is 1 followed by zeros."""
        return np.eye(1, self.rounds)[0]


def fit_identity(
    workload: Workload, participation: Participation, stopping: Stopping
) -> IdentityMechanism:
    """Returns the mechanism with independent noise, whatever the workload and the participation."""
    return IdentityMechanism(rounds=workload.rounds)


register(Family(mechanism=IdentityMechanism, fit=fit_identity, label="DP-FedAvg", color="#c1440e"))
