"""Dense lower-triangular encoders, such as the optimum for a single participation."""

import dataclasses
from typing import Any, ClassVar, final

import numpy as np

from fedmf import checks
from fedmf.mechanisms.base import Mechanism, check_certificate
from fedmf.mechanisms.certificate import Certificate
from fedmf.noise.stream import NoiseStream, check_left_inverse, lower_inverse


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class DenseMechanism(Mechanism):
    """A square lower-triangular C without band structure, N = C^-1 (Denisov et al. 2022, Sec. 3).

    Attributes:
      matrix: C, float64 (rounds, rounds), lower-triangular with a positive diagonal. Kept as a read-only copy.

    Raises:
      TypeError, ValueError: matrix is of another kind or shape, not finite, or breaks what is said above.

    >>> DenseMechanism(matrix=[[2.0, 0.0], [1.0, 1.0]]).noising()
    array([[ 0.5,  0. ],
           [-0.5,  1. ]])
    """

    family: ClassVar[str] = "dense"
    matrix: np.ndarray
    certificate: Certificate | None = None
    certificate_reason: str = ""

    def __post_init__(self) -> None:
        matrix = checks.lower_triangular("matrix", self.matrix)
        diagonal = np.diagonal(matrix)
        if diagonal.min() <= 0.0:
            t = int(np.argmin(diagonal))
            raise ValueError(
                f"matrix[{t}, {t}]={diagonal[t]} is not positive: give C a positive diagonal (flipping the sign of "
                "a row of C changes neither its sensitivity nor its error)"
            )
        object.__setattr__(self, "matrix", checks.frozen(matrix))
        if self.certificate is None and not self.certificate_reason:
            object.__setattr__(self, "certificate_reason", "built from a given matrix, not optimised")
        check_certificate(self.certificate, self.certificate_reason)

    @property
    def rounds(self) -> int:
        """n, the number of rounds."""
        return int(self.matrix.shape[0])

    @property
    def bands(self) -> int:
        """All of them: `rounds`."""
        return self.rounds

    def encoder(self) -> np.ndarray:
        """C, float64 (rounds, rounds), lower-triangular."""
        return self.matrix.copy()

    def noising(self) -> np.ndarray:
        """N = C^-1, float64 (rounds, rounds), lower-triangular; ValueError if float64 has too few digits for it."""
        return check_left_inverse(lower_inverse(self.matrix), self.matrix)

    def stream(self) -> NoiseStream:
        """The rows of N: a dense C leaves no shorter recipe."""
        return NoiseStream(rounds=self.rounds, sources=self.rounds, contraction=self.noising())

    def state(self) -> dict[str, np.ndarray]:
        """The encoder."""
        return {"matrix": self.matrix}

    @classmethod
    def from_state(cls, state: dict[str, np.ndarray], **certificate: Any) -> "DenseMechanism":
        """The inverse of `state`."""
        return cls(matrix=state["matrix"], **certificate)
