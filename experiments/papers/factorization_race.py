"""Three published ways to the optimal factorisation for a single participation, each as (seconds,
loss) after every step.

Seconds are of processor time, which a busy machine does not change.

Denisov et al. 2022, App. E.4, compares them in Figure 4. They start from X(1), the matrix of Eq. 6
at v = 1, with a diagonal of ones. Losses are those of C with columns of norm 1, and so what a
mechanism would have. The clock stops while a loss is only reported.
"""

import time
from collections.abc import Callable, Iterator

import numpy as np
import scipy.linalg

Step = tuple[float, float]  # seconds, loss


class _Clock:
    """Seconds since it was made, without those spent in `paused`."""

    def __init__(self) -> None:
        self.began, self.away = time.process_time(), 0.0

    def step(self, loss: Callable[[], float]) -> Step:
        now = time.process_time()
        seconds, value = now - self.began - self.away, loss()
        self.away += time.process_time() - now
        return seconds, value


def geometric_mean(gram: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """X(v) and phi(v), Eqs. 6 and 5: with R = sqrt(diag(v)^(1/2) gram diag(v)^(1/2)), R scaled
    back, and R's diagonal.
    """
    root = np.sqrt(v)
    values, vectors = np.linalg.eigh(root[:, None] * gram * root)
    R = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return R / np.outer(root, root), np.diagonal(R).copy()


def normalized(X: np.ndarray) -> np.ndarray:
    """X with a diagonal of ones: C with columns of norm 1."""
    norms = np.sqrt(np.diagonal(X))
    return X / np.outer(norms, norms)


def loss_of(gram: np.ndarray, X: np.ndarray) -> float:
    """tr(gram X^-1), Eq. 4."""
    return float(np.trace(scipy.linalg.cho_solve(scipy.linalg.cho_factor(X), gram)))


def fixed_point(gram: np.ndarray) -> Iterator[Step]:
    """Iterates v <- phi(v) (Thm. 3.2)."""
    clock, v = _Clock(), np.ones(len(gram))
    while True:
        X, v = geometric_mean(gram, v)
        yield clock.step(lambda X=X: loss_of(gram, normalized(X)))  # type: ignore[misc]


def descent(gram: np.ndarray, *, newton: bool) -> Iterator[Step]:
    """Gradient steps, or Newton directions by conjugate gradients (Yuan et al. 2016, Alg. 1), with
    Armijo's rule.

    A step is halved until the Cholesky factorisation exists and the loss falls by a hundredth of
    what the slope promises. The diagonal of X stays 1.
    """
    clock, X = _Clock(), normalized(geometric_mean(gram, np.ones(len(gram)))[0])
    loss, size = loss_of(gram, X), 1.0
    yield clock.step(lambda: loss)
    while True:
        inverse = scipy.linalg.inv(X)
        pull = inverse @ gram @ inverse
        # Rounding leaves it a little asymmetric, and steps would multiply that.
        pull = (pull + pull.T) / 2
        gradient = -pull
        np.fill_diagonal(gradient, 0.0)
        direction = _newton(inverse, pull, gradient) if newton else -gradient
        slope = float(np.vdot(gradient, direction))
        size = 1.0 if newton else 2.0 * size
        while True:
            candidate = X + size * direction
            try:
                value = loss_of(gram, candidate)
            except np.linalg.LinAlgError:
                value = np.inf
            if value <= loss + 0.01 * size * slope:
                break
            size /= 2.0
            if size < 1e-18:
                return
        X, loss = candidate, value
        yield clock.step(lambda loss=loss: loss)  # type: ignore[misc]


def _newton(
    inverse: np.ndarray, pull: np.ndarray, gradient: np.ndarray, steps: int = 5
) -> np.ndarray:
    """Solves H D = -gradient off the diagonal, H D = inverse D pull + pull D inverse, by a few
    conjugate gradients.
    """
    D, residual = np.zeros_like(gradient), -gradient
    along, square = residual, float(np.vdot(residual, residual))
    for _ in range(steps):
        half = inverse @ along @ pull
        H = half + half.T
        np.fill_diagonal(H, 0.0)
        share = square / float(np.vdot(along, H))
        D, residual = D + share * along, residual - share * H
        fresh = float(np.vdot(residual, residual))
        if fresh < 1e-20 * float(np.vdot(gradient, gradient)):
            break
        along, square = residual + fresh / square * along, fresh
    return D
