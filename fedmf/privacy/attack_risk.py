"""Upper bounds on the true-positive rate, at each false-positive rate, of attacks that try to find
out whether one client took part in a run.

The attacker knows the plan, all releases and every other client. It decides whether the updates of
one client are the ones that it suspects, or zero (the zero-out relation). T(a) is an upper bound on
the attacker's true-positive rate if its false-positive rate is a:

- Without sampling, T(a) = Phi(Phi^-1(a) + mu), where Phi is the normal distribution function and
  mu = 1 / noise_multiplier. This bound is tight (Dong, Roth and Su 2022, Def. 2.6 and Thm. 2.7),
  and it holds however clients are sampled.
- Each pair (epsilon, delta) that a sampling scheme proves gives T(a) <= min(delta + exp(epsilon) a,
  1 - exp(-epsilon) (1 - delta - a)) (Wasserman and Zhou 2010; Kairouz et al. 2015, Thm. 2.1).
- A private selection has such pairs too.
- The bound for g clients together is T applied g times (Dong, Roth and Su 2022, Thm. 2.14).

Every number is rounded up.
"""

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from fedmf import checks, fields
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.privacy.plan import Plan, check_plan, selection_bounds, unit_noise
from fedmf.privacy.rounding import finite_or_none
from fedmf.privacy.selection_bounds import SelectionBounds

