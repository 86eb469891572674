"""The best banded encoder, by L-BFGS with a dual certificate (banded paper, Prob. 2, App. B)."""

import contextlib
import dataclasses
import time
from typing import ClassVar, final

import numpy as np
import scipy.linalg

from fedmf import checks, fields
from fedmf.mechanisms.banded.loss import DenseLoss, StructuredLoss, clear_outside
from fedmf.mechanisms.banded.recursion import rows_of_columns
from fedmf.mechanisms.base import Certificate, Mechanism, certify
from fedmf.mechanisms.family import Family, register
from fedmf.mechanisms.fitting.descent import minimise
from fedmf.mechanisms.fitting.progress import Stopping, raise_if_interruptible
from fedmf.mechanisms.toeplitz.fit_problem import ToeplitzProblem, power_series
from fedmf.noise.stream import banded_matrix, check_recurrence, inverse_of_banded
from fedmf.participation.schema import Participation
from fedmf.workloads import Workload


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BandedMechanism(Mechanism):
    """A lower-triangular C with `bands` non-zero diagonals, N = C^-1 (banded paper, Sec. 3 and 4).

        diagonals[t, j] = C[t, t-j]       C = | c00             |
                                              | c10  c11        |      two bands, three rounds
                                              |      c21  c22   |

    With bands <= min_sep, columns of one client do not overlap and the sensitivity is that of k
    separate releases (Thm. 2): sqrt(k) times the column norm, if all columns have the same.

    Attributes:
      diagonals: float64 (rounds, bands), column j holds the j-th diagonal below the main one,
        shifted down by j rows; diagonals[t, j] with t < j lies outside C and is 0; diagonals[:, 0]
        is positive. Kept as a read-only copy.

    Raises:
      TypeError, ValueError: diagonals is of another kind or shape, not finite, or breaks what is
        said above.

    >>> mechanism = BandedMechanism(diagonals=[[1.0, 0.0], [1.0, 0.5], [1.0, 0.5]])
    >>> mechanism.noising()
    array([[ 1.  ,  0.  ,  0.  ],
           [-0.5 ,  1.  ,  0.  ],
           [ 0.25, -0.5 ,  1.  ]])
    """

    family: ClassVar[str] = "banded"
    diagonals: np.ndarray = fields.validated(check_recurrence)

    @property
    def rounds(self) -> int:
        """n, the number of rounds."""
        return int(self.diagonals.shape[0])

    @property
    def bands(self) -> int:
        """The number of diagonals stored."""
        return int(self.diagonals.shape[1])

    def encoder(self) -> np.ndarray:
        """C, float64 (rounds, rounds), lower-triangular and banded."""
        checks.fits_in_memory("the encoder", (self.rounds, self.rounds))
        return banded_matrix(self.diagonals)

    def noising(self) -> np.ndarray:
        """N = C^-1, float64 (rounds, rounds), lower-triangular."""
        checks.fits_in_memory("the noising matrix", (self.rounds, self.rounds))
        return inverse_of_banded(self.diagonals)

    def banded_rows(self) -> np.ndarray:
        """The diagonals."""
        return self.diagonals


def diagonals_of(C: np.ndarray, bands: int) -> np.ndarray:
    """The (n, bands) diagonals of a lower-triangular (n, n) matrix: [t, j] is C[t, t - j], 0 where
    t < j.
    """
    diagonals = np.zeros((C.shape[0], bands))
    for j in range(bands):
        diagonals[j:, j] = np.diagonal(C, -j)
    return diagonals


# A certificate costs as much as tens of steps. It is computed where the last quarter of the steps
# lowered the loss by less than a share of the tolerance, and at twice as many steps as the last
# one; the first between these two steps.
_SLOW, _CHECK_GROWTH, _FIRST_CHECK, _LATEST_FIRST_CHECK = 0.03, 2.0, 8, 64
# Unit of the logarithms of norms among the variables: L-BFGS took 122, 70, 177 steps with 0.1, 0.3,
# 1 (516 rounds).
_NORM_UNIT = 0.3
# Of the start: the most steps, and the relative decrease in a step below which it is good enough.
_MAX_START_STEPS, _START_DECREASE = 60, 1e-4


