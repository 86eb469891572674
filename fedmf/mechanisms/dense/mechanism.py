"""Dense lower-triangular encoders, such as the optimum for a single participation."""

import dataclasses
from typing import Any, ClassVar, final

import numpy as np

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism
from fedmf.noise.stream import check_left_inverse, lower_inverse


def _encoder(name: str, value: Any) -> np.ndarray:
    matrix = checks.lower_triangular(name, value)
    diagonal = np.diagonal(matrix)
    if diagonal.min() <= 0.0:
        t = int(np.argmin(diagonal))
        raise ValueError(
            f"{name}[{t}, {t}]={diagonal[t]} is not positive: give C a positive diagonal (flipping "
            "the sign of a row of C changes neither its sensitivity nor its error)"
        )
    return matrix


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class DenseMechanism(Mechanism):
    """A square lower-triangular C without band structure, N = C^-1 (Denisov et al. 2022, Sec. 3).

    Attributes:
      matrix: C, float64 (rounds, rounds), lower-triangular with a positive diagonal. Kept as a
        read-only copy.

    Raises:
      TypeError, ValueError: matrix is of another kind or shape, not finite,
        or breaks what is said above.

    >>> DenseMechanism(matrix=[[2.0, 0.0], [1.0, 1.0]]).noising()
    array([[ 0.5,  0. ],
           [-0.5,  1. ]])
    """

    family: ClassVar[str] = "dense"
    matrix: np.ndarray = fields.checked(_encoder)

    @property
    def rounds(self) -> int:
        """n, the number of rounds."""
        return int(self.matrix.shape[0])

    def encoder(self) -> np.ndarray:
        """C, float64 (rounds, rounds), lower-triangular."""
        return self.matrix.copy()

    def noising(self) -> np.ndarray:
        """N = C^-1, float64 (rounds, rounds), lower-triangular; ValueError if float64 has too few
        digits for it.
        """
        return check_left_inverse(lower_inverse(self.matrix), self.matrix)
