"""Buffered linear Toeplitz encoders, optimised through their poles and zeros."""

import dataclasses
import itertools
from typing import ClassVar, final

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

# Scales whose magnitudes sum to more cancel, and float32 keeps less than four digits of the noise.
MAX_SUM_OF_SCALES = 1e3


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BLTMechanism(Mechanism):
    """A Toeplitz C whose generating function is rational, so that d buffers make the noise (BLT
    slides; Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024; McMahan, Xu and Zhang 2024).

        c(x) = product over i of (1 - inverse_decays[i] x) / (1 - decays[i] x)

        C:  c_0 = 1,  c_t =   sum over i of scales[i] decays[i]^(t - 1)
        N:  n_0 = 1,  n_t = - sum over i of inverse_scales[i] inverse_decays[i]^(t - 1)

    The inverse 1 / c(x) swaps zeros and poles, so N is made of as many buffers as C: a round of
    noise costs d model sizes, in time and in memory.

    Fits make zeros and poles that alternate: 1 > decays[0] > inverse_decays[0] > decays[1] > ...
    All scales then are positive (partial fractions: each is a product of ratios of positive
    differences). Where they sum to at most 1, c is decreasing, the case in which the sensitivity is
    known exactly: see `fedmf.sensitivity`, which bounds all others.

    Attributes:
      rounds: n, a positive int.
      decays: float64 (d,), different, in [-1, 1].
      inverse_decays: float64 (d,), different, in [-1, 1].

    Raises:
      TypeError, ValueError: an argument is of another kind or shape, not finite, or breaks what is
        said above.

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
                f"{len(self.inverse_decays)}: pass one of each a buffer"
            )
        for name in ("decays", "inverse_decays"):
            values = getattr(self, name)
            if np.abs(values).max() > 1.0 or len(np.unique(values)) < len(values):
                raise ValueError(
                    f"{name}={values} must be different numbers from -1 to 1: larger ones grow "
                    "without end, and equal ones are no partial fractions"
                )
        with np.errstate(all="ignore"):  # a quotient of neighbours of 0 may overflow
            largest = float(np.max([np.abs(self.scales).sum(), np.abs(self.inverse_scales).sum()]))
        if not largest <= MAX_SUM_OF_SCALES:  # also where it is no number
            raise ValueError(
                f"decays={self.decays} and inverse_decays={self.inverse_decays} give scales that "
                f"sum to {largest:.3g} and cancel, which float32 does not hold: pass values that "
                "are further apart, or that alternate"
            )

    @property
    def buffers(self) -> int:
        """d, the number of running sums that a round of noise takes."""
        return len(self.decays)

    @property
    def scales(self) -> np.ndarray:
        """What C makes of each buffer, float64 (d,)."""
        return residues(self.decays, self.inverse_decays)

    @property
    def inverse_scales(self) -> np.ndarray:
        """What N takes off for each buffer, float64 (d,)."""
        return -residues(self.inverse_decays, self.decays)

    def encoder(self) -> np.ndarray:
        """C, float64 (rounds, rounds), lower-triangular."""
        return lower_toeplitz(self.toeplitz_coefficients(), self.rounds)

    def noising(self) -> np.ndarray:
        """N = C^-1, float64 (rounds, rounds), lower-triangular."""
        return lower_toeplitz(self.noising_coefficients(), self.rounds)

    def stream(self) -> NoiseStream:
        """x_t = z_t - sum of inverse_scales * S(t), where S(t) = inverse_decays * S(t
        - 1) + z_{t-1}.
        """
        n = self.rounds
        d = self.buffers
        read = np.tile(-self.inverse_scales, (n, 1))
        buffers = Buffers(
            window=np.ones((n, 1)), read=read, write=np.ones((n, d)), decay=self.inverse_decays
        )
        return NoiseStream(rounds=n, sources=n, buffers=buffers)

    def toeplitz_coefficients(self) -> np.ndarray:
        """c, float64 (rounds,)."""
        return exponentials(self.scales, self.decays, self.rounds)

    def noising_coefficients(self) -> np.ndarray:
        """The first column of N, float64 (rounds,)."""
        return exponentials(-self.inverse_scales, self.inverse_decays, self.rounds)


def residues(poles: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """The r_i with product of (1 - zeros x) / (1 - poles x) = 1 + x sum of r_i / (1 -
    poles[i] x), (d,).

    r_i = (poles[i] - zeros[i]) * product over j != i of (poles[i] - zeros[j]) / (poles[i] -
    poles[j]): products of differences only, so that no digits are lost however close the poles are.

    >>> residues(np.array([0.8]), np.array([0.3]))
    array([0.5])
    """
    to_zeros = poles[:, None] - zeros
    to_poles = poles[:, None] - poles
    np.fill_diagonal(to_poles, 1.0)
    return (to_zeros / to_poles).prod(axis=1)


def exponentials(scales: np.ndarray, decays: np.ndarray, n: int) -> np.ndarray:
    """The sequence 1, sum(scales), sum(scales * decays), sum(scales * decays^2), ..., float64
    (n,).
    """
    sequence = np.eye(1, n)[0]
    lags = np.arange(n - 1)
    with np.errstate(under="ignore"):  # a power that is lost is 0
        for scale, decay in zip(scales, decays, strict=True):
            sequence[1:] += scale * decay**lags
    return sequence


# Step of the complex-step derivative: f(x + i h) = f(x) + i h f'(x) to all digits, since h^2 is
# lost in rounding.
_STEP = 1e-30
# Poles and zeros are at 1 / (1 + exp(u)) for increasing u: this far from both ends,
# and so far apart.
_LEAST_LOG_GAP, _MAX_LOG_GAP = -7.0, 4.0
# Poles of a workload closer than this are not told apart by partial fractions.
_POLE_GAP = 1e-4
# Of sums over time: rounds that are taken one by one, and the nodes that stand for each later
# panel, twice as long as the one before.
_ONE_BY_ONE, _NODES = 64, 24


def fit_blt(
    workload: Workload,
    participation: Participation,
    stopping: Stopping,
    *,
    buffers: int = 4,
    objective: str = "mean",
) -> BLTMechanism:
    """The buffered linear Toeplitz encoder with the smallest loss ("mean")
    or largest error ("max").

    The variables are the poles and zeros of c(x) on the real line, alternating, so that every step
    is a valid `BLTMechanism` whose sensitivity is known exactly under every participation.
    Sensitivity and error are sums over time of products of exponentials, added up on a grid of a
    few hundred rounds whatever `rounds` is (`time_grid`). Single and several participations as in
    McMahan, Xu and Zhang 2024; the largest error as in Dvijotham et al. 2024.

    buffers: d, what a round of noise costs in model sizes; fewer are used where rounds - 1
    coefficients need no more. A descent ends when ten steps together lower the loss by less than
    the share tolerance. The problem is not convex; under several participations there are two
    descents, and the better end is taken. Other arguments and errors as `fedmf.fit`.
    """
    buffers = checks.integer(
        "buffers", buffers, low=1, high=32, hint="a round of noise costs that many model sizes"
    )
    checks.one_of("objective", objective, OBJECTIVES)
    n = workload.rounds
    # n - 1 coefficients are free, and d poles and d zeros are 2 d numbers.
    problem = _Problem(
        toeplitz_inverse(workload), participation, min(buffers, max(1, n // 2)), objective
    )
    first, *others = problem.starts()
    best = descend(problem.log_loss, first, stopping, problem.bounds())
    for start in others:
        if best.interrupted or best.iterations >= stopping.max_iterations:
            break
        later = descend(problem.log_loss, start, stopping.after(best.iterations), problem.bounds())
        better = min(best, later, key=lambda descent: descent.loss)
        best = dataclasses.replace(best.then(later), point=better.point, loss=better.loss)
    places = 1.0 / (1.0 + np.exp(_positions(best.point)))
    mechanism = BLTMechanism(rounds=n, decays=places[0::2], inverse_decays=places[1::2])
    return certified(mechanism, workload, participation, objective, best, stopping)


def _positions(variables: np.ndarray) -> np.ndarray:
    """The u of decays[0], inverse_decays[0], decays[1], ...: the first, and the logarithms of the
    steps up, (..., 2 d).
    """
    steps = np.concatenate([variables[..., :1], np.exp(variables[..., 1:])], axis=-1)
    return np.cumsum(steps, axis=-1)


class _Problem:
    """Logarithm of squared sensitivity times squared error, and its gradient by complex steps.

    Everything is a composition of analytic functions, run for all variables at once: row v of an
    array is perturbed in variable v. Complex log1p and expm1 are written out, since numpy's lose
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
            self.rounds, weights = np.arange(float(self.n)), np.ones(self.n)
        else:
            self.rounds, weights = time_grid(self.n)
        # Round t of the noise is in n - t rounds' totals, in sum, and once in the last round's,
        # which is the largest.
        self.weights = weights * (self.n - self.rounds) if objective == "mean" else weights
        self.windows, self.window_weights = time_grid(self.k - 1)

    def starts(self) -> list[np.ndarray]:
        """Poles and zeros evenly spread in u, from near 1 - 1 / horizon down, as for a square root
        (Newman 1964).

        Under several participations there are two kinds of optima, which remember for about min_sep
        rounds or for a tenth of them, and neither is always the better one: both are tried.
        """
        if self.k == 1:
            return [self.spread(max(self.n, 4.0), 1.5)]
        return [self.spread(max(2.0 * share * self.b, 4.0), 0.0) for share in (1.0, 0.1)]

    def spread(self, horizon: float, last: float) -> np.ndarray:
        """The variables of 2 d evenly spread u, from -log(2 horizon) to `last`."""
        first = -np.log(2.0 * horizon)
        step = (last - first) / max(2 * self.d - 1, 1)
        return np.concatenate([[first], np.full(2 * self.d - 1, np.log(step))])

    def bounds(self) -> list[tuple[float | None, float | None]]:
        """A range within which float64 tells neighbours apart."""
        return [
            (-float(np.log(1e4 * self.n + 1e4)), 10.0),
            *[(_LEAST_LOG_GAP, _MAX_LOG_GAP)] * (2 * self.d - 1),
        ]

    def log_loss(self, variables: np.ndarray) -> tuple[float, np.ndarray]:
        size = len(variables)
        u = _positions(variables + 1j * _STEP * np.eye(size))
        with np.errstate(all="ignore"):
            poles = u[:, 0::2]
            zeros = u[:, 1::2]
            value = np.log(self._squared_sensitivity(poles, zeros)) + np.log(
                self._squared_error(poles, zeros)
            )
        return float(value[0].real), value.imag / _STEP

    def _squared_sensitivity(self, poles: np.ndarray, zeros: np.ndarray) -> np.ndarray:
        """Of the rounds 0, b, 2 b, ...: the squared norm of the sum of their columns, (size,).

        In round s b + r, 0 < r < b, the columns sum up to sum over i of P_i(s) decays[i]^(r - 1),
        with P_i(s) = scales[i] (1 - decays[i]^(b (s + 1))) / (1 - decays[i]^b); in round s b to 1 +
        sum of decays[i]^(b - 1) P_i(s-1).
        """
        log = _log_decay(poles)
        scale = _residues(poles, zeros)
        pair = log[:, :, None] + log[:, None, :]

        def window(s: np.ndarray, length: int) -> np.ndarray:
            """The sum over rounds s b .. s b + length - 1, (size, len(s))."""
            whole = _expm1(self.b * log)[:, None, :]
            sums = scale[:, None, :] * _expm1(self.b * (s[:, None] + 1.0) * log[:, None, :]) / whole
            before = scale[:, None, :] * _expm1(self.b * s[:, None] * log[:, None, :]) / whole
            first = 1.0 + (before * np.exp((self.b - 1) * log)[:, None, :]).sum(axis=2)
            later = _expm1((length - 1) * pair) / _expm1(pair)
            return first * first + np.einsum("vsi,vij,vsj->vs", sums, later, sums, optimize=True)

        last = np.array([self.k - 1.0])
        squared = window(last, self.n - (self.k - 1) * self.b)[:, 0]
        if self.k > 1:
            squared = squared + window(self.windows, self.b) @ self.window_weights
        return squared

    def _squared_error(self, poles: np.ndarray, zeros: np.ndarray) -> np.ndarray:
        """The weighted sum of squares of the first column of A N, (size,)."""
        log = _log_decay(zeros)
        scale = -_residues(zeros, poles)
        t = self.rounds
        if self.poles is None:
            import scipy.signal

            lags = np.maximum(t - 1.0, 0.0)
            noise = np.stack(
                [-(s @ np.exp(lags * row[:, None])) for s, row in zip(scale, log, strict=True)]
            )
            noise[:, 0] = 1.0
            column = scipy.signal.lfilter([1.0], self.inverse, noise, axis=1)
            return (column * column) @ self.weights
        column = np.zeros((len(log), len(t)), dtype=complex)
        for pole, share in self.poles:
            earlier = np.einsum("vi,vti->vt", scale, _divided_powers(np.log(pole), log, t))
            column += share * (np.exp(t * np.log(pole)) - earlier)
        return (column * column) @ self.weights


