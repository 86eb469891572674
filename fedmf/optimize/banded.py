"""The best banded encoder with equal column norms, by L-BFGS with a dual certificate (banded paper, Problem 2)."""

import time
import warnings
from collections.abc import Callable

import numpy as np
import scipy.linalg
import scipy.optimize

from fedmf.mechanisms.banded import BandedMechanism, diagonals_of
from fedmf.mechanisms.certificate import Certificate
from fedmf.optimize.certificate import certify, dual_bound

Progress = Callable[[int, float, float | None], None]

# A certificate costs several steps: it is computed at this step and then at geometrically growing ones.
_FIRST_CHECK, _CHECK_GROWTH = 8, 1.3


class _Finished(Exception):
    """Raised out of the optimiser's callback, the only way to stop scipy's L-BFGS from outside."""


def fit_banded(
    A: np.ndarray, bands: int, *, tolerance: float, max_iterations: int, progress: Progress | None
) -> BandedMechanism:
    """Minimises ||A C^-1||_F^2 over lower-triangular C with `bands` bands and columns of norm 1.

    Banded paper, Sec. 4, Problem 2: with X = C^T C this is convex, so that L-BFGS cannot end in a poor local optimum. The
    variables are the ratios of the entries of each column of C to its diagonal entry, which keeps every step feasible.

    Args:
      A: workload, (n, n) lower-triangular.
      bands: in 1..n.
      tolerance: relative gap at which to stop.
      max_iterations: steps after which to stop anyway, with a RuntimeWarning.
      progress: called with (step, loss, gap or None).
    """
    began = time.perf_counter()
    problem = _Problem(A, bands)
    ratios = problem.start()
    best = _Best(problem, began, tolerance, progress)
    if ratios.size:  # one band has no free entries: C = I
        scale, _ = problem.loss_and_gradient(ratios)

        def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
            # Scaled to start at n, the order at which L-BFGS's first, unit-length step is a sensible one.
            loss, gradient = problem.loss_and_gradient(x)
            return loss / scale * problem.n, gradient * (problem.n / scale)

        try:
            scipy.optimize.minimize(
                objective,
                ratios,
                jac=True,
                method="L-BFGS-B",
                callback=best.step,
                options={"maxiter": max_iterations, "maxfun": 10**9, "maxcor": 10, "ftol": 0.0, "gtol": 0.0},
            )
        except _Finished:
            pass
    certificate = best.finish(ratios)
    if certificate.gap > tolerance:
        warnings.warn(
            f"the banded fit stopped after {certificate.iterations} steps at a gap of {certificate.gap:.2g}, above "
            f"tolerance={tolerance:g}: raise max_iterations={max_iterations} or tolerance",
            RuntimeWarning,
            stacklevel=3,
        )
    return BandedMechanism(diagonals=best.diagonals, certificate=certificate)


class _Problem:
    """The loss as a function of the free entries of C, and its dual bound."""

    def __init__(self, A: np.ndarray, bands: int) -> None:
        self.A, self.n, self.bands = A, A.shape[0], bands
        # Free entries, in the order of the variables: below the diagonal and inside the band.
        self.rows, self.columns = np.nonzero(np.tri(self.n, k=-1, dtype=bool) & ~np.tri(self.n, k=-bands, dtype=bool))

    def start(self) -> np.ndarray:
        """The truncated coefficients of (1 - x)^(-1/2), the best Toeplitz encoder of prefix sums as n grows (FACTS.md)."""
        lags = np.arange(1, self.bands)
        coefficients = np.concatenate([[1.0], np.cumprod((2 * lags - 1) / (2 * lags))])
        return coefficients[self.rows - self.columns]

    def encoder(self, ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """C, (n, n) with columns of norm 1, and the norms divided by."""
        C = np.eye(self.n)
        C[self.rows, self.columns] = ratios
        norms = np.sqrt(np.einsum("ij,ij->j", C, C))
        C /= norms
        return C, norms

    def decoder(self, C: np.ndarray) -> np.ndarray:
        """B = A C^-1."""
        return scipy.linalg.blas.dtrsm(1.0, C.T, self.A.T, lower=False).T

    def loss_and_gradient(self, ratios: np.ndarray) -> tuple[float, np.ndarray]:
        """||A C^-1||_F^2 and its gradient with respect to the ratios."""
        C, norms = self.encoder(ratios)
        B = self.decoder(C)
        # d||B||^2 = -2 <B, B dC C^-1>, so the gradient with respect to C is -2 B^T B C^-T.
        BtBCt = scipy.linalg.blas.dtrsm(1.0, C, B.T @ B, side=1, lower=True, trans_a=True)
        gradient = -2.0 * BtBCt[self.rows, self.columns]
        # Through the division by the norms: the part along each column drops out.
        entries = C[self.rows, self.columns]
        along = np.bincount(self.columns, gradient * entries, minlength=self.n)
        along -= 2.0 * np.diagonal(BtBCt) * np.diagonal(C)
        gradient -= along[self.columns] * entries
        return float(np.einsum("ij,ij->", B, B)), gradient / norms[self.columns]

    def lower_bound(self, C: np.ndarray) -> float:
        """A dual bound on the loss of every encoder with this many bands and unit columns (0 if U is not positive definite).

        At the optimum M = X^-1 A^T A X^-1 vanishes inside the band, off the diagonal. U is M with those entries set to zero.
        """
        B = self.decoder(C)
        inner = scipy.linalg.blas.dtrsm(1.0, C, B.T, lower=True)  # C^-1 B^T
        M = inner @ inner.T
        U = M.copy()
        U[self.rows, self.columns] = 0.0
        U[self.columns, self.rows] = 0.0
        bound = dual_bound(self.A, U)
        if bound is None:
            # Far from the optimum U can be indefinite; its diagonal alone is a valid, weaker choice.
            bound = dual_bound(self.A, np.diag(np.diagonal(M)))
        return bound or 0.0


class _Best:
    """Keeps count of steps, decides when to certify, and holds the result."""

    def __init__(self, problem: _Problem, began: float, tolerance: float, progress: Progress | None) -> None:
        self.problem, self.began, self.tolerance, self.progress = problem, began, tolerance, progress
        self.iterations = 0
        self.next_check = _FIRST_CHECK
        self.certificate: Certificate | None = None
        self.certified_at = -1
        self.latest: np.ndarray | None = None
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
            loss = self.certificate.loss if gap is not None and self.certificate else self.problem.loss_and_gradient(ratios)[0]
            self.progress(self.iterations, loss, gap)
        if gap is not None and gap <= self.tolerance:
            raise _Finished

    def finish(self, start: np.ndarray) -> Certificate:
        """The certificate of the last step."""
        if self.certificate is None or self.certified_at != self.iterations:
            self._certify(start if self.latest is None else self.latest)
        assert self.certificate is not None
        return self.certificate

    def _certify(self, ratios: np.ndarray) -> Certificate:
        C, _ = self.problem.encoder(ratios)
        loss = float(np.square(self.problem.decoder(C)).sum())
        bound = self.problem.lower_bound(C)
        if self.certificate is not None:
            bound = max(bound, self.certificate.lower_bound)  # bounds hold for every encoder of the family
        seconds = time.perf_counter() - self.began
        self.certificate = certify(loss, bound, self.iterations, seconds)
        self.certified_at = self.iterations
        self.diagonals = diagonals_of(C, self.problem.bands)
        return self.certificate
