"""Comparison of mechanism families and sampling schemes at several epsilons. It computes noise,
error, attack risk and the cost of the noise before any training.
"""

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

_DAYS_BY_UNIT = {"hour": 1 / 24, "day": 1.0, "week": 7.0}

# Families that a comparison has by default: the most used ones, in the order of their simplicity.
DEFAULT_FAMILIES = ("identity", "tree", "blt", "banded")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the comparison, with one mechanism and the noise that it needs for one epsilon.

    Attributes:
      family, bands: family and number of bands of the mechanism.
      sampling: the name of the sampling scheme, or None.
      epsilon: the target, at the comparison's delta.
      noise_multiplier: noise multiplier of the whole run.
      rmse: root of the mean squared error of the workload's query on sums of updates, for noise
        multiplier 1 and clip norm 1.
      effective_rmse: the error on means, noise multiplier of the updates * rmse / cohort_size.
      advantage: bound on an attacker's advantage; see `fedmf.attack_risk`.
      true_positive_rate: bound on an attacker's true-positive rate at a false-positive rate of 1%.
      noise_seconds, noise_bytes: estimated cost of a round's noise, on one thread.
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
        """The name of the row, which consists of the mechanism family and the sampling scheme if
        there is one.
        """
        if self.sampling is None:
            return self.family
        return f"{self.family}, {self.sampling}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison of families and sampling schemes, which computes its rows one at a time.

    Attributes:
      config: configuration of the plans; each row replaces its family, sampling and target.
      population: number of clients.
      families: families that are compared without sampling, with the defaults of all options except
        `bands`.
      schemes: sampling schemes that are compared, with the number of bands that `BandSearch` finds
        or with config.bands.
      epsilons: privacy targets.
      parameters: number of the model's parameters, for the cost of its noise.
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
        plan_fields: Mapping[str, Any],
        *,
        population: int,
        families: Sequence[str] | None,
        schemes: Sequence[str],
        epsilons: Sequence[float],
        parameters: int,
    ) -> Self:
        """Returns the comparison for the options of the command line, after checking them.

        Args:
          plan_fields: fields of a `PlanConfig`.
          population, schemes, epsilons, parameters: as in `Comparison`.
          families: None for the default ones.

        Raises:
          TypeError: a value has another type.
          ValueError: a family, a scheme or a field of the plan is unknown or out of range.
        """
        family_names = DEFAULT_FAMILIES if families is None else tuple(families)
        for name in family_names:
            checks.one_of("family", name, tuple(FAMILIES))
        scheme_names = tuple(scheme_name("sampling", name) for name in schemes)
        bands = plan_fields.get("bands")
        identity_fields = {name: value for name, value in plan_fields.items() if name != "bands"}
        schema = plan_fields.get("schema") or PlanConfig.schema
        schema_settings = SCHEMAS[checks.one_of("schema", schema, tuple(SCHEMAS))].settings
        needs_separation = "min_sep" in schema_settings and not plan_fields.get("sampling")
        is_missing = needs_separation and plan_fields.get("min_sep") is None
        if is_missing:
            identity_fields["min_sep"] = 1
        for epsilon in epsilons:
            config = PlanConfig(family="identity", epsilon=epsilon, **identity_fields)
        if bands is not None:
            config = dataclasses.replace(config, family="banded", bands=bands)
        hint = f"a round takes cohort_size={config.cohort_size} of them"
        checks.integer("population", population, low=config.cohort_size, hint=hint)
        if needs_separation:
            separation = None if is_missing else config.min_sep
            check_separation(
                separation,
                population=population,
                cohort_size=config.cohort_size,
                rounds=config.rounds,
                schema=schema,
            )
        if schemes and bands is None:
            # If the search for the number of bands does not fit into memory, its error is raised
            # here, and not after hours spent on the other rows of the comparison.
            max_bands = min(config.rounds, population // config.cohort_size)
            hint = "pass the number of `bands` of the schemes"
            check_memory_of_fit(config.rounds, max_bands, hint=hint)
        return cls(
            config=config,
            population=population,
            families=family_names,
            schemes=scheme_names,
            epsilons=tuple(epsilons),
            parameters=parameters,
        )

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Returns the settings of the comparison and its rows in plain JSON types."""
        participation = self.config.participation()
        return {
            "rounds": participation.rounds,
            "min_sep": participation.min_sep,
            "max_participations": participation.max_participations,
            "population": self.population,
            "cohort_size": self.config.cohort_size,
            "delta": self.config.delta,
            "parameters": self.parameters,
            "rows": [dataclasses.asdict(row) | {"name": row.name} for row in rows],
        }

    def rows(self, left_out: dict[str, str] | None = None) -> Iterator[Row]:
        """Yields the rows of each family, one for each epsilon, and then the rows of each sampling
        scheme.

        Args:
          left_out: collects the reason for each family that does not fit into memory and has no
            rows; None raises for such a family.

        Raises:
          ValueError: a family or a scheme cannot be computed for this comparison.
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
            participation = config.plan(mechanism).participation
            unit_rmse = rmse(mechanism, config.fit_workload(), participation)
            for epsilon in self.epsilons:
                plan = dataclasses.replace(config, epsilon=epsilon).plan(mechanism)
                yield self._row(plan, unit_rmse, epsilon, None)
        for name in self.schemes:
            for epsilon in self.epsilons:
                config = self._sampled(name, epsilon)
                mechanism = config.fit()
                plan = config.plan(mechanism)
                unit_rmse = rmse(mechanism, config.fit_workload(), plan.participation)
                yield self._row(plan, unit_rmse, epsilon, name)

    def _without_sampling(self, family: str) -> PlanConfig:
        """Returns the config of a mechanism family without sampling, for the first of the
        epsilons.
        """
        bands = self.config.bands if "bands" in FAMILIES[family].options else None
        return dataclasses.replace(
            self.config, family=family, bands=bands, epsilon=self.epsilons[0]
        )

    def _best_bands(self, scheme: str, epsilon: float) -> int:
        """Finds the number of bands with the least error under a sampling scheme at an epsilon."""
        search = BandSearch(
            workload=self.config.fit_workload(),
            population=self.population,
            cohort_size=self.config.cohort_size,
            epsilon=epsilon,
            delta=self.config.delta,
            sampling=scheme,
        )
        amplified_rows = [row for row in search.rows() if row.amplified]
        if not amplified_rows:
            raise ValueError(
                f"sampling={scheme} amplifies nothing with cohort_size="
                f"{self.config.cohort_size} of population={self.population}: leave "
                "it out, or plan with a larger population"
            )
        return min(amplified_rows, key=lambda row: row.rmse).bands

    def _sampled(self, scheme: str, epsilon: float) -> PlanConfig:
        """Returns the config of the banded family with a sampling scheme, for an epsilon."""
        bands = self.config.bands
        if bands is None:
            bands = self._best_bands(scheme, epsilon)
        return dataclasses.replace(
            self.config,
            family="banded",
            bands=bands,
            sampling=scheme,
            population=self.population,
            schema="min_sep",
            min_sep=None,
            max_participations=None,
            epsilon=epsilon,
        )

    def _row(self, plan: Plan, unit_rmse: float, epsilon: float, sampling: str | None) -> Row:
        """Computes the row of a plan.

        Args:
          plan: the plan with the noise for epsilon.
          unit_rmse: the error of its mechanism for noise multiplier 1 and clip norm 1.
          epsilon: the privacy target.
          sampling: the name of the sampling scheme, or None.
        """
        seconds, memory = _noise_cost(plan.mechanism, self.parameters)
        risk = attack_risk(plan)
        return Row(
            family=plan.mechanism.family,
            bands=plan.mechanism.bands,
            sampling=sampling,
            epsilon=epsilon,
            noise_multiplier=plan.noise_multiplier,
            rmse=unit_rmse,
            effective_rmse=update_noise_multiplier(plan) * unit_rmse / self.config.cohort_size,
            advantage=risk.advantage,
            true_positive_rate=risk.true_positive_rate(0.01),
            noise_seconds=seconds,
            noise_bytes=memory,
        )


# The cache holds one result, because consecutive rows often have the same mechanism.
@functools.lru_cache(maxsize=1)
def _noise_cost(mechanism: Mechanism, parameters: int) -> tuple[float, int]:
    """Estimates the time in seconds and the storage in bytes that one round's noise takes."""
    cheapest_strategy = host_strategies(mechanism.stream().causal(), parameters)[0]
    return cheapest_strategy.seconds(parameters), cheapest_strategy.memory + cheapest_strategy.disk


def check_ins(text: str, *, rounds: int, population: int, cohort_size: int) -> dict[str, Any]:
    """Computes from the frequency of devices' check-ins the largest min_sep with which every round
    has a full cohort.

    A device that is ineligible at a check-in returns at its next one. So the number of rounds
    between two participations is a multiple of the number between two check-ins, and each of these
    rounds needs a cohort from the population.

    Args:
      text: "every:3days" (or hours, weeks) if each device checks in once in that time, and all
        devices that check in take part; or the number of devices that check in in each round.
      rounds, population, cohort_size: sizes of the run.

    Returns:
      "check_ins_a_round"; "rounds_between_check_ins" of one device; "min_sep"; the largest
      "participations" of a device; and for "every:", "rounds_a_day" and "days" of training.

    Raises:
      ValueError: no such text, or fewer check-ins than a cohort.

    >>> frequency = check_ins("every:3days", rounds=2000, population=3_000_000, cohort_size=6500)
    >>> frequency["min_sep"], frequency["participations"], round(frequency["rounds_a_day"], 1)
    (461, 5, 153.8)
    >>> check_ins("20000", rounds=2000, population=3_000_000, cohort_size=6500)["min_sep"]
    450
    """
    frequency_match = re.fullmatch(r"every:(\d*\.?\d*)(hour|day|week)s?", text)
    try:
        num_units = float(frequency_match[1] or 1) if frequency_match else math.nan
        check_ins_per_round = cohort_size if frequency_match else float(text)
    except ValueError:
        check_ins_per_round = math.nan
    if not math.isfinite(check_ins_per_round) or num_units <= 0:
        raise ValueError(
            f"availability={text!r} is no frequency of check-ins: write every:3days, or the number "
            "of devices that check in in each round"
        )
    if not cohort_size <= check_ins_per_round <= population:
        raise ValueError(
            f"availability={text} is not between cohort_size={cohort_size} and "
            f"population={population}: a round needs a cohort of check-ins"
        )
    rounds_between = population / check_ins_per_round
    check_ins_per_participation = math.floor(check_ins_per_round / cohort_size * (1 + 1e-12))
    min_sep = max(1, min(rounds, math.floor(rounds_between * check_ins_per_participation)))
    values: dict[str, Any] = {
        "check_ins_a_round": check_ins_per_round,
        "rounds_between_check_ins": rounds_between,
        "min_sep": min_sep,
        "participations": -(-rounds // min_sep),
    }
    if frequency_match:
        days = num_units * _DAYS_BY_UNIT[frequency_match[2]]
        values["rounds_a_day"] = rounds_between / days
        values["days"] = rounds * days / rounds_between
    return values
