"""The descent of fits that have few variables: L-BFGS on the logarithm of a loss, until it no
longer pays.

And limited-memory BFGS as an iterator of steps, so that the caller decides when to stop and keeps
the last one.
"""

import collections
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import scipy.linalg

from fedmf.mechanisms.fitting.progress import Stopping, raise_if_interruptible

# Converged when this many steps together lowered the loss by less than the tolerance.
_WINDOW_STEPS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Descent:
    """Where a descent ended: the best point, its loss, the steps and the seconds taken,
    and why it ended.
    """

    point: np.ndarray
    loss: float
    iterations: int
    seconds: float
    converged: bool
    interrupted: bool

    def then(self, later: "Descent") -> "Descent":
        """This descent and one after it, as one that ends where the later one did."""
        steps = self.iterations + later.iterations
        seconds = self.seconds + later.seconds
        return dataclasses.replace(later, iterations=steps, seconds=seconds)


class _Finished(Exception):
    """Raised out of the optimiser's callback, the only way to stop scipy's L-BFGS from outside."""


def descend(
    log_loss: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    stopping: Stopping,
    bounds: Sequence[tuple[float | None, float | None]] | None = None,
) -> Descent:
    """Lowers exp(log_loss) from `start` within `bounds`, and keeps the best point, also when Ctrl-C
    ends it.

    Args:
      log_loss: point (v,) -> logarithm of the loss and its gradient (v,).
      start: (v,); v = 0 is converged at once.
      stopping: the descent has converged when ten steps together lower the loss by less than the
        share tolerance.
      bounds: a pair for each variable, None where it has none.

    >>> descent = descend(
    ...     lambda x: (float(x @ x), 2 * x), np.ones(2), Stopping(tolerance=1e-9, max_iterations=99)
    ... )
    >>> descent.converged, round(descent.loss, 9)
    (True, 1.0)
    """
    # Imported here because it is slow to import, and `fedmf --help` must not wait for it.
    from scipy import optimize as scipy_optimize

    began = time.perf_counter()
    best_point = start
    best = log_loss(start)[0]
    iterations = 0
    losses = [best]

    def evaluate(point: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best_point, best
        value, gradient = log_loss(point)
        if not np.isfinite(value):
            # Outside of what float64 can tell: the line search steps back
            return 1e10, np.zeros_like(point)
        if value < best:
            best_point = point.copy()
            best = value
        return value, gradient

    def step(_: np.ndarray) -> None:
        nonlocal iterations
        iterations += 1
        losses.append(best)
        if stopping.progress is not None:
            stopping.progress(iterations, np.exp(best), None)
        if (
            len(losses) > _WINDOW_STEPS
            and losses[-1 - _WINDOW_STEPS] - losses[-1] < stopping.tolerance
        ):
            raise _Finished

    converged = True
    interrupted = False
    try:
        if len(start):
            scipy_optimize.minimize(
                evaluate,
                start,
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                callback=step,
                options={
                    "maxiter": stopping.max_iterations,
                    "maxfun": 10**9,
                    "maxcor": 20,
                    "ftol": 0.0,
                    "gtol": 0.0,
                },
            )
        converged = iterations < stopping.max_iterations  # otherwise no lower point on the line
    except _Finished:
        pass
    except KeyboardInterrupt:
        raise_if_interruptible()
        converged = False
        interrupted = True
    return Descent(
        point=best_point,
        loss=float(np.exp(best)),
        iterations=iterations,
        seconds=time.perf_counter() - began,
        converged=converged,
        interrupted=interrupted,
    )


Function = Callable[[np.ndarray], tuple[float, np.ndarray]]

# Armijo's condition: the share of the predicted decrease that a step must keep.
_DECREASE = 1e-4
_MIN_STEP = 1e-12
# Vectors kept, and the number of variables beyond which only half as many fit
# comfortably in memory.
_MEMORY, _MAX_VARIABLES = 20, 1_500_000


def minimise(function: Function, start: np.ndarray) -> Iterator[tuple[np.ndarray, float]]:
    """Yields (x, value) after each step downhill from `start`;
    ends where rounding leaves no way down.

    Values strictly decrease. A `function` may return an infinite value or NaN where it is not
    defined: the step is shortened.

    Args:
      function: x (size,) -> value and gradient (size,).
      start: (size,), where the value is finite.

    >>> *_, (x, value) = minimise(lambda x: (float(x @ x) + 1.0, 2.0 * x), np.array([3.0, 4.0]))
    >>> abs(value - 1.0) < 1e-12
    True
    """
    x = start
    value, gradient = function(x)
    memory = _MEMORY if x.size <= _MAX_VARIABLES else _MEMORY // 2
    pairs: collections.deque[tuple[np.ndarray, np.ndarray, float]] = collections.deque(
        maxlen=memory
    )
    while True:
        direction = _two_loops(gradient, pairs)
        slope = -(direction @ gradient)
        if not slope < 0.0:
            return
        length = 1.0
        while True:
            ahead = x - length * direction
            value_ahead, gradient_ahead = function(ahead)
            if value_ahead < value and value_ahead <= value + _DECREASE * length * slope:
                break
            # The minimum of the parabola through the known values, clipped; NaN and infinity
            # shorten tenfold.
            excess = value_ahead - value - length * slope
            parabola = -length * slope / (2.0 * excess) if 0.0 < excess < np.inf else 0.1
            length *= min(max(parabola, 0.1), 0.5)
            if length < _MIN_STEP:
                break
        if length < _MIN_STEP:
            if not pairs:
                return
            pairs.clear()  # once more along the gradient, before giving up
            continue
        s = ahead - x
        y = gradient_ahead - gradient
        curvature = s @ y
        if curvature > 1e-14 * (np.linalg.norm(s) * np.linalg.norm(y)):
            pairs.append((s, y, curvature))
        x = ahead
        value = value_ahead
        gradient = gradient_ahead
        yield x, value


def _two_loops(
    gradient: np.ndarray, pairs: collections.deque[tuple[np.ndarray, np.ndarray, float]]
) -> np.ndarray:
    """The inverse Hessian of the pairs times the gradient (Nocedal and Wright, Alg. 7.4); unit
    length without pairs.
    """
    axpy = scipy.linalg.blas.daxpy  # in place, without temporaries
    q = gradient.copy()
    if not pairs:
        norm = np.linalg.norm(q)
        return q / norm if norm > 0.0 else q
    shares = []
    for s, y, curvature in reversed(pairs):
        shares.append(s @ q / curvature)
        q = axpy(y, q, a=-shares[-1])
    _, y, curvature = pairs[-1]
    q *= curvature / (y @ y)
    for (s, y, curvature), share in zip(pairs, reversed(shares), strict=True):
        q = axpy(s, q, a=share - y @ q / curvature)
    return q
