"""Comparison of a plan with a recorded plan. Differences by rounding, as between versions of the
software that computed the plans, are ignored.
"""

import math
from typing import Any

import numpy as np

from fedmf.mechanisms.base import Mechanism
from fedmf.privacy.config import PlanConfig
from fedmf.privacy.flat_config import differences
from fedmf.privacy.plan import Plan

# Relative tolerance when the numbers of two plans are compared. With another version of SciPy or
# another processor, these numbers change by some 1e-15.
TOLERANCE = 1e-9


def plan_differences(plan: Plan, recorded: Plan) -> str:
    """Describes in one phrase how a plan differs from a recorded one; an empty text if all numbers
    are equal up to a relative difference of 1e-9.

    The noise, the bounds of the updates and the participation are compared, from which epsilon
    follows.

    >>> import dataclasses
    >>> plan = PlanConfig(rounds=4, min_sep=2, noise_multiplier=2.0).plan()
    >>> plan_differences(dataclasses.replace(plan, noise_multiplier=2.0 + 1e-14), plan)
    ''
    >>> plan_differences(dataclasses.replace(plan, noise_multiplier=2.1), plan)
    'noise_multiplier=2.1 (was 2.0)'
    """
    plan_fields = PlanConfig.of(plan).flat()
    recorded_values = PlanConfig.of(recorded).flat()
    close_names = [
        name for name, value in recorded_values.items() if _is_close(plan_fields.get(name), value)
    ]
    changes_text = differences(plan_fields, recorded_values, leave_out=tuple(close_names))
    if not changes_text and not _is_same_mechanism(plan.mechanism, recorded.mechanism):
        return "its mechanism has different matrices"
    if not changes_text and not _is_close(plan.stddev, recorded.stddev):
        return f"noise of standard deviation {plan.stddev!r} (was {recorded.stddev!r})"
    return changes_text


def _is_close(value: Any, recorded: Any) -> bool:
    """Returns whether both values are numbers, and equal up to `TOLERANCE`."""
    are_numbers = isinstance(value, float | int) and isinstance(recorded, float | int)
    return are_numbers and math.isclose(value, recorded, rel_tol=TOLERANCE)


def _is_same_mechanism(mechanism: Mechanism, recorded: Mechanism) -> bool:
    """Returns whether two mechanisms of the same family have equal matrices up to `TOLERANCE`.
    Their certificates may differ.
    """
    array_by_name = mechanism.entries()
    recorded_array_by_name = recorded.entries()
    compared_names = [name for name in array_by_name if not name.startswith("certificate")]
    recorded_names = [name for name in recorded_array_by_name if not name.startswith("certificate")]
    if sorted(compared_names) != sorted(recorded_names):
        return False
    return all(
        _has_same_numbers(array_by_name[name], recorded_array_by_name[name])
        for name in compared_names
    )


def _has_same_numbers(array: Any, recorded: Any) -> bool:
    """Returns whether two arrays have the same shape and kind of numbers, and are equal up to
    `TOLERANCE`.
    """
    array = np.asarray(array)
    recorded = np.asarray(recorded)
    if array.shape != recorded.shape or array.dtype.kind != recorded.dtype.kind:
        return False
    if array.dtype.kind not in "fc":
        return bool(np.array_equal(array, recorded))
    largest_magnitude = float(np.max(np.abs(recorded), initial=0.0))
    return bool(np.allclose(array, recorded, rtol=TOLERANCE, atol=TOLERANCE * largest_magnitude))
