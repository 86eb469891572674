"""Comparison of a plan with a recorded one, up to the rounding of other versions of the software
that computed them.
"""

import math
from typing import Any

import numpy as np

from fedmf.mechanisms.base import Mechanism
from fedmf.privacy.config import PlanConfig
from fedmf.privacy.flat_config import differences
from fedmf.privacy.plan import Plan

# Another SciPy or processor computes the same plan to some 1e-15 of its numbers.
TOLERANCE = 1e-9


def plan_differences(plan: Plan, recorded: Plan) -> str:
    """Returns the differences of a plan from a recorded one by more than 1e-9, relative, in one
    phrase; empty if there are none.

    It compares the noise, the bounds of the updates and the participation, from which epsilon
    follows.

    >>> import dataclasses
    >>> plan = PlanConfig(rounds=4, min_sep=2, noise_multiplier=2.0).plan()
    >>> plan_differences(dataclasses.replace(plan, noise_multiplier=2.0 + 1e-14), plan)
    ''
    >>> plan_differences(dataclasses.replace(plan, noise_multiplier=2.1), plan)
    'noise_multiplier=2.1 (was 2.0)'
    """
    values = PlanConfig.of(plan).flat()
    recorded_values = PlanConfig.of(recorded).flat()
    close_names = [
        name for name, value in recorded_values.items() if _is_close(values.get(name), value)
    ]
    changes = differences(values, recorded_values, leave_out=tuple(close_names))
    if not changes and not _is_same_mechanism(plan.mechanism, recorded.mechanism):
        return "its mechanism has different matrices"
    if not changes and not _is_close(plan.stddev, recorded.stddev):
        return f"noise of standard deviation {plan.stddev!r} (was {recorded.stddev!r})"
    return changes


def _is_close(value: Any, recorded: Any) -> bool:
    """Returns whether two values are numbers that are equal up to the tolerance."""
    numbers = isinstance(value, float | int) and isinstance(recorded, float | int)
    return numbers and math.isclose(value, recorded, rel_tol=TOLERANCE)


def _is_same_mechanism(mechanism: Mechanism, recorded: Mechanism) -> bool:
    """Returns whether two mechanisms of one family have the same numbers; certificates are no part
    of that.
    """
    entries = mechanism.entries()
    recorded_entries = recorded.entries()
    names = [name for name in entries if not name.startswith("certificate")]
    recorded_names = [name for name in recorded_entries if not name.startswith("certificate")]
    if sorted(names) != sorted(recorded_names):
        return False
    return all(_has_same_numbers(entries[name], recorded_entries[name]) for name in names)


def _has_same_numbers(array: Any, recorded: Any) -> bool:
    """Returns whether two arrays of the same kind are equal up to the tolerance."""
    array = np.asarray(array)
    recorded = np.asarray(recorded)
    if array.shape != recorded.shape or array.dtype.kind != recorded.dtype.kind:
        return False
    if array.dtype.kind not in "fc":
        return bool(np.array_equal(array, recorded))
    largest = float(np.max(np.abs(recorded), initial=0.0))
    return bool(np.allclose(array, recorded, rtol=TOLERANCE, atol=TOLERANCE * largest))
