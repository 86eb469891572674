"""Forecasts of how often clients take part in a run, made by sampling all cohorts without training.

The forecasts answer which separation of rounds a population allows, how often too few clients are
eligible, how often a client takes part, and how many participations a budget gains over the min_sep
schema. The simulated population may be smaller than the real one, with the same share of clients in
a cohort.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fedmf import checks, fields
from fedmf.cohorts.availability import Availability
from fedmf.cohorts.controller import ParticipationController
from fedmf.cohorts.devices import DeviceBehavior
from fedmf.cohorts.draws import PoolRanDryWarning
from fedmf.intervals import student_interval
from fedmf.mechanisms.budget import Budget, spending_histogram
from fedmf.mechanisms.client_sensitivity import ClientSensitivity
from fedmf.participation.schema import Participation
from fedmf.participation.stats import ParticipationStats
from fedmf.privacy.sampling import Sampling

# Default numbers of clients and of clients in a cohort in a simulation. With fewer, chance alone
# would more often leave too few eligible clients for a cohort.
_SIMULATED_CLIENTS = 200_000
_SIMULATED_COHORT = 100
_MAX_POOL_ROUNDS = 200
_MAX_CLIENTS = 1_000_000_000
_MAX_ROUNDS = 10_000_000
_HINT = "use at most the cohort size, or leave it out"
# `largest_min_sep` reports its progress after this many rounds.
_PROGRESS_ROUNDS = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size(fields.Checked):
    """Population and cohort size of a run, and those of the smaller simulation of the run.

    Attributes:
      population, cohort_size: sizes of the run.
      simulated_cohort: cohort size of the simulation; None for about 200,000 clients, and for a
        cohort of at least 100 if the run has one.

    Raises:
      TypeError, ValueError: a number is out of range.

    >>> Size(population=10_000_000, cohort_size=6500).simulated_population
    200000
    """

    population: int = fields.validated(
        functools.partial(
            checks.integer, low=1, high=_MAX_CLIENTS, hint="use the number of clients"
        )
    )
    cohort_size: int = fields.validated(
        functools.partial(checks.integer, low=1, hint="use the number of clients a round")
    )
    simulated_cohort: int = fields.derived(
        functools.partial(checks.integer, low=1, hint=_HINT), lambda size: size._default_cohort()
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cohort_size > self.population:
            raise ValueError(
                f"cohort_size={self.cohort_size} is larger than population={self.population}: "
                f"lower `cohort_size` to at most {self.population}"
            )
        checks.integer(
            "simulated_cohort", self.simulated_cohort, low=1, high=self.cohort_size, hint=_HINT
        )

    def _default_cohort(self) -> int:
        """Returns the cohort size with which the simulation has about 200,000 clients."""
        simulated_cohort = self.cohort_size * _SIMULATED_CLIENTS / self.population
        return min(self.cohort_size, max(_SIMULATED_COHORT, round(simulated_cohort)))

    @property
    def simulated_population(self) -> int:
        """Number of simulated clients, in the run's ratio of population to cohort size."""
        return self.population * self.simulated_cohort // self.cohort_size


def refuse_impossible(
    participation: Participation | Budget,
    size: Size,
    *,
    seed: int = 0,
    availability: Availability | None = None,
    sampling: Sampling | None = None,
    behavior: DeviceBehavior | None = None,
) -> None:
    """Raises the error that a `ParticipationController` of the run would raise, if any.

    An error in the simulation would name the sizes of the simulation, and not those of the run.
    """
    if isinstance(participation, Budget):
        rounds = participation.participation.rounds
    else:
        rounds = participation.rounds
    checks.integer("rounds", rounds, low=1, high=_MAX_ROUNDS, hint="pass the number of rounds")
    ParticipationController(
        participation,
        population=size.population,
        cohort_size=size.cohort_size,
        seed=seed,
        availability=availability,
        sampling=sampling,
        behavior=behavior,
    )


