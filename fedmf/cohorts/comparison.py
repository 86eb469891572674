"""What a participation budget gains over the min_sep schema that it is made of: the same noise,
more participations.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.stats

from fedmf.cohorts.devices import DeviceBehavior
from fedmf.cohorts.forecast import Size, forecast
from fedmf.mechanisms.budget import Budget
from fedmf.participation.schema import Participation

CONFIDENCE = 0.95


def compared(
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
      "participations_apart", "participations_budget" and "participations_gained": [mean, low,
      high], a 95% interval of Student's t over the seeds; "dry_rounds_apart" and
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
    n, mean = len(values), float(values.mean())
    half = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * values.std(ddof=1) / math.sqrt(n))
    return [mean, mean - half, mean + half]
