"""The ascent of a dense dual problem, and the best feasible encoder met on the way."""

import contextlib

import numpy as np
import scipy.linalg

from fedmf.mechanisms.dense.classes import Blocks
from fedmf.mechanisms.dense.dual import Dual
from fedmf.mechanisms.fitting.progress import Stopping, raise_if_interruptible

# A feasible encoder costs as much as one to thirty steps. It is made where the bound has nearly stopped rising and, in any case,
# after this many times as many steps as the last time.
_FIRST_CHECK, _CHECK_GROWTH = 10, 1.5


class _Finished(Exception):
    """Raised out of the optimiser's callback, the only way to stop scipy's L-BFGS from outside."""


class Ascent:
    """Maximises a dual bound until the best feasible encoder is within tolerance of it.

    Attributes:
      encoder: C of the smallest loss so far, lower-triangular, X = C^T C feasible.
      loss: ||A C^-1||_F^2 of it.
      bound: the largest bound so far where an encoder was made, from eigenvalues.
      variables: those of `bound`.
      iterations: steps so far.
      interrupted: whether Ctrl-C ended the ascent.
    """

    def __init__(self, dual: Dual, A: np.ndarray, stopping: Stopping) -> None:
        self.dual, self.A, self.stopping = dual, A, stopping
        self.encoder, self.loss, self.bound = np.empty((0, 0)), np.inf, 0.0
        self.variables: Blocks = dual.start()
        self.iterations, self.interrupted = 0, False
        self._evaluated = self._reached = self.variables
        # The best diagonal X: feasible from the start, and the optimum where every round is of one class.
        diagonal = dual.scaled(np.diag(np.sqrt(np.diagonal(dual.gram))))
        self._compare(lower_factor(dual.classes.in_time_order(diagonal)))
        self._latest_bound, self._checked_at, self._small_rise = 0.0, 0, stopping.tolerance

    def run(self) -> None:
        """Iterates; the first Ctrl-C ends it, with a feasible encoder in any case."""
        try:
            with contextlib.suppress(_Finished):
                x = self.variables
                for _ in range(self.dual.turns):
                    x = self.dual.turn(x, self._evaluate(x)[2])
                    self._step()
                self._quasi_newton(x)
                # A line search found no better point. If rounding in the resolvents was why, eigendecompositions go on.
                if self.dual.resolvents is not None:
                    self.dual.resolvents = None
                    self._quasi_newton(self._reached)
                self._check_again()
        except KeyboardInterrupt:
            raise_if_interruptible()
            self.interrupted = True
            if self.bound == 0.0:
                self._check_again()

    def _evaluate(self, variables: Blocks) -> tuple[float, Blocks, Blocks]:
        self._evaluated = variables
        return self.dual.evaluate(variables)

    def _quasi_newton(self, start: Blocks) -> None:
        # Imported here because it is slow to import, and `fedmf --help` must not wait for it.
        from scipy import optimize as scipy_optimize

        # In units in which one turn is a unit step down the gradient of -log bound: H -> (budget / T) X H.
        unit = np.sqrt(self.dual.factored(start)[1] / 2.0)
        shapes = [block.shape for block in start]
        ends = np.cumsum([block.size for block in start])[:-1]

        def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
            variables = [part.reshape(shape) * unit for part, shape in zip(np.split(x, ends), shapes, strict=True)]
            value, gradient, _ = self._evaluate(variables)
            return value, np.concatenate([part.ravel() for part in gradient]) * unit

        scipy_optimize.minimize(
            objective,
            np.concatenate([block.ravel() for block in start]) / unit,
            jac=True,
            method="L-BFGS-B",
            callback=lambda _: self._step(),
            options={"maxiter": self.stopping.max_iterations, "maxfun": 10**9, "maxcor": 20, "ftol": 0.0, "gtol": 0.0},
        )

    def _step(self) -> None:
        """After each step: the last evaluation is at the point it reached."""
        self.iterations += 1
        self._reached = self._evaluated
        rise = 1.0 - self._latest_bound / self.dual.bound
        self._latest_bound = self.dual.bound
        gap = None
        if (
            rise <= self._small_rise
            or self.iterations >= max(_FIRST_CHECK, _CHECK_GROWTH * self._checked_at)
            or self.iterations >= self.stopping.max_iterations
        ):
            gap = self._check()
            # Bound and loss close in at about the same rate.
            self._small_rise = min(self._small_rise, rise) * min(1.0, self.stopping.tolerance / max(gap, 1e-300))
        if self.stopping.progress is not None:
            self.stopping.progress(self.iterations, self.loss, gap)
        if self.iterations >= self.stopping.max_iterations or (gap is not None and gap <= self.stopping.tolerance):
            raise _Finished

    def _check_again(self) -> None:
        """At the last step's point: a line search may have left it."""
        self._evaluate(self._reached)
        self._check()

    def _check(self) -> float:
        """Makes feasible encoders from the last evaluation; the gap of the best so far."""
        self._checked_at = self.iterations
        X = self.dual.gram_matrix()
        if self.dual.bound > self.bound:
            self.bound, self.variables = self.dual.bound, self._evaluated
        for candidate in self.dual.candidates(X):
            self._compare(lower_factor(self.dual.classes.in_time_order(candidate)))
        return max(self.loss / self.bound - 1.0, 0.0)

    def _compare(self, C: np.ndarray | None) -> None:
        if C is not None:
            loss = float(np.square(decoder(self.A, C)).sum())
            if loss < self.loss:
                self.loss, self.encoder = loss, C


def decoder(A: np.ndarray, C: np.ndarray) -> np.ndarray:
    """B = A C^-1."""
    return np.asarray(scipy.linalg.blas.dtrsm(1.0, C.T, A.T, lower=False).T)


def lower_factor(X: np.ndarray) -> np.ndarray | None:
    """The lower-triangular C with C^T C = X; None for an indefinite X.

    An ordinary Cholesky factor L has L L^T = X, and its rows would have the norms that the columns must have. Flipping X,
    factorising, transposing and flipping back gives the factor on the other side (banded paper, Prop. 4.1).
    """
    factor, info = scipy.linalg.lapack.dpotrf(X[::-1, ::-1], lower=True, clean=True)
    return np.ascontiguousarray(factor.T[::-1, ::-1]) if info == 0 else None
