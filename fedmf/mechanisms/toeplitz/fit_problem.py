"""The losses of Toeplitz encoders as functions of their free coefficients, which the fits minimise.

`ToeplitzProblem` varies the coefficients of C, and `InverseProblem` the few coefficients of a
banded N = C^-1 (BandInvMF, Kalinin, McKenna, Upadhyay and Lampert 2025). Fits start from powers of
power series.
"""

import numpy as np

from fedmf.mechanisms.fitting.descent import Descent, descend
from fedmf.mechanisms.fitting.progress import Stopping
from fedmf.mechanisms.toeplitz.mechanism import inverse_series
from fedmf.participation.schema import Participation

# The coefficients of a(x) / c(x), the quotient of the workload's and the encoder's generating
# functions, converge. Rounds are added to the computation until they are within this relative
# distance of the limit.
_SETTLED = 1e-7
# The error response a(x) / c(x) counts as unstable if a coefficient exceeds the largest of the
# first coefficients by this factor.
_UNSTABLE = 1e12


def power_series(polynomial: np.ndarray, exponent: float, count: int) -> np.ndarray:
    """Returns the first `count` coefficients of the power series (p(x) / p(0))^exponent, float64
    (count,).

    f = p^e solves p f' = e p' f, so that its coefficients satisfy t p_0 f_t = sum over j of (e j -
    (t - j)) p_j f_(t-j) (J. C. P. Miller's recurrence).

    >>> power_series(np.array([1.0, -1.0]), -0.5, 4)
    array([1.    , 0.5   , 0.375 , 0.3125])
    """
    normalised_polynomial = polynomial / polynomial[0]
    if len(normalised_polynomial) <= 2:
        lags = np.arange(1, count)
        linear_coefficient = 0.0
        if len(normalised_polynomial) == 2:
            linear_coefficient = normalised_polynomial[1]
        coefficient_ratios = (exponent - (lags - 1)) / lags * linear_coefficient
        return np.concatenate([[1.0], np.cumprod(coefficient_ratios)])
    series = [1.0]
    p_terms = list(enumerate(normalised_polynomial.tolist()))[1:]
    for t in range(1, count):
        weighted_terms = [
            (exponent * j - (t - j)) * p_j * series[t - j] for j, p_j in p_terms if j <= t
        ]
        series.append(sum(weighted_terms) / t)
    return np.array(series)


