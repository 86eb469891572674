"""Toeplitz encoders for a workload: closed forms, and banded coefficients optimised for it."""

import dataclasses
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.mechanisms.base import certify
from fedmf.mechanisms.family import Family, register
from fedmf.mechanisms.fitting.descent import Descent, descend
from fedmf.mechanisms.fitting.progress import Stopping
from fedmf.mechanisms.toeplitz.fit_problem import ToeplitzProblem, optimized_inverse, power_series
from fedmf.mechanisms.toeplitz.mechanism import ToeplitzMechanism
from fedmf.participation.schema import Participation
from fedmf.workloads import Workload

OBJECTIVES = ("mean", "max")
COEFFICIENTS = ("optimized", "sqrt", "nu", "inverse_sqrt", "optimized_inverse")
# Closed forms: what is given of the mechanism, the power that it is of its polynomial, and why
# there is no certificate.
_CLOSED_FORMS = {
    "sqrt": (
        "coefficients",
        -0.5,
        "the square root of the workload (for prefix sums the smallest largest error of any "
        "Toeplitz encoder under a single participation) is",
    ),
    "nu": ("coefficients", -0.5, "damped coefficients are"),
    "inverse_sqrt": ("noising_window", 0.5, "the banded inverse square root is"),
}
# The default number of bands of an optimised encoder, and of the window of an inverse square root,
# is at most this.
_MAX_BANDS = 256
# The tolerance of the first, cautious stage of a fit.
_FIRST_TOLERANCE = 1e-4


def fit_toeplitz(
    workload: Workload,
    participation: Participation,
    stopping: Stopping,
    *,
    bands: int | None = None,
    objective: str = "mean",
    coefficients: str = "optimized",
    nu: float | None = None,
) -> ToeplitzMechanism:
    """A lower-triangular Toeplitz encoder: C[t, j] = c[t - j].

    With generating functions, A = a(x) and C = c(x), `coefficients` chooses

    - "optimized": the `bands` coefficients of C with the smallest loss (objective "mean") or
      largest error ("max") under `participation`. bands=min_sep, at most 256. Beyond min_sep they
      are kept non-negative and non-increasing, the case whose sensitivity is known exactly.
    - "sqrt": c(x) = sqrt(a(x)), its first `bands` coefficients (all). For prefix sums (1 -
      x)^(-1/2), of all Toeplitz encoders the one with the smallest largest error under a single
      participation (BLT slides, "optimal max error").
    - "nu": c(x) = (1 - (1 - nu) x)^(-1/2), its first `bands` coefficients (all), whatever the
      workload: the nu-DP-FTRL of the slides, whose beta_t = t^(-3/2) (1 - nu)^t lacks the constant
      1 / (2 sqrt(pi)), without which C would explode. nu = 0 is the "sqrt" of prefix sums.
    - "inverse_sqrt": n(x) = 1 / sqrt(a(x)), its first `bands` coefficients (min_sep, at most 256),
      so that noise is mixed from the last `bands` draws (Kalinin, McKenna,
      Upadhyay and Lampert 2025).
    - "optimized_inverse": the `bands` coefficients of N with the smallest loss or largest error,
      from "inverse_sqrt" on (BandInvMF, there).

    nu, in [0, 1), is for "nu". An optimised fit ends when ten steps together lower the loss by less
    than the share tolerance. Other arguments and errors as `fedmf.fit`.
    """
    kind = checks.one_of("coefficients", coefficients, COEFFICIENTS)
    checks.one_of("objective", objective, OBJECTIVES)
    n = workload.rounds
    hint = "choose a damping in [0, 1)"
    if (nu is not None) != (kind == "nu"):
        raise ValueError(
            f"nu={nu!r} does not suit coefficients={kind!r}: "
            f"{hint if nu is None else 'leave it out'}"
        )
    if bands is None:
        bands = n if kind in ("sqrt", "nu") else min(participation.min_sep, _MAX_BANDS, n)
    bands = checks.integer(
        "bands", bands, low=1, high=n, hint="it counts coefficients, at most one a round"
    )
    if nu is None:
        polynomial = toeplitz_inverse(workload)
    else:
        polynomial = np.array(
            [1.0, checks.positive("nu", nu, hint, below=1, allow_zero=True) - 1.0]
        )
    if kind == "optimized_inverse":
        r, descent = optimized_inverse(
            polynomial, participation, power_series(polynomial, 0.5, bands), objective, stopping
        )
        mechanism = ToeplitzMechanism(rounds=n, noising_window=r)
        return certified(mechanism, workload, participation, objective, descent, stopping)
    if kind == "optimized":
        c, descent = _optimized(polynomial, participation, bands, objective, stopping)
        mechanism = ToeplitzMechanism(rounds=n, coefficients=c)
        return certified(mechanism, workload, participation, objective, descent, stopping)
    field, exponent, reason = _CLOSED_FORMS[kind]
    column: Any = {field: power_series(polynomial, exponent, bands)}
    return ToeplitzMechanism(
        rounds=n, certificate_reason=f"{reason} a closed form, not optimised", **column
    )


