"""The best banded encoder with equal column norms, by L-BFGS with a dual certificate (banded paper, Problem 2)."""

import contextlib
import time

import numpy as np
import scipy.linalg

from fedmf import _checks
from fedmf.mechanisms.banded import BandedMechanism, diagonals_of
from fedmf.mechanisms.certificate import Certificate
from fedmf.optimize.certificate import certify, dual_bound
from fedmf.optimize.progress import Progress, check_common, warn_stopped_short
from fedmf.participation import Participation
from fedmf.workloads import Workload

# A certificate costs several steps: it is computed at this step and then at geometrically growing ones.
_FIRST_CHECK, _CHECK_GROWTH = 16, 1.4
# Blocks smaller than this cost more in calls than they save in arithmetic.
_SMALLEST_BLOCK = 64


class _Finished(Exception):
    """Raised out of the optimiser's callback, the only way to stop scipy's L-BFGS from outside."""


def fit_banded(
    workload: Workload,
    participation: Participation,
    *,
    bands: int | None = None,
    equal_norms: bool = True,
    tolerance: float = 1e-3,
    max_iterations: int = 1000,
    progress: Progress | None = None,
) -> BandedMechanism:
    """Minimises ||A C^-1||_F^2 over lower-triangular C with `bands` bands and columns of norm 1.

    Banded paper, Sec. 4, Problem 2: with X = C^T C this is convex, so that L-BFGS cannot end in a poor local optimum.
    The variables are the ratios of the entries of each column of C to its diagonal entry, which keeps every step
    feasible. Arguments and errors as `fedmf.fit`.
    """
    check_common(tolerance, max_iterations, progress)
    bands = _checks.integer(
        "bands",
        participation.min_sep if bands is None else bands,
        low=1,
        high=workload.rounds,
        way_out="it counts diagonals of the encoder, best at most min_sep",
    )
    if equal_norms is not True:
        raise ValueError(f"equal_norms={equal_norms!r} is not supported: leave it at True, the banded paper's default")
    A = workload.matrix
    # Imported here because it is slow to import, and `fedmf --help` must not wait for it.
    from scipy import optimize as scipy_optimize

    began = time.perf_counter()
    problem = _Problem(A, bands)
    ratios = problem.start()
    best = _Best(problem, began, tolerance, progress)
    if ratios.size:  # one band has no free entries: C = I
        scale, _ = problem.loss_and_gradient(ratios)

        def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
            # Scaled to start at n, the order at which L-BFGS's first, unit-length step is a sensible one.
            loss, gradient = problem.loss_and_gradient(x)
            best.latest_loss = loss
            return loss / scale * problem.n, gradient * (problem.n / scale)

        with contextlib.suppress(_Finished):
            scipy_optimize.minimize(
                objective,
                ratios.ravel(),
                jac=True,
                method="L-BFGS-B",
                callback=best.step,
                options={"maxiter": max_iterations, "maxfun": 10**9, "maxcor": 10, "ftol": 0.0, "gtol": 0.0},
            )
    certificate = best.finish(ratios)
    if certificate.gap > tolerance:
        warn_stopped_short(
            "banded",
            iterations=certificate.iterations,
            gap=certificate.gap,
            tolerance=tolerance,
            max_iterations=max_iterations,
        )
    return BandedMechanism(diagonals=best.diagonals, certificate=certificate)


