"""The fit of the best banded encoder by L-BFGS, with a bound from the dual problem that certifies
how close it is to the optimum. The problem is that of the banded paper, Prob. 2, App. B.
"""

import contextlib
import dataclasses
import time
from typing import ClassVar, final

import numpy as np

from fedmf import checks, fields
from fedmf.mechanisms.banded.loss import DenseLoss, StructuredLoss
from fedmf.mechanisms.banded.recursion import rows_of_columns
from fedmf.mechanisms.banded.variables import EncoderVariables
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
    """A mechanism with a lower-triangular encoder C of `bands` non-zero diagonals, and the noise
    matrix N = C^-1. Its source is the banded paper, Sec. 3 and 4.

        diagonals[t, j] = C[t, t-j]       C = | c00             |
                                              | c10  c11        |      two bands, three rounds
                                              |      c21  c22   |

    With bands <= min_sep, columns of one client do not overlap and the sensitivity is that of k
    separate releases (Thm. 2): sqrt(k) times the column norm, if all columns have the same norm.

    Attributes:
      diagonals: float64 (rounds, bands), column j holds the j-th diagonal below the main one,
        shifted down by j rows; diagonals[t, j] with t < j lies outside C and is 0; diagonals[:, 0]
        is positive. Stored as a read-only copy.

    Raises:
      TypeError, ValueError: diagonals is of the wrong kind or shape, not finite, or against the
        conditions above.

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
        """The number of rounds n."""
        return int(self.diagonals.shape[0])

    @property
    def bands(self) -> int:
        """The number of diagonals of the encoder C."""
        return int(self.diagonals.shape[1])

    def encoder(self) -> np.ndarray:
        """Returns the encoder C, a lower-triangular banded float64 array, (rounds, rounds)."""
        checks.fits_in_memory("the encoder", (self.rounds, self.rounds))
        return banded_matrix(self.diagonals)

    def noising(self) -> np.ndarray:
        """Returns the noise matrix N = C^-1, a lower-triangular float64 array of shape (rounds,
        rounds).
        """
        checks.fits_in_memory("the noising matrix", (self.rounds, self.rounds))
        return inverse_of_banded(self.diagonals)

    def banded_rows(self) -> np.ndarray:
        """Returns `diagonals`, the rows of the banded encoder."""
        return self.diagonals


def diagonals_of(C: np.ndarray, bands: int) -> np.ndarray:
    """Returns the diagonals of a lower-triangular matrix C of shape (n, n), float64 (n, bands).
    Entry [t, j] is C[t, t - j], or 0 where t < j.
    """
    diagonals = np.zeros((C.shape[0], bands))
    for j in range(bands):
        diagonals[j:, j] = np.diagonal(C, -j)
    return diagonals


# A certificate costs as much as tens of steps. One is due if the last quarter of the steps lowered
# the loss by less than _SLOW_DECREASE of the tolerance, or if the number of steps has grown by the
# factor _CHECK_GROWTH since the last one.
_SLOW_DECREASE = 0.03
_CHECK_GROWTH = 2.0
_FIRST_CHECK = 8
_LATEST_FIRST_CHECK = 64
# The fit of a banded encoder starts from the result of a short fit of a Toeplitz encoder. The short
# fit ends after _MAX_START_STEPS steps, or with a step that lowers the loss by less than this
# fraction.
_MAX_START_STEPS = 60
_START_DECREASE = 1e-4


def check_memory_of_fit(rounds: int, bands: int, *, hint: str | None = None) -> None:
    """Raises TooLargeForMemory if a banded fit with this number of rounds and bands takes more than
    the available memory. `hint` says what to do instead; None advises to choose another family.
    """
    # Most memory is for the vectors that L-BFGS stores. If arrays of shape (rounds, bands) are so
    # large that memory matters, the measured maximum is 39 such arrays.
    fit_text = f"the fit of family='banded' with bands={bands}"
    hint_argument = {}
    if hint is not None:
        hint_argument["hint"] = hint
    checks.fits_in_memory(fit_text, (rounds, bands), copies=40, **hint_argument)


def fit_banded(
    workload: Workload,
    participation: Participation,
    stopping: Stopping,
    *,
    bands: int | None = None,
    equal_norms: bool = True,
) -> BandedMechanism:
    """Fits the banded encoder of the smallest loss, which is ||A C^-1||_F^2 for a workload A, over
    all lower-triangular encoders C with `bands` non-zero diagonals.

    equal_norms=True: over columns of norm 1 (banded paper, Sec. 4, Problem 2), for any
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
      workload, participation: as in `fedmf.fit`.
      stopping: tolerance is the relative optimality gap to reach.
      bands: number of bands, in 1..rounds; None means min_sep.
      equal_norms: whether all columns have norm 1, see above.

    Raises:
      TypeError, ValueError: as in `fedmf.fit`; equal_norms=False with bands > min_sep, or with
        fewer participations than fit into the rounds.
    """
    if bands is None:
        bands = participation.min_sep
    bands = checks.integer(
        "bands",
        bands,
        low=1,
        high=workload.rounds,
        hint="it counts diagonals of the encoder, best at most `min_sep`",
    )
    check_memory_of_fit(workload.rounds, bands)
    start_time = time.perf_counter()
    epochs = None
    if not equal_norms:
        epochs = _epochs(participation, bands)
    if workload.inverse_diagonals is not None:
        # For some workloads the structured loss loses too many digits, for example if learning
        # rates fall far and rise again. It then raises ArithmeticError, and the fit is done with
        # the dense loss instead.
        with contextlib.suppress(ArithmeticError):
            structured_loss = StructuredLoss(workload.inverse_diagonals, bands)
            return _BandedFit(structured_loss, workload, bands, epochs, stopping, start_time).run()
    dense_loss = DenseLoss(workload.matrix, bands)
    return _BandedFit(dense_loss, workload, bands, epochs, stopping, start_time).run()


class _BandedFit:
    """A single fit of a banded encoder, with either the structured or the dense loss. Its `run`
    raises ArithmeticError if the loss is not accurate enough for the workload.
    """

    def __init__(
        self,
        loss: StructuredLoss | DenseLoss,
        workload: Workload,
        bands: int,
        epochs: Participation | None,
        stopping: Stopping,
        start_time: float,
    ) -> None:
        self.loss = loss
        self.epochs = epochs
        self.stopping = stopping
        self.start_time = start_time
        min_sep = None
        if epochs is not None:
            min_sep = epochs.min_sep
        self.variables = EncoderVariables(toeplitz_start(workload, bands), workload.rounds, min_sep)
        self.certificate: Certificate | None = None
        self.certified_at = 0
        # The losses after each step, scaled so that the loss at the start is n. With this scale,
        # the first step of L-BFGS, which has length 1, has a sensible size.
        self.values = [workload.rounds * 1.0]
        with np.errstate(all="ignore"):
            start_loss, self.start_gradient = loss.evaluate(self.variables.encoder(self.start()))
        self.unit = start_loss / workload.rounds

    def start(self) -> np.ndarray:
        """Returns the variables at which the descent starts. They give a Toeplitz encoder."""
        return np.zeros(self.variables.size)

    @property
    def iterations(self) -> int:
        """The number of steps so far."""
        return len(self.values) - 1

    def objective(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the loss in units of `unit`, and its gradient with respect to the variables x."""
        with np.errstate(all="ignore"):
            loss, gradient = self.loss.evaluate(self.variables.encoder(x))
            return loss / self.unit, self.variables.pull_back(x, gradient) / self.unit

    def run(self) -> BandedMechanism:
        """Runs the descent until the certified gap is within the tolerance, and warns if it stops
        before.
        """
        x = self.start()
        if self.epochs is not None:
            x = self.variables.better_norms(self.start_gradient)
        was_interrupted = False
        try:
            descent_steps = minimise(self.objective, x) if x.size else iter(())
            for x, value in descent_steps:
                self.values.append(value)
                if self._end_step(x):
                    break
        except KeyboardInterrupt:
            raise_if_interruptible()
            was_interrupted = True
        certificate = self._final_certificate(x, was_interrupted)
        if certificate.gap > self.stopping.tolerance:
            self.stopping.warn(
                "banded",
                iterations=certificate.iterations,
                gap=certificate.gap,
                interrupted=was_interrupted,
            )
        diagonals = rows_of_columns(self.variables.encoder(x))
        return BandedMechanism(diagonals=diagonals, certificate=certificate)

    def _end_step(self, x: np.ndarray) -> bool:
        """Computes a certificate if one is due, reports the step to `progress`, and returns whether
        to stop.
        """
        gap = None
        if _worth_certifying(self.values, self.certified_at, self.stopping.tolerance):
            self.certificate = self._certify(x, self.stopping.tolerance)
            self.certified_at = self.iterations
            gap = self.certificate.gap
        if self.stopping.progress is not None:
            self.stopping.progress(self.iterations, self.values[-1] * self.unit, gap)
        has_converged = gap is not None and gap <= self.stopping.tolerance
        return has_converged or self.iterations >= self.stopping.max_iterations

    def _certify(self, x: np.ndarray, tolerance: float) -> Certificate:
        """Returns a certificate of the encoder at x. Its lower bound is the largest one so far,
        since each bound holds for every encoder of the family.
        """
        encoder = self.variables.encoder(x)
        loss, lower_bound = self.loss.bound(encoder, self.variables.classes, tolerance)
        if self.certificate is not None:
            lower_bound = max(lower_bound, self.certificate.lower_bound)
        return self._new_certificate(loss, lower_bound)

    def _new_certificate(self, loss: float, lower_bound: float) -> Certificate:
        """Returns a new certificate, which states the number of steps and the time that the fit has
        taken.
        """
        duration = time.perf_counter() - self.start_time
        return certify(loss, lower_bound, self.iterations, duration, participation=self.epochs)

    def _final_certificate(self, x: np.ndarray, interrupted: bool) -> Certificate:
        """Returns the certificate for the encoder of the last step. After Ctrl-C it has the latest
        lower bound, or one that takes little time to compute.
        """
        if interrupted and self.certificate is not None:
            return self._new_certificate(self.values[-1] * self.unit, self.certificate.lower_bound)
        if interrupted:
            return self._certify(x, np.inf)
        if self.certificate is None or self.certified_at != self.iterations:
            return self._certify(x, self.stopping.tolerance)
        return self.certificate