def _iter_rounds(controller: ParticipationController) -> Iterator[int]:
    """Samples the cohorts of all rounds, and yields the index of each round after its cohort."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PoolRanDryWarning)
        for t in range(controller.participation.rounds):
            controller.cohort(t)
            yield t


def forecast(
    participation: Participation | Budget,
    size: Size,
    *,
    seed: int = 0,
    availability: Availability | None = None,
    sampling: Sampling | None = None,
    behavior: DeviceBehavior | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Forecasts who takes part in a run, by sampling the cohorts of all rounds without training.

    Args:
      participation: the schema to enforce, as in the controller.
      size: sizes of the run and of the simulation.
      seed, availability, behavior: as in the controller.
      sampling: as in the controller, for the population of the run.
      progress: called with the index of every finished round.

    Returns:
      Plain JSON types: the sizes and the participation; "dry", the rounds in which fewer clients
      than the cohort size were eligible and available (empty if cohorts vary in size by design);
      "cohorts", the clients that took part in each round over the cohort size; "pool", the eligible
      and available clients over the cohort size in "pool_rounds" (empty with a scheme or a fixed
      order); "histogram", number of participations -> share of all clients; with a budget "spent",
      share of the budget -> share of all clients; and the observed participation of all clients and
      of the compliant ones.

    Raises:
      TypeError, ValueError: see the controller.

    >>> run = forecast(
    ...     Participation(rounds=20, schema="min_sep", min_sep=5),
    ...     Size(population=60, cohort_size=10)
    ... )
    >>> run["dry_rounds"], run["min_separation_observed"], run["max_participations_observed"]
    (0, 5, 4)
    """
    models: dict[str, Any] = {"seed": seed, "availability": availability, "behavior": behavior}
    refuse_impossible(participation, size, sampling=sampling, **models)
    sizes: dict[str, Any] = {
        "population": size.simulated_population,
        "cohort_size": size.simulated_cohort,
    }
    resized_scheme = None if sampling is None else sampling.resized(**sizes)
    controller = ParticipationController(participation, sampling=resized_scheme, **sizes, **models)
    pool_by_round = _run_all_rounds(controller, size, progress)
    observed = controller.ledger.observed()
    dry_rounds = _dry_rounds(controller)
    relative_cohorts = observed.cohort_sizes / size.simulated_cohort
    return {
        "population": size.population,
        "cohort_size": size.cohort_size,
        "simulated_population": size.simulated_population,
        "simulated_cohort_size": size.simulated_cohort,
        **controller.participation.limits(),
        "dry_rounds": len(dry_rounds),
        "mean_participations": observed.participations / size.simulated_population,
        "mean_cohort": float(relative_cohorts.mean()) * size.cohort_size,
        "smallest_cohort": float(relative_cohorts.min()) * size.cohort_size,
        **_client_figures(controller, observed),
        **_spending_figures(participation, controller),
        "dry": dry_rounds,
        "pool_rounds": list(pool_by_round),
        "pool": list(pool_by_round.values()),
        "cohorts": relative_cohorts.tolist(),
    }


def _run_all_rounds(
    controller: ParticipationController, size: Size, progress: Callable[[int], None] | None
) -> dict[int, float]:
    """Samples the cohorts of all rounds, and measures in some of them how many clients could be
    selected. The result maps each of these rounds to the number of eligible and available
    clients over the cohort size.
    """
    participation = controller.participation
    rounds = participation.rounds
    pool_by_round: dict[int, float] = {}
    if controller.sampling is None and not participation.has_fixed_order:
        pool_rounds = np.linspace(0, rounds - 1, min(rounds, _MAX_POOL_ROUNDS))
        pool_by_round = dict.fromkeys(pool_rounds.round().astype(int).tolist(), 0.0)

    def record_pool(t: int) -> None:
        if t in pool_by_round:
            pool_by_round[t] = float(controller.eligible(t).sum()) / size.simulated_cohort

    record_pool(0)
    for t in _iter_rounds(controller):
        record_pool(t + 1)
        if progress is not None:
            progress(t)
    return pool_by_round


def _dry_rounds(controller: ParticipationController) -> list[int]:
    """Returns the rounds in which fewer clients than the cohort size could be selected."""
    ledger = controller.ledger
    if ledger.cohort_size is None:
        return []
    return [t for t in range(len(ledger)) if len(ledger.selected(t)) < ledger.cohort_size]


def _client_figures(
    controller: ParticipationController, observed: ParticipationStats
) -> dict[str, Any]:
    """Returns the part of a forecast about the separation and number of clients' participations."""
    compliant_counts = controller.ledger.compliant().observed()
    num_clients = controller.population
    clients_by_count = {0: num_clients - observed.clients, **observed.histogram}
    return {
        "min_separation_observed": observed.min_separation,
        "max_participations_observed": observed.max_participations,
        "min_separation_compliant": compliant_counts.min_separation,
        "max_participations_compliant": compliant_counts.max_participations,
        "histogram": {k: count / num_clients for k, count in clients_by_count.items() if count},
    }


def _spending_figures(
    participation: Participation | Budget, controller: ParticipationController
) -> dict[str, Any]:
    """Returns the part of a forecast about how much of their participation budget clients spend; an
    empty dict for every other schema.
    """
    if not isinstance(participation, Budget):
        return {}
    client_sensitivity = ClientSensitivity(participation.mechanism, by_counts=False)
    squared_spent = client_sensitivity.squared(controller.ledger.clients()[1])
    client_counts = spending_histogram(controller.participation.budget or 0.0, squared_spent)
    num_clients = controller.population
    return {"spent": {share: count / num_clients for share, count in client_counts.items()}}


