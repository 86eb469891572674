"""Metrics over seeds, with their intervals, their differences paired by seed, and the orders that
these differences show.

Runs of the same seed have the same initial model, cohorts and order of examples, and noise of their
own. So the difference of two settings varies less from seed to seed than either of them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedmf.intervals import CONFIDENCE, Interval, mean_interval
from fedmf.reports.text import is_share, metric_value, plural, significant

LEVEL = f"{CONFIDENCE:.0%}"
ONE_SEED = "one seed: not ranked"
# What the interval of a metric or a difference covers.
COVERAGE = (
    f"An interval contains the mean over all seeds in {LEVEL} of cases (Student's t; from 30 seeds "
    "on a bootstrap). Seeds vary the initial model, the cohorts, the order of examples and the "
    "noise, and not the data or their split."
)


class Difference(NamedTuple):
    """Difference of a metric between two settings, paired by seed.

    Attributes:
      num_seeds: seeds that both settings have.
      interval: mean difference with its interval; None with fewer than two seeds, or with a value
        that is not finite.
    """

    num_seeds: int
    interval: Interval | None

    @property
    def sign(self) -> int:
        """Sign of the difference, or 0 if its interval contains 0 or does not exist."""
        if self.interval is None:
            return 0
        return int(self.interval.low > 0) - int(self.interval.high < 0)


def by_seed(seeds_and_values: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Returns the value of each seed, which is the mean if several runs have the seed."""
    values_by_seed: dict[int, list[float]] = {}
    for seed, value in seeds_and_values:
        values_by_seed.setdefault(seed, []).append(value)
    return {seed: sum(values) / len(values) for seed, values in values_by_seed.items()}


def paired_difference(first: Mapping[int, float], second: Mapping[int, float]) -> Difference:
    """Returns the difference of two settings, the first minus the second, given their values by
    seed.

    >>> paired_difference({0: 0.5, 1: 0.75, 2: 0.5}, {0: 0.25, 1: 0.5}).interval.mean
    0.25
    """
    common_seeds = [seed for seed in first if seed in second]
    differences = [first[seed] - second[seed] for seed in common_seeds]
    return Difference(num_seeds=len(common_seeds), interval=mean_interval(differences))


def tiers(settings: Sequence[Mapping[int, float]]) -> list[int | None]:
    """Returns the tier of each setting, given their values by seed.

    Every setting of a tier has a larger mean than every setting of the tiers below it, by the
    interval of their difference. So two settings that no interval tells apart are never ordered.
    Tiers count from 0. A setting without an interval of its own has none.

    >>> tiers([{0: 0.5, 1: 0.51}, {0: 0.1, 1: 0.11}, {0: 0.4, 1: 0.6}, {0: 0.9}])
    [0, 0, 0, None]
    >>> tiers([{0: 0.5, 1: 0.51}, {0: 0.1, 1: 0.11}])
    [1, 0]
    """
    ranked = [i for i, values in enumerate(settings) if mean_interval(list(values.values()))]
    ranked.sort(key=lambda i: sum(settings[i].values()) / len(settings[i]))
    # For each setting in this order, the last position that no interval shows to be above it.
    last_ties = [
        max(
            position
            for position in range(start, len(ranked))
            if position == start
            or paired_difference(settings[ranked[position]], settings[index]).sign <= 0
        )
        for start, index in enumerate(ranked)
    ]
    setting_tiers: list[int | None] = [None] * len(settings)
    tier = 0
    for position, index in enumerate(ranked):
        if position and max(last_ties[:position]) < position:
            tier += 1
        setting_tiers[index] = tier
    return setting_tiers


def interval_in_words(metric: str, values: Mapping[int, float]) -> str:
    """Returns the interval of a metric over seeds in words, or the reason why there is none.

    >>> interval_in_words("accuracy", {0: 0.2, 1: 0.22})
    '8.29 to 33.71%'
    >>> interval_in_words("accuracy", {0: 0.2})
    'one seed: not ranked'
    """
    if not values:
        return ""
    if len(values) == 1:
        return ONE_SEED
    interval = mean_interval(list(values.values()))
    if interval is None:
        num_finite = int(np.isfinite(list(values.values())).sum())
        return f"finite for {num_finite} of {len(values)} seeds: not ranked"
    low, high = (metric_value(metric, end) for end in (interval.low, interval.high))
    # The unit is written once, so that the interval fits into a column.
    return f"{low.removesuffix('%')} to {high}"


class DifferenceText(NamedTuple):
    """Difference of a metric in words, with its interval or the reason why there is none."""

    mean: str
    interval: str


def difference_in_words(metric: str, difference: Difference) -> DifferenceText:
    """Formats a difference of a metric and its interval. Those of shares are in percentage points.

    >>> difference_in_words("loss", Difference(num_seeds=3, interval=Interval(0.5, -0.25, 1.25)))
    DifferenceText(mean='+0.500', interval='-0.250 to +1.25, contains 0: not ranked')
    """
    if difference.interval is None:
        reason = "not finite: not ranked"
        if difference.num_seeds < 2:
            num_seeds = difference.num_seeds or "no"
            reason = f"{num_seeds} {plural('seed', difference.num_seeds)} in common: not ranked"
        return DifferenceText(mean="", interval=reason)
    mean, low, high = (_signed(metric, value) for value in difference.interval)
    unit = " points" if is_share(metric) else ""
    verdict = "" if difference.sign else ", contains 0: not ranked"
    return DifferenceText(mean=f"{mean}{unit}", interval=f"{low} to {high}{verdict}")


def multiplicity_note(num_intervals: int) -> str:
    """Returns a sentence on how many of several intervals miss, or an empty text for one."""
    if num_intervals < 2:
        return ""
    num_missing = significant((1 - CONFIDENCE) * num_intervals, 1)
    return (
        f"Each interval is of {LEVEL} by itself: of {num_intervals}, {num_missing} miss on average."
    )


def _signed(metric: str, value: float) -> str:
    """Formats a difference of a metric with its sign."""
    size_text = significant(abs(value), 3)
    if is_share(metric):
        size_text = f"{100 * abs(value):.2f}"
    sign = "-" if math.copysign(1.0, value) < 0 else "+"
    return f"{sign}{size_text}"
