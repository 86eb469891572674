"""Banded lower-triangular encoders: noise with a memory of bands - 1 rounds."""

import dataclasses
from typing import ClassVar, final

import numpy as np

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism
from fedmf.noise.stream import banded_matrix, check_recurrence, inverse_of_banded


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BandedMechanism(Mechanism):
    """A lower-triangular C with `bands` non-zero diagonals, N = C^-1 (banded paper, Sec. 3 and 4).

        diagonals[t, j] = C[t, t-j]       C = | c00             |
                                              | c10  c11        |      two bands, three rounds
                                              |      c21  c22   |

    With bands <= min_sep, columns of one client do not overlap and the sensitivity is that of k
    separate releases (Thm. 2): sqrt(k) times the column norm, if all columns have the same.

    Attributes:
      diagonals: float64 (rounds, bands), column j holds the j-th diagonal below the main one,
        shifted down by j rows; diagonals[t, j] with t < j lies outside C and is 0; diagonals[:, 0]
        is positive. Kept as a read-only copy.

    Raises:
      TypeError, ValueError: diagonals is of another kind or shape, not finite, or breaks what is
        said above.

    >>> mechanism = BandedMechanism(diagonals=[[1.0, 0.0], [1.0, 0.5], [1.0, 0.5]])
    >>> mechanism.noising()
    array([[ 1.  ,  0.  ,  0.  ],
           [-0.5 ,  1.  ,  0.  ],
           [ 0.25, -0.5 ,  1.  ]])
    """

    family: ClassVar[str] = "banded"
    diagonals: np.ndarray = fields.checked(check_recurrence)

    @property
    def rounds(self) -> int:
        """n, the number of rounds."""
        return int(self.diagonals.shape[0])

    @property
    def bands(self) -> int:
        """The number of diagonals stored."""
        return int(self.diagonals.shape[1])

    def encoder(self) -> np.ndarray:
        """C, float64 (rounds, rounds), lower-triangular and banded."""
        checks.fits_in_memory("the encoder", (self.rounds, self.rounds))
        return banded_matrix(self.diagonals)

    def noising(self) -> np.ndarray:
        """N = C^-1, float64 (rounds, rounds), lower-triangular."""
        checks.fits_in_memory("the noising matrix", (self.rounds, self.rounds))
        return inverse_of_banded(self.diagonals)

    def banded_rows(self) -> np.ndarray:
        """The diagonals."""
        return self.diagonals


def diagonals_of(C: np.ndarray, bands: int) -> np.ndarray:
    """The (n, bands) diagonals of a lower-triangular (n, n) matrix: [t, j] is C[t, t - j], 0 where
    t < j.
    """
    diagonals = np.zeros((C.shape[0], bands))
    for j in range(bands):
        diagonals[j:, j] = np.diagonal(C, -j)
    return diagonals
