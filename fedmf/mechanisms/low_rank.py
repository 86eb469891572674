"""The mechanism whose decoder approximates the optimal decoder by a few diagonals and a low-rank
matrix. Its source is Denisov et al. 2022, App. H.
"""

import dataclasses
import time
from typing import ClassVar, NamedTuple, final

import numpy as np
import scipy.linalg

from fedmf import checks, fields
from fedmf.mechanisms.banded.fit import diagonals_of
from fedmf.mechanisms.base import Mechanism, certify
from fedmf.mechanisms.dense.ascent import Ascent
from fedmf.mechanisms.dense.classes import Classes
from fedmf.mechanisms.dense.dual import PairsDual, decoder
from fedmf.mechanisms.family import Family, register
from fedmf.mechanisms.fitting.progress import Stopping, raise_if_interruptible
from fedmf.noise.buffers import Buffers
from fedmf.noise.stream import NoiseStream, banded_matrix, check_left_inverse, triangular_inverse
from fedmf.participation.schema import Participation
from fedmf.workloads import Workload


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LowRankMechanism(Mechanism):
    """A mechanism with the decoder B = D + (L R^T below D), where D has few diagonals and L R^T low
    rank, for a workload A. Its source is Denisov et al. 2022, App. H.

    The noising matrix is N = A^-1 B, and the encoder C = B^-1 A.

        B[t, s] = D[t, s]     for t - s < h           | d        |
                  L[t] . R[s] for t - s >= h          | d d      |     h = 2
                                                      | x d d    |     x: of rank r
                                                      | x x d d  |

    For prefix sums a noise vector is computed from h + r vectors (their Algorithm 3), and from p -
    1 more where A^-1 has p bands; where A^-1 is dense, it is computed from a row of N.

    Attributes:
      diagonals: D by rows, float64 (rounds, h), [t, j] = B[t, t - j], 0 where t < j; diagonals[:,
        0] has the signs of A's diagonal, so that the diagonal of N is positive.
      left: L, float64 (rounds, r).
      right: R, float64 (rounds, r).
      inverse_workload: A^-1 by rows, float64 (rounds, p), as in `Workload.inverse_diagonals`.

    Raises:
      TypeError, ValueError: an array is of the wrong kind or shape, not finite, or against the
        conditions above.

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
        for field_name in ("left", "right", "inverse_workload"):
            num_rows = len(getattr(self, field_name))
            if num_rows != self.rounds:
                raise ValueError(
                    f"{field_name} has {num_rows} rows and diagonals has {self.rounds}: "
                    "pass one for each round"
                )
        is_positive = self.diagonals[:, 0] * self.inverse_workload[:, 0] > 0.0
        if not is_positive.all():
            t = int(np.argmin(is_positive))
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
        """The number of rounds n."""
        return int(self.diagonals.shape[0])

    @property
    def rank(self) -> int:
        """The rank r of the part below the diagonals."""
        return int(self.left.shape[1])

    def encoder(self) -> np.ndarray:
        """Returns the encoder C = B^-1 A, where B is the decoder and A the workload. It is a
        lower-triangular float64 array of shape (rounds, rounds).

        Raises:
          ValueError: float64 has too few digits for C.
        """
        N = self.noising()
        C = triangular_inverse(N)
        check_left_inverse(N, C)
        return C

    def noising(self) -> np.ndarray:
        """Returns the noise matrix N = A^-1 B, a lower-triangular float64 array of shape (rounds,
        rounds).
        """
        n, h = self.diagonals.shape
        checks.fits_in_memory("the noising matrix of this low-rank mechanism", (n, n))
        B = np.tril(self.left @ self.right.T, -h) + banded_matrix(self.diagonals)
        P = self.inverse_workload
        if P.shape[1] == n:
            return np.tril(banded_matrix(P) @ B)
        return checks.banded_times(P, B)

    def stream(self) -> NoiseStream:
        """Returns the recipe of the noise vectors, with a window of the last h + p - 1 draws and r
        running sums, where B has h diagonals and rank r below them, and A^-1 has p bands. It is
        Alg. 3 of Denisov et al. 2022, App. H, followed by A^-1.
        """
        n, h = self.diagonals.shape
        P = self.inverse_workload
        w = min(h + P.shape[1] - 1, n)
        if w + self.rank >= n:
            return NoiseStream(rounds=n, sources=n, contraction=self.noising())
        # Let P = A^-1, so that N = P B. The first w diagonals of N depend on the first w diagonals
        # of B only. Below them, the product of N with the draws z needs only the running sum of
        # R[s] z_s.
        B_rows = np.zeros((n, w))
        B_rows[:, :h] = self.diagonals
        for i in range(h, w):
            B_rows[i:, i] = np.einsum("tr,tr->t", self.left[i:], self.right[: n - i])
        buffers = Buffers(
            window=checks.banded_product(P, B_rows)[:, :w],
            read=checks.banded_times(P, self.left),
            write=self.right,
            decay=np.ones(self.rank),
        )
        return NoiseStream(rounds=n, sources=n, buffers=buffers)


# Stopping rule of the dense fit whose optimum the low-rank mechanism approximates. Its tolerance is
# far below the loss that the approximation adds.
_OPTIMUM = Stopping(tolerance=1e-4, max_iterations=1000)
# Penalty on the sums of squares of L and R, where the product L R^T approximates the decoder B
# below its first diagonals (Denisov et al. 2022, App. H, where the diagonal of B is near 1).
_PENALTY = 1e-6
# Each sweep improves the factors L and R of the low-rank approximation. Computing their loss takes
# as long as several sweeps, so it is done only when the number of sweeps has grown by this factor.
_CHECK_GROWTH = 1.3
# The factors L and R start from the largest singular vectors of the decoder B below its diagonals.
# For more rounds than this, an iterative method computes only these vectors.
_MAX_ROUNDS_DECOMPOSED = 512


def fit_low_rank(
    workload: Workload,
    participation: Participation,
    stopping: Stopping,
    *,
    bands: int | None = None,
    rank: int | None = None,
) -> LowRankMechanism:
    """Fits a mechanism whose decoder has a few diagonals and low rank below them. It takes the
    first `bands` diagonals of the optimal decoder B, and fits a matrix L R^T of rank `rank` to the
    entries below them by alternating least squares.

    The approximated optimum is always that of a single participation: the optimum for several has
    an edge at every epoch. Denisov et al. stop when the squared difference of the two B stops
    falling; this fit returns the sweep with the smallest loss, which is an earlier one. The
    certificate compares the loss with the dual bound over all encoders, under a single
    participation. A gap above tolerance is the cost of so few bands and so small a rank, and does
    not warn.

    Args:
      workload, participation: as in `fedmf.fit`.
      bands: h, in 1..rounds; None as in Denisov's Table 2, half of log2(rounds), rounded up.
      rank: r, in 1..rounds; None means the other half, rounded down.
      stopping: tolerance is the certified gap at which to stop, max_iterations the number of sweeps
        after the steps of the dense fit.

    Raises:
      TypeError, ValueError: an option is of the wrong kind or out of range.
    """
    n = workload.rounds
    num_levels = max((n - 1).bit_length(), 2)
    if bands is None:
        bands = min(-(-num_levels // 2), n)
    if rank is None:
        rank = min(num_levels // 2, n)
    stream_cost_hint = "the stream costs a row of model size for each, a handful is enough"
    h = checks.integer("bands", bands, low=1, high=n, hint=stream_cost_hint)
    r = checks.integer("rank", rank, low=1, high=n, hint=stream_cost_hint)
    start_time = time.perf_counter()
    # The dense fit, from which the low-rank approximation starts, needs this much memory.
    checks.fits_in_memory("the fit of family='low_rank'", (n, n), copies=11)
    A = workload.matrix
    # `fit_dense` does not report whether Ctrl-C interrupted it if its gap is within the tolerance.
    # So the ascent is called directly.
    dual = PairsDual(workload, Classes(n, n))
    optimum = Ascent(dual, A, dataclasses.replace(_OPTIMUM, progress=stopping.progress))
    optimum.run()
    lower_bound = dual.certified_bound(optimum.variables)
    B = np.tril(decoder(A, optimum.encoder / np.linalg.norm(optimum.encoder, axis=0)))
    approximation = _Approximation(A, B, h, r)
    if optimum.interrupted or h == n:
        sweep_result = _SweepResult(approximation.iterate(), 0, optimum.interrupted)
    else:
        sweep_result = _run_sweeps(approximation, lower_bound, stopping, optimum.iterations)
    iterations = optimum.iterations + sweep_result.num_sweeps
    duration = time.perf_counter() - start_time
    certificate = certify(sweep_result.best.loss, lower_bound, iterations, duration)
    if sweep_result.interrupted:
        stopping.warn("low_rank", iterations=iterations, gap=certificate.gap, interrupted=True)
    inverse_workload = workload.inverse_diagonals
    if inverse_workload is None:
        inverse_workload = diagonals_of(triangular_inverse(A), n)
    return LowRankMechanism(
        diagonals=approximation.diagonals,
        left=sweep_result.best.left,
        right=sweep_result.best.right,
        inverse_workload=inverse_workload,
        certificate=certificate,
    )


@dataclasses.dataclass(frozen=True)
class _Iterate:
    """The current low-rank factors L and R, and the loss of the mechanism that they define under a
    single participation.
    """

    left: np.ndarray
    right: np.ndarray
    loss: float


class _Approximation:
    """The fit of a low-rank matrix L R^T to the entries of the decoder B below its first h
    diagonals, by alternating least squares.
    """

    def __init__(self, A: np.ndarray, B: np.ndarray, h: int, r: int) -> None:
        self.A = A
        self.h = h
        self.lower_part = np.tril(B, -h)
        self.diagonal_part = B - self.lower_part
        self.diagonals = diagonals_of(B, h)
        # The penalty is proportional to the scale of B, so that the fit does not depend on the unit
        # of A. The squared error grows with the square of this scale, but |L|^2 + |R|^2 grows
        # linearly.
        self.penalty = _PENALTY * np.abs(self.diagonals[:, 0]).mean() * np.eye(r)
        self.left, self.right = self._truncated_svd(r)

    def _truncated_svd(self, r: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the factors L and R of the best rank-r approximation of all entries of
        `lower_part`. Unlike `sweep`, it approximates the zeros on and above the diagonals too.
        """
        n = len(self.lower_part)
        if n <= _MAX_ROUNDS_DECOMPOSED or 2 * r >= n:
            U, s, Vt = scipy.linalg.svd(self.lower_part)
        else:
            from scipy.sparse.linalg import svds

            # The iterative method starts from a fixed vector, so that the fit is deterministic.
            U, s, Vt = svds(self.lower_part, r, v0=np.ones(n))
        return U[:, :r] * np.sqrt(s[:r]), Vt[:r].T * np.sqrt(s[:r])

    def sweep(self) -> None:
        """Fits each row t of the factor L by least squares over the columns s with t - s >= h, and
        then each row of the factor R in the same way.
        """
        self.left = self._fit_rows(self.right, self.lower_part)
        self.right = self._fit_rows(self.left[::-1], self.lower_part.T[::-1, ::-1])[::-1]

    def _fit_rows(self, factor: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Fits each row t of one low-rank factor by least squares, given the second factor. Its
        products with the rows up to t - h of `factor` approximate the entries up to t - h in row t
        of `targets`.
        """
        n, r = factor.shape
        row_grams = np.zeros((n, r, r))
        row_grams[self.h :] = np.cumsum(factor[:, :, None] * factor[:, None, :], axis=0)[
            : n - self.h
        ]
        return np.linalg.solve(row_grams + self.penalty, (targets @ factor)[:, :, None])[:, :, 0]

    def iterate(self) -> _Iterate:
        """Returns the current factors L and R with their loss."""
        B = np.tril(self.left @ self.right.T, -self.h) + self.diagonal_part
        C = scipy.linalg.solve_triangular(B, self.A, lower=True)
        # The loss is the squared largest column norm of the encoder C (multi-epoch paper, Sec. 2)
        # times ||B||_F^2, where B is the decoder.
        loss = np.einsum("ij,ij->j", C, C).max() * np.einsum("ij,ij->", B, B)
        return _Iterate(self.left, self.right, loss)


class _SweepResult(NamedTuple):
    """The result of alternating least squares, with the factors of the smallest loss, the number of
    sweeps, and whether Ctrl-C ended them.
    """

    best: _Iterate
    num_sweeps: int
    interrupted: bool


def _run_sweeps(
    approximation: _Approximation, lower_bound: float, stopping: Stopping, num_steps: int
) -> _SweepResult:
    """Runs sweeps until the best loss is within the tolerance of the lower bound. `progress` is
    called with step numbers that continue from `num_steps`.
    """
    best_iterate = approximation.iterate()
    num_sweeps = 0
    next_check = 1
    max_sweeps = stopping.max_iterations
    was_interrupted = False
    try:
        while num_sweeps < max_sweeps and best_iterate.loss > lower_bound * (
            1.0 + stopping.tolerance
        ):
            approximation.sweep()
            num_sweeps += 1
            gap = None
            if num_sweeps >= next_check or num_sweeps == max_sweeps:
                next_check = max(num_sweeps + 1, int(num_sweeps * _CHECK_GROWTH))
                best_iterate = min(
                    best_iterate, approximation.iterate(), key=lambda iterate: iterate.loss
                )
                gap = best_iterate.loss / lower_bound - 1.0
            if stopping.progress is not None:
                stopping.progress(num_steps + num_sweeps, best_iterate.loss, gap)
    except KeyboardInterrupt:
        raise_if_interruptible()
        was_interrupted = True
    return _SweepResult(best_iterate, num_sweeps, was_interrupted)


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
            "rank": "rank below the diagonals, by default half of log2(rounds)",
        },
    )
)