def toeplitz_inverse(workload: Workload) -> np.ndarray:
    """The coefficients of 1 / a(x), (p,), of a Toeplitz workload.

    Raises:
      ValueError: the workload is not known to be Toeplitz with a banded inverse.
    """
    if workload.coefficients is None or workload.inverse_diagonals is None:
        raise ValueError(
            f"workload {workload.name!r} is not known to be the same in every round (Toeplitz): "
            "fit to it without its "
            "learning rates and measure the error on yours, or use family='banded'"
        )
    return workload.inverse_diagonals[-1]


def certified(
    mechanism: Any,
    workload: Workload,
    participation: Participation,
    objective: str,
    descent: Descent,
    stopping: Stopping,
) -> Any:
    """An optimised Toeplitz mechanism with its certificate against all encoders,
    or the reason for none.
    """
    # The gap of the certificate says nothing about that: it is against all encoders
    if not descent.converged:
        stopping.warn(
            mechanism.family,
            iterations=descent.iterations,
            gap=None,
            interrupted=descent.interrupted,
            stacklevel=5,
        )
    n = workload.rounds
    reason = ""
    if objective == "max":
        reason = (
            f"the {mechanism.family} fit minimised the largest error, certificates bound "
            "the total squared error"
        )
    elif participation.max_participations > 1:
        reason = (
            f"no lower bound for {mechanism.family} encoders under several participations is "
            "known: compare with family='dense'"
        )
    elif workload.coefficients is None or not (workload.coefficients == 1.0).all():
        reason = (
            "a lower bound at any number of rounds is known for prefix sums only: "
            "compare with family='dense'"
        )
    if reason:
        return dataclasses.replace(mechanism, certificate_reason=reason)
    c = mechanism.toeplitz_coefficients()
    noise = mechanism.noising_coefficients()
    # fedmf.loss: c is the largest column, and the t-th entry of the first column of A N
    # is in n - t rows.
    loss = c @ c * (np.arange(n, 0, -1.0) @ np.square(np.cumsum(noise)))
    certificate = certify(loss, prefix_sum_bound(n), descent.iterations, descent.seconds)
    return dataclasses.replace(mechanism, certificate=certificate, certificate_reason="")


def prefix_sum_bound(n: int) -> float:
    """A lower bound on `fedmf.loss` of every encoder, for prefix sums of n rounds under
    a single participation.

    For any X = C^T C with columns of norm at most 1, tr(X) <= n, and tr(A^T A X^-1) >= (sum of
    singular values of A)^2 / tr(X): the dual bound of Denisov et al. 2022, Eq. 8, with equal
    multipliers. The singular values of the prefix sums are 1 / (2 sin((2 i - 1) pi / (4 n + 2))), i
    = 1..n.

    >>> round(prefix_sum_bound(512) ** 0.5, 2)  # the optimum is 61.98
    60.87
    """
    halves = np.sin((2.0 * np.arange(1, n + 1) - 1.0) * np.pi / (4 * n + 2))
    return float(np.sum(0.5 / halves) ** 2 / n)


def _optimized(
    inverse: np.ndarray,
    participation: Participation,
    bands: int,
    objective: str,
    stopping: Stopping,
) -> tuple[np.ndarray, Descent]:
    """The best c, with c_0 = 1, and how the descent ended.

    The first stage is over non-increasing c, whose zeros are all outside the unit circle
    (Enestroem-Kakeya): no step makes N unstable. Where the sensitivity of any c is known, a second
    stage goes on from there over all c.
    """
    problem = ToeplitzProblem(inverse, participation, bands, objective, decreasing=True)
    roughly = (
        stopping.tolerance if problem.overlapping else max(stopping.tolerance, _FIRST_TOLERANCE)
    )
    first = descend(
        problem.log_loss,
        problem.start(),
        stopping.after(0, tolerance=roughly),
        [(0.0, None)] * bands,
    )
    c = problem.coefficients(first.point)[0]
    if (
        problem.overlapping
        or first.interrupted
        or first.iterations >= stopping.max_iterations
        or bands == 1
    ):
        return c, first
    problem = ToeplitzProblem(inverse, participation, bands, objective, decreasing=False)
    second = descend(problem.log_loss, c[1:], stopping.after(first.iterations))
    return problem.coefficients(second.point)[0], first.then(second)


register(
    Family(
        mechanism=ToeplitzMechanism,
        fit=fit_toeplitz,
        label="Toeplitz",
        color="#000f87",
        tolerance=1e-6,
        help={
            "bands": "coefficients, by default min_sep and at most 256, or all",
            "objective": "what to minimise: mean or max",
            "coefficients": "optimized, sqrt, nu, inverse_sqrt or optimized_inverse",
            "nu": "damping of the coefficients nu",
        },
        choices={"objective": OBJECTIVES, "coefficients": COEFFICIENTS},
    )
)
