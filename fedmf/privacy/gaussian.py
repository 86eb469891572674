"""Accounting of one Gaussian release, which computes (epsilon, delta) from a noise multiplier, and
the noise multiplier from (epsilon, delta).

All functions take and return plain numbers. `fedmf.privacy.plan.Plan` calls them for a run.
"""

import functools
import math
from typing import TYPE_CHECKING

from fedmf import checks

if TYPE_CHECKING:
    from dp_accounting import pld

# dp_accounting and scipy are imported inside the functions that use them. Their imports take most
# of a second, for which `fedmf --help` should not wait.

_MAX_SENSITIVITY = 1e30
_MIN_FLOAT32 = 2.0**-126
_MAX_FLOAT32 = 2.0**127
# Smallest and largest draw of noise that float32 must be able to hold, in standard deviations of a
# round's noise. _LARGE_DRAW is 40 deviations times 1000, because rows of the noise matrix may have
# up to 1000 times the least possible norm.
_SMALL_DRAW = 2.0**-24
_LARGE_DRAW = 40_000.0
# A number above that of all people, of whose updates float32 must be able to hold the sum.
_MAX_CLIENTS = 2.0**34
# Largest noise multiplier that is passed to dp_accounting, which squares it. Squares overflow
# beyond 1e154. Accounting for less noise than there is can only overstate epsilon.
_LARGEST_ACCOUNTED_MULTIPLIER = 1e100

MAX_EPSILON = 10_000.0
MAX_TARGET_EPSILON = MAX_EPSILON / 2
# Least delta for which there is a guarantee. For smaller ones, the truncation and rounding errors
# of the PLD accountant exceed delta, so calibration would return thousands of times the necessary
# noise.
MIN_DELTA = 1e-15


def check_epsilon(epsilon: object) -> float:
    """Returns epsilon as a float, if calibration can meet such a privacy target; raises
    otherwise.
    """
    return checks.positive(
        "epsilon", epsilon, "ask for a privacy loss such as epsilon=8.0", below=MAX_TARGET_EPSILON
    )


def check_delta(delta: object) -> float:
    """Returns delta as a float, if it is in (0, 1) and the accountant can resolve it; raises
    otherwise.
    """
    hint = "use a failure probability such as delta=1e-6"
    checked_delta = checks.positive("delta", delta, hint, below=1.0)
    if checked_delta < MIN_DELTA:
        raise ValueError(
            f"delta={delta!r} is below {MIN_DELTA:g}, the least the accountant resolves: {hint}"
        )
    return checked_delta


def check_noise_multiplier(noise_multiplier: object) -> float:
    """Returns the noise multiplier as a float, if it is finite and at least 0, which means no
    noise; raises otherwise.
    """
    hint = "use 0 for no noise"
    return checks.positive("noise_multiplier", noise_multiplier, hint, allow_zero=True)


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """Computes delta of the Gaussian mechanism with sensitivity 1 in closed form (Balle and Wang
    2018, Theorem 8).

    Args:
      noise_multiplier: standard deviation of the noise, > 0.
      epsilon: >= 0.

    >>> round(gaussian_delta(4.22468, 1.0) * 1e6, 3)
    1.0
    """
    from scipy import special

    a = 1 / (2 * noise_multiplier)
    b = epsilon * noise_multiplier
    # exp(epsilon) * Phi(-a - b) is computed as the exponential of a sum of logarithms, because its
    # first factor may overflow and its second one underflow.
    return float(special.ndtr(a - b) - math.exp(epsilon + special.log_ndtr(-a - b)))


def exact_gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Computes epsilon of the Gaussian mechanism with sensitivity 1 by inverting `gaussian_delta`,
    which is faster than an accountant.

    >>> round(exact_gaussian_epsilon(4.22468, 1e-6), 4)
    1.0
    """
    from scipy import optimize

    if gaussian_delta(noise_multiplier, 0.0) <= delta:
        return 0.0
    upper_epsilon = 2 * loss_scale(noise_multiplier)
    while gaussian_delta(noise_multiplier, upper_epsilon) > delta:
        upper_epsilon *= 2
    return float(
        optimize.brentq(
            lambda epsilon: gaussian_delta(noise_multiplier, epsilon) - delta,
            0.0,
            upper_epsilon,
            rtol=1e-12,
        )
    )


def loss_scale(noise_multiplier: float) -> float:
    """Returns the largest privacy loss of one Gaussian release that is not negligible, which is
    five standard deviations above the mean loss.
    """
    inverse_multiplier = 1 / noise_multiplier
    # The inverse is multiplied by itself, because the operator ** would raise OverflowError for a
    # tiny noise multiplier, for which the product is infinite.
    return inverse_multiplier * inverse_multiplier / 2 + 5 * inverse_multiplier


def has_infinite_epsilon(noise_multiplier: float) -> bool:
    """Returns whether one Gaussian release has so little noise that its epsilon counts as
    infinite, because a finite one would be useless.
    """
    return noise_multiplier == 0 or loss_scale(noise_multiplier) > MAX_EPSILON


@functools.lru_cache(maxsize=256)
def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Computes an upper bound on epsilon of one Gaussian release with sensitivity 1, by the PLD
    accountant.

    Args:
      noise_multiplier: standard deviation of the noise. The result is infinite for 0, and for a
        value so small that epsilon would be useless.
      delta: in [1e-15, 1).

    >>> round(gaussian_epsilon(0.65294, 1e-6), 3)
    8.0
    """
    import numpy as np

    if has_infinite_epsilon(noise_multiplier):
        return math.inf
    accountant = _gaussian_accountant(min(noise_multiplier, _LARGEST_ACCOUNTED_MULTIPLIER))
    # Near epsilon = 710 dp_accounting divides by a negligible probability, and the quotient
    # overflows. Epsilon is then infinite, which is safe.
    with np.errstate(over="ignore"):
        return float(accountant.get_epsilon(delta))