def largest_min_sep(
    size: Size,
    *,
    rounds: int,
    seed: int = 0,
    availability: Availability | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Finds by bisection, to 1%, the largest min_sep for which a simulation has a full cohort in
    every round.

    The largest possible value is tried first: if devices are always available it is the result, and
    any other value would be simulated for all rounds. A round with fewer clients than the cohort
    size is called dry. All devices comply.

    Args:
      size: sizes of the run and of the simulation.
      rounds: length of the run.
      seed, availability: as in the controller.
      progress: called every 100 rounds, with a text that names the min_sep and the round.

    Returns:
      "largest_min_sep": the largest value tried that has no dry round; None if all had one.
      "too_large_min_sep": the smallest value tried that has one, above it by 1 or by at most 1%;
      None if none had. "tried": min_sep -> the first dry round, or None.

    Raises:
      TypeError, ValueError: see the controller.

    >>> largest_min_sep(Size(population=60, cohort_size=10), rounds=20)["largest_min_sep"]
    6
    """
    rounds = checks.integer(
        "rounds", rounds, low=1, high=_MAX_ROUNDS, hint="pass the number of rounds"
    )
    first_dry_round: dict[int, int | None] = {}
    max_min_sep = min(rounds, size.population // size.cohort_size)
    low_min_sep = 0
    high_min_sep = max_min_sep + 1
    middle_min_sep = max_min_sep
    while high_min_sep - low_min_sep > max(1, low_min_sep // 100):
        participation = Participation(rounds=rounds, schema="min_sep", min_sep=middle_min_sep)
        controller = ParticipationController(
            participation,
            population=size.simulated_population,
            cohort_size=size.simulated_cohort,
            seed=seed,
            availability=availability,
        )
        first_dry_round[middle_min_sep] = _first_dry_round(controller, progress)
        if first_dry_round[middle_min_sep] is None:
            low_min_sep = middle_min_sep
        else:
            high_min_sep = middle_min_sep
        middle_min_sep = (low_min_sep + high_min_sep) // 2
    return {
        "largest_min_sep": low_min_sep or None,
        "too_large_min_sep": high_min_sep if high_min_sep <= max_min_sep else None,
        "tried": dict(sorted(first_dry_round.items())),
    }


def _first_dry_round(
    controller: ParticipationController, progress: Callable[[str], None] | None
) -> int | None:
    """Returns the first round with fewer clients than the cohort size, sampling cohorts up to it;
    None if all cohorts are full.
    """
    participation = controller.participation
    for t in _iter_rounds(controller):
        if progress is not None and t % _PROGRESS_ROUNDS == 0:
            progress(f"{participation.min_sep}, round {t} of {participation.rounds}")
        if len(controller.ledger.selected(t)) < controller.cohort_size:
            return t
    return None


def compare_schemas(
    budget: Budget,
    min_sep_schema: Participation,
    size: Size,
    *,
    seeds: Sequence[int],
    availability: Any,
    behavior: DeviceBehavior | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Compares how often a client takes part on average under a participation budget and under a
    min_sep schema, by simulations with several seeds.

    Args:
      budget: the budget, made of `min_sep_schema`.
      min_sep_schema: the participation of schema min_sep.
      size: sizes of the run and of the simulation.
      seeds: at least two distinct seeds of sampling and availability, the same for both schemas.
      availability: a model of `fedmf.cohorts.availability`.
      behavior, progress: as in `forecast`.

    Returns:
      "participations_min_sep", "participations_budget" and "participations_gained": [mean, low,
      high], with a 95% interval of Student's t over the seeds; "dry_rounds_min_sep" and
      "dry_rounds_budget": means over the seeds.
    """
    min_sep_runs = []
    budget_runs = []
    for seed in seeds:
        changed_settings = {"seed": seed} if hasattr(availability, "seed") else {}
        options: dict[str, Any] = {
            "seed": seed,
            "availability": dataclasses.replace(availability, **changed_settings),
            "behavior": behavior,
            "progress": progress,
        }
        min_sep_runs.append(forecast(min_sep_schema, size, **options))
        budget_runs.append(forecast(budget, size, **options))
    min_sep_means = np.array([run["mean_participations"] for run in min_sep_runs])
    budget_means = np.array([run["mean_participations"] for run in budget_runs])
    return {
        "participations_min_sep": list(student_interval(min_sep_means)),
        "participations_budget": list(student_interval(budget_means)),
        "participations_gained": list(student_interval(budget_means - min_sep_means)),
        "dry_rounds_min_sep": float(np.mean([run["dry_rounds"] for run in min_sep_runs])),
        "dry_rounds_budget": float(np.mean([run["dry_rounds"] for run in budget_runs])),
    }
