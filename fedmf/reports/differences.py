"""Differences of the final metric between mechanisms, paired by seed: which settings are compared,
and the table of a report.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from fedmf.mechanisms.family import families_with
from fedmf.privacy.flat_config import FIT_FIELDS, families_taking
from fedmf.reports.groups import RunGroup, final_by_seed, has_diverged
from fedmf.reports.labels import config_as_run, differing_fields, tuned_fields
from fedmf.reports.seeds import (
    LEVEL,
    Difference,
    difference_in_words,
    multiplicity_note,
    paired_difference,
)
from fedmf.reports.tables import Cell, Table, table
from fedmf.reports.text import metric_name, plural
from fedmf.runs.folder import Run
from fedmf.runs.notes import smaller_is_better

# Fields of the mechanism and of the participation that it is made for. Settings that differ in
# these fields and in tuned ones are compared.
_MECHANISM_FIELDS = (
    *FIT_FIELDS, "workload", "workload_momentum", "schema", "min_sep", "max_participations",
    "budget", "sampling", "population", "partitions",
)  # fmt: skip
# These fields do not change results.
_WITHOUT_EFFECT = ("data", "seed", "evaluate_every", "execution")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BestSettings:
    """Settings whose mechanisms are compared.

    Attributes:
      runs: runs of the settings, each with one or several seeds.
      tuned: names of the fields whose values were chosen for each setting.
    """

    runs: tuple[Run, ...]
    tuned: tuple[str, ...]


def best_rates(groups: Sequence[RunGroup]) -> BestSettings:
    """Chooses among groups of runs that differ in tuned fields only, such as rates, that with the
    best mean validation of finished runs.
    """
    all_runs = [run for group in groups for run in group.runs]
    tuned_names = tuned_fields(all_runs)
    best_groups: dict[str, tuple[float, RunGroup]] = {}
    for group in groups:
        validations = final_by_seed(group.runs, "validation").values()
        score = sum(validations) / len(validations) if validations else math.nan
        if smaller_is_better(group.plan["task"]["headline_metric"]):
            score = -score
        if not math.isfinite(score) or any(map(has_diverged, group.runs)):
            continue
        untuned_values = {
            name: value
            for name, value in config_as_run(group.runs[0]).flat().items()
            if name not in (*tuned_names, "seed")
        }
        setting_key = repr(untuned_values)
        best_score = best_groups.get(setting_key, (-math.inf, group))[0]
        if score > best_score:
            best_groups[setting_key] = (score, group)
    best_runs = [run for _, group in best_groups.values() for run in group.runs]
    return BestSettings(runs=tuple(best_runs), tuned=tuned_names)


class ComparedPair(NamedTuple):
    """Two settings that differ in their mechanism."""

    first: RunGroup
    second: RunGroup

    def difference(self, split: str) -> Difference:
        """Computes the difference of the final metric on a split of the data, paired by seed."""
        first_values, second_values = (final_by_seed(group.runs, split) for group in self)
        return paired_difference(first_values, second_values)


def compared_pairs(groups: Sequence[RunGroup], best: BestSettings) -> list[ComparedPair]:
    """Returns all pairs of best settings that have different mechanisms and are otherwise trained
    alike, for the same privacy target. A setting without noise has any target.
    """
    best_runs = set(map(id, best.runs))
    best_groups = [group for group in groups if id(group.runs[0]) in best_runs]
    return [
        ComparedPair(first, second)
        for first, second in itertools.combinations(best_groups, 2)
        if _differ_in_mechanism(first, second, best.tuned)
    ]


def _differ_in_mechanism(first: RunGroup, second: RunGroup, tuned: Sequence[str]) -> bool:
    """Returns whether two settings differ in their mechanism, and otherwise only in tuned fields
    and in fields that do not apply to both.
    """
    configs = [config_as_run(group.runs[0]) for group in (first, second)]
    has_other_mechanism = False
    for name in differing_fields(configs):
        if name in _MECHANISM_FIELDS or families_with(name):
            has_other_mechanism = True
            continue
        is_taken_by_both = all(config.family in families_taking(name) for config in configs)
        if is_taken_by_both and name not in (*_WITHOUT_EFFECT, *tuned):
            return False
    return has_other_mechanism


def differences_table(groups: Sequence[RunGroup], best: BestSettings | None) -> Table | None:
    """Returns the table of differences between mechanisms in the final metric, or None if no
    two settings have an interval.

    Args:
      groups: all groups of the report.
      best: the settings to compare; None for those of `best_rates`.
    """
    best = best or best_rates(groups)
    pairs = compared_pairs(groups, best)
    headline_metric = groups[0].plan["task"]["headline_metric"]
    table_rows = []
    num_intervals = 0
    for pair in pairs:
        heading = Cell(pair.first.label, "strong", [f"minus {pair.second.label}"], pair.first.color)
        metric_cells = []
        for split in ("validation", "test"):
            difference = pair.difference(split)
            num_intervals += difference.interval is not None
            metric_cells.append(_difference_cell(headline_metric, difference))
        table_rows.append([heading, *metric_cells])
    if not num_intervals:
        return None
    metric_words = metric_name(headline_metric)
    caption = (
        f"Differences in the final {metric_words} between mechanisms, paired by seed, with {LEVEL} "
        f"intervals. {multiplicity_note(num_intervals)} An interval that contains 0 does not tell "
        "which of the two is larger."
    )
    compared_groups = list({id(group): group for pair in pairs for group in pair}.values())
    if len(compared_groups) < len(groups):
        caption += (
            " Each mechanism has the rates with its best mean validation; the intervals leave out "
            "that these were chosen."
        )
    columns = ["Mechanisms", f"Validation {metric_words}", f"Test {metric_words}"]
    return table("differences", compared_groups, caption, columns, table_rows)


def _difference_cell(metric: str, difference: Difference) -> Cell:
    """Returns the table cell for a difference, which has no value without two common seeds."""
    text = difference_in_words(metric, difference)
    seeds_text = f"{difference.num_seeds} {plural('seed', difference.num_seeds)}"
    if difference.interval is None:
        return Cell("–", "muted", [text.interval], sort=math.inf)
    return Cell(text.mean, "number", [text.interval, seeds_text], sort=difference.sign)
