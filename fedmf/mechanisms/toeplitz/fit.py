"""Fits of Toeplitz encoders, either by a closed form or by optimising the coefficients for a
workload.
"""

import dataclasses
from typing import Any, NamedTuple

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
# Largest default for the number of bands of an optimised encoder, and for the window of an inverse
# square root.
_MAX_BANDS = 256
# Tolerance of the first stage of a fit, which optimises over non-increasing coefficients only.
_FIRST_TOLERANCE = 1e-4


class _ClosedForm(NamedTuple):
    """A closed form of a Toeplitz encoder, whose coefficients are those of a polynomial's power. It
    has the field of ToeplitzMechanism that it sets, the exponent of the power, and the reason why
    it has no certificate.
    """

    field: str
    exponent: float
    reason: str


_CLOSED_FORMS = {
    "sqrt": _ClosedForm(
        "coefficients",
        -0.5,
        "the square root of the workload (for prefix sums the smallest largest error of any "
        "Toeplitz encoder under a single participation) is",
    ),
    "nu": _ClosedForm("coefficients", -0.5, "damped coefficients are"),
    "inverse_sqrt": _ClosedForm("noising_window", 0.5, "the banded inverse square root is"),
}


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
    """Fits a lower-triangular Toeplitz encoder C, whose entries are C[t, j] = c[t - j].

    With generating functions a(x) of A, c(x) of C and n(x) of N, `coefficients` chooses

    - "optimized": the `bands` coefficients of C with the smallest loss (objective "mean") or
      largest error ("max") under `participation`. bands=min_sep, at most 256. Beyond min_sep bands
      they stay non-negative and non-increasing, for which the sensitivity is known exactly.
    - "sqrt": c(x) = sqrt(a(x)), its first `bands` coefficients (default: all). For prefix sums this
      is (1 - x)^(-1/2), the Toeplitz encoder with the smallest largest error under a single
      participation (BLT slides, "optimal max error").
    - "nu": c(x) = (1 - (1 - nu) x)^(-1/2), its first `bands` coefficients (default: all), for any
      workload. This is the nu-DP-FTRL of the slides. Their beta_t = t^(-3/2) (1 - nu)^t lacks the
      constant 1 / (2 sqrt(pi)), without which C would diverge. nu = 0 is the "sqrt" of prefix sums.
    - "inverse_sqrt": n(x) = 1 / sqrt(a(x)), its first `bands` coefficients (default: min_sep, at
      most 256), so that a noise vector combines the last `bands` draws (Kalinin, McKenna, Upadhyay
      and Lampert 2025).
    - "optimized_inverse": the `bands` coefficients of N with the smallest loss or largest error,
      optimised from "inverse_sqrt" on (BandInvMF, in the same paper).

    `nu`, in [0, 1), belongs to "nu" alone. An optimised fit has converged when ten steps together
    lower the loss by less than the relative tolerance. Other arguments and errors as in
    `fedmf.fit`.
    """
    checks.one_of("coefficients", coefficients, COEFFICIENTS)
    checks.one_of("objective", objective, OBJECTIVES)
    n = workload.rounds
    if bands is None:
        bands = min(participation.min_sep, _MAX_BANDS, n)
        if coefficients in ("sqrt", "nu"):
            bands = n
    polynomial = _polynomial(workload, coefficients, nu)
    bands = checks.integer(
        "bands", bands, low=1, high=n, hint="it counts coefficients, at most one a round"
    )
    if coefficients == "optimized_inverse":
        start_coefficients = power_series(polynomial, 0.5, bands)
        r, descent = optimized_inverse(
            polynomial, participation, start_coefficients, objective, stopping
        )
        mechanism = ToeplitzMechanism(rounds=n, noising_window=r)
        return certified(mechanism, workload, participation, objective, descent, stopping)
    if coefficients == "optimized":
        c, descent = _optimized(polynomial, participation, bands, objective, stopping)
        mechanism = ToeplitzMechanism(rounds=n, coefficients=c)
        return certified(mechanism, workload, participation, objective, descent, stopping)
    closed_form = _CLOSED_FORMS[coefficients]
    column: Any = {closed_form.field: power_series(polynomial, closed_form.exponent, bands)}
    certificate_reason = f"{closed_form.reason} a closed form, not optimised"
    return ToeplitzMechanism(rounds=n, certificate_reason=certificate_reason, **column)


def _polynomial(workload: Workload, coefficients: str, nu: float | None) -> np.ndarray:
    """Returns the coefficients of the polynomial that a closed form raises to a power. It is 1 - (1
    - nu) x for coefficients "nu", otherwise 1 / a(x), where a(x) is the generating function of the
    workload.
    """
    damping_hint = "choose a damping in [0, 1)"
    if nu is None:
        if coefficients == "nu":
            raise ValueError(f'nu=None is missing, which coefficients="nu" needs: {damping_hint}')
        return toeplitz_inverse(workload)
    if coefficients != "nu":
        raise ValueError(
            f'nu={nu!r} belongs to coefficients="nu", not to coefficients="{coefficients}": '
            "leave it out"
        )
    damping = checks.positive("nu", nu, damping_hint, below=1, allow_zero=True)
    return np.array([1.0, damping - 1.0])