# True-positive rates are rounded up by this relative amount. The rounding error of their
# computation is at most 7e-11, for false-positive rates near 1e-308.
_ROUNDING = 1e-9
# False-positive rates for which summaries and statements list a true-positive rate.
RATES = (0.001, 0.01, 0.1)
# For users with more devices than this, the bound without sampling is used. It is larger, but its
# cost does not increase with the number of devices.
_MAX_DEVICES = 1000
_MU_HINT = "use 1 / `noise_multiplier`"
# Deltas at which the privacy curve of a private selection is computed.
_DELTAS_OF_SELECTION = tuple(10.0 ** (exponent / 6) for exponent in range(-48, 0))
# Largest number of steps in the search for the largest difference between true-positive and
# false-positive rate.
_MAX_STEPS = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttackRisk:
    """Bounds on every attack on one client, or on all devices of one user.

    Attributes:
      mu: the attack is no easier than to decide from one draw whether a normal distribution with
        standard deviation 1 has mean 0 or mu; infinite without noise. Sampling lowers the other
        numbers, but not mu.
      pairs: pairs (epsilon, delta) of one client that hold simultaneously, in both directions.
      devices: number of the user's devices; mu is for all of them together, and pairs are for each
        device.
      failure: probability that any of the pairs is too small because of the random numbers of a
        simulation.

    >>> risk = AttackRisk(mu=0.83786)  # epsilon 4 at delta 1e-6
    >>> round(risk.advantage, 5), round(risk.true_positive_rate(0.001), 5)
    (0.32473, 0.01215)
    >>> AttackRisk(mu=0.0).advantage, AttackRisk(mu=math.inf).true_positive_rate(0.0)
    (0.0, 1.0)
    """

    mu: float
    pairs: tuple[tuple[float, float], ...] = ()
    devices: int = 1
    failure: float = 0.0

    def __post_init__(self) -> None:
        is_infinite = isinstance(self.mu, float) and self.mu == math.inf
        mu = math.inf if is_infinite else checks.finite_float("mu", self.mu, hint=_MU_HINT)
        if mu < 0:
            raise ValueError(f"mu={mu!r} must not be negative: {_MU_HINT}")
        hint = "count the clients of one user"
        devices = checks.integer("devices", self.devices, low=1, high=10**9, hint=hint)
        failure_probability = checks.probability("failure", self.failure)
        fields.set_fields(self, {"mu": mu, "devices": devices, "failure": failure_probability})
        hint = "give a list of (epsilon, delta), as proven"
        if not isinstance(self.pairs, list | tuple):
            raise TypeError(f"pairs={self.pairs!r} is a {type(self.pairs).__name__}: {hint}")
        for pair in self.pairs:
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise TypeError(f"pairs has {pair!r}: {hint}")
            epsilon, delta = pair
            if not all(isinstance(number, numbers.Real) for number in pair):
                raise TypeError(f"pairs has {pair!r}: {hint}")
            if not (epsilon >= 0 and 0 <= delta <= 1):
                raise ValueError(f"pairs has {(epsilon, delta)}: {hint}")

    @with_numpy_defaults
    def true_positive_rate(self, false_positive_rate: float) -> float:
        """Computes an upper bound on the true-positive rate of any attack with a given
        false-positive rate.

        Args:
          false_positive_rate: false-positive rate of the attack, in [0, 1].

        Raises:
          TypeError: false_positive_rate is no number.
          ValueError: false_positive_rate is not in [0, 1].
        """
        rate = checks.probability("false_positive_rate", false_positive_rate)
        gaussian_rate = _gaussian_trade_off(self.mu, rate)
        if not self.pairs:
            return gaussian_rate
        mu_per_device = self.mu / self.devices
        for _ in range(self.devices):
            rate = min(_gaussian_trade_off(mu_per_device, rate), self._pair_trade_off(rate))
        return min(gaussian_rate, rate)

    @property
    @with_numpy_defaults
    def advantage(self) -> float:
        """The largest difference between an attack's true-positive and false-positive rate. If a
        fair coin decides whether the client takes part, an attack is right with probability
        1/2 + advantage / 2 at most.
        """
        gaussian_advantage = min(1.0, math.erf(self.mu / math.sqrt(8)) * (1 + _ROUNDING))
        if not self.pairs:
            return gaussian_advantage
        return min(gaussian_advantage, self._largest_difference(1.0))

    @with_numpy_defaults
    def success(self, prior: float) -> float:
        """Computes an upper bound on the probability that an attack decides correctly, if the
        client takes part with probability `prior`.
        """
        prior = checks.probability("prior", prior)
        rare, common = sorted((prior, 1 - prior))
        if rare == 0:
            return 1.0
        if not self.pairs:
            return self._gaussian_success(rare, common)
        # Each pair (epsilon, delta) also holds if the cases with and without the client are
        # exchanged. So it does not matter which of the two cases is the rare one.
        difference = self._largest_difference(common / rare)
        pair_success = (common + rare * difference) * (1 + 1e-15)
        return min(self._gaussian_success(rare, common), pair_success)

    def _gaussian_success(self, rare: float, common: float) -> float:
        """Computes the largest probability of a correct decision by the bound without sampling.

        Args:
          rare, common: the smaller and the larger one of the prior probabilities that the client
            takes part, and that it does not.
        """
        if self.mu == 0:
            return common
        if math.isinf(self.mu):
            return 1.0
        threshold_shift = math.log(common / rare) / self.mu
        true_positive_rate = _phi(self.mu / 2 - threshold_shift)
        true_negative_rate = _phi(self.mu / 2 + threshold_shift)
        success = rare * true_positive_rate + common * true_negative_rate
        return min(1.0, success * (1 + _ROUNDING))

    @with_numpy_defaults
    def values(self) -> dict[str, Any]:
        """Returns the bounds by name in plain JSON types; an infinite mu is None."""
        bound_by_name = {"mu": finite_or_none(self.mu), "advantage": self.advantage}
        for rate in RATES:
            bound_by_name[f"true_positive_rate_at_{rate}"] = self.true_positive_rate(rate)
        if self.failure:
            bound_by_name["failure"] = self.failure
        return bound_by_name

    @functools.cached_property
    def _lines(self) -> tuple[np.ndarray, np.ndarray]:
        """The numbers exp(epsilon) and delta of all pairs whose exp(epsilon) is finite, as two
        arrays.
        """
        curve_points = np.array([pair for pair in self.pairs if pair[0] <= 700] or [(0.0, 1.0)])
        return np.exp(curve_points[:, 0]), curve_points[:, 1]

    def _pair_trade_off(self, rate: float) -> float:
        """Computes the least upper bound on the true-positive rate at a false-positive rate that
        any of the pairs (epsilon, delta) proves.
        """
        ratio, delta = self._lines
        bound_by_removal = delta + ratio * rate
        # The subtraction of two numbers near 1 has a rounding error of up to 1e-15, so this amount
        # is added to keep the result an upper bound.
        bound_by_addition = 1 - (1 - delta - rate) / ratio + 1e-15
        least_bound = float(np.minimum(bound_by_removal, bound_by_addition).min())
        return min(1.0, least_bound * (1 + _ROUNDING))

    def _largest_difference(self, weight: float) -> float:
        """Computes an upper bound on the largest T(a) - weight * a over all false-positive rates a,
        for weight >= 1, where T(a) is the bound on the true-positive rate.

        T is concave, so a ternary search in log a ends in a short interval that contains the
        maximum. The values at its ends bound the difference inside.
        """
        low_log_rate = -700.0
        high_log_rate = 0.0

        def difference(log_rate: float) -> float:
            rate = math.exp(log_rate)
            return self.true_positive_rate(rate) - weight * rate

        # The interval from `low_log_rate` to `high_log_rate` always contains the maximum, up to
        # rounding errors. The bounds on the rates leave room for these errors.
        for _ in range(_MAX_STEPS):
            third_of_width = (high_log_rate - low_log_rate) / 3
            if third_of_width < 1e-11:
                break
            # If the differences at the two inner points are equal, no point left of the first one
            # has a larger difference. So the left end of the interval may be moved there.
            if difference(low_log_rate + third_of_width) <= difference(
                high_log_rate - third_of_width
            ):
                low_log_rate += third_of_width
            else:
                high_log_rate -= third_of_width
        difference_bound = self.true_positive_rate(math.exp(high_log_rate)) - weight * math.exp(
            low_log_rate
        )
        return min(1.0, max(0.0, difference_bound + 1e-12))


