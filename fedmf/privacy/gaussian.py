"""From a noise multiplier to (epsilon, delta), and back, for one Gaussian release.

Numbers in, numbers out; `fedmf.privacy.plan.Plan` says which numbers a run has.
"""

import functools
import math
from typing import Any

from fedmf import checks

# dp_accounting and scipy take most of a second to import, so that `fedmf --help` waits for neither:
# functions import them.

_MAX_SENSITIVITY = 1e30
_FLOAT32_NORMAL = (2.0**-126, 2.0**127)
# What float32 must hold: draws down to its own rounding of a deviation, 2^-24; 40 deviations in
# rows of N of 1000 times the least norm; and the sum of a round of clients, of more than
# there are people.
_SMALL_DRAW, _LARGE_DRAW, _MOST_CLIENTS = 2.0**-24, 40_000.0, 2.0**34

MAX_EPSILON = 10_000.0
MAX_TARGET_EPSILON = MAX_EPSILON / 2
# Below this the PLD accountant's own truncation and rounding are larger than delta: its epsilon
# then grows without bound, and calibration would ask for thousands of times the noise
# that is needed.
MIN_DELTA = 1e-15


def check_epsilon(epsilon: Any) -> float:
    """A privacy target that calibration can meet, as a float; raises otherwise."""
    return checks.positive(
        "epsilon", epsilon, "ask for a privacy loss such as epsilon=8.0", below=MAX_TARGET_EPSILON
    )


def check_delta(delta: Any) -> float:
    """A failure probability that the accountant resolves, as a float; raises otherwise."""
    hint = "use a failure probability such as delta=1e-6"
    number = checks.positive("delta", delta, hint, below=1.0)
    if number < MIN_DELTA:
        raise ValueError(
            f"delta={delta!r} is below {MIN_DELTA:g}, the least the accountant resolves: {hint}"
        )
    return number


def check_noise_multiplier(noise_multiplier: Any) -> float:
    """Returns a noise multiplier, 0 for no noise, as a float; raises otherwise."""
    hint = "use 0 for no noise"
    return checks.positive("noise_multiplier", noise_multiplier, hint, allow_zero=True)


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """delta of the Gaussian mechanism with sensitivity 1 in closed form (Balle and Wang 2018,
    Theorem 8).

    Args:
      noise_multiplier: standard deviation of the noise, > 0.
      epsilon: >= 0.

    >>> round(gaussian_delta(4.22468, 1.0) * 1e6, 3)
    1.0
    """
    from scipy import special

    a, b = 1 / (2 * noise_multiplier), epsilon * noise_multiplier
    # exp(epsilon) * Phi(-a - b), computed in logarithms: the product is moderate where the factors
    # overflow and underflow.
    return float(special.ndtr(a - b) - math.exp(epsilon + special.log_ndtr(-a - b)))


def exact_gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Epsilon of the Gaussian mechanism with sensitivity 1: the root of `gaussian_delta`, without
    an accountant's seconds.

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
    """The largest privacy loss of note of one Gaussian release:
    five standard deviations above its mean.
    """
    inverse = 1 / noise_multiplier
    # Products and not powers: they overflow to infinity instead of raising
    return inverse * inverse / 2 + 5 * inverse


@functools.lru_cache(maxsize=256)
def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Smallest epsilon the PLD accountant proves for one Gaussian release with sensitivity 1; a
    pessimistic (upper) value.

    Args:
      noise_multiplier: standard deviation of the noise; 0, or so little that epsilon is far above
        every use, gives infinity.
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
    # Some 20,000 points; dp_accounting rounds losses up, so the grid can only overstate epsilon: by
    # 3e-7 of it, for noise from .1 to 1e4 and delta from 1e-10 to .1.
    interval = max(1e-9, 1e-4 * scale)
    # The zero-out relation (Denisov et al. 2022, Def. J.1; banded paper, K.1): a client's updates
    # become zeros, the number of records stays.
    zero_out = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    accountant = pld.PLDAccountant(zero_out, value_discretization_interval=interval)
    # dp_accounting squares the multiplier, which overflows beyond 1e154; less noise can only
    # overstate epsilon.
    accountant.compose(dp_accounting.GaussianDpEvent(min(noise_multiplier, 1e100)))
    # Near epsilon = 710 it divides by a mass that is next to nothing, and the quotient overflows:
    # epsilon is then overstated as infinite.
    with np.errstate(over="ignore"):
        return float(accountant.get_epsilon(delta))


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Smallest noise multiplier that gives (epsilon, delta).

    It is within 1e-6 of the smallest, relative, for epsilon up to 700 and delta from 1e-10, and
    elsewhere up to some percent above. The closed form starts the search; it ends where the PLD
    accountant and the closed form both agree that the result is not weaker than asked.

    >>> round(gaussian_noise_multiplier(2.0, 1e-6), 5)  # banded paper, Table 4
    2.23048
    """
    from scipy import optimize

    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    lower, upper = 1e-3, 1.0
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
    """Raises a ValueError where float32, in which noise is made and the release is handed out,
    would make either 0 or infinite.

    Noise of 0 is a guarantee without noise. A release that overflows tells that a client is there.

    Args:
      noise_multiplier: 0 for no noise, of which all is held.
      sensitivity, clip_norm: the noise's standard deviation is in units of their product.
      noise_scale: of a simulated cohort's noise, or 1.
    """
    # A row of N has at least the norm 1 / sensitivity, because row t of N times column t of C is 1:
    # then this is its noise.
    row = noise_multiplier * clip_norm * noise_scale
    sizes = (row * sensitivity, row)
    least, most = _FLOAT32_NORMAL
    held = (
        least <= min(sizes) * _SMALL_DRAW
        and max(sizes) * _LARGE_DRAW + clip_norm * _MOST_CLIENTS <= most
    )
    if noise_multiplier > 0 and not (
        held and 1 / _MAX_SENSITIVITY <= sensitivity <= _MAX_SENSITIVITY
    ):
        raise ValueError(
            f"clip_norm={clip_norm}, noise_multiplier={noise_multiplier} and an encoder of "
            f"sensitivity {sensitivity:g} give sums or noise beyond the range of float32, in which "
            "a round is released: rescale the updates, and `clip_norm` with them, or divide the "
            "encoder by its sensitivity"
        )