def toeplitz_inverse(workload: Workload) -> np.ndarray:
    """Returns the coefficients of 1 / a(x), float64 (p,), where a(x) is the generating function of
    a Toeplitz workload.

    Raises:
      ValueError: the workload is not known to be Toeplitz with banded inverse.
    """
    if workload.coefficients is None or workload.inverse_diagonals is None:
        raise ValueError(
            f"workload {workload.name!r} is not known to be the same in every round (Toeplitz): "
            "fit without its learning rates and measure the error with them, or use "
            "family='banded'"
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
    """Returns an optimised Toeplitz mechanism with a certificate added, which compares it with all
    encoders, or with the reason why there is none.
    """
    # The certificate compares the mechanism with the best of all encoders. Its gap does not show
    # whether this fit has converged, so the warning does not depend on the gap.
    if not descent.converged:
        stopping.warn(
            mechanism.family,
            iterations=descent.iterations,
            gap=None,
            interrupted=descent.interrupted,
        )
    n = workload.rounds
    certificate_reason = ""
    if objective == "max":
        certificate_reason = (
            f"the {mechanism.family} fit minimised the largest error, certificates bound "
            "the total squared error"
        )
    elif participation.max_participations > 1:
        certificate_reason = (
            f"no lower bound for {mechanism.family} encoders under several participations is "
            "known: compare with family='dense'"
        )
    elif workload.coefficients is None or not (workload.coefficients == 1.0).all():
        certificate_reason = (
            "a lower bound at any number of rounds is known for prefix sums only: "
            "compare with family='dense'"
        )
    if certificate_reason:
        return dataclasses.replace(mechanism, certificate_reason=certificate_reason)
    c = mechanism.toeplitz_coefficients()
    noising_column = mechanism.noising_coefficients()
    # The loss is computed as in `fedmf.loss`. The first column of the encoder C has the largest
    # norm, and entry t of the first column of A N occurs in n - t rows of A N, where A is the
    # workload and N the noise matrix.
    loss = c @ c * (np.arange(n, 0, -1.0) @ np.square(np.cumsum(noising_column)))
    certificate = certify(loss, prefix_sum_bound(n), descent.iterations, descent.seconds)
    return dataclasses.replace(mechanism, certificate=certificate, certificate_reason="")


def prefix_sum_bound(n: int) -> float:
    """Returns a lower bound on `fedmf.loss` of every encoder, for the prefix-sum workload of n
    rounds under a single participation.

    For any X = C^T C with columns of norm at most 1, tr(X) <= n, and tr(A^T A X^-1) >= (sum of
    singular values of A)^2 / tr(X): the dual bound of Denisov et al. 2022, Eq. 8, with equal
    multipliers. The singular values of the prefix sums are 1 / (2 sin((2 i - 1) pi / (4 n + 2))), i
    = 1..n.

    >>> round(prefix_sum_bound(512) ** 0.5, 2)  # The optimum is 61.98.
    60.87
    """
    half_inverses = np.sin((2.0 * np.arange(1, n + 1) - 1.0) * np.pi / (4 * n + 2))
    return float(np.sum(0.5 / half_inverses) ** 2 / n)


def _optimized(
    inverse: np.ndarray,
    participation: Participation,
    bands: int,
    objective: str,
    stopping: Stopping,
) -> tuple[np.ndarray, Descent]:
    """Returns the coefficients c with the smallest loss, scaled so that c_0 = 1, and the descent
    that found them.

    The first stage is over non-increasing c, whose zeros are all outside the unit circle
    (Enestroem-Kakeya), so that no step makes N unstable. Where the sensitivity of any c is known, a
    second stage continues from there over all c.
    """
    toeplitz_problem = ToeplitzProblem(inverse, participation, bands, objective, decreasing=True)
    first_tolerance = stopping.tolerance
    if not toeplitz_problem.overlapping:
        first_tolerance = max(stopping.tolerance, _FIRST_TOLERANCE)
    first_descent = descend(
        toeplitz_problem.log_loss,
        toeplitz_problem.start(),
        stopping.after(0, tolerance=first_tolerance),
        [(0.0, None)] * bands,
    )
    c = toeplitz_problem.coefficients(first_descent.point)[0]
    is_last = first_descent.interrupted or first_descent.iterations >= stopping.max_iterations
    if toeplitz_problem.overlapping or is_last or bands == 1:
        return c, first_descent
    toeplitz_problem = ToeplitzProblem(inverse, participation, bands, objective, decreasing=False)
    second_descent = descend(
        toeplitz_problem.log_loss, c[1:], stopping.after(first_descent.iterations)
    )
    c = toeplitz_problem.coefficients(second_descent.point)[0]
    return c, first_descent.then(second_descent)


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
