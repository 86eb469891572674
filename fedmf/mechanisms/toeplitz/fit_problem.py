"""What a Toeplitz encoder costs as a function of its coefficients, for fits; and powers of series,
where these start.

And banded inverses optimised for a workload: the few coefficients of N = C^-1 (BandInvMF, Kalinin,
McKenna, Upadhyay and Lampert 2025).
"""

import numpy as np

from fedmf.mechanisms.fitting.descent import Descent, descend
from fedmf.mechanisms.fitting.progress import Stopping
from fedmf.mechanisms.toeplitz.mechanism import inverse_series
from fedmf.participation.schema import Participation

# The first rounds are followed until the response is within this share
# of the constant it settles at.
_SETTLED = 1e-7
# A response that grows so much beyond its first rounds is unstable.
_UNSTABLE = 1e12


def power_series(polynomial: np.ndarray, exponent: float, count: int) -> np.ndarray:
    """The first `count` coefficients of p(x)^exponent, divided by p(0)^exponent; float64 (count,).

    f = p^e solves p f' = e p' f, whose coefficients obey t p_0 f_t = sum over j of (e j - (t - j))
    p_j f_(t-j) (J. C. P. Miller's recurrence).

    >>> power_series(np.array([1.0, -1.0]), -0.5, 4)
    array([1.    , 0.5   , 0.375 , 0.3125])
    """
    p = polynomial / polynomial[0]
    if len(p) <= 2:
        lags = np.arange(1, count)
        ratios = (exponent - (lags - 1)) / lags * (p[1] if len(p) == 2 else 0.0)
        return np.concatenate([[1.0], np.cumprod(ratios)])
    f = [1.0]
    terms = list(enumerate(p.tolist()))[1:]
    for t in range(1, count):
        f.append(
            sum((exponent * j - (t - j)) * weight * f[t - j] for j, weight in terms if j <= t) / t
        )
    return np.array(f)


class ToeplitzProblem:
    """Squared sensitivity times squared error, as a function of what is free in c.

    The loss does not change with the scale of c. The variables are the steps down, c_t - c_(t+1) >=
    0, if `decreasing`; otherwise c_1, c_2, ... with c_0 = 1.
    """

    def __init__(
        self,
        inverse: np.ndarray,
        participation: Participation,
        bands: int,
        objective: str,
        decreasing: bool,
    ) -> None:
        n = participation.rounds
        self.bands = bands
        self.inverse = inverse
        self.n = n
        self.b = participation.min_sep
        self.k = participation.max_participations
        # Whether columns of one client have rows in common: then only a decreasing c has
        # a known sensitivity.
        self.overlapping = self.k > 1 and bands > self.b
        self.decreasing = decreasing
        # Round t of the noise is in n - t rounds' totals, in sum, and once in the last round's,
        # which is the largest.
        self.weights = np.arange(n, 0, -1.0) if objective == "mean" else np.ones(n)
        self.horizon = min(n, 16 * (bands + len(inverse)))

    def start(self) -> np.ndarray:
        """The square root of the workload."""
        c = power_series(self.inverse, -0.5, self.bands)
        if self.decreasing:
            c = np.maximum.accumulate(np.abs(c)[::-1])[::-1]
            return -np.diff(c, append=0.0)
        return c[1:]

    def coefficients(self, point: np.ndarray) -> tuple[np.ndarray, float]:
        """c with c_0 = 1, and what it was divided by."""
        if not self.decreasing:
            return np.concatenate([[1.0], point]), 1.0
        c = np.cumsum(point[::-1])[::-1]
        return (c / c[0], float(c[0])) if c[0] > 0.0 else (np.full_like(c, np.nan), 1.0)

    def log_loss(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """The logarithm of the loss, infinite where N grows without end, and its gradient."""
        c, scale = self.coefficients(point)
        if not np.isfinite(c).all():
            return np.inf, point
        # A far step can overflow; the descent steps back from what is not finite
        with np.errstate(all="ignore"):
            squared, of_squared = self.squared_sensitivity(c)
            error, of_error = self._squared_error(c)
            gradient = of_squared / squared + of_error / error
            value = np.log(squared) + np.log(error)
        return value, np.cumsum(gradient) / scale if self.decreasing else gradient[1:]

    def squared_sensitivity(self, c: np.ndarray) -> tuple[float, np.ndarray]:
        """As in `fedmf.sensitivity`, and its gradient."""
        n = self.n
        b = self.b
        k = self.k
        if not self.overlapping:  # each coefficient in as many columns as have a row for it
            times = (
                np.minimum(k, -(-(n - np.arange(self.bands)) // b))
                if k > 1
                else np.ones(self.bands)
            )
            return times @ (c * c), 2.0 * times * c
        length = min(n, (k - 1) * b + self.bands)
        rows = np.zeros((-(-length // b), b))
        rows.ravel()[: self.bands] = c

        def sums_of_k(rows: np.ndarray) -> np.ndarray:
            sums = np.cumsum(rows, axis=0)
            sums[k:] -= sums[:-k].copy()
            return sums

        total = sums_of_k(rows)
        total.ravel()[length:] = 0.0
        gradient = sums_of_k(total[::-1])[::-1].ravel()[: self.bands]
        return np.vdot(total, total), 2.0 * gradient

    def _squared_error(self, c: np.ndarray) -> tuple[float, np.ndarray]:
        """The weighted sum of e_t^2 for A N = e(x) = a(x) / c(x), and its gradient.

        e settles: at a constant for prefix sums and momentum. It is followed until it has, and held
        from there on, so that a million rounds cost no more than the first thousands.
        """
        import scipy.signal

        denominator = np.convolve(self.inverse, c)
        while True:
            T = self.horizon
            e = inverse_series(denominator, T)
            if not np.abs(e).max() <= _UNSTABLE * np.abs(e[: self.bands]).max():
                return np.inf, c  # a zero of c inside the unit circle: N grows without end
            last = e[-max(T // 4, 1) :]
            settled = np.abs(last - e[-1]).max() <= _SETTLED * max(
                np.abs(e[-1]), _SETTLED * np.abs(e).max()
            )
            if settled or self.n == T:
                break
            self.horizon = min(2 * T, self.n)
        weights = self.weights[:T].copy()
        weights[-1] += self.weights[T:].sum()
        weighted = weights * e
        # d e(x) = -(e(x) / c(x)) d c(x)
        response = scipy.signal.lfilter([1.0], c, e)
        gradient = np.array([weighted[j:] @ response[: T - j] for j in range(min(self.bands, T))])
        return weighted @ e, -2.0 * np.pad(gradient, (0, self.bands - len(gradient)))


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
            value = np.log(squared) + np.log(error)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return np.inf, point
        return value, gradient[1:]

    def _squared_sensitivity(self, c: np.ndarray) -> tuple[float, np.ndarray]:
        """As in `fedmf.sensitivity`, and its gradient."""
        if not self.repeats or not np.isfinite(c).all():
            return c @ c, 2.0 * c
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
        return weighted @ e, 2.0 * _backwards(self.inverse, weighted)[: len(r)]


def _backwards(polynomial: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The adjoint of the division of a series by the polynomial."""
    import scipy.signal

    return scipy.signal.lfilter([1.0], polynomial, values[::-1])[::-1]
