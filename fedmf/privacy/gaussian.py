"""Accounting of one Gaussian release: (epsilon, delta) from a noise multiplier, and the reverse.

All functions take and return numbers; `fedmf.privacy.plan.Plan` computes those of a run.
"""

import functools
import math

from fedmf import checks

# Functions import dp_accounting and scipy, which take most of a second, so that `fedmf --help` does
# not wait for them.

_MAX_SENSITIVITY = 1e30
_MIN_FLOAT32 = 2.0**-126
_MAX_FLOAT32 = 2.0**127
# float32 must hold draws down to its own rounding of a deviation; 40 deviations in rows of N of
# 1000 times the least norm; and the sum of a round of more clients than there are people.
_SMALL_DRAW = 2.0**-24
_LARGE_DRAW = 40_000.0
_MAX_CLIENTS = 2.0**34
# dp_accounting squares a noise multiplier, which overflows beyond 1e154; less noise only overstates
# epsilon.
_LARGEST_ACCOUNTED_MULTIPLIER = 1e100

MAX_EPSILON = 10_000.0
MAX_TARGET_EPSILON = MAX_EPSILON / 2
# Below this the truncation and rounding of the PLD accountant are larger than delta: its epsilon
# then grows without bound, and calibration would return thousands of times the necessary noise.
MIN_DELTA = 1e-15


def check_epsilon(epsilon: object) -> float:
    """Returns a privacy target that calibration can meet, as a float; raises otherwise."""
    return checks.positive(
        "epsilon", epsilon, "ask for a privacy loss such as epsilon=8.0", below=MAX_TARGET_EPSILON
    )


def check_delta(delta: object) -> float:
    """Returns a failure probability that the accountant resolves, as a float; raises otherwise."""
    hint = "use a failure probability such as delta=1e-6"
    number = checks.positive("delta", delta, hint, below=1.0)
    if number < MIN_DELTA:
        raise ValueError(
            f"delta={delta!r} is below {MIN_DELTA:g}, the least the accountant resolves: {hint}"
        )
    return number


def check_noise_multiplier(noise_multiplier: object) -> float:
    """Returns a noise multiplier, 0 for no noise, as a float; raises otherwise."""
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
    # exp(epsilon) * Phi(-a - b) is computed in logarithms, because it is moderate where its factors
    # overflow and underflow.
    return float(special.ndtr(a - b) - math.exp(epsilon + special.log_ndtr(-a - b)))


def exact_gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Computes epsilon of the Gaussian mechanism with sensitivity 1 as the root of
    `gaussian_delta`, which is faster than an accountant.

    >>> round(exact_gaussian_epsilon(4.22468, 1e-6), 4)
    1.0
    """
    from scipy import optimize

    if gaussian_delta(noise_multiplier, 0.0) <= delta:
        return 0.0
    upper = 2 * loss_scale(noise_multiplier)
    while gaussian_delta(noise_multiplier, upper) > delta:
        upper *= 2
    return float(
        optimize.brentq(
            lambda epsilon: gaussian_delta(noise_multiplier, epsilon) - delta,
            0.0,
            upper,
            rtol=1e-12,
        )
    )


def loss_scale(noise_multiplier: float) -> float:
    """Returns the largest privacy loss that matters of one Gaussian release: five standard
    deviations above its mean.
    """
    inverse = 1 / noise_multiplier
    # Products overflow to infinity, where powers raise.
    return inverse * inverse / 2 + 5 * inverse


@functools.lru_cache(maxsize=256)
def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Computes an upper bound on epsilon of one Gaussian release with sensitivity 1, by the PLD
    accountant.

    Args:
      noise_multiplier: standard deviation of the noise; 0, or so little that epsilon is useless,
        gives infinity.
      delta: in [1e-15, 1).

    >>> round(gaussian_epsilon(0.65294, 1e-6), 3)
    8.0
    """
    import dp_accounting
    import numpy as np
    from dp_accounting import pld

    if noise_multiplier == 0:
        return math.inf
    scale = loss_scale(noise_multiplier)
    if scale > MAX_EPSILON:
        return math.inf
    # The grid has some 20,000 points. dp_accounting rounds losses up, so that it only overstates
    # epsilon: by 3e-7 of it, for noise from .1 to 1e4 and delta from 1e-10 to .1.
    interval = max(1e-9, 1e-4 * scale)
    # The zero-out relation (Denisov et al. 2022, Def. J.1; banded paper, K.1): a client's updates
    # become zeros, the number of records stays.
    zero_out = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    accountant = pld.PLDAccountant(zero_out, value_discretization_interval=interval)
    accounted_multiplier = min(noise_multiplier, _LARGEST_ACCOUNTED_MULTIPLIER)
    accountant.compose(dp_accounting.GaussianDpEvent(accounted_multiplier))
    # Near epsilon = 710 it divides by a negligible mass, and the quotient overflows: epsilon is
    # then overstated as infinite.
    with np.errstate(over="ignore"):
        return float(accountant.get_epsilon(delta))


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Computes the smallest noise multiplier for (epsilon, delta).

    It is within 1e-6 of the smallest, relative, for epsilon up to 700 and delta from 1e-10, and
    elsewhere up to some percent above. The search starts at the closed form, and ends when both the
    PLD accountant and the closed form confirm the guarantee.

    >>> round(gaussian_noise_multiplier(2.0, 1e-6), 5)  # banded paper, Table 4
    2.23048
    """
    from scipy import optimize

    epsilon = check_epsilon(epsilon)
    delta = check_delta(delta)
    lower = 1e-3
    upper = 1.0
    while gaussian_delta(upper, epsilon) > delta:
        upper *= 2
    while gaussian_delta(lower, epsilon) < delta:
        lower /= 2
    sigma = float(
        optimize.brentq(
            lambda s: gaussian_delta(s, epsilon) - delta, lower, upper, xtol=1e-15, rtol=1e-13
        )
    )
    step = 1e-7
    while gaussian_delta(sigma, epsilon) > delta or gaussian_epsilon(sigma, delta) > epsilon:
        sigma *= 1 + step
        step *= 2
    return sigma


def check_float32_holds(
    noise_multiplier: float, sensitivity: float, clip_norm: float, noise_scale: float
) -> None:
    """Raises ValueError if noise or release would be 0 or infinite in float32, in which they are
    computed.

    With noise of 0 there is no protection, and a release that overflows reveals that a client is
    there.

    Args:
      noise_multiplier: 0 for no noise, which passes.
      sensitivity, clip_norm: the noise's standard deviation is in units of their product.
      noise_scale: of a simulated cohort's noise, or 1.
    """
    if noise_multiplier <= 0:
        return
    # A row of N has at least the norm 1 / sensitivity, because row t of N times column t of C is 1.
    # Its noise has then this deviation.
    row_stddev = noise_multiplier * clip_norm * noise_scale
    stddev = row_stddev * sensitivity
    smallest = min(stddev, row_stddev) * _SMALL_DRAW
    largest = max(stddev, row_stddev) * _LARGE_DRAW + clip_norm * _MAX_CLIENTS
    fits_float32 = smallest >= _MIN_FLOAT32 and largest <= _MAX_FLOAT32
    if not (fits_float32 and 1 / _MAX_SENSITIVITY <= sensitivity <= _MAX_SENSITIVITY):
        raise ValueError(
            f"clip_norm={clip_norm}, noise_multiplier={noise_multiplier} and an encoder of "
            f"sensitivity {sensitivity:g} give sums or noise beyond the range of float32, in which "
            "a round is released: rescale the updates, and `clip_norm` with them, or divide the "
            "encoder by its sensitivity"
        )
