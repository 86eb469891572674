"""The loss of a BLT encoder, and its gradient, as a function of its poles and zeros, which the fit
minimises.
"""

import itertools
from typing import NamedTuple

import numpy as np

from fedmf.participation.schema import Participation

# Step h of the complex-step derivative f(x + i h) = f(x) + i h f'(x). The derivative is exact to
# all digits, since terms in h^2 are lost in rounding.
_STEP = 1e-30
# Poles and zeros are 1 / (1 + exp(u)) for increasing numbers u. The logarithm of the difference
# between two successive numbers u lies between these bounds.
_MIN_LOG_GAP = -7.0
_MAX_LOG_GAP = 4.0
# If two poles of a workload are closer to each other than this, its generating function is not
# split into partial fractions.
_MIN_POLE_GAP = 1e-4
# A sum over rounds is exact for this many first rounds. Later rounds are split into panels
# (intervals of rounds), each twice as long as the previous one. The sum over a panel is
# approximated from the values at _NUM_NODES points in time.
_NUM_EXACT_ROUNDS = 64
_NUM_NODES = 24


class _WorkloadPole(NamedTuple):
    """A term weight / (1 - pole x) in the partial fractions of a workload's generating function."""

    pole: float
    weight: float


def positions(variables: np.ndarray) -> np.ndarray:
    """Returns the positions u of the poles and zeros 1 / (1 + exp(u)), in the order decays[0],
    inverse_decays[0], decays[1] and so on. The result is float64 (..., 2 d). The variables are the
    first u, and then the logarithms of the steps from each u to the next.
    """
    position_steps = np.concatenate([variables[..., :1], np.exp(variables[..., 1:])], axis=-1)
    return np.cumsum(position_steps, axis=-1)