def _worth_certifying(values: list[float], certified_at: int, tolerance: float) -> bool:
    """Returns whether an optimality bound should be computed now, because the descent has become
    slow or the last bound was computed many steps ago. `values` are the losses after each step.
    """
    num_steps = len(values) - 1
    if num_steps < max(_FIRST_CHECK, int(np.ceil(1.15 * certified_at))):
        return False
    recent_decrease = values[num_steps - num_steps // 4] - values[-1]
    is_slow = recent_decrease <= _SLOW_DECREASE * tolerance * values[-1]
    is_overdue = certified_at > 0 and num_steps >= _CHECK_GROWTH * certified_at
    return is_slow or is_overdue or num_steps == _LATEST_FIRST_CHECK


def _epochs(participation: Participation, bands: int) -> Participation | None:
    """Returns the (k, b)-participation for which column norms are optimised, or None if equal
    column norms are optimal.
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
    num_fitting = -(-n // b)
    if k < num_fitting:
        raise ValueError(
            f"max_participations={k} is less than the {num_fitting} that fit into rounds={n} "
            f"at min_sep={b}, which equal_norms=False is for: leave `max_participations` out, "
            "or pass equal_norms=True"
        )
    return Participation(rounds=n, schema="fixed_epoch", min_sep=b, max_participations=k)


def toeplitz_start(workload: Workload, bands: int) -> np.ndarray:
    """Returns the first column c of a Toeplitz encoder with c[0] = 1, float64 (bands,), whose loss
    for `workload` is small once its columns are scaled to the same norm.

    For a workload with banded inverse they minimise |c|^2 ||A C^-1||_F^2, with a typical row of the
    inverse in all rounds. Otherwise, and where such a workload grows without bound, they are those
    of (1 - x)^(-1/2), the square root of the prefix sums.

    >>> from fedmf.workloads import identity
    >>> bool(abs(toeplitz_start(identity(8), 2)[1]) < 1e-3)
    True
    """
    c = power_series(np.array([1.0, -1.0]), -0.5, bands)
    inverse_rows = workload.inverse_diagonals
    if inverse_rows is None or bands == 1:
        return c
    n, p = inverse_rows.shape
    typical_row = np.median(inverse_rows[p - 1 :] / inverse_rows[p - 1 :, :1], axis=0)
    single_participation = Participation(rounds=n, schema="single")
    toeplitz_problem = ToeplitzProblem(
        typical_row, single_participation, bands, "mean", decreasing=False
    )
    if np.isfinite(toeplitz_problem.log_loss(c[1:])[0]):
        previous_value = np.inf
        for step, (coefficients, value) in enumerate(minimise(toeplitz_problem.log_loss, c[1:])):
            c = np.append(1.0, coefficients)
            if step >= _MAX_START_STEPS or previous_value - value < _START_DECREASE:
                break
            previous_value = value
    return c


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
