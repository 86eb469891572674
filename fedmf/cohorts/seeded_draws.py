"""Draws of a participation controller that follow from its seed, either by a fixed order of the
population or by a sampling scheme. They are checked against the controller's other arguments.
"""

import math
from typing import Any

from fedmf.cohorts.availability import Always, Availability
from fedmf.cohorts.devices import DeviceBehavior
from fedmf.mechanisms.budget import Budget
from fedmf.participation.history import TimerHistory
from fedmf.participation.schema import Participation
from fedmf.participation.separation import check_separation
from fedmf.privacy.sampling import Sampling
from fedmf.privacy.sampling.draws import Draws, EpochOrder


def fixed_order(
    rule: Participation | Budget,
    *,
    population: int,
    cohort_size: int,
    seed: int,
    behavior: DeviceBehavior,
) -> Draws | None:
    """Returns the random order of the population that schema fixed_epoch repeats. It is None for
    other schemas, where each cohort is sampled from the eligible clients.

    Args:
      rule: the participation, or a budget.
      population, cohort_size, seed, behavior: of the controller.

    Raises:
      ValueError: these arguments do not fit together.
    """
    participation = rule.participation if isinstance(rule, Budget) else rule
    _check_capacity(participation, population, cohort_size)
    if participation.has_fixed_order:
        _check_no_timers(behavior, f'schema="{participation.schema}"')
        return EpochOrder(
            population=population,
            cohort_size=cohort_size,
            epoch=participation.min_sep,
            seed=seed,
        )
    if behavior.timer_jitter and not isinstance(rule.new_history(1), TimerHistory):
        raise ValueError(
            f"timer_jitter={behavior.timer_jitter} has no timer that could fire early: "
            f"schema={participation.schema!r} has none; leave it out, or use schema='min_sep'"
        )
    if behavior.timer_jitter >= participation.min_sep:
        raise ValueError(
            f"timer_jitter={behavior.timer_jitter} leaves nothing of "
            f"min_sep={participation.min_sep}: use at most {participation.min_sep - 1}"
        )
    return None


def scheme_draws(
    sampling: Any,
    participation: Participation,
    *,
    population: int,
    cohort_size: int,
    seed: int,
    availability: Availability,
    behavior: DeviceBehavior,
) -> Draws:
    """Returns the object that samples each round for a sampling scheme, after checking that the
    scheme fits the controller's other arguments.

    Raises:
      TypeError, ValueError: the scheme does not fit.
    """
    if not isinstance(sampling, Sampling):
        raise TypeError(
            f"sampling={sampling!r} must be a scheme of fedmf.privacy.sampling, or None"
        )
    for scheme_name, value in (("population", population), ("cohort_size", cohort_size)):
        if getattr(sampling, scheme_name) != value:
            raise ValueError(
                f"{scheme_name}={value} but the sampling has "
                f"{scheme_name}={getattr(sampling, scheme_name)}: make them agree"
            )
    scheme_participation = sampling.participation(participation.rounds)
    scheme_name = type(sampling).__name__
    if participation != scheme_participation:
        raise ValueError(
            f"sampling={sampling} satisfies {scheme_participation} and not "
            f"{participation}: use "
            f"sampling.participation({participation.rounds}) as the participation"
        )
    _check_no_timers(behavior, f"sampling={scheme_name}(...)")
    can_miss_rounds = not isinstance(availability, Always) or behavior.dropout > 0
    if can_miss_rounds and not sampling.independent:
        raise ValueError(
            f"{scheme_name} samples a fixed number of clients, and from the available ones alone "
            "each would be likelier than its guarantee "
            "assumes: use CyclicPoisson, or leave out availability and dropout"
        )
    return sampling.draws(seed)


def _check_no_timers(behavior: DeviceBehavior, what: str) -> None:
    """Raises ValueError if the simulated devices can deviate from their timers, in a run whose
    clients the server alone selects. `what` names the kind of selection in the error.
    """
    if not behavior.is_compliant:
        raise ValueError(
            f"{what} leaves no choice to devices, so that none can deviate or check in early "
            f"as {behavior} says: "
            "leave out `noncompliant_fraction` and `timer_jitter`, or use schema=min_sep"
        )


def _check_capacity(participation: Participation, population: int, cohort_size: int) -> None:
    """Raises ValueError unless the population is large enough to fill every round with
    `cohort_size` clients within their participation limits.
    """
    p = participation
    min_sep = p.min_sep
    check_separation(
        min_sep,
        population=population,
        cohort_size=cohort_size,
        rounds=p.rounds,
        name=p.separation_argument,
    )
    num_epochs = math.ceil(p.rounds / min_sep)
    if p.has_fixed_order and p.max_participations < num_epochs:
        raise ValueError(
            f"max_participations={p.max_participations} ends the fixed order after round "
            f"{p.max_participations * min_sep} of rounds={p.rounds}: use "
            f"max_participations={num_epochs}"
        )
    if cohort_size * p.rounds > population * p.max_participations:
        ways_out = []
        max_cohort_size = population * p.max_participations // p.rounds
        if max_cohort_size:
            ways_out.append(f"lower `cohort_size` to at most {max_cohort_size},")
        min_participations = math.ceil(cohort_size * p.rounds / population)
        ways_out.append(f"raise `max_participations` to {min_participations}")
        raise ValueError(
            f"max_participations={p.max_participations} of {population} clients cannot "
            f"fill rounds={p.rounds} with cohort_size={cohort_size}: "
            f"{' or '.join(ways_out)}"
        )