def check_memory_of_fit(rounds: int, bands: int, *, hint: str | None = None) -> None:
    """Raises TooLargeForMemory where a fit of so many rounds and bands takes more memory than is
    free; `hint` is the way out, or None for another family.
    """
    # Mostly the vectors that L-BFGS keeps. Measured: 59 arrays; 20 fewer where they are so large
    # that this matters.
    what = f"the fit of family='banded' with bands={bands}"
    options = {} if hint is None else {"hint": hint}
    checks.fits_in_memory(what, (rounds, bands), copies=40, **options)


def fit_banded(
    workload: Workload,
    participation: Participation,
    stopping: Stopping,
    *,
    bands: int | None = None,
    equal_norms: bool = True,
) -> BandedMechanism:
    """Minimises ||A C^-1||_F^2 over lower-triangular C with `bands` bands.

    equal_norms=True: over columns of norm 1 (banded paper, Sec. 4, Problem 2), whatever the
    participation; with bands <= min_sep the sensitivity is then sqrt(max_participations).

    equal_norms=False: over C of sensitivity 1 under (k, b)-participation, that is "fixed_epoch"
    with the min_sep b and the max_participations k of `participation` (App. B): with bands <= b,
    Prop. B.1 (which states the squared sensitivity) makes this the constraint that the squared
    column norms of the rounds i, i + b, i + 2b, ... sum to at most 1. Under "min_sep" the matrix is
    the same, as in the paper; its sensitivity there is larger than 1. For a single participation,
    and k = 1, this is the problem with equal norms.

    With X = C^T C both problems are convex, so that L-BFGS cannot end in a poor local optimum. The
    variables are the ratios of the entries of each column of C to its diagonal entry, and the
    logarithms of the column norms; every step is feasible. A workload with `inverse_diagonals`
    costs O(n bands^2) a step, any other O(n^2 bands).

    Args:
      workload, participation: as `fedmf.fit`.
      stopping: tolerance is the relative optimality gap to reach.
      bands: in 1..rounds; None means min_sep.
      equal_norms: see above.

    Raises:
      TypeError, ValueError: as `fedmf.fit`; equal_norms=False with bands > min_sep, or with fewer
        participations than fit into the rounds.
    """
    bands = checks.integer(
        "bands",
        participation.min_sep if bands is None else bands,
        low=1,
        high=workload.rounds,
        hint="it counts diagonals of the encoder, best at most `min_sep`",
    )
    check_memory_of_fit(workload.rounds, bands)
    began = time.perf_counter()
    under = None if equal_norms else _epochs(participation, bands)

    def descend(loss: StructuredLoss | DenseLoss) -> BandedMechanism:
        return _descend(loss, workload, bands, under, stopping, began)

    if workload.inverse_diagonals is not None:
        with contextlib.suppress(
            ArithmeticError
        ):  # digits lost in the recursion, as where rates fall far and rise again
            return descend(StructuredLoss(workload.inverse_diagonals, bands))
    return descend(DenseLoss(workload.matrix, bands))


def _descend(
    loss: StructuredLoss | DenseLoss,
    workload: Workload,
    bands: int,
    under: Participation | None,
    stopping: Stopping,
    began: float,
) -> BandedMechanism:
    """The fit with one way to compute losses; ArithmeticError where that is not precise."""
    columns = _Columns(
        toeplitz_start(workload, bands), workload.rounds, None if under is None else under.min_sep
    )
    x = np.zeros(columns.size)
    with np.errstate(all="ignore"):
        value, gradient = loss.evaluate(columns.of(x))
    unit = value / workload.rounds
    if under is not None:
        x = columns.better_norms(gradient)

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        # Scaled to start at n, the order at which L-BFGS's first,
        # unit-length step is a sensible one.
        with np.errstate(all="ignore"):
            value, gradient = loss.evaluate(columns.of(x))
            return value / unit, columns.pull_back(x, gradient) / unit

    certificate: Certificate | None = None

    def certified(x: np.ndarray, iterations: int, tolerance: float) -> Certificate:
        value, bound = loss.bound(columns.of(x), columns.classes, tolerance)
        if certificate is not None:
            # Bounds hold for every encoder of the family
            bound = max(bound, certificate.lower_bound)
        return certify(value, bound, iterations, time.perf_counter() - began, participation=under)

    iterations = 0
    certified_at = 0
    interrupted = False
    values = [workload.rounds * 1.0]
    try:
        for x, value in minimise(objective, x) if x.size else ():  # noqa: B020
            iterations += 1
            values.append(value)
            gap = None
            if _worth_certifying(values, certified_at, stopping.tolerance):
                certificate = certified(x, iterations, stopping.tolerance)
                certified_at = iterations
                gap = certificate.gap
            if stopping.progress is not None:
                stopping.progress(iterations, value * unit, gap)
            if (
                gap is not None and gap <= stopping.tolerance
            ) or iterations >= stopping.max_iterations:
                break
    except KeyboardInterrupt:  # what was reached is kept; a second one goes through
        raise_if_interruptible()
        interrupted = True
    if interrupted and certificate is not None:
        # Another bound would take long. The last one holds for the last step too.
        seconds = time.perf_counter() - began
        certificate = certify(
            value * unit, certificate.lower_bound, iterations, seconds, participation=under
        )
    elif interrupted:
        certificate = certified(x, iterations, np.inf)  # the bound that takes least time
    elif certificate is None or certified_at != iterations:
        certificate = certified(x, iterations, stopping.tolerance)
    if certificate.gap > stopping.tolerance:
        stopping.warn(
            "banded",
            iterations=certificate.iterations,
            gap=certificate.gap,
            interrupted=interrupted,
        )
    return BandedMechanism(diagonals=rows_of_columns(columns.of(x)), certificate=certificate)


