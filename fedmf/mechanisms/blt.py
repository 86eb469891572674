"""Buffered linear Toeplitz (BLT) encoders, optimised through their poles and zeros."""

import dataclasses
import itertools
from typing import ClassVar, NamedTuple, final

import numpy as np

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.family import Family, register
from fedmf.mechanisms.fitting.descent import descend
from fedmf.mechanisms.fitting.progress import Stopping
from fedmf.mechanisms.toeplitz.fit import OBJECTIVES, certified, toeplitz_inverse
from fedmf.mechanisms.toeplitz.mechanism import lower_toeplitz
from fedmf.noise.buffers import Buffers
from fedmf.noise.stream import NoiseStream
from fedmf.participation.schema import Participation
from fedmf.workloads import Workload

# Scales whose magnitudes sum to more than this cancel, so that float32 keeps fewer than four digits
# of the noise.
MAX_SUM_OF_SCALES = 1e3


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BLTMechanism(Mechanism):
    """A Toeplitz C with a rational generating function, whose noise d buffers compute (BLT slides;
    Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024; McMahan, Xu and Zhang 2024).

        c(x) = product over i of (1 - inverse_decays[i] x) / (1 - decays[i] x)

        C:  c_0 = 1,  c_t =   sum over i of scales[i] decays[i]^(t - 1)
        N:  n_0 = 1,  n_t = - sum over i of inverse_scales[i] inverse_decays[i]^(t - 1)

    The inverse 1 / c(x) swaps zeros and poles, so that N has as many buffers as C: a noise vector
    costs d model sizes, in time and in memory.

    Fits alternate zeros and poles: 1 > decays[0] > inverse_decays[0] > decays[1] > ... All scales
    are then positive (partial fractions: each is a product of ratios of positive differences).
    Where they sum to at most 1, c is decreasing and the sensitivity is known exactly; otherwise
    `fedmf.sensitivity` bounds it.

    Attributes:
      rounds: n, a positive int.
      decays: poles of c(1 / x), float64 (d,), distinct, in [-1, 1].
      inverse_decays: zeros of c(1 / x), float64 (d,), distinct, in [-1, 1].

    Raises:
      TypeError, ValueError: an argument is of the wrong kind or shape, not finite, or against the
        conditions above.

    >>> mechanism = BLTMechanism(rounds=3, decays=[0.8], inverse_decays=[0.3])
    >>> mechanism.scales, mechanism.toeplitz_coefficients()
    (array([0.5]), array([1. , 0.5, 0.4]))
    """

    family: ClassVar[str] = "blt"
    rounds: int = fields.validated(checks.rounds)
    decays: np.ndarray = fields.array(1)
    inverse_decays: np.ndarray = fields.array(1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decays.shape != self.inverse_decays.shape:
            raise ValueError(
                f"decays has length {len(self.decays)} and inverse_decays "
                f"{len(self.inverse_decays)}: pass one of each for every buffer"
            )
        for field_name in ("decays", "inverse_decays"):
            values = getattr(self, field_name)
            if np.abs(values).max() > 1.0 or len(np.unique(values)) < len(values):
                raise ValueError(
                    f"{field_name}={values} must be distinct numbers from -1 to 1: larger ones "
                    "grow without bound, and equal ones have no partial fractions"
                )
        with np.errstate(all="ignore"):  # A quotient of values close to 0 may overflow.
            sums = [np.abs(self.scales).sum(), np.abs(self.inverse_scales).sum()]
            largest_sum = float(np.max(sums))
        if not largest_sum <= MAX_SUM_OF_SCALES:  # Written so that a NaN is refused.
            raise ValueError(
                f"decays={self.decays} and inverse_decays={self.inverse_decays} give scales that "
                f"sum to {largest_sum:.3g} and cancel, which float32 does not hold: pass values "
                "that are further apart, or that alternate"
            )

    @property
    def buffers(self) -> int:
        """Number of buffers d, the running sums that a noise vector is computed from."""
        return len(self.decays)

    @property
    def scales(self) -> np.ndarray:
        """Weights of the buffers in C, float64 (d,)."""
        return residues(self.decays, self.inverse_decays)

    @property
    def inverse_scales(self) -> np.ndarray:
        """Weights of the buffers that N subtracts, float64 (d,)."""
        return -residues(self.inverse_decays, self.decays)

    def encoder(self) -> np.ndarray:
        """Returns C, float64 (rounds, rounds), lower-triangular."""
        return lower_toeplitz(self.toeplitz_coefficients(), self.rounds)

    def noising(self) -> np.ndarray:
        """Returns N = C^-1, float64 (rounds, rounds), lower-triangular."""
        return lower_toeplitz(self.noising_coefficients(), self.rounds)

    def stream(self) -> NoiseStream:
        """Returns the recipe x_t = z_t - sum of inverse_scales * S(t) for the noise vectors, with
        the buffers S(t) = inverse_decays * S(t - 1) + z_{t-1}.
        """
        n = self.rounds
        d = self.buffers
        buffers = Buffers(
            window=np.ones((n, 1)),
            read=np.tile(-self.inverse_scales, (n, 1)),
            write=np.ones((n, d)),
            decay=self.inverse_decays,
        )
        return NoiseStream(rounds=n, sources=n, buffers=buffers)

    def toeplitz_coefficients(self) -> np.ndarray:
        """Returns c, float64 (rounds,)."""
        return exponentials(self.scales, self.decays, self.rounds)

    def noising_coefficients(self) -> np.ndarray:
        """Returns the first column of N, float64 (rounds,)."""
        return exponentials(-self.inverse_scales, self.inverse_decays, self.rounds)


def residues(poles: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Returns the r_i, (d,), with product of (1 - zeros x) / (1 - poles x) = 1 + x sum of r_i / (1
    - poles[i] x).

    r_i = (poles[i] - zeros[i]) * product over j != i of (poles[i] - zeros[j]) / (poles[i] -
    poles[j]): products of differences only, which lose no digits however close the poles are.

    >>> residues(np.array([0.8]), np.array([0.3]))
    array([0.5])
    """
    to_zeros = poles[:, None] - zeros
    to_poles = poles[:, None] - poles
    np.fill_diagonal(to_poles, 1.0)
    return (to_zeros / to_poles).prod(axis=1)


def exponentials(scales: np.ndarray, decays: np.ndarray, n: int) -> np.ndarray:
    """Returns the sequence 1, sum(scales), sum(scales * decays), sum(scales * decays^2), ...,
    float64 (n,).
    """
    sequence = np.eye(1, n)[0]
    lags = np.arange(n - 1)
    with np.errstate(under="ignore"):  # A power that underflows is 0.
        for scale, decay in zip(scales, decays, strict=True):
            sequence[1:] += scale * decay**lags
    return sequence


# Step of the complex-step derivative: f(x + i h) = f(x) + i h f'(x) to all digits, since h^2 is
# lost in rounding.
_STEP = 1e-30
# Poles and zeros are 1 / (1 + exp(u)) for increasing u. These bound the logarithms of the steps
# between neighbouring u.
_MIN_LOG_GAP = -7.0
_MAX_LOG_GAP = 4.0
# Partial fractions do not separate poles of a workload that are closer than this.
_MIN_POLE_GAP = 1e-4
# Sums over time take the first rounds exactly, and approximate each later panel, twice as long as
# the previous one, by this many nodes.
_NUM_EXACT_ROUNDS = 64
_NUM_NODES = 24


class _WorkloadPole(NamedTuple):
    """A term weight / (1 - pole x) in the partial fractions of a workload's generating function."""

    pole: float
    weight: float


def fit_blt(
    workload: Workload,
    participation: Participation,
    stopping: Stopping,
    *,
    buffers: int = 4,
    objective: str = "mean",
) -> BLTMechanism:
    """Fits the buffered linear Toeplitz encoder with the smallest loss ("mean") or largest error
    ("max").

    The variables are the poles and zeros of c(x) on the real line, alternating, so that every step
    is a valid `BLTMechanism` with a known sensitivity under every participation. Sensitivity and
    error are sums over time of products of exponentials, which a grid of a few hundred rounds
    approximates for any number of rounds (`time_grid`). Single and several participations as in
    McMahan, Xu and Zhang 2024; the largest error as in Dvijotham et al. 2024.

    `buffers` is d, the cost of a noise vector in model sizes; fewer are used where rounds - 1
    coefficients need no more. A descent has converged when ten steps together lower the loss by
    less than the relative tolerance. The problem is not convex: under several participations there
    are two descents, and the better result is taken. Other arguments and errors as in `fedmf.fit`.
    """
    buffers = checks.integer(
        "buffers", buffers, low=1, high=32, hint="a round of noise costs that many model sizes"
    )
    checks.one_of("objective", objective, OBJECTIVES)
    n = workload.rounds
    # The n - 1 free coefficients determine no more than n / 2 poles and as many zeros.
    num_buffers = min(buffers, max(1, n // 2))
    problem = _Problem(toeplitz_inverse(workload), participation, num_buffers, objective)
    first_start, *other_starts = problem.starts()
    best = descend(problem.log_loss, first_start, stopping, problem.bounds())
    for start in other_starts:
        if best.interrupted or best.iterations >= stopping.max_iterations:
            break
        descent = descend(
            problem.log_loss, start, stopping.after(best.iterations), problem.bounds()
        )
        better = min(best, descent, key=lambda descent: descent.loss)
        best = dataclasses.replace(best.then(descent), point=better.point, loss=better.loss)
    poles_and_zeros = 1.0 / (1.0 + np.exp(_positions(best.point)))
    mechanism = BLTMechanism(
        rounds=n, decays=poles_and_zeros[0::2], inverse_decays=poles_and_zeros[1::2]
    )
    return certified(mechanism, workload, participation, objective, best, stopping)


def _positions(variables: np.ndarray) -> np.ndarray:
    """Returns the u of decays[0], inverse_decays[0], decays[1], ..., (..., 2 d), from variables
    that hold the first u and the logarithms of the steps between the next ones.
    """
    steps = np.concatenate([variables[..., :1], np.exp(variables[..., 1:])], axis=-1)
    return np.cumsum(steps, axis=-1)


class _Problem:
    """Logarithm of squared sensitivity times squared error, and its gradient by complex steps.

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
            weights = np.ones(self.n)
        else:
            self.rounds, weights = time_grid(self.n)
        # The total squared error counts entry t of the error response in n - t rounds; the error of
        # the last round, which is the largest, counts each entry once.
        if objective == "mean":
            weights = weights * (self.n - self.rounds)
        self.weights = weights
        self.windows, self.window_weights = time_grid(self.k - 1)

    def starts(self) -> list[np.ndarray]:
        """Returns variables with poles and zeros spread evenly in u, from near 1 - 1 / horizon
        down, as for a square root (Newman 1964).

        Under several participations there are two kinds of optima, with a memory of about min_sep
        rounds or of a tenth of them. Neither is always better, so that both are tried.
        """
        if self.k == 1:
            return [self.spread(max(self.n, 4.0), 1.5)]
        horizons = [2.0 * fraction * self.b for fraction in (1.0, 0.1)]
        return [self.spread(max(horizon, 4.0), 0.0) for horizon in horizons]

    def spread(self, horizon: float, last_u: float) -> np.ndarray:
        """Returns the variables of 2 d evenly spread u, from -log(2 horizon) to `last_u`."""
        first_u = -np.log(2.0 * horizon)
        step = (last_u - first_u) / max(2 * self.d - 1, 1)
        return np.concatenate([[first_u], np.full(2 * self.d - 1, np.log(step))])

    def bounds(self) -> list[tuple[float | None, float | None]]:
        """Returns the ranges of the variables within which float64 separates poles and zeros."""
        return [
            (-float(np.log(1e4 * self.n + 1e4)), 10.0),
            *[(_MIN_LOG_GAP, _MAX_LOG_GAP)] * (2 * self.d - 1),
        ]

    def log_loss(self, variables: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the logarithm of the loss and its gradient."""
        size = len(variables)
        u = _positions(variables + 1j * _STEP * np.eye(size))
        with np.errstate(all="ignore"):
            poles = u[:, 0::2]
            zeros = u[:, 1::2]
            log_sensitivity = np.log(self._squared_sensitivity(poles, zeros))
            log_error = np.log(self._squared_error(poles, zeros))
            value = log_sensitivity + log_error
        return float(value[0].real), value.imag / _STEP

    def _squared_sensitivity(self, poles: np.ndarray, zeros: np.ndarray) -> np.ndarray:
        """Returns the squared norm of the sum of the columns of the rounds 0, b, 2 b, ..., (size,).

        In round s b + r, 0 < r < b, the columns sum up to sum over i of P_i(s) decays[i]^(r - 1),
        with P_i(s) = scales[i] (1 - decays[i]^(b (s + 1))) / (1 - decays[i]^b); in round s b to 1 +
        sum of decays[i]^(b - 1) P_i(s-1).
        """
        log_decay = _log_decay(poles)
        scale = _residues(poles, zeros)
        log_pair = log_decay[:, :, None] + log_decay[:, None, :]

        def sum_window(s: np.ndarray, length: int) -> np.ndarray:
            """Returns the sum over rounds s b .. s b + length - 1, (size, len(s))."""
            log = log_decay[:, None, :]
            period = _expm1(self.b * log_decay)[:, None, :]
            P = scale[:, None, :] * _expm1(self.b * (s[:, None] + 1.0) * log) / period
            previous_P = scale[:, None, :] * _expm1(self.b * s[:, None] * log) / period
            last_decay = np.exp((self.b - 1) * log_decay)[:, None, :]
            first_entry = 1.0 + (previous_P * last_decay).sum(axis=2)
            pair_sums = _expm1((length - 1) * log_pair) / _expm1(log_pair)
            squares = np.einsum("vsi,vij,vsj->vs", P, pair_sums, P, optimize=True)
            return first_entry * first_entry + squares

        last_window = np.array([self.k - 1.0])
        squared = sum_window(last_window, self.n - (self.k - 1) * self.b)[:, 0]
        if self.k > 1:
            squared = squared + sum_window(self.windows, self.b) @ self.window_weights
        return squared

    def _squared_error(self, poles: np.ndarray, zeros: np.ndarray) -> np.ndarray:
        """Returns the weighted sum of squares of the first column of A N, (size,)."""
        log_decay = _log_decay(zeros)
        scale = -_residues(zeros, poles)
        t = self.rounds
        if self.poles is None:
            import scipy.signal

            lags = np.maximum(t - 1.0, 0.0)
            noise = np.stack(
                [
                    -(weights @ np.exp(lags * log[:, None]))
                    for weights, log in zip(scale, log_decay, strict=True)
                ]
            )
            noise[:, 0] = 1.0
            column = scipy.signal.lfilter([1.0], self.inverse, noise, axis=1)
            return (column * column) @ self.weights
        column = np.zeros((len(log_decay), len(t)), dtype=complex)
        for pole, weight in self.poles:
            log_pole = np.log(pole)
            buffered = np.einsum("vi,vti->vt", scale, _divided_powers(log_pole, log_decay, t))
            column += weight * (np.exp(t * log_pole) - buffered)
        return (column * column) @ self.weights


def time_grid(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns times and weights, both (m,), with sum over t = 0..count-1 of f(t) = sum of weights *
    f(times).

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
    edges = [0]
    while edges[-1] < count:
        edges.append(min(max(_NUM_EXACT_ROUNDS, 2 * edges[-1]), count))
    times = []
    weights = []
    for begin, end in itertools.pairwise(edges):
        length = end - begin
        if length <= max(_NUM_NODES, _NUM_EXACT_ROUNDS):
            times.append(np.arange(begin, end, dtype=float))
            weights.append(np.ones(length))
            continue
        angles = (np.arange(_NUM_NODES) + 0.5) * np.pi / _NUM_NODES
        center = begin + (length - 1) / 2
        half_length = (length - 1) / 2
        times.append(center + half_length * np.cos(angles))
        # The sums of the Chebyshev polynomials over the panel's rounds are spread over the nodes by
        # their discrete orthogonality.
        round_angles = np.arccos((np.arange(length) - half_length) / half_length)
        sums = np.array([np.cos(degree * round_angles).sum() for degree in range(_NUM_NODES)])
        sums[1:] *= 2.0
        weights.append(np.cos(np.outer(angles, np.arange(_NUM_NODES))) @ sums / _NUM_NODES)
    return np.concatenate(times), np.concatenate(weights)


def _workload_poles(inverse: np.ndarray) -> list[_WorkloadPole] | None:
    """Returns the partial fractions of a(x), the sum of weight / (1 - pole x), if its poles are
    real, in (0, 1] and separate; otherwise None.

    >>> [tuple(term) for term in _workload_poles(np.array([1.0, -1.5, 0.5]))]
    [(1.0, 2.0), (0.5, -1.0)]
    """
    polynomial = np.trim_zeros(inverse, "b")
    roots = np.roots(polynomial)
    if not len(roots) or np.imag(roots).any():  # The identity has no poles.
        return None
    poles = np.sort(np.real(roots))[::-1]
    poles = np.where(np.abs(poles - 1.0) < 1e-12, 1.0, poles)
    if poles[0] > 1.0 or poles[-1] <= 0.0:
        return None
    if len(poles) > 1 and -np.diff(poles).max() < _MIN_POLE_GAP:
        return None
    weights = [
        np.prod(1.0 / (1.0 - np.delete(poles, j) / pole)) / polynomial[0]
        for j, pole in enumerate(poles)
    ]
    return [
        _WorkloadPole(round(float(pole), 15), round(float(weight), 13))
        for pole, weight in zip(poles, weights, strict=True)
    ]


def _log_decay(u: np.ndarray) -> np.ndarray:
    """Returns log(1 / (1 + exp(u)))."""
    x = np.exp(u)
    return -(np.log1p(x.real) + 1j * x.imag / (1.0 + x.real))


def _expm1(x: np.ndarray) -> np.ndarray:
    """Returns exp(x) - 1 for an infinitesimal imaginary part."""
    return np.expm1(x.real) + 1j * x.imag * np.exp(x.real)


def _difference(u: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Returns 1 / (1 + exp(u)) - 1 / (1 + exp(w)), without loss of digits near 1."""
    return _expm1(w - u) * np.exp(u) / ((1.0 + np.exp(u)) * (1.0 + np.exp(w)))


def _residues(poles: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Returns `residues` of poles and zeros that are given by their u, (size, d)."""
    to_zeros = _difference(poles[:, :, None], zeros[:, None, :])
    to_poles = _difference(poles[:, :, None], poles[:, None, :])
    diagonal = np.arange(poles.shape[1])
    to_poles[:, diagonal, diagonal] = 1.0
    return (to_zeros / to_poles).prod(axis=2)


def _divided_powers(log_pole: float, log_decay: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Returns (pole^t - z^t) / (pole - z) for every z = exp(log_decay), (size, len(t), d).

    It is computed as M^t (1 - (m / M)^t) / (M - m), M being the larger and m the smaller of pole
    and z, which loses no digits when they are close.
    """
    is_larger = log_decay.real > log_pole
    larger = np.where(is_larger, log_decay, log_pole)[:, None, :]
    smaller = np.where(is_larger, log_pole, log_decay)[:, None, :]
    powers = np.exp(t[:, None] * larger) * -_expm1(t[:, None] * (smaller - larger))
    return powers / (np.exp(larger) * -_expm1(smaller - larger))


register(
    Family(
        mechanism=BLTMechanism,
        fit=fit_blt,
        label="BLT",
        color="#5a1e00",
        tolerance=1e-8,
        help={
            "buffers": "running sums, which is what a round of noise costs",
            "objective": "what to minimise: mean or max",
        },
        choices={"objective": OBJECTIVES},
    )
)