class ToeplitzProblem:
    """The loss of a Toeplitz encoder C, its squared sensitivity times its squared error, as a
    function of its free coefficients.

    The loss does not depend on the scale of c. If `decreasing`, the variables are the decreases c_t
    - c_(t+1) >= 0; otherwise they are c_1, c_2, ... with c_0 = 1.
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
        # The sensitivity depends on the sum of the encoder's columns for the rounds of one client.
        # If these columns have rows in common, the sensitivity is known for decreasing coefficients
        # c only.
        self.overlapping = self.k > 1 and bands > self.b
        self.decreasing = decreasing
        # The squared error of round t is the sum of the squares of entries 0..t of the error
        # response. So entry t counts n - t times in the total over all rounds, and once in the
        # error of the last round, which is the largest.
        self.weights = np.ones(n)
        if objective == "mean":
            self.weights = np.arange(n, 0, -1.0)
        self.horizon = min(n, 16 * (bands + len(inverse)))

    def start(self) -> np.ndarray:
        """Returns the values of the variables at which the descent starts. Their coefficients are
        those of the square root of the workload.
        """
        c = power_series(self.inverse, -0.5, self.bands)
        if self.decreasing:
            c = np.maximum.accumulate(np.abs(c)[::-1])[::-1]
            return -np.diff(c, append=0.0)
        return c[1:]

    def coefficients(self, point: np.ndarray) -> tuple[np.ndarray, float]:
        """Returns the coefficients c of the encoder, divided by the first one, c_0, and then c_0
        itself.
        """
        if not self.decreasing:
            return np.concatenate([[1.0], point]), 1.0
        c = np.cumsum(point[::-1])[::-1]
        if c[0] > 0.0:
            return c / c[0], float(c[0])
        return np.full_like(c, np.nan), 1.0

    def log_loss(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the logarithm of the loss and its gradient. The logarithm is infinite if the
        noise matrix N = C^-1 grows without bound.
        """
        c, scale = self.coefficients(point)
        if not np.isfinite(c).all():
            return np.inf, point
        # A long step can overflow. The loss is then infinite, and the descent shortens the step.
        with np.errstate(all="ignore"):
            squared_sensitivity, sensitivity_gradient = self.squared_sensitivity(c)
            squared_error, error_gradient = self._squared_error(c)
            gradient = sensitivity_gradient / squared_sensitivity + error_gradient / squared_error
            log_value = np.log(squared_sensitivity) + np.log(squared_error)
        if self.decreasing:
            return log_value, np.cumsum(gradient) / scale
        return log_value, gradient[1:]

    def squared_sensitivity(self, c: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the squared sensitivity of the coefficients c, as `fedmf.sensitivity` computes
        it, and its gradient.
        """
        n = self.n
        b = self.b
        k = self.k
        if not self.overlapping:
            # The encoder's columns for one client begin in rows 0, b, 2b and so on, where b is the
            # separation. Coefficient t occurs in each of the k columns that has more than t
            # entries.
            num_columns = np.ones(self.bands)
            if k > 1:
                num_columns = np.minimum(k, -(-(n - np.arange(self.bands)) // b))
            return num_columns @ (c * c), 2.0 * num_columns * c
        num_entries = min(n, (k - 1) * b + self.bands)
        rows = np.zeros((-(-num_entries // b), b))
        rows.ravel()[: self.bands] = c

        def sum_last_k(rows: np.ndarray) -> np.ndarray:
            cumulative_rows = np.cumsum(rows, axis=0)
            cumulative_rows[k:] -= cumulative_rows[:-k].copy()
            return cumulative_rows

        column_sum = sum_last_k(rows)
        column_sum.ravel()[num_entries:] = 0.0
        gradient = sum_last_k(column_sum[::-1])[::-1].ravel()[: self.bands]
        return np.vdot(column_sum, column_sum), 2.0 * gradient

    def _squared_error(self, c: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the squared error, a weighted sum of squares of the error response e, and its
        gradient. The error response is the first column of A N, where A is the workload and N the
        noise matrix. Its generating function is e(x) = a(x) / c(x).

        For prefix sums and momentum e converges to a constant. It is computed until it has settled,
        and constant from there on, so that a million rounds cost no more than the first thousands.
        """
        import scipy.signal

        denominator = np.convolve(self.inverse, c)
        while True:
            num_computed = self.horizon
            e = inverse_series(denominator, num_computed)
            if not np.abs(e).max() <= _UNSTABLE * np.abs(e[: self.bands]).max():
                # If c(x), the generating function of the encoder, has a zero inside the unit
                # circle, the noise matrix grows without bound.
                return np.inf, c
            last_quarter = e[-max(num_computed // 4, 1) :]
            settled_scale = max(np.abs(e[-1]), _SETTLED * np.abs(e).max())
            has_settled = np.abs(last_quarter - e[-1]).max() <= _SETTLED * settled_scale
            if has_settled or self.n == num_computed:
                break
            self.horizon = min(2 * num_computed, self.n)
        round_weights = self.weights[:num_computed].copy()
        round_weights[-1] += self.weights[num_computed:].sum()
        weighted_e = round_weights * e
        # The gradient follows from the derivative of e(x) = a(x) / c(x), d e(x) = -(e(x) / c(x)) d
        # c(x).
        gradient_response = scipy.signal.lfilter([1.0], c, e)
        gradient = np.array(
            [
                weighted_e[j:] @ gradient_response[: num_computed - j]
                for j in range(min(self.bands, num_computed))
            ]
        )
        return weighted_e @ e, -2.0 * np.pad(gradient, (0, self.bands - len(gradient)))


# Number of descents, each of which starts where the previous one ended. At kinks of the loss, the
# gradients that L-BFGS has stored mislead it, and a new descent discards them.
_NUM_DESCENTS = 3


def optimized_inverse(
    inverse: np.ndarray,
    participation: Participation,
    start: np.ndarray,
    objective: str,
    stopping: Stopping,
) -> tuple[np.ndarray, Descent]:
    """Returns the coefficients of the best banded Toeplitz noise matrix, and the descent that found
    them. The best one minimises the loss or the error of the worst round, as `objective` says. The
    coefficients r have r_0 = 1 and as many entries as `start`.

    Args:
      inverse: the coefficients of 1 / a(x), a(x) being the workload.
      participation: the participation of the sensitivity, as `fedmf.sensitivity` bounds it.
      start: the banded inverse square root.
      objective: "mean" or "max".
      stopping: the stopping rule of the whole fit.
    """
    inverse_problem = InverseProblem(inverse, participation, objective)
    descent = descend(inverse_problem.log_loss, start[1:] / start[0], stopping)
    for _ in range(_NUM_DESCENTS - 1):
        if descent.interrupted or descent.iterations >= stopping.max_iterations:
            break
        next_descent = descend(
            inverse_problem.log_loss, descent.point, stopping.after(descent.iterations)
        )
        descent = descent.then(next_descent)
    return np.concatenate([[1.0], descent.point]), descent


class InverseProblem:
    """The loss of a Toeplitz mechanism, its squared sensitivity times its squared error, as a
    function of the coefficients r of a banded noise matrix N with r_0 = 1.

    c(x) = 1 / r(x) need not be non-negative and non-increasing. Under several participations the
    objective therefore takes the sensitivity of the smallest non-increasing sequence above |c|, an
    upper bound that `fedmf.sensitivity` takes too.
    """

    def __init__(self, inverse: np.ndarray, participation: Participation, objective: str) -> None:
        self.n = participation.rounds
        self.inverse = inverse
        self.repeats = participation.max_participations > 1
        # The problem of an encoder with all bands, whose sensitivity and error weights are used
        # here too.
        self.encoder_problem = ToeplitzProblem(
            inverse, participation, self.n, objective, decreasing=True
        )

    def log_loss(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the logarithm of the loss and its gradient. The logarithm is infinite if the
        encoder C grows beyond the range of float64.
        """
        r = np.concatenate([[1.0], point])
        # A long step can overflow. The loss is then infinite, and the descent shortens the step.
        with np.errstate(all="ignore"):
            c = inverse_series(r, self.n)
            squared_sensitivity, c_gradient = self._squared_sensitivity(c)
            squared_error, error_gradient = self._squared_error(r)
            # The gradient follows from the derivative of c(x) = 1 / r(x), d c(x) = -d r(x) /
            # r(x)^2.
            r_gradient = _divide_adjoint(r, _divide_adjoint(r, c_gradient))[: len(r)]
            gradient = error_gradient / squared_error - r_gradient / squared_sensitivity
            log_value = np.log(squared_sensitivity) + np.log(squared_error)
        if not (np.isfinite(log_value) and np.isfinite(gradient).all()):
            return np.inf, point
        return log_value, gradient[1:]

    def _squared_sensitivity(self, c: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns an upper bound on the squared sensitivity of the coefficients c, as
        `fedmf.sensitivity` computes it, and the bound's gradient.
        """
        if not self.repeats or not np.isfinite(c).all():
            return c @ c, 2.0 * c
        magnitudes = np.abs(c)
        envelope = np.maximum.accumulate(magnitudes[::-1])[::-1]
        squared, envelope_gradient = self.encoder_problem.squared_sensitivity(envelope)
        # Entry t of the envelope is the largest |c_s| over all s >= t. The gradient is passed to
        # the first such s at which the maximum is reached.
        peaks = np.flatnonzero(magnitudes == envelope)
        peak_of_entry = peaks[np.searchsorted(peaks, np.arange(self.n))]
        gradient = np.bincount(peak_of_entry, envelope_gradient, minlength=self.n) * np.sign(c)
        return squared, gradient

    def _squared_error(self, r: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the squared error, a weighted sum of squares of the error response e, and its
        gradient. The error response is the first column of A N, where A is the workload and N the
        noise matrix. Its generating function is e(x) = a(x) r(x).
        """
        import scipy.signal

        e = scipy.signal.lfilter([1.0], self.inverse, np.pad(r, (0, self.n - len(r))))
        weighted_e = self.encoder_problem.weights * e
        return weighted_e @ e, 2.0 * _divide_adjoint(self.inverse, weighted_e)[: len(r)]


def _divide_adjoint(polynomial: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Applies the adjoint of the linear map that divides a power series by `polynomial` to
    `values`.
    """
    import scipy.signal

    return scipy.signal.lfilter([1.0], polynomial, values[::-1])[::-1]
