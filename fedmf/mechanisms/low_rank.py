"""Banded plus low-rank approximation of the optimal decoder (Denisov et al. 2022, App. H)."""

import dataclasses
import time
from typing import ClassVar, final

import numpy as np
import scipy.linalg

from fedmf import checks, fields
from fedmf.mechanisms.banded.fit import diagonals_of
from fedmf.mechanisms.base import Mechanism, certify
from fedmf.mechanisms.dense.classes import Classes
from fedmf.mechanisms.dense.dual import Ascent, PairsDual, decoder
from fedmf.mechanisms.family import Family, register
from fedmf.mechanisms.fitting.progress import Stopping, raise_if_interruptible
from fedmf.noise.buffers import Buffers
from fedmf.noise.stream import NoiseStream, banded_matrix, check_left_inverse, triangular_inverse
from fedmf.participation.schema import Participation
from fedmf.workloads import Workload


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
    diagonals: np.ndarray = fields.validated(checks.banded_rows)
    left: np.ndarray = fields.array(2)
    right: np.ndarray = fields.array(2)
    inverse_workload: np.ndarray = fields.validated(checks.banded_rows)

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
        C = triangular_inverse(N)
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


# Gap of the optimum that is approximated: well below what the approximation costs.
_OPTIMUM = Stopping(tolerance=1e-4, max_iterations=1000)
# Penalty on the squares of L and R (Denisov et al. 2022, App. H, where the diagonal
# of B is near 1).
_PENALTY = 1e-6
# The loss of an iterate costs as much as several sweeps: it is computed at sweep 1 and then at
# growing intervals.
_CHECK_GROWTH = 1.3
# Beyond this many rounds, the few singular vectors of the start come from an iteration.
_MAX_ROUNDS_DECOMPOSED = 512