def _worth_certifying(values: list[float], certified_at: int, tolerance: float) -> bool:
    """Whether the last of the losses after each step may be within tolerance."""
    steps = len(values) - 1
    if steps < max(_FIRST_CHECK, int(np.ceil(1.15 * certified_at))):
        return False
    slow = values[steps - steps // 4] - values[-1] <= _SLOW * tolerance * values[-1]
    return (
        slow
        or (certified_at > 0 and steps >= _CHECK_GROWTH * certified_at)
        or steps == _LATEST_FIRST_CHECK
    )


def _epochs(participation: Participation, bands: int) -> Participation | None:
    """The (k, b)-participation that a fit without equal norms is for; None where equal norms are
    the optimum.
    """
    n = participation.rounds
    b = participation.min_sep
    k = participation.max_participations
    if k == 1:
        return None
    if bands > b:
        raise ValueError(
            f"bands={bands} is above min_sep={b}, and equal_norms=False knows the sensitivity of "
            "at most `min_sep` bands "
            f"only (banded paper, Prop. B.1): pass bands <= {b}, or equal_norms=True"
        )
    if k < -(-n // b):
        raise ValueError(
            f"max_participations={k} is less than the {-(-n // b)} that fit into rounds={n} "
            f"at min_sep={b}, which equal_norms=False is for: leave `max_participations` out, "
            "or pass equal_norms=True"
        )
    return Participation(rounds=n, schema="fixed_epoch", min_sep=b, max_participations=k)


def toeplitz_start(workload: Workload, bands: int) -> np.ndarray:
    """Coefficients c of a Toeplitz C, float64 (bands,), c[0] = 1, that is good for `workload` with
    columns of one norm.

    Of a workload with banded inverse a typical row of that is taken for all rounds, and the
    coefficients minimise |c|^2 ||A C^-1||_F^2. Otherwise, and where such a workload grows without
    bound, they are those of (1 - x)^(-1/2), the square root of the prefix sums.

    >>> from fedmf.workloads import identity
    >>> bool(abs(toeplitz_start(identity(8), 2)[1]) < 1e-3)
    True
    """
    c = power_series(np.array([1.0, -1.0]), -0.5, bands)
    rows = workload.inverse_diagonals
    if rows is None or bands == 1:
        return c
    n, p = rows.shape
    typical = np.median(rows[p - 1 :] / rows[p - 1 :, :1], axis=0)
    problem = ToeplitzProblem(
        typical, Participation(rounds=n, schema="single"), bands, "mean", decreasing=False
    )
    if np.isfinite(problem.log_loss(c[1:])[0]):
        before = np.inf
        for step, (free, value) in enumerate(minimise(problem.log_loss, c[1:])):
            c = np.append(1.0, free)
            if step >= _MAX_START_STEPS or before - value < _START_DECREASE:
                break
            before = value
    return c


class _Columns:
    """Encoders as functions of free variables: x holds (n, bands - 1), then (n,) norms if those may
    differ; it starts at 0.

    Column j of C is norm[j] (1, ratios[j]) / |(1, ratios[j])|. The ratios move away from those of a
    Toeplitz start with coefficients c; entry [t, m - 1] of x L^T moves C[t, t - m]. L L^T has the
    entries of the Toeplitz matrix of |c(z)|, a preconditioner: the Hessian of the loss along C is
    roughly (B^T B) x (C^T C)^-1, and half of its second factor's inverse, taken from the start,
    halves the steps (512 rounds, 85 bands, prefix sums: from 55 to 30; all of it, or the first
    factor's, is worse).

    With equal norms norm[j] = 1 and each round is a class of its own; otherwise norm[j] =
    exp(_NORM_UNIT x[j]), scaled so that the squares in each class i, i + min_sep, i + 2 min_sep,
    ... sum to 1.
    """

    def __init__(self, coefficients: np.ndarray, n: int, min_sep: int | None) -> None:
        self.n = n
        self.bands = len(coefficients)
        self.equal = min_sep is None
        self.classes = np.arange(n) if min_sep is None else np.arange(n) % min_sep
        self.base = clear_outside(np.tile(coefficients, (n, 1)))
        self.ratios = n * (self.bands - 1)
        self.size = self.ratios if self.equal else self.ratios + n
        modulus = np.abs(np.fft.rfft(coefficients, 8 * self.bands))
        kernel = np.fft.irfft(np.maximum(modulus, 1e-3 * modulus.max()))[: self.bands - 1]
        self.mixing = np.linalg.cholesky(scipy.linalg.toeplitz(kernel / kernel[:1]))

    def better_norms(self, gradient: np.ndarray) -> np.ndarray:
        """The start with the norms that would be best if what column j adds to the loss went as
        norm[j]^-2: one band.

        `gradient` is that of the loss along the columns of the start, x = 0.
        """
        x = np.zeros(self.size)
        shares = -0.5 * np.einsum("ij,ij->i", gradient, self.of(x))
        x[self.ratios :] = 0.25 / _NORM_UNIT * np.log(np.maximum(shares, 1e-6 * shares.max()))
        return x

    def of(self, x: np.ndarray) -> np.ndarray:
        """C by columns, (n, bands)."""
        unit, _ = self._unit(x)
        norms = self._norms(x)
        return unit if norms is None else unit * norms[:, None]

    def pull_back(self, x: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """The gradient with respect to x, from that with respect to the columns."""
        unit, lengths = self._unit(x)
        norms = self._norms(x)
        # Through the division by the lengths: the part along each column drops out.
        along = np.einsum("ij,ij->i", gradient, unit)
        ratios = gradient[:, 1:] - unit[:, 1:] * along[:, None]
        ratios /= (lengths if norms is None else lengths / norms)[:, None]
        by_rows, view = self._rows()
        view[...] = ratios
        mixed = (by_rows[: self.n] @ self.mixing).ravel()
        if norms is None:
            return mixed
        along *= norms
        # norm^2 is a softmax on each class.
        logarithms = along - norms**2 * np.bincount(self.classes, along)[self.classes]
        return np.append(mixed, _NORM_UNIT * logarithms)

    def _unit(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Columns of norm 1, and what they were divided by."""
        by_rows, view = self._rows()
        np.matmul(
            x[: self.ratios].reshape(self.n, self.bands - 1), self.mixing.T, out=by_rows[: self.n]
        )
        columns = self.base.copy()
        columns[:, 1:] += view
        lengths = np.sqrt(np.einsum("ij,ij->i", columns, columns))
        columns /= lengths[:, None]
        return columns, lengths

    def _norms(self, x: np.ndarray) -> np.ndarray | None:
        if self.equal:
            return None
        logarithms = _NORM_UNIT * x[self.ratios :]
        squares = np.exp(2.0 * (logarithms - logarithms.max()))
        return np.sqrt(squares / np.bincount(self.classes, squares)[self.classes])

    def _rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Zeros by rows, [t, m - 1] for C[t, t - m], and a view of them by columns, [j, o - 1] for
        C[j + o, j].
        """
        width = self.bands - 1
        by_rows = np.zeros((self.n + self.bands, width))
        step = by_rows.itemsize
        shape = (self.n, width)
        strides = (width * step, (width + 1) * step)
        return by_rows, np.lib.stride_tricks.as_strided(by_rows[1:], shape, strides)


register(
    Family(
        mechanism=BandedMechanism,
        fit=fit_banded,
        label="Banded ({bands})",
        color="#0a5ca8",
        proves_gap=True,
        help={
            "bands": "diagonals of the encoder, by default min_sep",
            "equal_norms": "columns of one norm",
        },
    )
)
