"""Fields of a `PlanConfig` that a plan determines, with their values."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from fedmf.privacy.flat_config import FIT_FIELDS, TARGETS
from fedmf.privacy.plan import Plan
from fedmf.privacy.sampling.base import SETTINGS

# Names of further fields that a plan determines.
_FURTHER_FIELDS = (
    "sampling",
    "claimed_cohort",
    "budget",
    "schema",
    "max_participations",
    "private_metrics",
    "largest_loss",
    "mean_trials",
    "trial_distribution",
    "trial_shape",
)


def determined_fields(names: Iterable[str]) -> set[str]:
    """Returns the fields that a plan determines, of all fields with these names."""
    clip_names = {name for name in names if name.startswith("clip_")}
    determined_names = {*FIT_FIELDS, *SETTINGS, *TARGETS, *_FURTHER_FIELDS, *clip_names}
    return determined_names - {"cohort_size"}


def fields_of_plan(plan: Plan, mechanism: str) -> dict[str, Any]:
    """Returns the values of the fields that a plan uses.

    Args:
      plan: the plan.
      mechanism: the file from which a config reads the plan's mechanism.
    """
    value_by_field: dict[str, Any] = {
        "family": "file",
        "mechanism": mechanism,
        "rounds": plan.participation.rounds,
        "noise_multiplier": plan.noise_multiplier,
        "delta": plan.delta,
        "clip_norm": plan.clip_norm,
    }
    if plan.private_metrics is not None:
        value_by_field["private_metrics"] = plan.private_metrics.share
        value_by_field["largest_loss"] = plan.private_metrics.largest_loss
    if plan.selection is not None:
        value_by_field["mean_trials"] = plan.selection.mean_trials
        value_by_field["trial_distribution"] = plan.selection.distribution
        value_by_field["trial_shape"] = plan.selection.shape
    if plan.sampling is not None:
        value_by_field |= plan.sampling.settings()
    else:
        value_by_field |= plan.participation.to_config()
    if plan.quantile_clipping is not None:
        for name, value in dataclasses.asdict(plan.quantile_clipping).items():
            value_by_field[f"clip_{name}"] = value
    if plan.simulation is not None:
        value_by_field["cohort_size"] = plan.simulation.simulated
        value_by_field["claimed_cohort"] = plan.simulation.claimed
    return value_by_field