def _phi(x: float) -> float:
    """Computes Phi(x), the standard normal distribution function."""
    from scipy import special

    return float(special.ndtr(x))


def _gaussian_trade_off(mu: float, rate: float) -> float:
    """Computes the bound, for plans without client sampling, on the true-positive rate at a
    false-positive rate, Phi(Phi^-1(rate) + mu), rounded up.
    """
    from scipy import special

    if math.isinf(mu):
        return 1.0
    if rate in (0.0, 1.0) or mu == 0:
        return rate
    true_positive_rate = _phi(float(special.ndtri(rate)) + mu)
    # Numbers below 1e-307 lose digits in float64, so the smallest positive number is added.
    return min(1.0, true_positive_rate * (1 + _ROUNDING) + 5e-324)


@with_numpy_defaults
def attack_risk(plan: Plan, devices: int = 1) -> AttackRisk:
    """Computes bounds on every attack on one client that sees all releases of a run.

    For a plan that simulates a larger cohort, the bounds are those of the claimed run, as its
    epsilon is.

    Args:
      plan: the plan of the run.
      devices: number of clients that belong to one user, each of which complies with its own
        limits.

    Returns:
      The bounds. With sampling they hold only if the sampled clients stay secret, as for
      `Plan.epsilon`.

    Raises:
      TypeError: plan is not a `fedmf.Plan`, or devices is no integer.
      ValueError: devices is not between 1 and 1e9.

    >>> import fedmf
    >>> config = fedmf.PlanConfig(rounds=8, min_sep=4, family="identity", epsilon=8.0)
    >>> risk = fedmf.attack_risk(config.plan())
    >>> round(risk.mu, 3), round(risk.advantage, 3), round(risk.true_positive_rate(0.01), 3)
    (1.532, 0.556, 0.213)
    """
    check_plan(plan)
    hint = "count the clients of one user"
    g = checks.integer("devices", devices, low=1, high=10**9, hint=hint)
    z = plan.noise_multiplier
    mu = g / z if z else math.inf
    if plan.selection is not None:
        return _risk_of_selection(plan, g)
    scheme = plan.sampling
    if scheme is None or not z or g > _MAX_DEVICES:
        return AttackRisk(mu=mu, devices=g)
    risk = risk_by_curve(plan, g)
    epsilon = plan.epsilon
    if not math.isfinite(epsilon):
        return risk
    # The pair of the plan's own epsilon and delta is added, because the privacy curve may have a
    # larger epsilon at this delta.
    curve_points = (*risk.pairs, (epsilon, plan.delta))
    return dataclasses.replace(risk, pairs=curve_points, failure=2 * risk.failure)


