"""Comparison of plans up to the rounding of the software that computed them."""

import dataclasses

import pytest

import fedmf
from fedmf.privacy.same_plan import plan_differences


def plan_of(**changes):
    """Returns a plan of the banded mechanism."""
    settings = {"rounds": 8, "min_sep": 4, "family": "banded", "noise_multiplier": 1.0}
    return fedmf.PlanConfig(**settings | changes).plan()


def with_matrices_times(plan, factor):
    """Returns a plan whose encoder is scaled."""
    mechanism = dataclasses.replace(plan.mechanism, diagonals=plan.mechanism.diagonals * factor)
    return dataclasses.replace(plan, mechanism=mechanism)


def test_rounding_makes_no_difference():
    plan = plan_of()
    rounded = dataclasses.replace(
        with_matrices_times(plan, 1 + 1e-13), noise_multiplier=1 + 1e-13, clip_norm=1 - 1e-13
    )
    assert plan_differences(rounded, plan) == ""


@pytest.mark.parametrize(
    ("changed_plan", "words"),
    [
        (plan_of(noise_multiplier=1 + 1e-7), "noise_multiplier=1.0000001 (was 1.0)"),
        (plan_of(min_sep=2), "min_sep=2 (was 4)"),
        (plan_of(clip_norm=0.5), "clip_norm=0.5 (was 1.0)"),
        (plan_of(private_metrics=0.1), "private_metrics=0.1 (was 0.0)"),
        (plan_of(family="identity"), "its mechanism has different matrices"),
        (with_matrices_times(plan_of(), 1.001), "its mechanism has different matrices"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_difference_is_named_with_both_values(changed_plan, words):
    assert words in plan_differences(changed_plan, plan_of())
