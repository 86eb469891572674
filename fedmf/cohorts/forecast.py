"""Before training: which min separation a population can hold, how often its pool runs dry, and how often one client takes part.

The answers come from the controller itself, run without training, on the population or on a smaller one in which the cohort has the same
share.
"""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.cohorts.availability import Availability
from fedmf.cohorts.controller import ParticipationController, PoolRanDryWarning
from fedmf.cohorts.devices import DeviceBehavior
from fedmf.participation.schema import Participation
from fedmf.participation.stats import ParticipationStats
from fedmf.privacy.sampling import Sampling

# Simulated unless more is asked for: clients, and clients a round. With fewer, chance makes pools run dry that would not.
_CLIENTS, _COHORT = 200_000, 100
_POOLS_SHOWN = 200
# Of what is simulated: a byte or two for each client, some for each round.
_MAX_CLIENTS, _MAX_ROUNDS = 1_000_000_000, 10_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """The population that is asked about, and the one that is simulated in its place.

    Attributes:
      population, cohort_size: asked about.
      simulated_cohort: clients a round of the simulation; None for about 200,000 clients, and a cohort of at least 100 where there is one.

    Raises:
      TypeError, ValueError: numbers out of range.

    >>> Size(population=10_000_000, cohort_size=6500).simulated_population
    200000
    """

    population: int
    cohort_size: int
    simulated_cohort: int | None = None

    def __post_init__(self) -> None:
        hint = "use the number of clients"
        population = checks.integer("population", self.population, low=1, high=_MAX_CLIENTS, hint=hint)
        cohort = checks.integer("cohort_size", self.cohort_size, low=1, hint="use the number of clients a round")
        if cohort > population:
            raise ValueError(
                f"cohort_size={cohort} is larger than population={population}: lower cohort_size to at most {population}"
            )
        simulated = self.simulated_cohort
        if simulated is None:
            simulated = min(cohort, max(_COHORT, round(cohort * _CLIENTS / population)))
        simulated = checks.integer(
            "simulated_cohort",
            simulated,
            low=1,
            high=cohort,
            hint="use at most the cohort size, or leave it out",
        )
        for name, value in (("population", population), ("cohort_size", cohort), ("simulated_cohort", simulated)):
            object.__setattr__(self, name, value)

    @property
    def simulated_population(self) -> int:
        """Clients of the simulation: as many for one client of the cohort as in the population asked about."""
        return self.population * (self.simulated_cohort or 1) // self.cohort_size


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a run would see.

    Attributes:
      size: of the population, and of the simulated one.
      participation: what was enforced.
      sizes: clients that took part in each round of the simulation, int64 (rounds,).
      dry: rounds in which fewer than the cohort were eligible and available, bool (rounds,); none with Poisson sampling.
      pool_rounds: some rounds, int64.
      pool: eligible and available clients in those, over the cohort size; empty where a scheme or an order draws.
      histogram: participations -> share of all clients, 0 participations included.
      observed: of the simulated ledger.
      well_behaved: the same without the clients that deviate.
    """

    size: Size
    participation: Participation
    sizes: np.ndarray
    dry: np.ndarray
    pool_rounds: np.ndarray
    pool: np.ndarray
    histogram: dict[int, float]
    observed: ParticipationStats
    well_behaved: ParticipationStats

    def values(self) -> dict[str, Any]:
        """Everything in plain JSON types."""
        asked, simulated = self.size, self.size.simulated_cohort or 1
        selected_share = self.sizes / simulated
        return {
            "population": asked.population,
            "cohort_size": asked.cohort_size,
            "simulated_population": asked.simulated_population,
            "simulated_cohort_size": simulated,
            "rounds": self.participation.rounds,
            "schema": self.participation.schema,
            "min_sep": self.participation.min_sep,
            "max_participations": self.participation.max_participations,
            "dry_rounds": int(self.dry.sum()),
            "mean_cohort": float(selected_share.mean()) * asked.cohort_size,
            "smallest_cohort": float(selected_share.min()) * asked.cohort_size,
            "min_separation_observed": self.observed.min_separation,
            "max_participations_observed": self.observed.max_participations,
            "min_separation_of_the_well_behaved": self.well_behaved.min_separation,
            "max_participations_of_the_well_behaved": self.well_behaved.max_participations,
            "histogram": self.histogram,
            "dry": np.flatnonzero(self.dry).tolist(),
            "pool_rounds": self.pool_rounds.tolist(),
            "pool": self.pool.tolist(),
            "cohorts": selected_share.tolist(),
        }


def refuse_impossible(
    participation: Participation,
    size: Size,
    *,
    availability: Availability | None = None,
    sampling: Sampling | None = None,
    behavior: DeviceBehavior | None = None,
) -> None:
    """Raises TypeError or ValueError where a controller would, in the numbers that are asked about and not in the simulated ones."""
    ParticipationController(
        participation,
        population=size.population,
        cohort_size=size.cohort_size,
        seed=0,
        availability=availability,
        sampling=sampling,
        behavior=behavior,
    )


def forecast(
    participation: Participation,
    size: Size,
    *,
    availability: Availability | None = None,
    sampling: Sampling | None = None,
    behavior: DeviceBehavior | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Forecast:
    """Runs the controller through all rounds without training.

    Args:
      participation: what to enforce.
      size: of the population.
      availability, behavior: as of the controller.
      sampling: as of the controller, for the population that is asked about.
      seed: of the simulated cohorts.
      progress: called with every round that is done.

    Raises:
      TypeError, ValueError: those of the controller.

    >>> run = forecast(Participation(rounds=20, schema="min_sep", min_sep=5), Size(population=60, cohort_size=10))
    >>> int(run.dry.sum()), run.observed.min_separation, run.observed.max_participations
    (0, 5, 4)
    """
    assert size.simulated_cohort is not None
    _check_rounds(participation.rounds)
    simulated: dict[str, Any] = {"population": size.simulated_population, "cohort_size": size.simulated_cohort}
    more: dict[str, Any] = {"seed": seed, "availability": availability, "behavior": behavior}
    refuse_impossible(participation, size, sampling=sampling, availability=availability, behavior=behavior)
    scheme = None if sampling is None else dataclasses.replace(sampling, **simulated)
    controller = ParticipationController(participation, sampling=scheme, **simulated, **more)
    rounds = participation.rounds
    shown = np.unique(np.linspace(0, rounds - 1, min(rounds, _POOLS_SHOWN)).round().astype(np.int64))
    from_pool = sampling is None and participation.schema != "fixed_epoch"
    pool: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PoolRanDryWarning)
        for t in range(rounds):
            if from_pool and t == shown[len(pool)]:
                pool.append(float(controller.eligible(t).sum()) / size.simulated_cohort)
                shown = shown if len(pool) < len(shown) else np.append(shown, rounds)
            controller.cohort(t)
            if progress is not None:
                progress(t)
    ledger = controller.ledger
    times = ledger.observed().histogram
    never = size.simulated_population - sum(times.values())
    selected = np.array([len(ledger.selected(t)) for t in range(rounds)])
    varies = ledger.cohort_size is None
    return Forecast(
        size=size,
        participation=participation,
        sizes=np.array([len(ledger.cohort(t)) for t in range(rounds)]),
        dry=np.zeros(rounds, bool) if varies else selected < size.simulated_cohort,
        pool_rounds=shown[: len(pool)],
        pool=np.array(pool),
        histogram={k: n / size.simulated_population for k, n in sorted(({**times, 0: never}).items()) if n},
        observed=ledger.observed(),
        well_behaved=ledger.well_behaved().observed(),
    )


def _check_rounds(rounds: int) -> int:
    return checks.integer("rounds", rounds, low=1, high=_MAX_ROUNDS, hint="pass the number of rounds")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """Which min separation can be held.

    Attributes:
      min_sep: the largest that was tried and had no dry round; None where every one had.
      too_large: the smallest that was tried and had one; above `min_sep` by 1, or by at most 1% of it. None where none had.
      tried: min_sep -> the first dry round, or None where none was dry.
    """

    min_sep: int | None
    too_large: int | None
    tried: dict[int, int | None]


def largest_min_sep(
    size: Size,
    *,
    rounds: int,
    availability: Availability | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Search:
    """The largest b with which no round of the simulation is dry, to 1%, by bisection. Devices obey.

    Args:
      size: of the population.
      rounds: of the run.
      availability: as of the controller.
      seed: of the simulated cohorts.
      progress: called with every b that was tried.

    Raises:
      TypeError, ValueError: those of the controller.

    >>> largest_min_sep(Size(population=60, cohort_size=10), rounds=20).min_sep
    6
    """
    rounds = _check_rounds(rounds)
    tried: dict[int, int | None] = {}

    def holds(min_sep: int) -> bool:
        tried[min_sep] = first_dry_round(size, rounds=rounds, min_sep=min_sep, availability=availability, seed=seed)
        if progress is not None:
            progress(min_sep)
        return tried[min_sep] is None

    most = min(rounds, size.population // size.cohort_size)
    low, high = 0, most + 1
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return Search(
        min_sep=low or None,
        too_large=high if high <= most else None,
        tried=dict(sorted(tried.items())),
    )


def first_dry_round(
    size: Size,
    *,
    rounds: int,
    min_sep: int,
    availability: Availability | None = None,
    seed: int = 0,
) -> int | None:
    """The first round in which fewer than the cohort are eligible and available with this min_sep; None if there is none."""
    assert size.simulated_cohort is not None
    controller = ParticipationController(
        Participation(rounds=rounds, schema="min_sep", min_sep=min_sep),
        population=size.simulated_population,
        cohort_size=size.simulated_cohort,
        seed=seed,
        availability=availability,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PoolRanDryWarning)
        for t in range(rounds):
            controller.cohort(t)
            if len(controller.ledger.selected(t)) < size.simulated_cohort:
                return t
    return None
