"""Any factorization, as its two matrices."""

import dataclasses
from typing import ClassVar, final

import numpy as np

from fedmf import fields
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.family import Family, register


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ExplicitMechanism(Mechanism):
    """Matrices of any origin: C (m, n) of any shape with m >= n, and any N (n, m) with N C = I.

    Attributes:
      encoder_matrix: C, float64 (m, rounds). Kept as a read-only copy.
      noising_matrix: N, float64 (rounds, m). Kept as a read-only copy.

    Raises:
      TypeError, ValueError: an argument of another kind or shape, not finite, or N C is not I to 6
        digits, columns of errors summed.

    >>> ExplicitMechanism(encoder_matrix=[[1.0], [1.0]], noising_matrix=[[0.5, 0.5]]).rounds
    1
    """

    family: ClassVar[str] = "matrices"
    encoder_matrix: np.ndarray = fields.array(2)
    noising_matrix: np.ndarray = fields.array(2)

    def __post_init__(self) -> None:
        super().__post_init__()
        C, N = self.encoder_matrix, self.noising_matrix
        if C.shape != N.shape[::-1] or C.shape[0] < C.shape[1]:
            raise ValueError(
                f"encoder_matrix of shape {C.shape} and noising_matrix of shape {N.shape} do not "
                "fit: pass (m, rounds) and (rounds, m) with m at least rounds"
            )
        # What runs has the privacy of C (I + E)^-1 for E = N C - I: see check_left_inverse. Column
        # j of C E is at most the sum of |c_i| |E_ij|, so that sums over i must be small: many small
        # entries may add up in a file made to mislead.
        scales = np.abs(C).max(axis=0)
        with np.errstate(all="ignore"):
            error = np.abs(N @ C - np.eye(C.shape[1])) * scales[:, None] / scales
            largest = float(error.sum(axis=0).max())
        if not largest <= 1e-6:
            raise ValueError(
                f"noising_matrix @ encoder_matrix differs from the identity by {largest:.2g}: pass "
                "a left inverse, such as the pseudo-inverse of the encoder"
            )

    @property
    def rounds(self) -> int:
        """n, the number of rounds."""
        return int(self.encoder_matrix.shape[1])

    def encoder(self) -> np.ndarray:
        """C, float64 (m, rounds)."""
        return self.encoder_matrix.copy()

    def noising(self) -> np.ndarray:
        """N, float64 (rounds, m)."""
        return self.noising_matrix.copy()


register(Family(mechanism=ExplicitMechanism, label="Explicit matrices"))
