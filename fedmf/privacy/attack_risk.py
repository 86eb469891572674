"""What an attacker can learn of one client: the trade-off between hits and false alarms.

The attacker knows the plan, everything released and every other client, and decides whether the
updates of one client were those that it suspects or zero (the zero-out relation). T(a) bounds the
share of clients that it finds while it wrongly accuses a share a of those that are not there:

- without sampling T(a) = Phi(Phi^-1(a) + mu), mu = 1 / noise_multiplier, and nothing less (Dong,
  Roth and Su 2022, Def. 2.6 and Thm. 2.7). It holds for every way of drawing clients;
- each (epsilon, delta) that a sampling scheme proves is T(a) <= min(delta + exp(epsilon) a,
  1 - exp(-epsilon) (1 - delta - a)) (Wasserman and Zhou 2010; Kairouz et al. 2015, Thm. 2.1);
- T applied g times is that of g clients together (Dong, Roth and Su 2022, Thm. 2.14).

Every number is rounded up.
"""

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedmf import checks, fields
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.privacy.plan import Plan, check_plan, unit_noise
from fedmf.privacy.rounding import finite_or_none

# Of a true-positive rate in float64, relative: 7e-11 at most, where a is near 1e-308.
_ROUNDING = 1e-9
# False-positive rates of which summaries and statements speak.
RATES = (0.001, 0.01, 0.1)
# Beyond, the bound without sampling is taken: it costs nothing, and claims no more.
_MOST_DEVICES = 1000
_MU_HINT = "use 1 / `noise_multiplier`"
_STEPS = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttackRisk:
    """Bounds on every attack on one client, or on the devices of one user.

    Attributes:
      mu: the attack is no easier than to tell a normal of mean 0 and deviation 1 from one of mean
        mu; infinite without noise. Sampling does not lower it, but the other numbers.
      pairs: (epsilon, delta) of one client that hold as well, all at once, in both directions.
      devices: of the user; mu is of all together, and pairs of each.
      failure: chance, over our own coins, that any of the pairs was simulated too small.

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
        failure = checks.probability("failure", self.failure)
        fields.set_fields(self, {"mu": mu, "devices": devices, "failure": failure})
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
        """The most of the clients that are there that an attack finds.

        Args:
          false_positive_rate: share of those that are not there that it accuses, in [0, 1].

        Raises:
          TypeError, ValueError: naming the argument.
        """
        rate = checks.probability("false_positive_rate", false_positive_rate)
        plainly = _gaussian(self.mu, rate)
        if not self.pairs:
            return plainly
        for _ in range(self.devices):
            rate = min(_gaussian(self.mu / self.devices, rate), self._by_pairs(rate))
        return min(plainly, rate)

    @property
    @with_numpy_defaults
    def advantage(self) -> float:
        """The largest difference of the two rates; 1/2 + advantage / 2 of all guesses are right
        where a fair coin decides whether the client is there.
        """
        plainly = min(1.0, math.erf(self.mu / math.sqrt(8)) * (1 + _ROUNDING))
        return min(plainly, self._most(1.0)) if self.pairs else plainly

    @with_numpy_defaults
    def success(self, prior: float) -> float:
        """The most guesses that are right, as a share, where a client is there with this chance."""
        prior = checks.probability("prior", prior)
        rare, common = sorted((prior, 1 - prior))
        if rare == 0:
            return 1.0
        if not self.pairs:
            return self._success_plainly(rare, common)
        # Both rates may trade places: the bounds hold in both directions.
        found = (common + rare * self._most(common / rare)) * (1 + 1e-15)
        return min(self._success_plainly(rare, common), found)

    def _success_plainly(self, rare: float, common: float) -> float:
        if self.mu == 0 or math.isinf(self.mu):
            return 1.0 if self.mu else common
        shift = math.log(common / rare) / self.mu
        found, right = (_phi(self.mu / 2 + x) for x in (-shift, shift))
        return min(1.0, (rare * found + common * right) * (1 + _ROUNDING))

    @with_numpy_defaults
    def values(self) -> dict[str, Any]:
        """In plain JSON types; an infinite mu is null."""
        rates = {f"true_positive_rate_at_{a}": self.true_positive_rate(a) for a in RATES}
        failure = {"failure": self.failure} if self.failure else {}
        return {"mu": finite_or_none(self.mu), "advantage": self.advantage} | rates | failure

    @functools.cached_property
    def _lines(self) -> tuple[np.ndarray, np.ndarray]:
        pairs = np.array([pair for pair in self.pairs if pair[0] <= 700] or [(0.0, 1.0)])
        return np.exp(pairs[:, 0]), pairs[:, 1]

    def _by_pairs(self, rate: float) -> float:
        ratio, delta = self._lines
        # The second is a difference of numbers near 1, whose last digits are lost.
        few = delta + ratio * rate
        many = 1 - (1 - delta - rate) / ratio + 1e-15
        return min(1.0, float(np.minimum(few, many).min()) * (1 + _ROUNDING))

    def _most(self, weight: float) -> float:
        """sup over a of T(a) - weight a, for weight >= 1: T is concave, so that a search by thirds
        of log a ends in an interval, whose ends bound what is inside.
        """
        low = -700.0
        high = 0.0

        def value(x: float) -> float:
            return self.true_positive_rate(math.exp(x)) - weight * math.exp(x)

        # The interval never loses the maximum but to rounding, which the rates contain.
        for _ in range(_STEPS):
            third = (high - low) / 3
            if third < 1e-11:
                break
            # Equal values are the flat left end, or both the largest.
            if value(low + third) <= value(high - third):
                low += third
            else:
                high -= third
        most = self.true_positive_rate(math.exp(high)) - weight * math.exp(low)
        return min(1.0, max(0.0, most + 1e-12))


def _phi(x: float) -> float:
    from scipy import special

    return float(special.ndtr(x))


def _gaussian(mu: float, rate: float) -> float:
    from scipy import special

    if math.isinf(mu):
        return 1.0
    if rate in (0.0, 1.0) or mu == 0:
        return rate
    found = _phi(float(special.ndtri(rate)) + mu)
    # Below 1e-307 the last digits are lost
    return min(1.0, found * (1 + _ROUNDING) + 5e-324)


@with_numpy_defaults
def attack_risk(plan: Plan, devices: int = 1) -> AttackRisk:
    """What an attacker can learn at most of one client from all that the run releases.

    Of a plan that simulates a larger cohort it is the risk of the claimed run, as epsilon is.

    Args:
      plan: what is run.
      devices: clients of one user, each of which keeps to its own limits.

    Returns:
      The bounds; with sampling they rest on the secrecy of who is drawn, as `Plan.epsilon` does.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.

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
    scheme = plan.sampling
    if scheme is None or not z or g > _MOST_DEVICES:
        return AttackRisk(mu=mu, devices=g)
    risk = risk_by_curve(plan, g)
    epsilon = plan.epsilon
    # What the plan states holds as well, where its curve is not as good.
    own = ((epsilon, plan.delta),) if math.isfinite(epsilon) else ()
    failure = 2 * risk.failure if own else risk.failure
    return dataclasses.replace(risk, pairs=(*risk.pairs, *own), failure=failure)


