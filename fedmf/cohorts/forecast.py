"""Before training: which min separation a population can hold, how often its pool runs dry, and how
often one client takes part.

The answers come from the controller itself, run without training, on the population or on a smaller
one in which the cohort has the same share.

And what a participation budget gains over the min_sep schema that it is made of: the same noise,
more participations.
"""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import scipy.stats

from fedmf import checks, fields
from fedmf.cohorts.availability import Availability
from fedmf.cohorts.controller import ParticipationController, PoolRanDryWarning
from fedmf.cohorts.devices import DeviceBehavior
from fedmf.mechanisms.budget import Budget, spending_histogram
from fedmf.mechanisms.own_rounds import OwnRounds
from fedmf.participation.schema import Participation
from fedmf.privacy.sampling import Sampling

# Simulated by default: with fewer clients, chance makes pools run dry that would not.
_SIMULATED_CLIENTS, _SIMULATED_COHORT = 200_000, 100
_POOLS_SHOWN = 200
_MAX_CLIENTS, _MAX_ROUNDS = 1_000_000_000, 10_000_000
_HINT = "use at most the cohort size, or leave it out"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size(fields.Checked):
    """The population that is asked about, and the one that is simulated in its place.

    Attributes:
      population, cohort_size: asked about.
      simulated_cohort: clients a round of the simulation; None for about 200,000 clients, and a
        cohort of at least 100 where there is one.

    Raises:
      TypeError, ValueError: numbers out of range.

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
        functools.partial(checks.integer, low=1, hint=_HINT), lambda size: size._affordable()
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

    def _affordable(self) -> int:
        share = self.cohort_size * _SIMULATED_CLIENTS / self.population
        return min(self.cohort_size, max(_SIMULATED_COHORT, round(share)))

    @property
    def simulated_population(self) -> int:
        """Clients of the simulation: as many for one client of the cohort as in the population
        asked about.
        """
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
    """Raises TypeError or ValueError where a controller would, in the numbers that are asked about
    and not in the simulated ones.
    """
    rounds = (
        participation.participation if isinstance(participation, Budget) else participation
    ).rounds
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


def _rounds_played(controller: ParticipationController) -> Iterator[int]:
    """Draws round after round and yields its index."""
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
    """Runs the controller through all rounds without training.

    Args:
      participation: what to enforce, as of the controller.
      size: of the population.
      seed, availability, behavior: as of the controller.
      sampling: as of the controller, for the population that is asked about.
      progress: called with every round that is done.

    Returns:
      In plain JSON types: the sizes and the participation; "dry", the rounds in which fewer than
      the cohort were eligible and available (none where cohorts vary in size by design); "cohorts",
      clients that took part in each round over the cohort size; "pool", eligible and available
      clients over the cohort size in "pool_rounds" (none where a scheme or an order draws);
      "histogram", participations -> share of all clients; of a budget "spent", share of it -> share
      of all clients; and what was observed, of all clients and without those that deviate.

    Raises:
      TypeError, ValueError: those of the controller.

    >>> run = forecast(
    ...     Participation(rounds=20, schema="min_sep", min_sep=5),
    ...     Size(population=60, cohort_size=10)
    ... )
    >>> run["dry_rounds"], run["min_separation_observed"], run["max_participations_observed"]
    (0, 5, 4)
    """
    given: dict[str, Any] = {"seed": seed, "availability": availability, "behavior": behavior}
    refuse_impossible(participation, size, sampling=sampling, **given)
    simulated: dict[str, Any] = {
        "population": size.simulated_population,
        "cohort_size": size.simulated_cohort,
    }
    scheme = None if sampling is None else sampling.resized(**simulated)
    controller = ParticipationController(participation, sampling=scheme, **simulated, **given)
    budget, participation = participation, controller.participation
    rounds = participation.rounds
    ledger = controller.ledger
    pool = {}
    if sampling is None and not participation.has_fixed_order:
        pool = dict.fromkeys(
            np.linspace(0, rounds - 1, min(rounds, _POOLS_SHOWN)).round().astype(int).tolist(), 0.0
        )
    if pool:
        pool[0] = float(controller.eligible(0).sum()) / size.simulated_cohort
    for t in _rounds_played(controller):
        if t + 1 in pool:
            pool[t + 1] = float(controller.eligible(t + 1).sum()) / size.simulated_cohort
        if progress is not None:
            progress(t)
    observed = ledger.observed()
    well_behaved = ledger.compliant().observed()
    clients = size.simulated_population
    cohorts = observed.cohort_sizes / size.simulated_cohort
    times = {0: clients - observed.clients, **observed.histogram}
    enough = 0 if ledger.cohort_size is None else size.simulated_cohort
    shares = {}
    if isinstance(budget, Budget):
        spent = OwnRounds(budget.mechanism, by_counts=False).squared(ledger.clients()[1])
        counts = spending_histogram(participation.budget or 0.0, spent)
        shares = {"spent": {share: n / clients for share, n in counts.items()}}
    dry = [t for t in range(rounds) if len(ledger.selected(t)) < enough]
    return {
        "population": size.population,
        "cohort_size": size.cohort_size,
        "simulated_population": clients,
        "simulated_cohort_size": size.simulated_cohort,
        **participation.limits(),
        "dry_rounds": len(dry),
        "mean_participations": observed.participations / clients,
        "mean_cohort": float(cohorts.mean()) * size.cohort_size,
        "smallest_cohort": float(cohorts.min()) * size.cohort_size,
        "min_separation_observed": observed.min_separation,
        "max_participations_observed": observed.max_participations,
        "min_separation_compliant": well_behaved.min_separation,
        "max_participations_compliant": well_behaved.max_participations,
        "histogram": {k: n / clients for k, n in times.items() if n},
        **shares,
        "dry": dry,
        "pool_rounds": list(pool),
        "pool": list(pool.values()),
        "cohorts": cohorts.tolist(),
    }


# Rounds between two reports of a search.
_SHOWN_ROUNDS = 100


def largest_min_sep(
    size: Size,
    *,
    rounds: int,
    seed: int = 0,
    availability: Availability | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Returns the largest b with which no round of the simulation is dry, to 1%, by bisection.

    The largest that could be is tried first: where devices are always there it is the answer, and
    every other one would be played through all rounds. Devices obey.

    Args:
      size: of the population.
      rounds: of the run.
      seed, availability: as of the controller.
      progress: called with the b that is tried and the round that it has reached, as a text, every
        100 rounds.

    Returns:
      "largest_min_sep": the largest that was tried and had no dry round; None where every one had.
      "too_large_min_sep": the smallest that was tried and had one, above it by 1 or by at most 1%;
      None where none had. "tried": b -> the first dry round, or None.

    Raises:
      TypeError, ValueError: those of the controller.

    >>> largest_min_sep(Size(population=60, cohort_size=10), rounds=20)["largest_min_sep"]
    6
    """
    rounds = checks.integer(
        "rounds", rounds, low=1, high=_MAX_ROUNDS, hint="pass the number of rounds"
    )
    tried: dict[int, int | None] = {}
    most = min(rounds, size.population // size.cohort_size)
    low = 0
    high = most + 1
    middle = most
    while high - low > max(1, low // 100):
        participation = Participation(rounds=rounds, schema="min_sep", min_sep=middle)
        controller = ParticipationController(
            participation,
            population=size.simulated_population,
            cohort_size=size.simulated_cohort,
            seed=seed,
            availability=availability,
        )
        tried[middle] = None
        for t in _rounds_played(controller):
            if progress is not None and t % _SHOWN_ROUNDS == 0:
                progress(f"{middle}, round {t} of {rounds}")
            if len(controller.ledger.selected(t)) < size.simulated_cohort:
                tried[middle] = t
                break
        if tried[middle] is None:
            low = middle
        else:
            high = middle
        middle = (low + high) // 2
    return {
        "largest_min_sep": low or None,
        "too_large_min_sep": high if high <= most else None,
        "tried": dict(sorted(tried.items())),
    }


CONFIDENCE = 0.95


def compare_schemas(
    budget: Budget,
    apart: Participation,
    size: Size,
    *,
    seeds: Sequence[int],
    availability: Any,
    behavior: DeviceBehavior | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Mean participations of a client under `apart`, under the budget, and how many more these are,
    over several seeds.

    Args:
      budget: made of `apart`.
      apart: of schema min_sep.
      size: of the population.
      seeds: at least two different ones, of the draws and of when devices check in; both schemas
        have the same.
      availability: a model of `fedmf.cohorts.availability`.
      behavior, progress: as of `forecast`.

    Returns:
      "participations_min_sep", "participations_budget" and "participations_gained": [mean, low,
      high], a 95% interval of Student's t over the seeds; "dry_rounds_min_sep" and
      "dry_rounds_budget": mean over the seeds.
    """
    runs = []
    for seed in seeds:
        changes = {"seed": seed} if hasattr(availability, "seed") else {}
        given: dict[str, Any] = {
            "seed": seed,
            "availability": dataclasses.replace(availability, **changes),
            "behavior": behavior,
            "progress": progress,
        }
        runs.append([forecast(what, size, **given) for what in (apart, budget)])
    taken = np.array([[run["mean_participations"] for run in pair] for pair in runs])
    dry = np.array([[run["dry_rounds"] for run in pair] for pair in runs]).mean(axis=0)
    names = ("apart", "budget", "gained")
    columns = (taken[:, 0], taken[:, 1], taken[:, 1] - taken[:, 0])
    values: dict[str, Any] = {
        f"participations_{name}": _interval(c) for name, c in zip(names, columns, strict=True)
    }
    return values | {f"dry_rounds_{name}": float(d) for name, d in zip(names, dry, strict=False)}


def _interval(values: np.ndarray) -> list[float]:
    """[mean, low, high]."""
    n = len(values)
    mean = float(values.mean())
    half = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * values.std(ddof=1) / math.sqrt(n))
    return [mean, mean - half, mean + half]
