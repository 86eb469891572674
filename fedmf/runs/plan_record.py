"""Record of a run's privacy plan in plan.json, with functions that write and read it."""

import dataclasses
import math
from typing import Any

from fedmf.privacy.config import PlanConfig
from fedmf.privacy.describe import plan_summary
from fedmf.privacy.plan import Plan
from fedmf.privacy.statement import mechanism_digest
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run


def plan_record(config: TrainConfig, plan: Plan) -> dict[str, Any]:
    """Returns the part of plan.json that describes the privacy plan, in plain JSON types.

    `recorded_plan` reads "config" and "mechanism_sha256"; all other values follow from them.
    """
    return plan_summary(plan) | {
        "config": dataclasses.asdict(config.pinned_to(plan)),
        "mechanism_sha256": mechanism_digest(plan.mechanism),
    }


def recorded_plan(run: Run) -> Plan:
    """Returns the privacy plan with which a run was begun, as plan.json records it.

    Raises:
      ValueError: plan.json does not belong to mechanism.npz or config.json.
    """
    plan_content = run.plan
    mechanism = run.mechanism
    try:
        plan_config = PlanConfig.from_mapping(plan_content["config"], "plan.json")
        noise_multiplier = plan_config.noise_multiplier or 0.0
        plan = plan_config.plan_with(mechanism, noise_multiplier)
        # The noise must have the recorded scale. Epsilon may differ, because another version of the
        # accountant may compute another value.
        has_same_noise = math.isclose(plan.stddev, plan_content["stddev"], rel_tol=1e-9)
        has_same_mechanism = mechanism_digest(mechanism) == plan_content["mechanism_sha256"]
        expected_plan = run.config.plan_with(mechanism, noise_multiplier)
        # A plan that the caller passed may have another delta than the config.
        if plan_content.get("is_callers_plan"):
            expected_plan = dataclasses.replace(expected_plan, delta=plan.delta)
        if expected_plan != plan:
            raise ValueError("it is not of the run's config.json")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{run.path / 'plan.json'} is damaged ({error}): nothing can be said about this run"
        ) from error
    if not (has_same_noise and has_same_mechanism):
        raise ValueError(
            f"{run.path}: plan.json records noise of standard deviation {plan_content['stddev']}, "
            f"its mechanism.npz needs {plan.stddev}: one of them is another run's, put it back"
        )
    return plan
