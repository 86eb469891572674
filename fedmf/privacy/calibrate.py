"""Calibration of the noise, which finds the plan with the least noise that meets a target."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypedDict

from fedmf import checks
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.budget import check_affords_each_round
from fedmf.mechanisms.leading import column_norm
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.participation.budgeted import Budgeted
from fedmf.participation.schema import Participation
from fedmf.privacy.attack_risk import AttackRisk, risk_by_curve
from fedmf.privacy.gaussian import check_epsilon, gaussian_noise_multiplier
from fedmf.privacy.monte_carlo import MAX_ATTEMPTS
from fedmf.privacy.noise_search import least_noise_multiplier
from fedmf.privacy.plan import Plan, unit_noise
from fedmf.privacy.sampling import Sampling
from fedmf.privacy.selection_bounds import selection_noise_multiplier
from fedmf.privacy.source_tail import check_noise_tail
from fedmf.privacy.trial_count import TrialCount

# Smallest risk that can be a target, because privacy curves do not resolve smaller ones.
_MIN_RISK = 1e-8
_RATES_HINT = "use (0.01, 0.05): a true-positive rate of 5% at a false-positive rate of 1%"
# The search for the noise has a relative tolerance. If its result misses the target, the noise is
# raised in growing steps, and the first step has this relative size. Simulated schemes have larger
# tolerances and steps, since their epsilons are random.
_SIMULATED_TOLERANCE = 1e-4
_SIMULATED_STEP = 2e-3
_TOLERANCE = 1e-5
_STEP = 1e-7


class Target(TypedDict, total=False):
    """A privacy target for `calibrate`, given as a dict with exactly one of the keys below.

    Attributes:
      epsilon: largest epsilon at the plan's delta; positive and below 5000.
      advantage: largest advantage of any attack on one client, in (0, 1); see `fedmf.AttackRisk`.
      true_positive_rate: a pair (false-positive rate, largest true-positive rate of any attack at
        it), both in (0, 1), the second one larger than the first.
    """

    epsilon: float | None
    advantage: float | None
    true_positive_rate: tuple[float, float] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Limit:
    """A validated privacy target, which consists of a quantity, such as epsilon, and the largest
    value that it may have.

    Attributes:
      name: name of the limited quantity in errors.
      limit: the largest allowed value of epsilon or of the attack risk.
      unamplified_noise_multiplier: the least one that meets the limit without sampling.
      risk_of: returns the limited quantity of an attack risk; None for epsilon.
    """

    name: str
    limit: float
    unamplified_noise_multiplier: float
    risk_of: Callable[[AttackRisk], float] | None = None

    def value(self, plan: Plan) -> float:
        """Computes the limited quantity, such as epsilon, of a plan."""
        if self.risk_of is None:
            return plan.epsilon
        return self.risk_of(risk_by_curve(plan))

    def estimate(self, plan: Plan) -> float:
        """Estimates `value` for the search for the noise. Simulations use other random numbers than
        `value`, which then proves the result.
        """
        if plan.selection is not None:
            return plan.epsilon
        scheme = plan.sampling
        assert scheme is not None
        noise = unit_noise(plan)
        if self.risk_of is None:
            return scheme.expected_epsilon(plan.mechanism, noise, plan.delta)
        curve_points = scheme.curve(plan.mechanism, noise, search=True)
        return self.risk_of(AttackRisk(mu=1 / plan.noise_multiplier, pairs=curve_points))


def unamplified_noise_multiplier(
    delta: float, target: Target, selection: TrialCount | None = None
) -> float:
    """Computes the least noise multiplier that meets a target without amplification by sampling.

    Args:
      delta: in [1e-15, 1).
      target: the privacy target.
      selection: the number of trials of a private selection; None for a single run.

    Raises:
      TypeError, ValueError: `target` has not exactly one key, or its value is out of range.

    >>> round(unamplified_noise_multiplier(1e-6, {"epsilon": 4.0}), 5)
    1.19352
    >>> round(unamplified_noise_multiplier(1e-6, {"advantage": 0.1}), 4)
    3.9789
    """
    return _limit(delta, target, selection).unamplified_noise_multiplier


def parse_rates(text: str) -> tuple[float, float]:
    """Parses a text such as 0.05@0.01, a true-positive rate at a false-positive rate. The result
    has the false-positive rate first.

    >>> parse_rates("0.05@0.01")
    (0.01, 0.05)
    """
    try:
        true_positive_rate, false_positive_rate = map(float, text.split("@"))
    except (TypeError, ValueError, AttributeError):
        raise ValueError(
            f"true_positive_rate={text!r} is no rate at another: write 0.05@0.01, a true-positive "
            "rate of at most 5% at a false-positive rate of 1%"
        ) from None
    return false_positive_rate, true_positive_rate


def check_rates(name: str, text: str) -> str:
    """Checks that a text such as 0.05@0.01 is a privacy target that can be met, and returns it.

    Raises:
      TypeError, ValueError: `parse_rates` cannot read the text, or the rates are no valid target.
    """
    unamplified_noise_multiplier(0.5, {"true_positive_rate": parse_rates(text)})
    return text


def _limit(delta: float, target: Target, selection: object = None) -> _Limit:
    """Validates a privacy target and returns it as a `_Limit`. With a number of trials,
    `selection`, it is that of a private selection.
    """
    if selection is not None:
        return _selection_limit(delta, target, selection)
    value_by_name: dict[str, Any] = {name: x for name, x in target.items() if x is not None}
    unknown_names = sorted(value_by_name.keys() - Target.__annotations__.keys())
    hint = "give one of `epsilon`, `advantage` and `true_positive_rate`"
    if unknown_names:
        raise TypeError(f"{unknown_names[0]} is unknown: {hint}")
    if len(value_by_name) != 1:
        given_targets = sorted(value_by_name)
        raise ValueError(f"{given_targets} are {len(given_targets)} targets: {hint}")
    ((name, value),) = value_by_name.items()
    if name == "epsilon":
        epsilon = check_epsilon(value)
        multiplier = gaussian_noise_multiplier(epsilon, delta)
        return _Limit(name=name, limit=epsilon, unamplified_noise_multiplier=multiplier)
    if name == "advantage":
        return _advantage_limit(value)
    return _rate_limit(value)


def _advantage_limit(value: object) -> _Limit:
    """Returns the `_Limit` for a target on the advantage of an attack."""
    from scipy import special

    name = "advantage"
    limit = checks.positive(name, value, "use a number such as 0.1", below=1.0)
    _check_resolvable(name, value, limit)
    mu = math.sqrt(8) * float(special.erfinv(limit))
    return _risk_limit(name, limit, mu, lambda risk: risk.advantage)


def _rate_limit(value: object) -> _Limit:
    """Returns the `_Limit` for a target on the true-positive rate at a false-positive rate."""
    from scipy import special

    name = "true_positive_rate"
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{name}={value!r} must be two rates: {_RATES_HINT}")
    false_positive_rate, limit = (
        checks.positive(name, rate, _RATES_HINT, below=1.0) for rate in value
    )
    if not false_positive_rate < limit:
        raise ValueError(
            f"{name}={value!r} asks for no more than guessing gives, {false_positive_rate:g}: "
            f"{_RATES_HINT}"
        )
    _check_resolvable(name, value, limit)
    mu = float(special.ndtri(limit) - special.ndtri(false_positive_rate))
    return _risk_limit(name, limit, mu, lambda risk: risk.true_positive_rate(false_positive_rate))


def _check_resolvable(name: str, value: object, limit: float) -> None:
    """Raises ValueError if a target is smaller than the risks that privacy curves resolve."""
    if limit < _MIN_RISK:
        raise ValueError(f"{name}={value!r} is below 1e-8, which no curve resolves: raise it")


def _risk_limit(
    name: str, limit: float, mu: float, risk_of: Callable[[AttackRisk], float]
) -> _Limit:
    """Returns the `_Limit` for a target on an attack risk.

    Args:
      name: name of the risk in errors.
      limit: the largest allowed risk.
      mu: reaches the limit exactly, so that 1 / mu is the least noise multiplier. It is raised a
        little if the rounding of the risk exceeds the limit.
      risk_of: returns the limited quantity of an attack risk.
    """
    multiplier = 1 / mu if mu else math.inf
    margin_step = 1e-9
    while risk_of(AttackRisk(mu=1 / multiplier)) > limit:
        multiplier *= 1 + margin_step
        margin_step *= 2
        if multiplier > 1e12:
            raise ValueError(f"{name}={limit} cannot be distinguished from guessing: raise it")
    return _Limit(name=name, limit=limit, unamplified_noise_multiplier=multiplier, risk_of=risk_of)


def _selection_limit(delta: float, target: Target, selection: object) -> _Limit:
    """Returns the `_Limit` for a target epsilon of a private selection."""
    if not isinstance(selection, TrialCount):
        raise TypeError(
            f"selection={selection!r} must be a fedmf.TrialCount, such as "
            "TrialCount(mean_trials=10), or None for a single run"
        )
    if target.get("epsilon") is None:
        raise ValueError("selection needs an epsilon as its target: pass epsilon=8.0")
    limit = _limit(delta, target)
    multiplier = selection_noise_multiplier(limit.limit, delta, selection)
    return dataclasses.replace(limit, unamplified_noise_multiplier=multiplier)


@with_numpy_defaults
def calibrate(  # noqa: PLR0913  (each target is an argument of its own)
    mechanism: Mechanism,
    participation: Participation | None,
    *,
    delta: float,
    clip_norm: float = 1.0,
    sampling: Sampling | None = None,
    epsilon: float | None = None,
    advantage: float | None = None,
    true_positive_rate: tuple[float, float] | None = None,
    selection: TrialCount | None = None,
) -> Plan:
    """Computes the plan with the least noise that meets a privacy target for the whole run.

    The guarantee of the plan is never weaker than the target; see `Plan.epsilon` and
    `fedmf.attack_risk`.

    Args:
      mechanism: from `fit` or `load_mechanism`.
      participation: limits that hold for every client. With sampling this may be None, because the
        scheme determines the plan's participation.
      delta: in [1e-15, 1).
      clip_norm: L2 bound on one client's update in one round.
      sampling: the sampling scheme, which amplifies the guarantee; None for a guarantee that holds
        however clients are sampled.
      epsilon, advantage, true_positive_rate: the target, exactly one of these three. `epsilon` is
        the largest epsilon at `delta`, positive and below 5000. `advantage` is the largest
        advantage of any attack on one client, in (0, 1). `true_positive_rate` is a pair
        (false-positive rate, largest true-positive rate of any attack at it), both in (0, 1), the
        second one larger than the first.
      selection: the number of trials of a private selection. `epsilon` is then the largest epsilon
        of the selected model, and the plan has the noise of each trial; see
        `fedmf.private_selection`. None for a single run.

    Returns:
      The plan, whose epsilon or risk is at most the target.

    Raises:
      TypeError: an argument has another type.
      ValueError: not exactly one target is passed, a number is out of range, the rounds of
        mechanism and participation differ, the sampling scheme does not suit the mechanism, or no
        noise multiplier reaches the target; with `selection`, the target is no epsilon, or the
        sampling scheme has a simulated epsilon.

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
    target: Target = {
        "epsilon": epsilon,
        "advantage": advantage,
        "true_positive_rate": true_positive_rate,
    }
    privacy_limit = _limit(delta, target, selection)
    if sampling is not None:
        # `Plan` sets the participation that the sampling scheme ensures.
        participation = None
    unamplified_plan = Plan(
        mechanism=mechanism,
        participation=participation,  # type: ignore[arg-type]
        noise_multiplier=privacy_limit.unamplified_noise_multiplier,
        clip_norm=clip_norm,
        delta=delta,
        sampling=sampling,
        selection=selection,
    )
    if isinstance(unamplified_plan.participation, Budgeted):
        check_affords_each_round(unamplified_plan.participation, column_norm(mechanism))
    if sampling is None:
        plan = unamplified_plan
    else:
        plan = _with_amplification(unamplified_plan, privacy_limit)
    check_noise_tail(plan)
    return plan


