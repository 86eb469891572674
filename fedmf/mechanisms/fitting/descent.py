"""The two L-BFGS methods that fits use. One lowers the logarithm of a loss until it converges, and
the second is an iterator over the steps of a minimisation.

`descend` lowers a loss of few variables by scipy's L-BFGS until its steps gain too little.
`minimise` yields the steps of a limited-memory BFGS, so that the caller decides when to stop.
"""

import collections
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import scipy.linalg

from fedmf.mechanisms.fitting.progress import Stopping, raise_if_interruptible

# A descent has converged when this many steps together lower the loss by less than the tolerance.
_WINDOW_STEPS = 10

# The type of a function that takes a point, an array (v,), and returns its value and its gradient,
# an array (v,).
Function = Callable[[np.ndarray], tuple[float, np.ndarray]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Descent:
    """The result of a descent, with the best point and its loss, the number of steps and seconds,
    and whether it converged or was interrupted.
    """

    point: np.ndarray
    loss: float
    iterations: int
    seconds: float
    converged: bool
    interrupted: bool

    def then(self, later: "Descent") -> "Descent":
        """Combines this descent with a later one that continues it. The result ends where the later
        one does, and adds up the steps and seconds.
        """
        iterations = self.iterations + later.iterations
        seconds = self.seconds + later.seconds
        return dataclasses.replace(later, iterations=iterations, seconds=seconds)


class _Finished(Exception):
    """The exception that the optimiser's callback raises to stop scipy's L-BFGS, which cannot be
    stopped in another way.
    """


class _Objective:
    """The objective of a descent, which records the best point and the best value after
    each step.
    """

    def __init__(self, log_loss: Function, start: np.ndarray, stopping: Stopping) -> None:
        self.log_loss = log_loss
        self.stopping = stopping
        self.best_point = start
        self.best_value = log_loss(start)[0]
        self.step_values = [self.best_value]

    @property
    def iterations(self) -> int:
        """The number of steps that the descent has taken so far."""
        return len(self.step_values) - 1

    def evaluate(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the logarithm of the loss at `point`, and its gradient."""
        value, gradient = self.log_loss(point)
        if not np.isfinite(value):
            # A point beyond the range of float64 gets a large value, so that the line search takes
            # a shorter step.
            return 1e10, np.zeros_like(point)
        if value < self.best_value:
            self.best_point = point.copy()
            self.best_value = value
        return value, gradient

    def end_step(self, _: np.ndarray) -> None:
        """Records a step, and raises _Finished if the last ten steps together have gained too
        little.
        """
        self.step_values.append(self.best_value)
        if self.stopping.progress is not None:
            self.stopping.progress(self.iterations, np.exp(self.best_value), None)
        if self.iterations < _WINDOW_STEPS:
            return
        window_gain = self.step_values[-1 - _WINDOW_STEPS] - self.step_values[-1]
        if window_gain < self.stopping.tolerance:
            raise _Finished


def descend(
    log_loss: Function,
    start: np.ndarray,
    stopping: Stopping,
    bounds: Sequence[tuple[float | None, float | None]] | None = None,
) -> Descent:
    """Lowers exp(log_loss) from `start` within `bounds`, and returns the best point. If Ctrl-C
    interrupts it, it also returns the best point so far.

    Args:
      log_loss: point (v,) -> logarithm of the loss and its gradient (v,).
      start: (v,); with v = 0 the descent has converged at once.
      stopping: the descent has converged when ten steps together lower the loss by less than the
        relative tolerance.
      bounds: a pair (lower, upper) for each variable, in which None means unbounded.

    >>> descent = descend(
    ...     lambda x: (float(x @ x), 2 * x), np.ones(2), Stopping(tolerance=1e-9, max_iterations=99)
    ... )
    >>> descent.converged, round(descent.loss, 9)
    (True, 1.0)
    """
    # scipy.optimize is imported here, since importing it is slow and `fedmf --help` must not wait
    # for it.
    from scipy import optimize as scipy_optimize

    start_time = time.perf_counter()
    objective = _Objective(log_loss, start, stopping)
    has_converged = True
    was_interrupted = False
    try:
        if len(start):
            scipy_optimize.minimize(
                objective.evaluate,
                start,
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                callback=objective.end_step,
                options={
                    "maxiter": stopping.max_iterations,
                    "maxfun": 10**9,
                    "maxcor": 20,
                    "ftol": 0.0,
                    "gtol": 0.0,
                },
            )
        # If scipy's optimiser ends before max_iterations, its line search has found no lower point.
        # The descent has then converged.
        has_converged = objective.iterations < stopping.max_iterations
    except _Finished:
        pass
    except KeyboardInterrupt:
        raise_if_interruptible()
        has_converged = False
        was_interrupted = True
    return Descent(
        point=objective.best_point,
        loss=float(np.exp(objective.best_value)),
        iterations=objective.iterations,
        seconds=time.perf_counter() - start_time,
        converged=has_converged,
        interrupted=was_interrupted,
    )


# Armijo's condition requires a step to achieve at least this fraction of the predicted decrease.
_MIN_DECREASE = 1e-4
_MIN_STEP = 1e-12
# Number of corrections that L-BFGS stores. For more than _MAX_VARIABLES variables, only half of
# them fit comfortably in memory.
_MAX_CORRECTIONS = 20
_MAX_VARIABLES = 1_500_000


class _Correction(NamedTuple):
    """A step s of L-BFGS, the change y of the gradient along it, and their inner product. The
    notation is that of Nocedal and Wright, Sec. 7.2.
    """

    s: np.ndarray
    y: np.ndarray
    curvature: float


def minimise(function: Function, start: np.ndarray) -> Iterator[tuple[np.ndarray, float]]:
    """Minimises a function from `start`, and yields the point and its value after each step. It
    ends when rounding leaves no descent direction.

    The values decrease strictly. Where `function` is not defined it may return infinity or NaN,
    which shortens the step.

    Args:
      function: x (size,) -> value and gradient (size,).
      start: (size,), where the value is finite.

    >>> *_, (x, value) = minimise(lambda x: (float(x @ x) + 1.0, 2.0 * x), np.array([3.0, 4.0]))
    >>> abs(value - 1.0) < 1e-12
    True
    """
    point = start
    value, gradient = function(point)
    max_corrections = _MAX_CORRECTIONS
    if point.size > _MAX_VARIABLES:
        max_corrections = _MAX_CORRECTIONS // 2
    corrections: collections.deque[_Correction] = collections.deque(maxlen=max_corrections)
    while True:
        direction = _two_loops(gradient, corrections)
        slope = -(direction @ gradient)
        if not slope < 0.0:
            return
        step_length = 1.0
        while True:
            next_point = point - step_length * direction
            next_value, next_gradient = function(next_point)
            if next_value < value and next_value <= value + _MIN_DECREASE * step_length * slope:
                break
            # The next step length is the minimum of the parabola through the two values and the
            # slope, but at least a tenth and at most half of the last length. After a value that is
            # not finite it is a tenth.
            value_excess = next_value - value - step_length * slope
            shortening_factor = 0.1
            if 0.0 < value_excess < np.inf:
                shortening_factor = -step_length * slope / (2.0 * value_excess)
            step_length *= min(max(shortening_factor, 0.1), 0.5)
            if step_length < _MIN_STEP:
                break
        if step_length < _MIN_STEP:
            if not corrections:
                return
            # The direction of L-BFGS has led to no lower value. The stored corrections are
            # discarded, so the next direction is that of the gradient.
            corrections.clear()
            continue
        point_change = next_point - point
        gradient_change = next_gradient - gradient
        curvature = point_change @ gradient_change
        if curvature > 1e-14 * (np.linalg.norm(point_change) * np.linalg.norm(gradient_change)):
            corrections.append(_Correction(point_change, gradient_change, curvature))
        point = next_point
        value = next_value
        gradient = next_gradient
        yield point, value


def _two_loops(gradient: np.ndarray, corrections: collections.deque[_Correction]) -> np.ndarray:
    """Returns the product of L-BFGS's approximate inverse Hessian and the gradient. Without
    corrections, it returns the gradient scaled to unit length (Nocedal and Wright, Alg. 7.4).
    """
    add_scaled = scipy.linalg.blas.daxpy  # daxpy works in place, without temporary arrays.
    product_vector = gradient.copy()
    if not corrections:
        gradient_norm = np.linalg.norm(product_vector)
        if gradient_norm > 0.0:
            return product_vector / gradient_norm
        return product_vector
    multipliers = []
    for s, y, curvature in reversed(corrections):
        multiplier = s @ product_vector / curvature
        multipliers.append(multiplier)
        product_vector = add_scaled(y, product_vector, a=-multiplier)
    latest_correction = corrections[-1]
    product_vector *= latest_correction.curvature / (latest_correction.y @ latest_correction.y)
    for (s, y, curvature), multiplier in zip(corrections, reversed(multipliers), strict=True):
        product_vector = add_scaled(
            s, product_vector, a=multiplier - y @ product_vector / curvature
        )
    return product_vector