@functools.lru_cache(maxsize=16)
def _gaussian_accountant(noise_multiplier: float) -> "pld.PLDAccountant":
    """Returns the PLD accountant of one Gaussian release with sensitivity 1."""
    import dp_accounting
    from dp_accounting import pld

    # With this grid step the accountant rounds privacy losses up to a grid of some 20,000 points.
    # So epsilon is overstated, by a relative 3e-7 for noise multipliers from 0.1 to 1e4 and delta
    # from 1e-10 to 0.1.
    grid_step = max(1e-9, 1e-4 * loss_scale(noise_multiplier))
    # REPLACE_SPECIAL is the zero-out relation, in which a client's updates become zeros and the
    # number of records stays (Denisov et al. 2022, Def. J.1; banded paper, K.1).
    zero_out = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    accountant = pld.PLDAccountant(zero_out, value_discretization_interval=grid_step)
    accountant.compose(dp_accounting.GaussianDpEvent(noise_multiplier))
    return accountant


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Computes the smallest noise multiplier with which one Gaussian release satisfies (epsilon,
    delta).

    The result is at most 1e-6 above the smallest one, relatively, for epsilon up to 700 and delta
    from 1e-10. Elsewhere it may be some percent above. The search starts at the closed form, and
    ends when both the PLD accountant and the closed form confirm the guarantee.

    >>> round(gaussian_noise_multiplier(2.0, 1e-6), 5)  # banded paper, Table 4
    2.23048
    """
    from scipy import optimize

    epsilon = check_epsilon(epsilon)
    delta = check_delta(delta)
    lower_multiplier = 1e-3
    upper_multiplier = 1.0
    while gaussian_delta(upper_multiplier, epsilon) > delta:
        upper_multiplier *= 2
    while gaussian_delta(lower_multiplier, epsilon) < delta:
        lower_multiplier /= 2
    sigma = float(
        optimize.brentq(
            lambda s: gaussian_delta(s, epsilon) - delta,
            lower_multiplier,
            upper_multiplier,
            xtol=1e-15,
            rtol=1e-13,
        )
    )
    relative_increase = 1e-7
    while gaussian_delta(sigma, epsilon) > delta or gaussian_epsilon(sigma, delta) > epsilon:
        sigma *= 1 + relative_increase
        relative_increase *= 2
    return sigma


def check_float32_holds(
    noise_multiplier: float, sensitivity: float, clip_norm: float, noise_scale: float
) -> None:
    """Raises ValueError if the noise could become 0, or a noisy sum infinite, in float32, in which
    they are computed.

    If the noise became 0 there would be no protection, and an infinite sum could reveal that a
    client takes part.

    Args:
      noise_multiplier: 0 for no noise, which passes the check.
      sensitivity, clip_norm: the noise's standard deviation is noise_multiplier times both.
      noise_scale: factor of the noise of a simulated cohort; 1 without a simulation.
    """
    if noise_multiplier <= 0:
        return
    # N = C^-1 is the noise matrix. The product of row t of N and column t of C is 1, so the norm of
    # a row of N is at least 1 / sensitivity. The noise of a round has then at least this standard
    # deviation.
    row_stddev = noise_multiplier * clip_norm * noise_scale
    stddev = row_stddev * sensitivity
    smallest_value = min(stddev, row_stddev) * _SMALL_DRAW
    largest_value = max(stddev, row_stddev) * _LARGE_DRAW + clip_norm * _MAX_CLIENTS
    fits_float32 = smallest_value >= _MIN_FLOAT32 and largest_value <= _MAX_FLOAT32
    if not (fits_float32 and 1 / _MAX_SENSITIVITY <= sensitivity <= _MAX_SENSITIVITY):
        raise ValueError(
            f"clip_norm={clip_norm}, noise_multiplier={noise_multiplier} and an encoder of "
            f"sensitivity {sensitivity:g} give sums or noise beyond the range of float32, in which "
            "a round is released: rescale the updates, and `clip_norm` with them, or divide the "
            "encoder by its sensitivity"
        )
