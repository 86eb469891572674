"""The fit of the best lower-triangular encoder for clients with one or several participations, with
a dual bound that certifies it.
"""

import dataclasses
import time
from typing import Any, ClassVar, final

import numpy as np

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism, certify
from fedmf.mechanisms.dense.ascent import Ascent
from fedmf.mechanisms.dense.classes import Classes
from fedmf.mechanisms.dense.dual import EqualNormsDual, PairsDual, decoder
from fedmf.mechanisms.family import Family, register
from fedmf.mechanisms.fitting.progress import Stopping
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.noise.stream import check_left_inverse, triangular_inverse
from fedmf.participation.schema import Participation
from fedmf.workloads import Workload


def _check_encoder(name: str, value: Any) -> np.ndarray:
    """Returns `value` as a lower-triangular matrix with a positive diagonal, or raises an error if
    it is not one.
    """
    matrix = checks.lower_triangular(name, value)
    main_diagonal = np.diagonal(matrix)
    if main_diagonal.min() <= 0.0:
        t = int(np.argmin(main_diagonal))
        raise ValueError(
            f"{name}[{t}, {t}]={main_diagonal[t]} is not positive: give C a positive diagonal "
            "(flipping the sign of a row of C changes neither its sensitivity nor its error)"
        )
    return matrix


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class DenseMechanism(Mechanism):
    """A mechanism with any square lower-triangular encoder C, and the noise matrix N = C^-1. Its
    source is Denisov et al. 2022, Sec. 3.

    Attributes:
      matrix: C, float64 (rounds, rounds), lower-triangular with a positive diagonal. Stored as a
        read-only copy.

    Raises:
      TypeError, ValueError: matrix is of the wrong kind or shape, not finite, or against the
        conditions above.

    >>> DenseMechanism(matrix=[[2.0, 0.0], [1.0, 1.0]]).noising()
    array([[ 0.5,  0. ],
           [-0.5,  1. ]])
    """

    family: ClassVar[str] = "dense"
    matrix: np.ndarray = fields.validated(_check_encoder)

    @property
    def rounds(self) -> int:
        """The number of rounds n."""
        return int(self.matrix.shape[0])

    def encoder(self) -> np.ndarray:
        """Returns the encoder C, a lower-triangular float64 array of shape (rounds, rounds)."""
        return self.matrix.copy()

    def noising(self) -> np.ndarray:
        """Returns the noise matrix N = C^-1, a lower-triangular float64 array of shape (rounds,
        rounds).

        Raises:
          ValueError: float64 has too few digits for N.
        """
        return check_left_inverse(triangular_inverse(self.matrix), self.matrix)


def fit_dense(
    workload: Workload,
    participation: Participation,
    stopping: Stopping,
    *,
    equal_norms: bool = False,
) -> DenseMechanism:
    """Fits the encoder C that minimises ||A C^-1||_F^2, where A is the workload, over all encoders
    of sensitivity 1. The problem is that of the multi-epoch paper, Eq. 6 and 36, and Denisov et al.
    2022, Eq. 4.

    The sensitivity is that of the (k, b)-participation: "fixed_epoch" with every round of a class,
    k = ceil(rounds / b). Under "min_sep" the fit returns the same matrix, as in the banded paper,
    Table 2, last rows. Its sensitivity there is larger (`fedmf.sensitivity`), and the certificate
    is for the (k, b)-participation. "every_round" is b = 1.

    Args:
      workload, participation: as in `fedmf.fit`; a client takes part in one round, or in as many
        as fit.
      equal_norms: columns of equal norm, orthogonal on the rounds of each client (banded paper,
        Table 2, last row). The bound is for such encoders.
      stopping: tolerance is the relative optimality gap to reach.

    Raises:
      TypeError, ValueError: as in `fedmf.fit`; the participation leaves out rounds of a class.

    >>> from fedmf.workloads import prefix_sum
    >>> participation = Participation(rounds=6, schema="fixed_epoch", min_sep=2)
    >>> mechanism = fit_dense(
    ...     prefix_sum(6), participation, Stopping(tolerance=1e-6, max_iterations=1000)
    ... )
    >>> round(mechanism.certificate.loss ** 0.5, 3), sensitivity(mechanism, participation).exact
    (6.461, True)
    """
    n = workload.rounds
    # The largest memory use that was measured is 1.34 GiB, at 4096 rounds.
    checks.fits_in_memory("the fit of family='dense'", (n, n), copies=11)
    epochs = _epochs(participation)
    classes = Classes(n, epochs.min_sep)
    A = workload.matrix
    start_time = time.perf_counter()
    dual_class = PairsDual
    if equal_norms and classes.largest > 1:
        dual_class = EqualNormsDual
    dual = dual_class(workload, classes)
    ascent = Ascent(dual, A, stopping)
    ascent.run()
    # The encoder that the ascent computes has sensitivity 1 up to rounding, and the division
    # removes the rounding error.
    if epochs.max_participations == 1:
        certified_participation = None
        C = ascent.encoder / np.linalg.norm(ascent.encoder, axis=0)
    else:
        certified_participation = epochs
        C = ascent.encoder / sensitivity(ascent.encoder, epochs).value
    loss = np.square(decoder(A, C)).sum()
    lower_bound = dual.certified_bound(ascent.variables)
    certificate = certify(
        loss,
        lower_bound,
        ascent.iterations,
        time.perf_counter() - start_time,
        participation=certified_participation,
    )
    if certificate.gap > stopping.tolerance:
        stopping.warn(
            "dense",
            iterations=ascent.iterations,
            gap=certificate.gap,
            interrupted=ascent.interrupted,
        )
    return DenseMechanism(matrix=C, certificate=certificate)


def _epochs(participation: Participation) -> Participation:
    """Returns the participation for which the fit is optimal, in which a client takes part in all
    rounds t, t + b, t + 2b and so on, or in a single round.
    """
    n = participation.rounds
    b = participation.min_sep
    k = participation.max_participations
    if k == 1:
        b = n
    elif k < -(-n // b):
        raise ValueError(
            f"max_participations={k} is below ceil(rounds / `min_sep`)={-(-n // b)}, which "
            "family='dense' has no optimum for: leave `max_participations` out of the fit and "
            "calibrate the mechanism under yours, or use family='banded'"
        )
    return Participation(rounds=n, schema="fixed_epoch", min_sep=b)


register(
    Family(
        mechanism=DenseMechanism,
        fit=fit_dense,
        label="Dense",
        color="#b03a86",
        tolerance=1e-6,
        proves_gap=True,
        help={"equal_norms": "columns of one norm"},
    )
)