def risk_by_curve(plan: Plan, devices: int = 1) -> AttackRisk:
    """`attack_risk` of a plan with sampling and noise, without what its own epsilon proves."""
    scheme = plan.sampling
    assert scheme is not None
    pairs = scheme.curve(plan.mechanism, unit_noise(plan))
    failure = scheme.curve_failure(plan.mechanism) if pairs else 0.0
    mu = devices / plan.noise_multiplier
    return AttackRisk(mu=mu, pairs=pairs, devices=devices, failure=failure)


def claimed_alone(epsilon: float, delta: float) -> AttackRisk:
    """What follows from one (epsilon, delta) and nothing else.

    >>> round(claimed_alone(8.0, 1e-6).true_positive_rate(0.001), 5)
    0.99966
    """
    return AttackRisk(mu=math.inf, pairs=((epsilon, delta),) if math.isfinite(epsilon) else ())


def trade_off_plot(
    risk: AttackRisk, alone: AttackRisk, *, wide: int = 48, high: int = 11
) -> list[str]:
    """Lines of text: hits over false alarms, from 1 in 10,000 on a logarithmic axis.

    Args:
      risk: drawn as o.
      alone: what one epsilon and delta allow, drawn as -.
      wide, high: of the axes, in letters.
    """
    rows = [[" "] * (wide + 1) for _ in range(high)]
    curves: Sequence[tuple[str, Callable[[float], float]]] = (
        ("-", alone.true_positive_rate),
        (".", lambda rate: rate),
        ("o", risk.true_positive_rate),
    )
    for letter, curve in curves:
        for x in range(wide + 1):
            y = math.ceil(curve(10 ** (4 * (x / wide - 1))) * (high - 1))
            rows[high - 1 - y][x] = letter
    sides = {0: "100%", (high - 1) // 2: "50%", high - 1: "0%"}
    lines = [f"|{''.join(row)}| {sides.get(i, '')}".rstrip() for i, row in enumerate(rows)]
    ticks = "".join(f"{label:<{wide // 4}}" for label in ("0.01%", "0.1%", "1%", "10%")) + "100%"
    return [
        "True-positive rate",
        *lines,
        f"+{'-' * (wide + 1)}+",
        ticks,
        "False-positive rate",
        "o at most, by the noise   - what epsilon alone allows   . by guessing",
    ]
