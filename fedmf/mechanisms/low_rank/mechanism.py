"""A banded plus low-rank decoder: nearly the optimum's error, at the cost of a few rows
of noise a round.
"""

import dataclasses
from typing import ClassVar, final

import numpy as np

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism
from fedmf.noise.buffers import Buffers
from fedmf.noise.stream import NoiseStream, banded_matrix, check_left_inverse, lower_inverse


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LowRankMechanism(Mechanism):
    """The decoder B = D + (L R^T below D) of Denisov et al. 2022, App. H, for a workload A: N =
    A^-1 B, C = B^-1 A.

        B[t, s] = D[t, s]     for t - s < h           | d        |
                  L[t] . R[s] for t - s >= h          | d d      |     h = 2
                                                      | x d d    |     x: of rank r
                                                      | x x d d  |

    A round costs h + r rows of model size for prefix sums (their Algorithm 3), and p - 1 more where
    A^-1 has p bands instead of prefix sums' two; where A^-1 is dense, so is the stream.

    Attributes:
      diagonals: D by rows, float64 (rounds, h), [t, j] = B[t, t - j], 0 where t < j; diagonals[:,
        0] has the signs of A's diagonal, so that N's is positive.
      left: L, float64 (rounds, r).
      right: R, float64 (rounds, r).
      inverse_workload: A^-1 by rows, float64 (rounds, p), in the same way, as
        `Workload.inverse_diagonals` has it.

    Raises:
      TypeError, ValueError: an array is of another kind or shape, not finite, or breaks what is
        said above.

    >>> mechanism = LowRankMechanism(
    ...     diagonals=[[1.0], [1.0], [1.0]],
    ...     left=[[0.0], [0.5], [0.25]],
    ...     right=[[1.0], [2.0], [0.0]],
    ...     inverse_workload=[[1.0], [1.0], [1.0]],
    ... )
    >>> mechanism.noising()
    array([[1.  , 0.  , 0.  ],
           [0.5 , 1.  , 0.  ],
           [0.25, 0.5 , 1.  ]])
    """

    family: ClassVar[str] = "low_rank"
    diagonals: np.ndarray = fields.checked(checks.banded_rows)
    left: np.ndarray = fields.array(2)
    right: np.ndarray = fields.array(2)
    inverse_workload: np.ndarray = fields.checked(checks.banded_rows)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("left", "right", "inverse_workload"):
            if (rows := len(getattr(self, name))) != self.rounds:
                raise ValueError(
                    f"{name} has {rows} rows and diagonals has {self.rounds}: "
                    "pass one for each round"
                )
        positive = self.diagonals[:, 0] * self.inverse_workload[:, 0] > 0.0
        if not positive.all():
            t = int(np.argmin(positive))
            raise ValueError(
                f"diagonals[{t}, 0]={self.diagonals[t, 0]} and inverse_workload[{t}, "
                f"0]={self.inverse_workload[t, 0]} "
                f"give N no positive diagonal: choose the sign of A[{t}, {t}] for both"
            )
        if self.left.shape != self.right.shape:
            raise ValueError(
                f"left has shape {self.left.shape} and right has "
                f"{self.right.shape}: pass the same rank"
            )

    @property
    def rounds(self) -> int:
        """n, the number of rounds."""
        return int(self.diagonals.shape[0])

    @property
    def rank(self) -> int:
        """r."""
        return int(self.left.shape[1])

    def encoder(self) -> np.ndarray:
        """C = B^-1 A = N^-1, float64 (rounds, rounds), lower-triangular; ValueError if float64 has
        too few digits for it.
        """
        N = self.noising()
        C = lower_inverse(N)
        check_left_inverse(N, C)
        return C

    def noising(self) -> np.ndarray:
        """N = A^-1 B, float64 (rounds, rounds), lower-triangular."""
        n, h = self.diagonals.shape
        checks.fits_in_memory("the noising matrix of this low-rank mechanism", (n, n))
        B = np.tril(self.left @ self.right.T, -h) + banded_matrix(self.diagonals)
        P = self.inverse_workload
        if P.shape[1] == n:
            return np.tril(banded_matrix(P) @ B)
        return checks.banded_times(P, B)

    def stream(self) -> NoiseStream:
        """Alg. 3 of Denisov et al. 2022, App. H, with A^-1 applied: h + p - 1 rows and r running
        sums.
        """
        n, h = self.diagonals.shape
        P = self.inverse_workload
        w = min(h + P.shape[1] - 1, n)
        if w + self.rank >= n:
            return NoiseStream(rounds=n, sources=n, contraction=self.noising())
        # The first w diagonals of N = P B need the first w of B. Further down, row t of N is P's
        # combination of rows of L R^T alone, and the sums of R[s] z_s over s <= t - w
        # serve all of them.
        near = np.zeros((n, w))
        near[:, :h] = self.diagonals
        for i in range(h, w):
            near[i:, i] = np.einsum("tr,tr->t", self.left[i:], self.right[: n - i])
        buffers = Buffers(
            window=checks.banded_product(P, near)[:, :w],
            read=checks.banded_times(P, self.left),
            write=self.right,
            decay=np.ones(self.rank),
        )
        return NoiseStream(rounds=n, sources=n, buffers=buffers)
