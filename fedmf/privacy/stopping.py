"""Guarantees of runs that end earlier than planned, with the plan of the first rounds of a run, and
a table of epsilons for different last rounds.

Round t releases its sum of clipped updates x_t plus row t of the noise N Z, where N = C^-1 is the
noise matrix and Z has independent normal entries. If the encoder C is square and lower-triangular,
so is N. The releases of the first r rounds then follow from C_r x_r + Z_r alone, where C_r is the
leading block of C, and x_r and Z_r are the first r rows of x and Z. They are a mechanism of r
rounds, whose sensitivity is that of C_r.

The last round must not depend on the releases: to stop because the model looks good is a choice
among all possible ends, and the smaller epsilon of one of them does not cover that choice. The
guarantee of all planned rounds holds whenever and for whatever reason a run ends.
"""

import bisect
import dataclasses
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.leading import leading_block
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.participation.schema import SCHEMAS
from fedmf.privacy.describe import guarantee_values
from fedmf.privacy.gaussian import check_epsilon
from fedmf.privacy.plan import Plan, check_plan, unit_noise

# Largest number of rows of a stopping table.
_MAX_ROWS = 16


def first_rounds(
    mechanism: Mechanism, rounds: int, *, schema: str, sampling: str | None
) -> Mechanism:
    """Returns the mechanism of the first rounds of a run, after checking that these rounds can have
    a separate guarantee. The check does not need the noise of the plan.

    Args:
      mechanism: the mechanism of all rounds.
      rounds: number of first rounds, in 1..mechanism's rounds.
      schema: the schema of the participation.
      sampling: the name of a sampling scheme, or None.

    Raises:
      ValueError: there is sampling, a budget or a schema without `has_shorter_form`, or
        `leading_block` refuses the mechanism.
    """
    if sampling is not None:
        raise ValueError(
            f"sampling={sampling} is accounted for all rounds together: leave it out, or "
            "state the guarantee of all rounds"
        )
    if SCHEMAS[schema].needs_encoder:
        raise ValueError(
            f"schema={schema} allows a client to spend its whole budget in the first {rounds} "
            "rounds, so that these have the guarantee of all rounds: state that, and audit the "
            "run, which counts the spent budget"
        )
    if not SCHEMAS[schema].has_shorter_form:
        raise ValueError(
            f"schema={schema} does not limit the participations in the first {rounds} rounds, so "
            "that these have the guarantee of all rounds: state that"
        )
    return leading_block(mechanism, rounds)


def stopped_after(plan: Plan, rounds: int) -> Plan:
    """Returns the plan of the first `rounds` rounds of a run, with the same noise.

    Its guarantee holds for a run that ends after these rounds, if the decision to end does not
    depend on the releases.

    Raises:
      TypeError, ValueError: `rounds` is not in 1..plan's rounds, or `first_rounds` refuses the
        plan.

    >>> import fedmf
    >>> twice = fedmf.Participation(rounds=8, schema="min_sep", min_sep=4)
    >>> plan = fedmf.calibrate(
    ...     fedmf.fit(fedmf.prefix_sum(8), twice), twice, epsilon=2.0, delta=1e-6
    ... )
    >>> stopped = stopped_after(plan, 4)
    >>> stopped.participation.max_participations, stopped.epsilon < plan.epsilon
    (1, True)
    >>> abs(stopped.stddev / plan.stddev - 1) < 1e-12
    True
    """
    check_plan(plan)
    hint = (
        "a run can end before its plan and not after it: plan with the most "
        "rounds that you may want"
    )
    rounds = checks.integer("rounds", rounds, low=1, high=plan.participation.rounds, hint=hint)
    scheme_class = None if plan.sampling is None else type(plan.sampling).__name__
    schema = plan.participation.schema
    mechanism = first_rounds(plan.mechanism, rounds, schema=schema, sampling=scheme_class)
    participation = plan.participation.shortened(rounds)
    noise_multiplier = unit_noise(plan) / sensitivity(mechanism, participation).value
    return dataclasses.replace(
        plan,
        mechanism=mechanism,
        participation=participation,
        noise_multiplier=noise_multiplier,
        longer=plan.longer or plan,
    )


def stopping_table(plan: Plan) -> list[dict[str, Any]]:
    """Computes the guarantees of runs that end after different numbers of rounds, as dicts with
    "rounds", "sensitivity", "epsilon" and "rho" in plain JSON types.

    Args:
      plan: the plan of all rounds.
    """
    n = plan.participation.rounds
    end_rounds = np.unique(np.linspace(0, n, min(n, _MAX_ROWS) + 1).round().astype(int))[
        1:
    ].tolist()
    table_rows = []
    for end in end_rounds:
        values = guarantee_values(stopped_after(plan, end))
        guarantee = {name: values[name] for name in ("sensitivity", "epsilon", "rho")}
        table_rows.append({"rounds": end, **guarantee})
    return table_rows


def rounds_within(plan: Plan, epsilon: float, *, argument: str = "epsilon") -> int:
    """Computes the largest number of rounds after which a run can end with an epsilon of at most
    `epsilon`. It depends on the plan alone, so it is known before training.

    Args:
      plan: the plan of all rounds.
      epsilon: the largest allowed epsilon.
      argument: name of the target in errors.

    Raises:
      TypeError, ValueError: an epsilon out of range, or one that the first round already exceeds;
        `stopped_after` refuses the plan.
    """
    epsilon_limit = check_epsilon(epsilon)
    n = plan.participation.rounds
    if plan.epsilon <= epsilon_limit:
        return n

    def epsilon_after(rounds: int) -> float:
        return stopped_after(plan, rounds).epsilon

    num_rounds = bisect.bisect_right(range(1, n), epsilon_limit, key=epsilon_after)
    if not num_rounds:
        raise ValueError(
            f"{argument}={epsilon} is exceeded in round 0, whose release alone has "
            f"{epsilon_after(1):.6g}: use more noise, or stop later"
        )
    return num_rounds
