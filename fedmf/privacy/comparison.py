"""Families and sampling schemes against epsilon: noise, error, risk and cost before any run."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from fedmf import checks
from fedmf.mechanisms.banded.fit import check_memory_of_fit
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.error import rmse
from fedmf.mechanisms.family import FAMILIES
from fedmf.noise.host_strategies import host_strategies
from fedmf.participation.schema import SCHEMAS
from fedmf.participation.separation import check_separation
from fedmf.privacy.attack_risk import attack_risk
from fedmf.privacy.bands import BandSearch
from fedmf.privacy.config import PlanConfig
from fedmf.privacy.plan import Plan, update_noise_multiplier
from fedmf.privacy.sampling import scheme_name

# The families of a comparison that names none: what people run, the simplest first.
DEFAULT_FAMILIES = ("identity", "tree", "blt", "banded")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One mechanism with the noise that gives one epsilon.

    Attributes:
      family, bands: of the mechanism.
      sampling: the scheme that amplifies, or None.
      epsilon: the target, at the comparison's delta.
      noise_multiplier: of the whole run.
      rmse: of the running query of the sums, for noise multiplier 1 and clip norm 1.
      effective_rmse: that of the means, noise * rmse / cohort_size, where the noise multiplier is
        that of the updates.
      advantage: of an attacker; see `fedmf.attack_risk`.
      true_positive_rate: of an attacker, where 1% of its accusations of absent clients are wrong.
      noise_seconds, noise_bytes: of making a round's noise, on one thread, about.
    """

    family: str
    bands: int
    sampling: str | None
    epsilon: float
    noise_multiplier: float
    rmse: float
    effective_rmse: float
    advantage: float
    true_positive_rate: float
    noise_seconds: float
    noise_bytes: int

    @property
    def name(self) -> str:
        """Family and scheme."""
        return self.family + (f", {self.sampling}" if self.sampling else "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """The question, and its rows one at a time.

    Attributes:
      config: of the promise; its family, sampling and target are replaced row by row.
      population: clients in all.
      families: compared without sampling, each with the default of its options but `bands`.
      schemes: compared with the best number of bands that `BandSearch` finds, or config.bands.
      epsilons: targets.
      parameters: of the model, for the cost of its noise.
    """

    config: PlanConfig
    population: int
    families: Sequence[str]
    schemes: Sequence[str]
    epsilons: Sequence[float]
    parameters: int

    @classmethod
    def of(
        cls,
        promise: Mapping[str, Any],
        *,
        population: int,
        families: Sequence[str] | None,
        schemes: Sequence[str],
        epsilons: Sequence[float],
        parameters: int,
    ) -> Self:
        """The comparison of what a command line says; `promise` are fields of a `PlanConfig`.

        Raises:
          TypeError, ValueError: naming the argument, its value and what to do instead.
        """
        chosen = tuple(DEFAULT_FAMILIES if families is None else families)
        for name in chosen:
            checks.one_of("family", name, tuple(FAMILIES))
        scheme_names = tuple(scheme_name("sampling", name) for name in schemes)
        bands = promise.get("bands")
        without = {name: value for name, value in promise.items() if name != "bands"}
        schema = promise.get("schema") or PlanConfig.schema
        settings = SCHEMAS[checks.one_of("schema", schema, tuple(SCHEMAS))].settings
        needs_separation = "min_sep" in settings and not promise.get("sampling")
        is_missing = needs_separation and promise.get("min_sep") is None
        if is_missing:
            without["min_sep"] = 1
        for epsilon in epsilons:
            config = PlanConfig(family="identity", epsilon=epsilon, **without)
        if bands is not None:
            config = dataclasses.replace(config, family="banded", bands=bands)
        hint = f"a round takes cohort_size={config.cohort_size} of them"
        checks.integer("population", population, low=config.cohort_size, hint=hint)
        if needs_separation:
            check_separation(
                None if is_missing else config.min_sep,
                population=population,
                cohort_size=config.cohort_size,
                rounds=config.rounds,
                schema=schema,
            )
        if schemes and bands is None:  # refused before the first row, as no search could end
            most_bands = min(config.rounds, population // config.cohort_size)
            hint = "pass the number of `bands` that sampling is compared with"
            check_memory_of_fit(config.rounds, most_bands, hint=hint)
        return cls(
            config=config,
            population=population,
            families=chosen,
            schemes=scheme_names,
            epsilons=tuple(epsilons),
            parameters=parameters,
        )

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        """The question and its rows in plain JSON types."""
        p = self.config.participation()
        return {
            "rounds": p.rounds,
            "min_sep": p.min_sep,
            "max_participations": p.max_participations,
            "population": self.population,
            "cohort_size": self.config.cohort_size,
            "delta": self.config.delta,
            "parameters": self.parameters,
            "rows": [dataclasses.asdict(row) | {"name": row.name} for row in rows],
        }

    def rows(self, left_out: dict[str, str] | None = None) -> Iterator[Row]:
        """Yields the rows, family after family, then scheme after scheme.

        Args:
          left_out: takes the reason of each family that does not fit into memory, which then has no
            rows; None refuses the comparison.

        Raises:
          ValueError: a family or a scheme cannot be had; a family that memory cannot hold with
            left_out=None only.
        """
        for family in self.families:
            config = self._without_sampling(family)
            try:
                mechanism = config.fit()
            except checks.TooLargeForMemory as error:
                if left_out is None:
                    raise
                left_out[family] = str(error)
                continue
            unit = rmse(mechanism, config.fit_workload(), config.plan(mechanism).participation)
            for epsilon in self.epsilons:
                plan = dataclasses.replace(config, epsilon=epsilon).plan(mechanism)
                yield self._row(plan, unit, epsilon, None)
        for name in self.schemes:
            for epsilon in self.epsilons:
                config = self._sampled(name, epsilon)
                mechanism = config.fit()
                plan = config.plan(mechanism)
                unit = rmse(mechanism, config.fit_workload(), plan.participation)
                yield self._row(plan, unit, epsilon, name)

    def _without_sampling(self, family: str) -> PlanConfig:
        bands = self.config.bands if "bands" in FAMILIES[family].options else None
        return dataclasses.replace(
            self.config, family=family, bands=bands, epsilon=self.epsilons[0]
        )

    def _sampled(self, name: str, epsilon: float) -> PlanConfig:
        bands = self.config.bands
        if bands is None:
            search = BandSearch(
                workload=self.config.fit_workload(),
                population=self.population,
                cohort_size=self.config.cohort_size,
                epsilon=epsilon,
                delta=self.config.delta,
                sampling=name,
            )
            amplified = [row for row in search.rows() if row.amplified]
            if not amplified:
                raise ValueError(
                    f"sampling={name} amplifies nothing where cohort_size="
                    f"{self.config.cohort_size} of population={self.population} are drawn: leave "
                    "it out, or plan with a larger population"
                )
            bands = min(amplified, key=lambda row: row.rmse).bands
        return dataclasses.replace(
            self.config,
            family="banded",
            bands=bands,
            sampling=name,
            population=self.population,
            schema="min_sep",
            min_sep=None,
            max_participations=None,
            epsilon=epsilon,
        )

    def _row(self, plan: Plan, unit: float, epsilon: float, sampling: str | None) -> Row:
        seconds, memory = _cost(plan.mechanism, self.parameters)
        risk = attack_risk(plan)
        return Row(
            family=plan.mechanism.family,
            bands=plan.mechanism.bands,
            sampling=sampling,
            epsilon=epsilon,
            noise_multiplier=plan.noise_multiplier,
            rmse=unit,
            effective_rmse=update_noise_multiplier(plan) * unit / self.config.cohort_size,
            advantage=risk.advantage,
            true_positive_rate=risk.true_positive_rate(0.01),
            noise_seconds=seconds,
            noise_bytes=memory,
        )


@functools.lru_cache(maxsize=1)  # that of a family serves all its epsilons
def _cost(mechanism: Mechanism, parameters: int) -> tuple[float, int]:
    best = host_strategies(mechanism.stream().causal(), parameters)[0]
    return best.seconds(parameters), best.memory + best.disk


def check_ins(text: str, *, rounds: int, population: int, cohort_size: int) -> dict[str, Any]:
    """How often devices come back, in rounds: the largest min_sep that full cohorts allow.

    A device that is passed over because it rests comes back at its next check-in. So the rounds
    between two participations are a multiple of those between two check-ins, and the population
    must give a cohort in each of them.

    Args:
      text: "every:3days" (or hours, weeks): each device checks in once in so long, and all that
        check in are taken; or a number: devices that check in in each round.
      rounds, population, cohort_size: of the run.

    Returns:
      "check_ins_a_round"; "rounds_between_check_ins" of one device; "min_sep"; the largest
      "participations" of a device; and, where a time was given, "rounds_a_day" and "days" of
      training.

    Raises:
      ValueError: no such text, or fewer check-ins than a cohort.

    >>> found = check_ins("every:3days", rounds=2000, population=3_000_000, cohort_size=6500)
    >>> found["min_sep"], found["participations"], round(found["rounds_a_day"], 1)
    (461, 5, 153.8)
    >>> check_ins("20000", rounds=2000, population=3_000_000, cohort_size=6500)["min_sep"]
    450
    """
    every = re.fullmatch(r"every:(\d*\.?\d*)(hour|day|week)s?", text)
    try:
        length = float(every[1] or 1) if every else math.nan
        each = cohort_size if every else float(text)
    except ValueError:
        each = math.nan
    if not math.isfinite(each) or length <= 0:
        raise ValueError(
            f"availability={text!r} says no check-ins: write every:3days, or the number of devices "
            "that check in in each round"
        )
    if not cohort_size <= each <= population:
        raise ValueError(
            f"availability={text} is not between cohort_size={cohort_size} and "
            f"population={population}: a round needs a cohort of check-ins"
        )
    between = population / each
    passes = math.floor(each / cohort_size * (1 + 1e-12))
    min_sep = max(1, min(rounds, math.floor(between * passes)))
    found: dict[str, Any] = {
        "check_ins_a_round": each,
        "rounds_between_check_ins": between,
        "min_sep": min_sep,
        "participations": -(-rounds // min_sep),
    }
    if every:
        days = length * {"hour": 1 / 24, "day": 1.0, "week": 7.0}[every[2]]
        found |= {"rounds_a_day": between / days, "days": rounds * days / between}
    return found