def fit_low_rank(
    workload: Workload,
    participation: Participation,
    stopping: Stopping,
    *,
    bands: int | None = None,
    rank: int | None = None,
) -> LowRankMechanism:
    """The first `bands` diagonals of the optimal B, and below them the best L R^T that alternating
    least squares finds.

    The optimum that is approximated is that of a single participation, whatever `participation` is:
    the optimum for several has an edge at every epoch. Denisov et al. stop when the squared
    difference of the two B stops falling; the sweep with the smallest loss, which is an earlier
    one, is kept here. The certificate holds the loss against the dual bound over all encoders,
    under a single participation; a gap above tolerance is what so few bands and so small a rank
    cost, and no reason to warn.

    Args:
      workload, participation: as `fedmf.fit`.
      bands: h, in 1..rounds; None as in Denisov's Table 2, half of log2(rounds), rounded up.
      rank: r, in 1..rounds; None: the other half, rounded down.
      stopping: tolerance is the certified gap at which to stop, max_iterations the most sweeps
        after those of the dense fit.

    Raises:
      TypeError, ValueError: an option of the wrong kind or out of range.
    """
    n = workload.rounds
    levels = max((n - 1).bit_length(), 2)
    hint = "the stream costs a row of model size for each, a handful is enough"
    h = (
        min(-(-levels // 2), n)
        if bands is None
        else checks.integer("bands", bands, low=1, high=n, hint=hint)
    )
    r = (
        min(levels // 2, n)
        if rank is None
        else checks.integer("rank", rank, low=1, high=n, hint=hint)
    )
    began = time.perf_counter()
    # That of its dense fit
    checks.fits_in_memory("the fit of family='low_rank'", (n, n), copies=11)
    A = workload.matrix
    # As `fit_dense`, which does not tell of a Ctrl-C after its tolerance
    dual = PairsDual(workload, Classes(n, n))
    optimum = Ascent(dual, A, dataclasses.replace(_OPTIMUM, progress=stopping.progress))
    optimum.run()
    lower_bound = dual.proven(optimum.variables)
    steps = optimum.iterations
    B = np.tril(decoder(A, optimum.encoder / np.linalg.norm(optimum.encoder, axis=0)))
    approximation = _Approximation(A, B, h, r)
    best = approximation.iterate()
    sweep = 0
    next_check = 1
    interrupted = optimum.interrupted
    sweeps = 0 if interrupted or h == n else stopping.max_iterations
    try:
        while sweep < sweeps and best.loss > lower_bound * (1.0 + stopping.tolerance):
            approximation.sweep()
            sweep += 1
            gap = None
            if sweep >= next_check or sweep == sweeps:
                next_check = max(sweep + 1, int(sweep * _CHECK_GROWTH))
                best = min(best, approximation.iterate(), key=lambda iterate: iterate.loss)
                gap = best.loss / lower_bound - 1.0
            if stopping.progress is not None:
                stopping.progress(steps + sweep, best.loss, gap)
    except KeyboardInterrupt:
        raise_if_interruptible()
        interrupted = True
    certificate = certify(best.loss, lower_bound, steps + sweep, time.perf_counter() - began)
    if interrupted:
        stopping.warn("low_rank", iterations=steps + sweep, gap=certificate.gap, interrupted=True)
    inverse = workload.inverse_diagonals
    return LowRankMechanism(
        diagonals=approximation.diagonals,
        left=best.left,
        right=best.right,
        inverse_workload=diagonals_of(triangular_inverse(A), n) if inverse is None else inverse,
        certificate=certificate,
    )


@dataclasses.dataclass(frozen=True)
class _Iterate:
    """L, R, and the loss of their mechanism under a single participation."""

    left: np.ndarray
    right: np.ndarray
    loss: float


class _Approximation:
    """Alternating least squares for L R^T on the entries of B below its first h diagonals."""

    def __init__(self, A: np.ndarray, B: np.ndarray, h: int, r: int) -> None:
        self.A = A
        self.h = h
        self.below = np.tril(B, -h)
        self.near = B - self.below
        self.diagonals = diagonals_of(B, h)
        # L R^T is of the order of B: so its squared error is of the second order in B's scale, and
        # |L|^2 + |R|^2 of the first. The penalty follows, so that the unit of A does not matter.
        self.penalty = _PENALTY * np.abs(self.diagonals[:, 0]).mean() * np.eye(r)
        self.left, self.right = self._start(r)

    def _start(self, r: int) -> tuple[np.ndarray, np.ndarray]:
        """The best approximation of `below` with zeros everywhere else."""
        n = len(self.below)
        if n <= _MAX_ROUNDS_DECOMPOSED or 2 * r >= n:
            U, s, Vt = scipy.linalg.svd(self.below)
        else:
            from scipy.sparse.linalg import svds

            # A fixed start: the same fit comes out every time.
            U, s, Vt = svds(self.below, r, v0=np.ones(n))
        return U[:, :r] * np.sqrt(s[:r]), Vt[:r].T * np.sqrt(s[:r])

    def sweep(self) -> None:
        """Least squares for each row of L over the s with t - s >= h, then for each row of R."""
        self.left = self._rows(self.right, self.below)
        self.right = self._rows(self.left[::-1], self.below.T[::-1, ::-1])[::-1]

    def _rows(self, factor: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Row t of the answer fits targets[t, : t - h + 1] by factor[: t - h + 1]."""
        n, r = factor.shape
        grams = np.zeros((n, r, r))
        grams[self.h :] = np.cumsum(factor[:, :, None] * factor[:, None, :], axis=0)[: n - self.h]
        return np.linalg.solve(grams + self.penalty, (targets @ factor)[:, :, None])[:, :, 0]

    def iterate(self) -> _Iterate:
        """The present L and R, with their loss."""
        B = np.tril(self.left @ self.right.T, -self.h) + self.near
        C = scipy.linalg.solve_triangular(B, self.A, lower=True)
        # Largest column norm of C, multi-epoch paper Sec. 2, times ||B||_F^2.
        loss = np.einsum("ij,ij->j", C, C).max() * np.einsum("ij,ij->", B, B)
        return _Iterate(self.left, self.right, loss)


register(
    Family(
        mechanism=LowRankMechanism,
        fit=fit_low_rank,
        label="Banded plus low rank",
        color="#96965a",
        max_iterations=50,
        proves_gap=True,
        help={
            "bands": "diagonals of the decoder, by default half of log2(rounds)",
            "rank": "rank of the rest, by default half of log2(rounds)",
        },
    )
)
