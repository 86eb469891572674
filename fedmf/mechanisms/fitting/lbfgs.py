"""Limited-memory BFGS as an iterator of steps, so that the caller decides when to stop and keeps
the last one.
"""

import collections
from collections.abc import Callable, Iterator

import numpy as np
import scipy.linalg

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
        slope = -float(direction @ gradient)
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
        s, y = ahead - x, gradient_ahead - gradient
        curvature = float(s @ y)
        if curvature > 1e-14 * float(np.linalg.norm(s) * np.linalg.norm(y)):
            pairs.append((s, y, curvature))
        x, value, gradient = ahead, value_ahead, gradient_ahead
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
        norm = float(np.linalg.norm(q))
        return q / norm if norm > 0.0 else q
    shares = []
    for s, y, curvature in reversed(pairs):
        shares.append(float(s @ q) / curvature)
        q = axpy(y, q, a=-shares[-1])
    _, y, curvature = pairs[-1]
    q *= curvature / float(y @ y)
    for (s, y, curvature), share in zip(pairs, reversed(shares), strict=True):
        q = axpy(s, q, a=share - float(y @ q) / curvature)
    return q
