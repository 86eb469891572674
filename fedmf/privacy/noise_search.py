"""Search for the least noise multiplier that reaches a privacy target."""

import math
from collections.abc import Callable

from fedmf.privacy.gaussian import check_epsilon

# Largest noise multiplier that is tried in the search for the smallest sufficient one.
_MAX_SEARCHED_MULTIPLIER = 1e6
# If a target is reached with a noise multiplier below this, the reason is that clients are rarely
# sampled, and not that the noise protects them.
_NEGLIGIBLE_NOISE = 0.1


def least_noise_multiplier(
    risk_of: Callable[[float], float],
    target: float,
    *,
    relative: float = 1e-5,
    name: str = "epsilon",
) -> float:
    """Computes the least noise multiplier whose risk, such as epsilon, is at most `target`. The
    result is never too small.

    A noise multiplier is a ratio without a unit: the standard deviation of the noise divided by the
    sensitivity of what the noise is added to. `risk_of` decides which sensitivity that is.

    Args:
      risk_of: returns the risk of a noise multiplier; decreasing.
      target: positive risk.
      relative: relative tolerance of the noise multiplier.
      name: the name of the risk in errors.

    Raises:
      ValueError: the target is reached with no noise multiplier below 1e6, or with next to none.

    >>> round(least_noise_multiplier(lambda sigma: 3 / sigma, 2.0), 3)
    1.5
    """
    from scipy import optimize

    target = check_epsilon(target)
    upper_multiplier = 1.0
    while risk_of(upper_multiplier) > target:
        upper_multiplier *= 2
        if upper_multiplier > _MAX_SEARCHED_MULTIPLIER:
            way_out = f"{name} or delta" if name == "epsilon" else name
            raise ValueError(
                f"{name}={target} cannot be reached with noise multipliers below 1e6: ask for a "
                f"larger {way_out}"
            )
    lower_multiplier = upper_multiplier / 2
    risk = risk_of(lower_multiplier)
    while risk <= target:
        if lower_multiplier < _NEGLIGIBLE_NOISE:
            _check_protection_by_noise(name, target, risk)
        upper_multiplier = lower_multiplier
        lower_multiplier = lower_multiplier / 2
        risk = risk_of(lower_multiplier)

    def excess(log_sigma: float) -> float:
        risk = min(max(risk_of(math.exp(log_sigma)), 1e-9), 1e9)
        return math.log(risk) - math.log(target)

    sigma = math.exp(
        optimize.brentq(
            excess, math.log(lower_multiplier), math.log(upper_multiplier), xtol=relative / 4
        )
    )
    # brentq may return a noise multiplier whose risk is slightly above the target.
    while risk_of(sigma) > target:
        sigma *= 1 + relative / 2
    return sigma


def _check_protection_by_noise(name: str, target: float, risk: float) -> None:
    """Raises ValueError if a client is sampled so rarely that an epsilon is reached without noise,
    or another risk with negligible noise. Sampled clients would then have no protection.
    """
    if name != "epsilon":
        raise ValueError(
            f"{name}={target} is reached with hardly any noise, because a given client is "
            "hardly ever sampled, and sampled clients have no protection: ask for an epsilon, or "
            f"for a smaller {name}"
        )
    if risk == 0:
        raise ValueError(
            "delta is at least the probability that a given client is ever sampled, and no noise "
            "at all would do: lower delta below it"
        )
