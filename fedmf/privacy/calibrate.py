"""From a privacy target to the plan with the least noise that meets it."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypedDict, Unpack

from fedmf import checks
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.budget import check_affords_each_round
from fedmf.mechanisms.leading import column_norm
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.participation.schema import Budgeted, Participation
from fedmf.privacy.amplification import least_noise_multiplier
from fedmf.privacy.attack_risk import AttackRisk, risk_by_curve
from fedmf.privacy.gaussian import check_epsilon, gaussian_noise_multiplier
from fedmf.privacy.monte_carlo import MAX_ATTEMPTS
from fedmf.privacy.plan import Plan, unit_noise
from fedmf.privacy.sampling import Sampling
from fedmf.privacy.source_tail import HOST_END, check_tail


class Target(TypedDict, total=False):
    """What a plan is to guarantee: one of them.

    Attributes:
      epsilon: at the plan's delta; positive and below 5000.
      advantage: of every attack on one client, in (0, 1); see `fedmf.AttackRisk`.
      true_positive_rate: (false-positive rate, the most of the clients that an attack finds at
        it), both in (0, 1), the second the larger.
    """

    epsilon: float | None
    advantage: float | None
    true_positive_rate: tuple[float, float] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Limit:
    """A target that was checked.

    Attributes:
      name, limit: of what is at most what.
      enough: the noise multiplier that gives it without sampling.
      reached: what a risk comes to; None of an epsilon.
    """

    name: str
    limit: float
    enough: float
    reached: Callable[[AttackRisk], float] | None = None

    def of(self, plan: Plan) -> float:
        return plan.epsilon if self.reached is None else self.reached(risk_by_curve(plan))

    def expected(self, plan: Plan) -> float:
        """`of`, for a search."""
        scheme = plan.sampling
        noise = unit_noise(plan)
        assert scheme is not None
        if self.reached is None:
            return scheme.expected_epsilon(plan.mechanism, noise, plan.delta)
        pairs = scheme.curve(plan.mechanism, noise, search=True)
        return self.reached(AttackRisk(mu=1 / plan.noise_multiplier, pairs=pairs))


def unamplified_noise_multiplier(delta: float, target: Target) -> float:
    """The least noise multiplier that gives a target without sampling.

    Raises:
      TypeError, ValueError: not one target, or one out of range.

    >>> round(unamplified_noise_multiplier(1e-6, {"epsilon": 4.0}), 5)
    1.19352
    >>> round(unamplified_noise_multiplier(1e-6, {"advantage": 0.1}), 4)
    3.9789
    """
    return _limit(delta, target).enough


def parse_rates(text: str) -> tuple[float, float]:
    """(false-positive rate, true-positive rate) of a text such as 0.05@0.01, the second first.

    >>> parse_rates("0.05@0.01")
    (0.01, 0.05)
    """
    try:
        true, false = map(float, text.split("@"))
    except (TypeError, ValueError, AttributeError):
        raise ValueError(
            f"true_positive_rate={text!r} is no rate at another: write 0.05@0.01, at most 5% hits "
            "where 1% are false alarms"
        ) from None
    return false, true


def check_rates(name: str, text: str) -> str:
    """The text of `parse_rates`, where it is a target that can be met."""
    unamplified_noise_multiplier(0.5, {"true_positive_rate": parse_rates(text)})
    return text


def _limit(delta: float, target: Target) -> _Limit:
    from scipy import special

    given: dict[str, Any] = {name: x for name, x in target.items() if x is not None}
    unknown = sorted(given.keys() - Target.__annotations__.keys())
    if unknown or len(given) != 1:
        what = (
            f"{unknown[0]} is unknown" if unknown else f"{sorted(given)} are {len(given)} targets"
        )
        kind = TypeError if unknown else ValueError
        raise kind(f"{what}: give one of `epsilon`, `advantage` and `true_positive_rate`")
    ((name, value),) = given.items()
    if name == "epsilon":
        epsilon = check_epsilon(value)
        return _Limit(name=name, limit=epsilon, enough=gaussian_noise_multiplier(epsilon, delta))
    if name == "advantage":
        limit = checks.positive(name, value, "use a share such as 0.1", below=1.0)
        _check_told(name, value, limit)
        mu = math.sqrt(8) * float(special.erfinv(limit))
        return _with_enough(name, limit, mu, lambda risk: risk.advantage)
    hint = "use (0.01, 0.05): of 1% false alarms at most 5% hits"
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{name}={value!r} must be two shares: {hint}")
    rate, limit = (checks.positive(name, share, hint, below=1.0) for share in value)
    if not rate < limit:
        raise ValueError(
            f"{name}={value!r} asks for no more hits than guessing gives, {rate:g}: {hint}"
        )
    _check_told(name, value, limit)
    mu = float(special.ndtri(limit) - special.ndtri(rate))
    return _with_enough(name, limit, mu, lambda risk: risk.true_positive_rate(rate))


def _check_told(name: str, value: Any, limit: float) -> None:
    if limit < 1e-8:
        raise ValueError(f"{name}={value!r} is below 1e-8, which no curve tells: ask for more")


def _with_enough(
    name: str, limit: float, mu: float, reached: Callable[[AttackRisk], float]
) -> _Limit:
    """The limit with noise that is no less than for mu, up to the rounding of the risk."""
    z = 1 / mu if mu else math.inf
    step = 1e-9
    while reached(AttackRisk(mu=1 / z)) > limit:
        z *= 1 + step
        step *= 2
        if z > 1e12:
            raise ValueError(f"{name}={limit} cannot be told from guessing: ask for more")
    return _Limit(name=name, limit=limit, enough=z, reached=reached)


@with_numpy_defaults
def calibrate(
    mechanism: Mechanism,
    participation: Participation | None,
    *,
    delta: float,
    clip_norm: float = 1.0,
    sampling: Sampling | None = None,
    **target: Unpack[Target],
) -> Plan:
    """The least noise that meets a target for the whole run, never weaker than asked; see
    `Plan.epsilon` and `fedmf.attack_risk`.

    Args:
      mechanism: from `fit` or `load_mechanism`.
      participation: what every client keeps to. With sampling the plan's is what the scheme keeps
        to, and this may be None.
      delta: in [1e-15, 1).
      clip_norm: L2 bound on one client's update in one round.
      sampling: how clients are drawn, where that amplifies the guarantee; None for what holds
        however they are drawn.
      target: epsilon=, advantage= or true_positive_rate=(false positives, true positives): one of
        `fedmf.privacy.calibrate.Target`.

    Returns:
      The plan, in which what was asked for is at most the target.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.

    Example:
      >>> import fedmf
      >>> one_epoch = fedmf.Participation(rounds=8, schema="single")
      >>> mechanism = fedmf.fit(fedmf.prefix_sum(8), one_epoch, family="tree")
      >>> plan = fedmf.calibrate(mechanism, one_epoch, epsilon=2.0, delta=1e-6)
      >>> round(plan.noise_multiplier, 5), round(plan.sensitivity.value, 3), plan.epsilon <= 2.0
      (2.23048, 2.0, True)
    """
    if not isinstance(participation, Participation | None):
        raise TypeError(
            f"participation={participation!r} must be a fedmf.Participation, or None with sampling"
        )
    limit = _limit(delta, target)
    # The multiplier that is enough without amplification.
    plan = Plan(
        mechanism=mechanism,
        participation=participation if sampling is None else None,  # type: ignore[arg-type]
        noise_multiplier=limit.enough,
        clip_norm=clip_norm,
        delta=delta,
        sampling=sampling,
    )
    scheme = plan.sampling
    if isinstance(plan.participation, Budgeted):
        check_affords_each_round(plan.participation, column_norm(mechanism))
    if scheme is None:
        return _checked(plan)
    enough = unit_noise(plan)
    sensitivity = plan.sensitivity.value

    def reached(noise: float) -> float:
        if noise >= enough:
            return limit.limit / 2
        return limit.expected(dataclasses.replace(plan, noise_multiplier=noise / sensitivity))

    # In units of the largest column norm, in which the search knows what is little.
    unit = column_norm(mechanism)
    relative, step = (1e-4, 2e-3) if scheme.simulated else (1e-5, 1e-7)
    noise = unit * least_noise_multiplier(
        lambda sigma: reached(unit * sigma), limit.limit, relative=relative, name=limit.name
    )
    calibrated = dataclasses.replace(plan, noise_multiplier=min(enough, noise) / sensitivity)
    # The rounding of that quotient; or random numbers that the search has not seen, whose chance to
    # fail is that of all attempts together.
    for _ in range(MAX_ATTEMPTS - 1):
        if limit.of(calibrated) <= limit.limit:
            return _checked(calibrated)
        multiplier = min(calibrated.noise_multiplier * (1 + step), limit.enough)
        calibrated = dataclasses.replace(calibrated, noise_multiplier=multiplier)
        step *= 2
    return _checked(plan)


def _checked(plan: Plan) -> Plan:
    """Returns the plan; refuses one whose noise no source of fedmf draws far enough out."""
    check_tail(plan, HOST_END)
    return plan
