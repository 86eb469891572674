"""Banded inverses optimised for a workload: the few coefficients of N = C^-1 (BandInvMF, Kalinin,
McKenna, Upadhyay and Lampert 2025).
"""

import numpy as np

from fedmf.mechanisms.fitting.descent import Descent, descend
from fedmf.mechanisms.fitting.progress import Stopping
from fedmf.mechanisms.toeplitz.fit_problem import ToeplitzProblem
from fedmf.mechanisms.toeplitz.mechanism import inverse_series
from fedmf.participation.schema import Participation

# Descents, each from where the one before ended: the loss has kinks, at which the memory of a
# descent misleads it.
_DESCENTS = 3


def optimized_inverse(
    inverse: np.ndarray,
    participation: Participation,
    start: np.ndarray,
    objective: str,
    stopping: Stopping,
) -> tuple[np.ndarray, Descent]:
    """The window r of N with r_0 = 1 and the smallest loss or largest error, as many entries as
    `start`, and how the descent ended.

    Args:
      inverse: the coefficients of 1 / a(x), a(x) the workload.
      participation: whose sensitivity counts, as `fedmf.sensitivity` bounds it.
      start: the banded inverse square root.
      objective: "mean" or "max".
      stopping: of the whole fit.
    """
    problem = InverseProblem(inverse, participation, objective)
    best = descend(problem.log_loss, start[1:] / start[0], stopping)
    for _ in range(_DESCENTS - 1):
        if best.interrupted or best.iterations >= stopping.max_iterations:
            break
        best = best.then(descend(problem.log_loss, best.point, stopping.after(best.iterations)))
    return np.concatenate([[1.0], best.point]), best


class InverseProblem:
    """Squared sensitivity times squared error, as a function of r_1, r_2, ... with r_0 = 1.

    c(x) = 1 / r(x) need not stay non-negative and non-increasing. Under several participations what
    counts is then the sensitivity of the smallest non-increasing sequence above |c|, as
    `fedmf.sensitivity` takes it: an upper bound.
    """

    def __init__(self, inverse: np.ndarray, participation: Participation, objective: str) -> None:
        self.n = participation.rounds
        self.inverse = inverse
        self.repeats = participation.max_participations > 1
        # Sensitivities of a C of all bands, and the weights of the rounds' errors.
        self.of_encoder = ToeplitzProblem(
            inverse, participation, self.n, objective, decreasing=True
        )

    def log_loss(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """The logarithm of the loss and its gradient; infinite where C grows beyond float64."""
        r = np.concatenate([[1.0], point])
        # A far step can overflow; the descent steps back from what is not finite
        with np.errstate(all="ignore"):
            c = inverse_series(r, self.n)
            squared, of_squared = self._squared_sensitivity(c)
            error, of_error = self._squared_error(r)
            # d c(x) = -d r(x) / r(x)^2
            through = _backwards(r, _backwards(r, of_squared))[: len(r)]
            gradient = of_error / error - through / squared
            value = float(np.log(squared) + np.log(error))
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return np.inf, point
        return value, gradient[1:]

    def _squared_sensitivity(self, c: np.ndarray) -> tuple[float, np.ndarray]:
        """As in `fedmf.sensitivity`, and its gradient."""
        if not self.repeats or not np.isfinite(c).all():
            return float(c @ c), 2.0 * c
        magnitudes = np.abs(c)
        above = np.maximum.accumulate(magnitudes[::-1])[::-1]
        squared, of_above = self.of_encoder.squared_sensitivity(above)
        # Each entry of `above` is the next |c_s| that reaches it.
        reached = np.flatnonzero(magnitudes == above)
        source = reached[np.searchsorted(reached, np.arange(self.n))]
        return squared, np.bincount(source, of_above, minlength=self.n) * np.sign(c)

    def _squared_error(self, r: np.ndarray) -> tuple[float, np.ndarray]:
        """The weighted sum of e_t^2 for A N = e(x) = a(x) r(x), and its gradient."""
        import scipy.signal

        e = scipy.signal.lfilter([1.0], self.inverse, np.pad(r, (0, self.n - len(r))))
        weighted = self.of_encoder.weights * e
        return float(weighted @ e), 2.0 * _backwards(self.inverse, weighted)[: len(r)]


def _backwards(polynomial: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The adjoint of the division of a series by the polynomial."""
    import scipy.signal

    return np.asarray(scipy.signal.lfilter([1.0], polynomial, values[::-1])[::-1])
