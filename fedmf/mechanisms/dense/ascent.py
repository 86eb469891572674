"""The maximisation of a lower bound on the loss, which is a dual problem of
`fedmf.mechanisms.dense.dual`. On its way it keeps the best feasible encoder.
"""

from collections.abc import Iterator

import numpy as np

from fedmf.mechanisms.dense.classes import Blocks
from fedmf.mechanisms.dense.dual import PairsDual, decoder, lower_factor
from fedmf.mechanisms.fitting.descent import minimise
from fedmf.mechanisms.fitting.progress import Stopping, raise_if_interruptible

# Computing a feasible encoder takes as long as 1 to 30 steps. A new one is computed when the bound
# rises slowly, or when the number of steps has grown by _CHECK_GROWTH since the last one and is at
# least _FIRST_CHECK.
_FIRST_CHECK = 10
_CHECK_GROWTH = 1.5
# Number of steps of alternating optimisation before L-BFGS, which works best near the optimum.
_NUM_ALTERNATIONS = 3


class Ascent:
    """The maximisation of a dual bound, which ends when the loss of the best feasible encoder is
    within the tolerance of the bound.

    Attributes:
      encoder: C of the smallest loss so far, lower-triangular, with feasible X = C^T C.
      loss: ||A C^-1||_F^2 of `encoder`.
      bound: the largest bound so far among the steps that computed an encoder, from eigenvalues.
      variables: the variables of `bound`.
      iterations: steps so far.
      interrupted: whether Ctrl-C ended the ascent.
    """

    def __init__(self, dual: PairsDual, A: np.ndarray, stopping: Stopping) -> None:
        self.dual = dual
        self.A = A
        self.stopping = stopping
        self.encoder = np.empty((0, 0))
        self.loss = np.inf
        self.bound = 0.0
        self.variables: Blocks = dual.start()
        self.iterations = 0
        self.interrupted = False
        self._current = self.variables
        # The best diagonal gram matrix X gives a feasible encoder from the start. If all rounds are
        # of one class, this encoder is the optimum.
        diagonal_gram = dual.scale_to_feasible(np.diag(np.sqrt(np.diagonal(dual.gram))))
        self._keep_if_better(lower_factor(dual.classes.in_time_order(diagonal_gram)))
        self._latest_bound = 0.0
        self._last_check = 0
        self._small_rise = stopping.tolerance

    def run(self) -> None:
        """Maximises the bound until the gap between the best loss and the bound is within the
        tolerance. At the first Ctrl-C it ends with a feasible encoder.
        """
        try:
            if any(self._end_step() for _ in self._steps()):
                return
        except KeyboardInterrupt:
            raise_if_interruptible()
            self.interrupted = True
            if self.bound > 0.0:
                return
        # The line search may have evaluated the dual function last at a point that is not the
        # current one.
        self.dual.evaluate(self._current)
        self._update_encoder()

    def _steps(self) -> Iterator[None]:
        """Takes a few steps of alternating optimisation and then L-BFGS steps, and yields after
        each step. The last evaluation of the dual is then at `_current`.
        """
        for _ in range(_NUM_ALTERNATIONS):
            G = self.dual.evaluate(self._current)[2]
            yield
            self._current = self.dual.alternate(self._current, G)
        yield from self._quasi_newton_steps()
        # The line search has found no better point. The reason may be rounding in the fast
        # evaluation by resolvents, so the ascent continues with eigendecompositions.
        if self.dual.resolvents is not None:
            self.dual.resolvents = None
            yield from self._quasi_newton_steps()

    def _quasi_newton_steps(self) -> Iterator[None]:
        """Takes steps of the quasi-Newton method L-BFGS, which maximises the bound. The unit of its
        variables is such that one alternation, H -> (budget / T) X H, would be a step of about
        length 1 down the gradient of -log(bound).
        """
        gradient = self.dual.evaluate(self._current)[1]
        gradient_norm = np.sqrt(sum(np.vdot(g, g) for g in gradient))
        step_unit = self.dual.factorize(self._current)[1] / 2.0 * gradient_norm
        block_shapes = [block.shape for block in self._current]
        block_ends = np.cumsum([block.size for block in self._current])[:-1]

        def to_blocks(x: np.ndarray) -> Blocks:
            return [
                values.reshape(shape) * step_unit
                for values, shape in zip(np.split(x, block_ends), block_shapes, strict=True)
            ]

        def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient, _ = self.dual.evaluate(to_blocks(x))
            return value, np.concatenate([block.ravel() for block in gradient]) * step_unit

        start_point = np.concatenate([block.ravel() for block in self._current]) / step_unit
        for x, _ in minimise(objective, start_point):
            self._current = to_blocks(x)
            yield

    def _end_step(self) -> bool:
        """Counts a step, computes an encoder if one is due, and returns whether to stop."""
        self.iterations += 1
        bound_rise = 1.0 - self._latest_bound / self.dual.bound
        self._latest_bound = self.dual.bound
        is_last = self.iterations >= self.stopping.max_iterations
        next_check = max(_FIRST_CHECK, _CHECK_GROWTH * self._last_check)
        current_gap = None
        if bound_rise <= self._small_rise or self.iterations >= next_check or is_last:
            current_gap = self._update_encoder()
            # The bound's rise per step is assumed to shrink by the same factor as the gap. The next
            # encoder is computed when the rise has shrunk as much as the gap must shrink to reach
            # the tolerance.
            gap_ratio = min(1.0, self.stopping.tolerance / max(current_gap, 1e-300))
            self._small_rise = min(self._small_rise, bound_rise) * gap_ratio
        if self.stopping.progress is not None:
            self.stopping.progress(self.iterations, self.loss, current_gap)
        return is_last or (current_gap is not None and current_gap <= self.stopping.tolerance)

    def _update_encoder(self) -> float:
        """Computes feasible encoders from the last evaluation, and returns the gap between the best
        loss so far and the largest bound.
        """
        self._last_check = self.iterations
        X = self.dual.gram_matrix()
        if self.dual.bound > self.bound:
            self.bound = self.dual.bound
            self.variables = self._current
        for candidate in self.dual.feasible_candidates(X):
            self._keep_if_better(lower_factor(self.dual.classes.in_time_order(candidate)))
        return max(self.loss / self.bound - 1.0, 0.0)

    def _keep_if_better(self, C: np.ndarray | None) -> None:
        """Makes the encoder C the result if its loss is the smallest so far. If C is None, it is
        ignored.
        """
        if C is None:
            return
        loss = np.square(decoder(self.A, C)).sum()
        if loss < self.loss:
            self.loss = loss
            self.encoder = C