def _with_amplification(unamplified_plan: Plan, limit: _Limit) -> Plan:
    """Returns the plan with the least noise that meets a target with amplification by sampling, or
    `unamplified_plan` itself if amplification does not help.
    """
    scheme = unamplified_plan.sampling
    assert scheme is not None
    unamplified_noise = unit_noise(unamplified_plan)
    sensitivity = unamplified_plan.sensitivity.value

    def with_noise(noise: float) -> Plan:
        return dataclasses.replace(unamplified_plan, noise_multiplier=noise / sensitivity)

    def estimated_risk(sigma: float) -> float:
        if query_sensitivity * sigma >= unamplified_noise:
            return limit.limit / 2
        return limit.estimate(with_noise(query_sensitivity * sigma))

    # The search is over the noise multiplier of one sampled query, and not of the whole run,
    # because `least_noise_multiplier` refuses a negligible multiplier of one query.
    query_sensitivity = column_norm(unamplified_plan.mechanism)
    tolerance = _SIMULATED_TOLERANCE if scheme.simulated else _TOLERANCE
    first_step = _SIMULATED_STEP if scheme.simulated else _STEP
    noise = query_sensitivity * least_noise_multiplier(
        estimated_risk, limit.limit, relative=tolerance, name=limit.name
    )
    plan = with_noise(min(unamplified_noise, noise))
    # The plan may miss its target, because of rounding or because the final simulation of epsilon
    # uses other random numbers than the search. The noise is then raised. The stated failure
    # probability of a simulation covers all these attempts together.
    for _ in range(MAX_ATTEMPTS - 1):
        if limit.value(plan) <= limit.limit:
            return plan
        multiplier = min(
            plan.noise_multiplier * (1 + first_step), limit.unamplified_noise_multiplier
        )
        plan = dataclasses.replace(plan, noise_multiplier=multiplier)
        first_step *= 2
    return unamplified_plan