def _risk_of_selection(plan: Plan, devices: int) -> AttackRisk:
    """Computes bounds on attacks on the selected trial of a private selection, from the epsilons at
    many deltas. For several devices of a user they are those without amplification by sampling.
    """
    assert plan.selection is not None
    bounds = selection_bounds(plan)
    if bounds is None or devices > 1:
        bounds = SelectionBounds(
            trials=plan.selection, noise_multiplier=plan.noise_multiplier / devices
        )
    curve_points = [(bounds.epsilon(delta), delta) for delta in _DELTAS_OF_SELECTION]
    curve_points.append((bounds.epsilon(plan.delta), plan.delta))
    finite_points = tuple(point for point in curve_points if math.isfinite(point[0]))
    return AttackRisk(mu=math.inf, pairs=finite_points)


def risk_by_curve(plan: Plan, devices: int = 1) -> AttackRisk:
    """Computes bounds on attacks from the privacy curve of a plan with sampling and noise. Unlike
    `attack_risk` it does not use the plan's epsilon, which may take minutes to simulate.
    """
    scheme = plan.sampling
    assert scheme is not None
    curve_points = scheme.curve(plan.mechanism, unit_noise(plan))
    failure_probability = scheme.curve_failure(plan.mechanism) if curve_points else 0.0
    mu = devices / plan.noise_multiplier
    return AttackRisk(mu=mu, pairs=curve_points, devices=devices, failure=failure_probability)


def risk_of_pair(epsilon: float, delta: float) -> AttackRisk:
    """Returns the bounds on attacks that follow from one guarantee (epsilon, delta) alone.

    >>> round(risk_of_pair(8.0, 1e-6).true_positive_rate(0.001), 5)
    0.99966
    """
    curve_points = ((epsilon, delta),) if math.isfinite(epsilon) else ()
    return AttackRisk(mu=math.inf, pairs=curve_points)


def trade_off_plot(
    risk: AttackRisk, risk_by_epsilon: AttackRisk, *, width: int = 48, height: int = 11
) -> list[str]:
    """Plots the bound on the true-positive rate over the false-positive rate, as lines of text. The
    axis of false-positive rates is logarithmic and begins at 0.01%.

    Args:
      risk: the bounds that are plotted with the letter o.
      risk_by_epsilon: bounds by epsilon and delta alone, plotted with the letter -.
      width, height: lengths of the axes in characters.
    """
    grid_rows = [[" "] * (width + 1) for _ in range(height)]
    curve_by_letter: dict[str, Callable[[float], float]] = {
        "-": risk_by_epsilon.true_positive_rate,
        ".": lambda rate: rate,
        "o": risk.true_positive_rate,
    }
    for letter, curve in curve_by_letter.items():
        for x in range(width + 1):
            y = math.ceil(curve(10 ** (4 * (x / width - 1))) * (height - 1))
            grid_rows[height - 1 - y][x] = letter
    label_by_row = {0: "100%", (height - 1) // 2: "50%", height - 1: "0%"}
    plot_lines = []
    for i, row in enumerate(grid_rows):
        plot_lines.append(f"|{''.join(row)}| {label_by_row.get(i, '')}".rstrip())
    axis_labels = [f"{label:<{width // 4}}" for label in ("0.01%", "0.1%", "1%", "10%")]
    return [
        "True-positive rate",
        *plot_lines,
        f"+{'':-<{width + 1}}+",
        "".join([*axis_labels, "100%"]),
        "False-positive rate",
        "o bound by the noise   - bound by epsilon and delta   . guessing",
    ]
