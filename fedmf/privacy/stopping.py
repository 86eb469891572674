"""Runs that end before their plan does: the plan of the first rounds, and a table of what each end
would guarantee.

Round t releases x_t + (N Z)_t. Where C is square and lower-triangular, N = C^-1 is, too: the first
r rounds are released from C_r x_r + Z_r alone, C_r the leading block of C. They are a mechanism of
r rounds, whose sensitivity is that of C_r.

When to end must not depend on what was released: a smaller epsilon, taken because the model looked
good, is a claim about the other ends too. What holds whenever and why ever a run ends is the
guarantee of all its planned rounds.
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

_ROWS = 16


def first_rounds(
    mechanism: Mechanism, rounds: int, *, schema: str, sampling: str | None
) -> Mechanism:
    """`leading_block`, for plans of which the first rounds can have a guarantee of their own: known
    before the noise is.

    Args:
      mechanism: of the whole run.
      rounds: in 1..mechanism's rounds.
      schema: of the participation.
      sampling: the name of a scheme, or None.

    Raises:
      ValueError: a plan with sampling, a budget or a schema without `has_shorter_form`, or a
        mechanism that `leading_block` refuses.
    """
    if sampling is not None:
        raise ValueError(
            f"sampling={sampling} is accounted for all rounds together: leave it out, or "
            "state the guarantee of all"
        )
    if SCHEMAS[schema].needs_encoder:
        raise ValueError(
            f"schema={schema}: all of a budget may be spent in the first {rounds} rounds, so that "
            "these have the guarantee of all: state "
            "that, and audit the run, which counts what was spent"
        )
    if not SCHEMAS[schema].has_shorter_form:
        raise ValueError(
            f"schema={schema} does not say which of the first {rounds} rounds a client may take "
            "part in, so that these have the guarantee of all: state that"
        )
    return leading_block(mechanism, rounds)


def stopped_after(plan: Plan, rounds: int) -> Plan:
    """The plan of the first `rounds` rounds of a run, with the same noise; for ends that no output
    decided (see above).

    Raises:
      TypeError, ValueError: not in 1..plan's rounds; a plan with sampling or a budget, or a
        mechanism that `leading_block` refuses.

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
    p = plan.participation
    hint = (
        "a run can end before its plan and not after it: plan with the most "
        "rounds that you may want"
    )
    rounds = checks.integer("rounds", rounds, low=1, high=p.rounds, hint=hint)
    scheme = None if plan.sampling is None else type(plan.sampling).__name__
    mechanism = first_rounds(plan.mechanism, rounds, schema=p.schema, sampling=scheme)
    participation = p.shortened(rounds)
    multiplier = unit_noise(plan) / sensitivity(mechanism, participation).value
    return dataclasses.replace(
        plan,
        mechanism=mechanism,
        participation=participation,
        noise_multiplier=multiplier,
        longer=plan.longer or plan,
    )


def stopping_table(plan: Plan) -> list[dict[str, Any]]:
    """What the run guarantees if it ends after some of its rounds: "rounds", "sensitivity",
    "epsilon", "rho" of each, in plain JSON types.

    Args:
      plan: of the most rounds that there may be.
    """
    n = plan.participation.rounds
    stops = np.unique(np.linspace(0, n, min(n, _ROWS) + 1).round().astype(int))[1:].tolist()
    rows = []
    for stop in stops:
        values = guarantee_values(stopped_after(plan, stop))
        rows.append(
            {"rounds": stop, **{name: values[name] for name in ("sensitivity", "epsilon", "rho")}}
        )
    return rows


def rounds_within(plan: Plan, epsilon: float, *, argument: str = "epsilon") -> int:
    """The most rounds with which the plan's epsilon is at most `epsilon`, an error's `argument`:
    before training, from the plan alone.

    Raises:
      TypeError, ValueError: an epsilon out of range, or one that the first round passes already;
        those of `stopped_after`.
    """
    target = check_epsilon(epsilon)
    n = plan.participation.rounds
    if plan.epsilon <= target:
        return n

    def epsilon_after(rounds: int) -> float:
        return stopped_after(plan, rounds).epsilon

    within = bisect.bisect_right(range(1, n), target, key=epsilon_after)
    if not within:
        raise ValueError(
            f"{argument}={epsilon} is passed in round 0, whose release alone has "
            f"{epsilon_after(1):.6g}: use more noise, or stop later"
        )
    return within