class _Problem:
    """The loss as a function of the free entries of C, and its dual bound.

    The variables are ratios[j, o - 1] = C[j + o, j] / C[j, j] for the offsets o = 1..bands - 1; those below the last
    row are 0, have gradient 0, and so stay 0. Matrices are cut into blocks of at least bands - 1 rounds: then C has
    blocks on its diagonal and right below it only, and loss and gradient cost O(n^2 bands).
    """

    def __init__(self, A: np.ndarray, bands: int) -> None:
        self.A, self.n, self.bands = A, A.shape[0], bands
        size = max(bands - 1, _SMALLEST_BLOCK)
        self.blocks = [slice(first, min(first + size, self.n)) for first in range(0, self.n, size)]
        offsets, columns = np.arange(bands), np.arange(self.n)
        self.inside = columns[:, None] + offsets < self.n

    def start(self) -> np.ndarray:
        """The truncated coefficients of (1 - x)^(-1/2), whose square is the prefix sums; (n, bands - 1)."""
        lags = np.arange(1, self.bands)
        return np.where(self.inside[:, 1:], np.cumprod((2 * lags - 1) / (2 * lags)), 0.0)

    def columns(self, ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """C's columns from the diagonal down, (n, bands), scaled to norm 1, and what they were divided by, (n, 1)."""
        columns = np.concatenate([np.ones((self.n, 1)), ratios.reshape(self.n, self.bands - 1)], axis=1)
        norms = np.sqrt(np.einsum("ij,ij->i", columns, columns))[:, None]
        return columns / norms, norms

    def encoder(self, ratios: np.ndarray) -> np.ndarray:
        """C, (n, n)."""
        C, band = self._with_band_view()
        band[:] = self.columns(ratios)[0]
        return C

    def decoder(self, C: np.ndarray) -> np.ndarray:
        """B = A C^-1, lower-triangular: B C = A, solved from the last block of columns back."""
        B = np.zeros((self.n, self.n))
        for place in reversed(range(len(self.blocks))):
            block = self.blocks[place]
            right = self.A[block.start :, block].copy(order="F")
            if place + 1 < len(self.blocks):
                after = self.blocks[place + 1]
                right[after.start - block.start :] -= B[after.start :, after] @ C[after, block]
            B[block.start :, block] = scipy.linalg.blas.dtrsm(
                1.0, C[block, block], right, side=1, lower=1, overwrite_b=1
            )
        return B

    def loss_and_gradient(self, ratios: np.ndarray) -> tuple[float, np.ndarray]:
        """||A C^-1||_F^2 and its gradient with respect to the ratios, flattened."""
        columns, norms = self.columns(ratios)
        C, band = self._with_band_view()
        band[:] = columns
        B = self.decoder(C)
        # d||B||^2 = -2 <B, B dC C^-1>: the gradient with respect to C is -2 B^T W^T with W = C^-1 B^T. Its entries
        # inside the band need W on and right of the diagonal blocks only, solved from the first block of rows on.
        G, gradient_band = self._with_band_view()
        before, W_before = self.blocks[0], np.empty((0, 0))
        for block in self.blocks:
            Bt = B[block.start :, block].T
            right = Bt.copy(order="F")
            if block is not before:
                W_before = W_before[:, block.start - before.start :]
                right -= C[block, before] @ W_before
                G[block, before] = Bt @ W_before.T
            W = scipy.linalg.blas.dtrsm(1.0, C[block, block], right, lower=1, overwrite_b=1)
            G[block, block] = Bt @ W.T
            W_before, before = W, block
        gradient = -2.0 * np.where(self.inside, gradient_band, 0.0)
        # Through the division by the norms: the part along each column drops out.
        gradient -= columns * np.einsum("ij,ij->i", gradient, columns)[:, None]
        gradient /= norms
        return float(np.einsum("ij,ij->", B, B)), np.ascontiguousarray(gradient[:, 1:]).ravel()

    def lower_bound(self, C: np.ndarray, B: np.ndarray) -> float:
        """A dual bound on the loss of every encoder with this many bands and unit columns.

        At the optimum M = X^-1 A^T A X^-1 vanishes inside the band, off the diagonal: there the derivative of the
        loss along the free entries of X, -M, is zero. U is M with those entries set to zero.
        """
        W = scipy.linalg.blas.dtrsm(1.0, C, B.T, lower=1)  # C^-1 B^T
        M = W @ W.T
        diagonal = np.diag(np.diagonal(M))
        rest = M - diagonal
        within = np.tri(self.n, k=self.bands - 1, dtype=bool)
        rest[within & within.T] = 0.0
        # Far from the optimum U can be indefinite: then keep as much of its outer part as leaves it positive definite.
        for share in (1.0, 0.9, 0.5, 0.0):
            bound = dual_bound(self.A, diagonal + share * rest)
            if bound is not None:
                return bound
        raise ValueError("workload is too ill-conditioned to certify a fit in float64: rescale its rows")

    def _with_band_view(self) -> tuple[np.ndarray, np.ndarray]:
        """A zero (n, n) matrix in Fortran order, and a view of its band: [j, o] is [j + o, j], or padding."""
        padded = np.zeros((self.n, self.n + self.bands))  # row j holds column j, so that the view's rows are contiguous
        across, along = padded.strides
        view = np.lib.stride_tricks.as_strided(padded, (self.n, self.bands), (across + along, along))
        return padded.T[: self.n], view


class _Best:
    """Keeps count of steps, decides when to certify, and holds the result."""

    def __init__(self, problem: _Problem, began: float, tolerance: float, progress: Progress | None) -> None:
        self.problem, self.began, self.tolerance, self.progress = problem, began, tolerance, progress
        self.iterations = 0
        self.next_check = _FIRST_CHECK
        self.certificate: Certificate | None = None
        self.certified_at = -1
        self.latest: np.ndarray | None = None
        self.latest_loss = np.inf
        self.diagonals = np.empty((0, 0))

    def step(self, ratios: np.ndarray) -> None:
        """scipy's callback after each step."""
        self.iterations += 1
        self.latest = ratios.copy()
        gap = None
        if self.iterations >= self.next_check:
            self.next_check = int(np.ceil(self.iterations * _CHECK_GROWTH))
            gap = self._certify(ratios).gap
        if self.progress is not None:
            # The optimiser reports a step right after it evaluated the loss there.
            self.progress(self.iterations, self.latest_loss, gap)
        if gap is not None and gap <= self.tolerance:
            raise _Finished

    def finish(self, start: np.ndarray) -> Certificate:
        """The certificate of the last step."""
        if self.certificate is None or self.certified_at != self.iterations:
            self._certify(start if self.latest is None else self.latest)
        assert self.certificate is not None
        return self.certificate

    def _certify(self, ratios: np.ndarray) -> Certificate:
        C = self.problem.encoder(ratios)
        B = self.problem.decoder(C)
        loss = float(np.einsum("ij,ij->", B, B))
        bound = self.problem.lower_bound(C, B)
        if self.certificate is not None:
            bound = max(bound, self.certificate.lower_bound)  # bounds hold for every encoder of the family
        seconds = time.perf_counter() - self.began
        self.certificate = certify(loss, bound, self.iterations, seconds)
        self.certified_at = self.iterations
        self.diagonals = diagonals_of(C, self.problem.bands)
        return self.certificate
