"""The ascent of a dense dual problem, and the best feasible encoder met on the way."""

from collections.abc import Iterator

import numpy as np
import scipy.linalg

from fedmf.mechanisms.dense.classes import Blocks
from fedmf.mechanisms.dense.dual import PairsDual
from fedmf.mechanisms.fitting.lbfgs import minimise
from fedmf.mechanisms.fitting.progress import Stopping, raise_if_interruptible

# A feasible encoder costs as much as one to thirty steps. It is made where the bound has nearly
# stopped rising and, in any case, after this many times as many steps as the last time.
_FIRST_CHECK, _CHECK_GROWTH = 10, 1.5
# Turns that are worth making before L-BFGS, which is best near the optimum.
_TURNS = 3


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

    def __init__(self, dual: PairsDual, A: np.ndarray, stopping: Stopping) -> None:
        self.dual, self.A, self.stopping = dual, A, stopping
        self.encoder, self.loss, self.bound = np.empty((0, 0)), np.inf, 0.0
        self.variables: Blocks = dual.start()
        self.iterations, self.interrupted = 0, False
        self._reached = self.variables
        # The best diagonal X: feasible from the start, and the optimum where every round
        # is of one class.
        diagonal = dual.scaled(np.diag(np.sqrt(np.diagonal(dual.gram))))
        self._compare(lower_factor(dual.classes.in_time_order(diagonal)))
        self._latest_bound, self._checked_at, self._small_rise = 0.0, 0, stopping.tolerance

    def run(self) -> None:
        """Iterates; the first Ctrl-C ends it, with a feasible encoder in any case."""
        try:
            if any(self._finished() for _ in self._steps()):
                return
        except KeyboardInterrupt:
            raise_if_interruptible()
            self.interrupted = True
            if self.bound > 0.0:
                return
        self.dual.evaluate(self._reached)  # a line search may have left it
        self._check()

    def _steps(self) -> Iterator[None]:
        """Turns, and then L-BFGS; after each step the dual's last evaluation is at `_reached`."""
        for _ in range(_TURNS):
            of_factor = self.dual.evaluate(self._reached)[2]
            yield
            self._reached = self.dual.turn(self._reached, of_factor)
        yield from self._quasi_newton()
        # A line search found no better point. If rounding in the resolvents was why,
        # eigendecompositions go on.
        if self.dual.resolvents is not None:
            self.dual.resolvents = None
            yield from self._quasi_newton()

    def _quasi_newton(self) -> Iterator[None]:
        # In units in which one turn, H -> (budget / T) X H, is a step of about unit length down the
        # gradient of -log bound.
        gradient = self.dual.evaluate(self._reached)[1]
        unit = (
            self.dual.factored(self._reached)[1]
            / 2.0
            * np.sqrt(sum(float(np.vdot(g, g)) for g in gradient))
        )
        shapes = [block.shape for block in self._reached]
        ends = np.cumsum([block.size for block in self._reached])[:-1]

        def blocks(x: np.ndarray) -> Blocks:
            return [
                part.reshape(shape) * unit
                for part, shape in zip(np.split(x, ends), shapes, strict=True)
            ]

        def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient, _ = self.dual.evaluate(blocks(x))
            return value, np.concatenate([part.ravel() for part in gradient]) * unit

        for x, _ in minimise(
            objective, np.concatenate([block.ravel() for block in self._reached]) / unit
        ):
            self._reached = blocks(x)
            yield

    def _finished(self) -> bool:
        """After each step: counts it, makes an encoder where that pays, and says whether to end."""
        self.iterations += 1
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
            self._small_rise = min(self._small_rise, rise) * min(
                1.0, self.stopping.tolerance / max(gap, 1e-300)
            )
        if self.stopping.progress is not None:
            self.stopping.progress(self.iterations, self.loss, gap)
        return self.iterations >= self.stopping.max_iterations or (
            gap is not None and gap <= self.stopping.tolerance
        )

    def _check(self) -> float:
        """Makes feasible encoders from the last evaluation; the gap of the best so far."""
        self._checked_at = self.iterations
        X = self.dual.gram_matrix()
        if self.dual.bound > self.bound:
            self.bound, self.variables = self.dual.bound, self._reached
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

    An ordinary Cholesky factor L has L L^T = X, and its rows would have the norms that the columns
    must have. Flipping X, factorising, transposing and flipping back gives the factor on the other
    side (banded paper, Prop. 4.1).
    """
    factor, info = scipy.linalg.lapack.dpotrf(X[::-1, ::-1], lower=True, clean=True)
    return np.ascontiguousarray(factor.T[::-1, ::-1]) if info == 0 else None
