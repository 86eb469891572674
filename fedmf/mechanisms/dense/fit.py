"""The best encoder of all, for one participation or several, by the dual with a certificate."""

import dataclasses
import time

import numpy as np

from fedmf import checks
from fedmf.mechanisms.dense.ascent import Ascent, decoder
from fedmf.mechanisms.dense.classes import Classes
from fedmf.mechanisms.dense.dual import Dual, EqualNormsDual, PairsDual, SignedDual
from fedmf.mechanisms.dense.mechanism import DenseMechanism
from fedmf.mechanisms.dense.nonnegative import MAX_NONNEGATIVE, NonnegativeDual
from fedmf.mechanisms.fitting.certify import certify
from fedmf.mechanisms.fitting.progress import Progress, check_common, warn_stopped_short
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.participation.schema import Participation
from fedmf.workloads import Workload

CONSTRAINTS = ("pairs", "signed", "all")
# Multipliers b 2^(k - 1) of "signed", each a quadratic form at every step.
_MAX_SIGNED = 2**16


def fit_dense(
    workload: Workload,
    participation: Participation,
    *,
    equal_norms: bool = False,
    constraints: str = "pairs",
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
    progress: Progress | None = None,
) -> DenseMechanism:
    """Minimises ||A C^-1||_F^2 over all C of sensitivity 1 (multi-epoch paper, Eq. 6; Denisov et al. 2022, Eq. 4).

    The sensitivity is that of the (k, b)-participation: "fixed_epoch" with every round of a class, k = ceil(rounds / b).
    Under "min_sep" the same matrix is returned, as in the banded paper, Table 2, last rows; its sensitivity there is
    larger (`fedmf.sensitivity`), and the certificate speaks of the (k, b)-participation. "every_round" is b = 1.

    Args:
      workload: A.
      participation: one round a client, or as many as fit.
      equal_norms: columns of equal norm, orthogonal on the rounds of each client (banded paper, Table 2, last row). The bound
        is for such encoders.
      constraints: multi-epoch paper, App. I.3. "pairs", Eq. 36, gives the best encoder there is for vector contributions, see
        `fedmf.mechanisms.dense.dual`. "all", Eq. 35, asks for C^T C >= 0 everywhere, up to 512 rounds. "signed", Eq. 34, is the
        best for scalar contributions, to which its scale and certificate then refer: the sensitivity for vectors may be
        larger, and `fedmf.sensitivity`, and with it `fedmf.loss` and every privacy statement, says so.
      tolerance: relative optimality gap to reach.
      max_iterations: steps at most.
      progress: called after each step.

    Raises:
      TypeError, ValueError: as `fedmf.fit`; participations that leave out rounds of a class; too many multipliers.

    >>> from fedmf.workloads import prefix_sum
    >>> participation = Participation(rounds=6, schema="fixed_epoch", min_sep=2)
    >>> mechanism = fit_dense(prefix_sum(6), participation)
    >>> round(mechanism.certificate.loss ** 0.5, 3), sensitivity(mechanism, participation).exact
    (6.461, True)
    """
    check_common(tolerance, max_iterations, progress)
    if not isinstance(equal_norms, bool | np.bool_):
        kind = type(equal_norms).__name__
        raise TypeError(f"equal_norms={equal_norms!r} is a {kind}, not a bool: pass True or False")
    checks.one_of("constraints", constraints, CONSTRAINTS)
    if equal_norms and constraints != "pairs":
        raise ValueError(f"constraints={constraints!r} has no variant with equal_norms=True: use constraints='pairs'")
    n = workload.rounds
    # Measured: 1.34 GiB at 4096 rounds.
    checks.fits_in_memory("the fit of family='dense'", (n, n), copies=11)
    epochs = _epochs(participation)
    classes = Classes(n, epochs.min_sep)
    A = workload.matrix
    began = time.perf_counter()
    dual = _dual(workload, classes, bool(equal_norms), constraints)
    ascent = Ascent(dual, A, tolerance, max_iterations, progress)
    ascent.run()
    C = _scaled(ascent.encoder, epochs, constraints)
    loss = float(np.square(decoder(A, C)).sum())
    single = epochs.max_participations == 1
    certificate = dataclasses.replace(
        certify(loss, dual.proven(ascent.variables), ascent.iterations, time.perf_counter() - began),
        participation=None if single else epochs,
    )
    if certificate.gap > tolerance:
        warn_stopped_short(
            "dense",
            iterations=ascent.iterations,
            gap=certificate.gap,
            tolerance=tolerance,
            max_iterations=max_iterations,
            interrupted=ascent.interrupted,
        )
    return DenseMechanism(matrix=C, certificate=certificate)


def _epochs(participation: Participation) -> Participation:
    """The (k, b)-participation to fit for: every round of each class, or one round of any."""
    n, b, k = participation.rounds, participation.min_sep, participation.max_participations
    if k == 1:
        b = n
    elif k < -(-n // b):
        raise ValueError(
            f"max_participations={k} is below ceil(rounds / min_sep)={-(-n // b)}, which family='dense' has no optimum for: "
            f"leave max_participations out of the fit and calibrate the mechanism under yours, or use family='banded'"
        )
    return Participation(rounds=n, schema="fixed_epoch", min_sep=b)


def _dual(workload: Workload, classes: Classes, equal_norms: bool, constraints: str) -> Dual:
    if constraints == "signed" and classes.largest > 1:
        multipliers = classes.count * 2 ** (classes.largest - 1)
        if multipliers > _MAX_SIGNED:
            raise ValueError(
                f"constraints='signed' would need min_sep * 2^(max_participations - 1) = {multipliers:.3g} multipliers, more "
                f"than {_MAX_SIGNED}: use constraints='pairs', which is also sound for vector contributions"
            )
        return SignedDual(workload, classes)
    if constraints == "all":
        if workload.rounds > MAX_NONNEGATIVE:
            raise ValueError(
                f"constraints='all' would need rounds^2 = {workload.rounds**2:.3g} multipliers, more than {MAX_NONNEGATIVE}^2: use "
                f"constraints='pairs', which needs only the signs within classes"
            )
        return NonnegativeDual(workload, classes)
    return EqualNormsDual(workload, classes) if equal_norms and classes.largest > 1 else PairsDual(workload, classes)


def _scaled(C: np.ndarray, epochs: Participation, constraints: str) -> np.ndarray:
    """C, whose sensitivity is 1 up to rounding, divided by it; as it is where the 1 is for scalar contributions only."""
    if epochs.max_participations == 1:
        return np.asarray(C / np.linalg.norm(C, axis=0))
    if constraints == "signed":
        return C
    return np.asarray(C / sensitivity(C, epochs).value)
