"""Differences between the mechanisms of a sweep, each at its best setting, paired by seed."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from fedmf.reports.differences import BestSettings, compared_pairs
from fedmf.reports.groups import final_by_seed, group_runs
from fedmf.reports.seeds import (
    LEVEL,
    Difference,
    by_seed,
    difference_in_words,
    multiplicity_note,
    paired_difference,
)
from fedmf.reports.text import aligned, metric_name
from fedmf.runs.folder import Run
from fedmf.sweeps.results import Best, validation_of


class MechanismDifference(NamedTuple):
    """Difference of the headline metric between two mechanisms.

    Attributes:
      first, second: labels of the settings; the difference is the first minus the second.
      split: split of the data on which the metric is measured.
      difference: of the metric.
    """

    first: str
    second: str
    split: str
    difference: Difference

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON value of the difference."""
        return {
            "first": self.first,
            "second": self.second,
            "split": self.split,
            "seeds": self.difference.num_seeds,
            "interval": self.difference.interval and list(self.difference.interval),
        }


def compared_settings(best: Sequence[Best]) -> BestSettings:
    """Returns the best settings of a sweep as a report compares them."""
    best_runs = itertools.chain.from_iterable(setting.runs for setting in best)
    return BestSettings(runs=tuple(best_runs), tuned=tuple(best[0].tuned))


def mechanism_differences(
    best: Sequence[Best], smoothed_over: int = 0
) -> list[MechanismDifference]:
    """Returns the differences between mechanisms that are trained alike for the same privacy
    target, in the test metric, or in the validation metric of a sweep that did not test.

    Args:
      best: best settings of the sweep.
      smoothed_over: see `validation_of`.
    """
    best_settings = compared_settings(best)
    # Labels of these groups leave out the tuned values, which the table of best settings has.
    pairs = compared_pairs(group_runs(best_settings.runs), best_settings)
    groups = list(itertools.chain.from_iterable(pairs))
    is_tested = all(final_by_seed(group.runs, "test") for group in groups)
    split = "test" if is_tested else "validation"

    def values_of(setting_runs: Sequence[Run]) -> dict[int, float]:
        """Returns the metric of a setting's runs by seed."""
        if is_tested:
            return final_by_seed(setting_runs, "test")
        return by_seed((run.config.seed, validation_of(run, smoothed_over)) for run in setting_runs)

    return [
        MechanismDifference(
            first=first.label,
            second=second.label,
            split=split,
            difference=paired_difference(values_of(first.runs), values_of(second.runs)),
        )
        for first, second in pairs
    ]


def differences_text(metric: str, differences: Sequence[MechanismDifference]) -> str:
    """Returns a text table of the differences; empty if none has an interval."""
    num_intervals = sum(row.difference.interval is not None for row in differences)
    if not num_intervals:
        return ""
    table_rows = [
        [
            f"difference in {differences[0].split} {metric_name(metric)}, paired by seed",
            "mean",
            f"{LEVEL} interval",
            "seeds",
        ]
    ]
    for row in differences:
        text = difference_in_words(metric, row.difference)
        pair_text = f"{row.first} minus {row.second}"
        table_rows.append([pair_text, text.mean, text.interval, str(row.difference.num_seeds)])
    note = multiplicity_note(num_intervals)
    return "\n".join([*aligned(table_rows), *filter(None, [note])])