class BLTProblem:
    """The logarithm of a BLT encoder's loss, squared sensitivity times squared error, and its
    gradient by complex steps.

    Everything is a composition of analytic functions, evaluated for all variables at once: row v of
    an array is perturbed in variable v. Complex log1p and expm1 are written out, since numpy's lose
    the digits that matter here.
    """

    def __init__(
        self, inverse: np.ndarray, participation: Participation, buffers: int, objective: str
    ) -> None:
        self.n = participation.rounds
        self.b = participation.min_sep
        self.k = participation.max_participations
        self.d = buffers
        self.inverse = inverse
        self.poles = _workload_poles(inverse)
        if self.poles is None:
            self.rounds = np.arange(float(self.n))
            round_weights = np.ones(self.n)
        else:
            self.rounds, round_weights = time_grid(self.n)
        # The squared error of round t is the sum of the squares of entries 0..t of the error
        # response. So entry t counts n - t times in the total over all rounds, and once in the
        # error of the last round, which is the largest.
        if objective == "mean":
            round_weights = round_weights * (self.n - self.rounds)
        self.weights = round_weights
        self.windows, self.window_weights = time_grid(self.k - 1)

    def starts(self) -> list[np.ndarray]:
        """Returns the values of the variables at which the descents of the fit start. Poles and
        zeros are spread evenly in u, from near 1 - 1 / horizon down, as in the approximation of a
        square root (Newman 1964).

        Under several participations there are two kinds of optima, with a memory of about min_sep
        rounds or of a tenth of them. Neither is always better, so that both are tried.
        """
        if self.k == 1:
            return [self.spread(max(self.n, 4.0), 1.5)]
        horizons = [2.0 * fraction * self.b for fraction in (1.0, 0.1)]
        return [self.spread(max(horizon, 4.0), 0.0) for horizon in horizons]

    def spread(self, horizon: float, last_u: float) -> np.ndarray:
        """Returns the variables for 2 d positions u that are spread evenly from -log(2 horizon) to
        `last_u`.
        """
        first_u = -np.log(2.0 * horizon)
        position_step = (last_u - first_u) / max(2 * self.d - 1, 1)
        return np.concatenate([[first_u], np.full(2 * self.d - 1, np.log(position_step))])

    def bounds(self) -> list[tuple[float | None, float | None]]:
        """Returns the range of each variable in which float64 can tell poles and zeros apart."""
        return [
            (-float(np.log(1e4 * self.n + 1e4)), 10.0),
            *[(_MIN_LOG_GAP, _MAX_LOG_GAP)] * (2 * self.d - 1),
        ]

    def log_loss(self, variables: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the logarithm of the loss and its gradient."""
        num_variables = len(variables)
        u = positions(variables + 1j * _STEP * np.eye(num_variables))
        with np.errstate(all="ignore"):
            poles = u[:, 0::2]
            zeros = u[:, 1::2]
            log_sensitivity = np.log(self._squared_sensitivity(poles, zeros))
            log_error = np.log(self._squared_error(poles, zeros))
            log_value = log_sensitivity + log_error
        return float(log_value[0].real), log_value.imag / _STEP

    def _squared_sensitivity(self, poles: np.ndarray, zeros: np.ndarray) -> np.ndarray:
        """Returns the squared sensitivity, which is the squared norm of the sum of the encoder's
        columns 0, b, 2 b and so on, the rounds of one client. Entry v of the result, (size,), is
        for the encoder perturbed in variable v.

        In round s b + r, 0 < r < b, the columns sum up to sum over i of P_i(s) decays[i]^(r - 1),
        with P_i(s) = scales[i] (1 - decays[i]^(b (s + 1))) / (1 - decays[i]^b); in round s b to 1 +
        sum of decays[i]^(b - 1) P_i(s-1).
        """
        log_decay = _log_decay(poles)
        buffer_scales = _residues(poles, zeros)
        log_pair = log_decay[:, :, None] + log_decay[:, None, :]

        def sum_window(s: np.ndarray, length: int) -> np.ndarray:
            """Returns the sum of squares of the summed columns' entries in the windows of rounds s
            b to s b + length - 1, (size, len(s)).
            """
            pole_logs = log_decay[:, None, :]
            period_decay = _expm1(self.b * log_decay)[:, None, :]
            P = (
                buffer_scales[:, None, :]
                * _expm1(self.b * (s[:, None] + 1.0) * pole_logs)
                / period_decay
            )
            previous_P = (
                buffer_scales[:, None, :] * _expm1(self.b * s[:, None] * pole_logs) / period_decay
            )
            last_decay = np.exp((self.b - 1) * log_decay)[:, None, :]
            first_entries = 1.0 + (previous_P * last_decay).sum(axis=2)
            pair_sums = _expm1((length - 1) * log_pair) / _expm1(log_pair)
            squared_tails = np.einsum("vsi,vij,vsj->vs", P, pair_sums, P, optimize=True)
            return first_entries * first_entries + squared_tails

        last_window = np.array([self.k - 1.0])
        squared_norms = sum_window(last_window, self.n - (self.k - 1) * self.b)[:, 0]
        if self.k > 1:
            squared_norms = squared_norms + sum_window(self.windows, self.b) @ self.window_weights
        return squared_norms

    def _squared_error(self, poles: np.ndarray, zeros: np.ndarray) -> np.ndarray:
        """Returns the weighted sum of squares of the first column of A N, where A is the workload
        and N the noise matrix. Entry v of the result, (size,), is for the encoder perturbed in
        variable v.
        """
        log_decay = _log_decay(zeros)
        buffer_scales = -_residues(zeros, poles)
        t = self.rounds
        if self.poles is None:
            import scipy.signal

            lags = np.maximum(t - 1.0, 0.0)
            noise_columns = np.stack(
                [
                    -(weights @ np.exp(lags * log[:, None]))
                    for weights, log in zip(buffer_scales, log_decay, strict=True)
                ]
            )
            noise_columns[:, 0] = 1.0
            error_columns = scipy.signal.lfilter([1.0], self.inverse, noise_columns, axis=1)
            return (error_columns * error_columns) @ self.weights
        error_columns = np.zeros((len(log_decay), len(t)), dtype=complex)
        for pole, weight in self.poles:
            log_pole = np.log(pole)
            buffer_sums = np.einsum(
                "vi,vti->vt", buffer_scales, _divided_powers(log_pole, log_decay, t)
            )
            error_columns += weight * (np.exp(t * log_pole) - buffer_sums)
        return (error_columns * error_columns) @ self.weights


def time_grid(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns times and weights, both float64 (m,), so that sum(weights * f(times)) approximates
    the sum of f(t) over t = 0..count-1 with few terms.

    The first rounds are summed exactly. Later ones are cut into panels [T, 2 T), each summed
    through the polynomial of degree 23 in its Chebyshev points: exact for polynomials up to that
    degree, and to about 1e-13 of the whole sum for exponentials of any decay, since those that fall
    by more than e^-30 over a panel are negligible before it begins. m is about 64 + 24 log2(count /
    64).

    >>> times, weights = time_grid(10_000)
    >>> len(times) < 300, bool(abs(weights @ 0.99**times - (1 - 0.99**10_000) / 0.01) < 1e-9)
    (True, True)
    """
    if count == 0:
        return np.zeros(0), np.zeros(0)
    panel_edges = [0]
    while panel_edges[-1] < count:
        panel_edges.append(min(max(_NUM_EXACT_ROUNDS, 2 * panel_edges[-1]), count))
    node_times = []
    node_weights = []
    for begin, end in itertools.pairwise(panel_edges):
        panel_length = end - begin
        if panel_length <= max(_NUM_NODES, _NUM_EXACT_ROUNDS):
            node_times.append(np.arange(begin, end, dtype=float))
            node_weights.append(np.ones(panel_length))
            continue
        node_angles = (np.arange(_NUM_NODES) + 0.5) * np.pi / _NUM_NODES
        panel_center = begin + (panel_length - 1) / 2
        half_length = (panel_length - 1) / 2
        node_times.append(panel_center + half_length * np.cos(node_angles))
        # A sum over a panel (an interval of rounds) is a weighted sum over a few nodes. The weights
        # of the nodes follow from the sums of the Chebyshev polynomials over the panel's rounds,
        # because the polynomials are orthogonal over the nodes.
        round_angles = np.arccos((np.arange(panel_length) - half_length) / half_length)
        polynomial_sums = np.array(
            [np.cos(degree * round_angles).sum() for degree in range(_NUM_NODES)]
        )
        polynomial_sums[1:] *= 2.0
        node_weights.append(
            np.cos(np.outer(node_angles, np.arange(_NUM_NODES))) @ polynomial_sums / _NUM_NODES
        )
    return np.concatenate(node_times), np.concatenate(node_weights)


def _workload_poles(inverse: np.ndarray) -> list[_WorkloadPole] | None:
    """Returns the partial fractions of the workload's generating function a(x), a sum of weight /
    (1 - pole x), if its poles are real, in (0, 1] and separate; otherwise None.

    >>> [tuple(term) for term in _workload_poles(np.array([1.0, -1.5, 0.5]))]
    [(1.0, 2.0), (0.5, -1.0)]
    """
    inverse_polynomial = np.trim_zeros(inverse, "b")
    roots = np.roots(inverse_polynomial)
    if not len(roots) or np.imag(roots).any():  # The identity workload has no poles.
        return None
    poles = np.sort(np.real(roots))[::-1]
    poles = np.where(np.abs(poles - 1.0) < 1e-12, 1.0, poles)
    if poles[0] > 1.0 or poles[-1] <= 0.0:
        return None
    if len(poles) > 1 and -np.diff(poles).max() < _MIN_POLE_GAP:
        return None
    pole_weights = [
        np.prod(1.0 / (1.0 - np.delete(poles, j) / pole)) / inverse_polynomial[0]
        for j, pole in enumerate(poles)
    ]
    return [
        _WorkloadPole(round(float(pole), 15), round(float(weight), 13))
        for pole, weight in zip(poles, pole_weights, strict=True)
    ]


def _log_decay(u: np.ndarray) -> np.ndarray:
    """Returns log(1 / (1 + exp(u))), the logarithm of the pole or zero at position u."""
    exp_u = np.exp(u)
    return -(np.log1p(exp_u.real) + 1j * exp_u.imag / (1.0 + exp_u.real))


def _expm1(x: np.ndarray) -> np.ndarray:
    """Returns exp(x) - 1 without loss of digits, for x with an infinitesimal imaginary part."""
    return np.expm1(x.real) + 1j * x.imag * np.exp(x.real)


def _difference(u: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Returns 1 / (1 + exp(u)) - 1 / (1 + exp(w)) without loss of digits near 1."""
    return _expm1(w - u) * np.exp(u) / ((1.0 + np.exp(u)) * (1.0 + np.exp(w)))


def _residues(poles: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Returns the scales of the buffers, float64 (size, d), for poles and zeros that are given by
    their positions u. It computes what `residues` in mechanism.py does.
    """
    to_zeros = _difference(poles[:, :, None], zeros[:, None, :])
    to_poles = _difference(poles[:, :, None], poles[:, None, :])
    diagonal_indices = np.arange(poles.shape[1])
    to_poles[:, diagonal_indices, diagonal_indices] = 1.0
    return (to_zeros / to_poles).prod(axis=2)


def _divided_powers(log_pole: float, log_decay: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Returns (pole^t - z^t) / (pole - z) for all times t and every zero z = exp(log_decay), in an
    array (size, len(t), d).

    It is computed as M^t (1 - (m / M)^t) / (M - m), M being the larger and m the smaller of pole
    and z, which loses no digits when they are close.
    """
    is_larger = log_decay.real > log_pole
    larger_log = np.where(is_larger, log_decay, log_pole)[:, None, :]
    smaller_log = np.where(is_larger, log_pole, log_decay)[:, None, :]
    power_differences = np.exp(t[:, None] * larger_log) * -_expm1(
        t[:, None] * (smaller_log - larger_log)
    )
    return power_differences / (np.exp(larger_log) * -_expm1(smaller_log - larger_log))