def time_grid(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Times and weights, both (m,), with sum over t = 0..count-1 of f(t)
    = sum of weights * f(times).

    The first rounds are taken one by one. Later ones are cut into panels [T, 2 T), each summed
    through the polynomial of degree 23 in its Chebyshev points: exact for those, and to about 1e-13
    of the whole sum for exponentials of any decay, since what falls by more than e^-30 over a panel
    has long fallen before it. m is about 64 + 24 log2(count / 64).

    >>> times, weights = time_grid(10_000)
    >>> len(times) < 300, bool(abs(weights @ 0.99**times - (1 - 0.99**10_000) / 0.01) < 1e-9)
    (True, True)
    """
    if count == 0:
        return np.zeros(0), np.zeros(0)
    edges = [0]
    while edges[-1] < count:
        edges.append(min(max(_ONE_BY_ONE, 2 * edges[-1]), count))
    times = []
    weights = []
    for begin, end in itertools.pairwise(edges):
        length = end - begin
        if length <= max(_NODES, _ONE_BY_ONE):
            times.append(np.arange(begin, end, dtype=float))
            weights.append(np.ones(length))
            continue
        angles = (np.arange(_NODES) + 0.5) * np.pi / _NODES
        middle = begin + (length - 1) / 2
        half = (length - 1) / 2
        times.append(middle + half * np.cos(angles))
        # Sums of the Chebyshev polynomials over the panel's rounds, spread over the nodes by their
        # discrete orthogonality.
        every = np.arccos((np.arange(length) - half) / half)
        sums = np.array([np.cos(degree * every).sum() for degree in range(_NODES)])
        sums[1:] *= 2.0
        weights.append(np.cos(np.outer(angles, np.arange(_NODES))) @ sums / _NODES)
    return np.concatenate(times), np.concatenate(weights)


def _workload_poles(inverse: np.ndarray) -> list[tuple[float, float]] | None:
    """The (pole, share) with a(x) = sum of share / (1 - pole x), if there are some, real, in (0, 1]
    and apart; otherwise None.

    >>> _workload_poles(np.array([1.0, -1.5, 0.5]))
    [(1.0, 2.0), (0.5, -1.0)]
    """
    trimmed = np.trim_zeros(inverse, "b")
    roots = np.roots(trimmed)
    if not len(roots) or np.imag(roots).any():  # the identity has none
        return None
    poles = np.sort(np.real(roots))[::-1]
    poles = np.where(np.abs(poles - 1.0) < 1e-12, 1.0, poles)
    if poles[0] > 1.0 or poles[-1] <= 0.0 or (len(poles) > 1 and -np.diff(poles).max() < _POLE_GAP):
        return None
    shares = [
        np.prod(1.0 / (1.0 - np.delete(poles, j) / pole)) / trimmed[0]
        for j, pole in enumerate(poles)
    ]
    return [(round(float(p), 15), round(float(s), 13)) for p, s in zip(poles, shares, strict=True)]


def _log_decay(u: np.ndarray) -> np.ndarray:
    """log(1 / (1 + exp(u)))."""
    x = np.exp(u)
    return -(np.log1p(x.real) + 1j * x.imag / (1.0 + x.real))


def _expm1(x: np.ndarray) -> np.ndarray:
    """exp(x) - 1 for an infinitesimal imaginary part."""
    return np.expm1(x.real) + 1j * x.imag * np.exp(x.real)


def _difference(u: np.ndarray, w: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(u)) - 1 / (1 + exp(w)), without the loss of digits near 1."""
    return _expm1(w - u) * np.exp(u) / ((1.0 + np.exp(u)) * (1.0 + np.exp(w)))


def _residues(poles: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """`fedmf.mechanisms.blt.residues` in u, (size, d)."""
    to_zeros = _difference(poles[:, :, None], zeros[:, None, :])
    to_poles = _difference(poles[:, :, None], poles[:, None, :])
    diagonal = np.arange(poles.shape[1])
    to_poles[:, diagonal, diagonal] = 1.0
    return (to_zeros / to_poles).prod(axis=2)


def _divided_powers(log_pole: float, log: np.ndarray, t: np.ndarray) -> np.ndarray:
    """(pole^t - z^t) / (pole - z) for every z = exp(log), (size, len(t), d).

    Written as M^t (1 - (m / M)^t) / (M - m) with M the larger of the two, which loses no digits
    when they are close.
    """
    larger = np.where(log.real > log_pole, log, log_pole)[:, None, :]
    smaller = np.where(log.real > log_pole, log_pole, log)[:, None, :]
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
