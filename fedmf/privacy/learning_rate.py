"""The server's learning rate from a mechanism's error: the rule of the banded paper, App. I, below
Eq. 11.

The rule is a regression over 25 tuned runs of one task (StackOverflow next-word prediction: 2052
rounds, clip norm 1, server momentum 0.95, client learning rate 1, warm-up and cool-down). Elsewhere
its slope is a start for a search and its offset is not.
"""

import math

from fedmf import checks
from fedmf.mechanisms.error import rmse
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.privacy.plan import Plan, check_plan, update_noise_multiplier
from fedmf.workloads import Workload

# log(rate) = SLOPE log(L_e) + OFFSET. The logarithms are natural: with decimal ones the rates of
# Table 4 would come out as 0.0005.
SLOPE, OFFSET = -0.95, -4.64
# What the runs had, and the range of their L_e, for 1000 clients: from 342 bands at epsilon 16
# (0.00316) to DP-SGD at epsilon 1 (0.3315).
ROUNDS = 2052
CLIP_NORM = 1.0
ERRORS = (0.0031, 0.332)
TASK = "StackOverflow next-word prediction"
# The paper's learning rates are powers of this.
GRID = 1.7


@with_numpy_defaults
def effective_rmse(plan: Plan, workload: Workload, *, cohort_size: int | None = None) -> float:
    """Noise per round in the mean update's running query, in units of the clip norm: sqrt(loss /
    rounds) * sigma / B.

    Banded paper, Eq. 11, where the workload is the prefix sums.

    Args:
      plan: the mechanism and its noise.
      workload: A, on which error is measured.
      cohort_size: B, clients that a round's sum is divided by; None takes the plan's claimed
        cohort, or the cohort of its sampling.

    Returns:
      The error, without a unit.

    Raises:
      TypeError, ValueError: a cohort_size that is no positive int, or none where the plan knows of
        none; rounds that differ.

    >>> import fedmf
    >>> once = fedmf.Participation(rounds=3, schema="single")
    >>> mechanism = fedmf.fit(fedmf.prefix_sum(3), once, family="identity")
    >>> plan = fedmf.Plan(
    ...     mechanism=mechanism, participation=once, noise_multiplier=2.0, clip_norm=0.5, delta=1e-6
    ... )
    >>> # 2 sqrt((1 + 2 + 3) / 3) / 10
    >>> round(effective_rmse(plan, fedmf.prefix_sum(3), cohort_size=10), 6)
    0.282843
    """
    check_plan(plan)
    if cohort_size is None:
        cohort_size = (
            getattr(plan.sampling, "cohort_size", None)
            if plan.simulation is None
            else plan.simulation.claimed
        )
    hint = "pass the number of clients that a round's sum is divided by"
    clients = checks.integer("cohort_size", cohort_size, low=1, high=10**12, hint=hint)
    return (
        update_noise_multiplier(plan) * rmse(plan.mechanism, workload, plan.participation) / clients
    )


@with_numpy_defaults
def predicted_learning_rate(
    effective_rmse: float, *, clip_norm: float = 1.0, grid: float | None = GRID
) -> float:
    """The server's learning rate for an error: exp(-0.95 log(effective_rmse) - 4.64), on the
    paper's grid.

    Args:
      effective_rmse: L_e, as the function of that name gives it for prefix sums; positive.
      clip_norm: updates are in proportion to it and the paper's is 1, so the rate is divided by it.
      grid: the rate is rounded to the nearest power of it, nearest as a ratio; None: not rounded.

    Returns:
      The rate.

    Raises:
      TypeError, ValueError: a number that is not positive, or a grid not above 1.

    >>> round(predicted_learning_rate(0.0363), 4)
    0.2035
    >>> round(predicted_learning_rate(0.0363, grid=None), 4)
    0.2254
    """
    checks.positive(
        "effective_rmse",
        effective_rmse,
        "the rule is for runs with noise; without noise the rate is bounded by stability",
    )
    checks.positive("clip_norm", clip_norm, "pass the L2 bound on a client's update")
    if grid is not None and checks.finite_float("grid", grid, hint="pass a ratio, or None") <= 1:
        raise ValueError(
            f"grid={grid!r} must be above 1: pass the ratio of neighbouring "
            "rates such as 1.7, or None"
        )
    rate = math.exp(SLOPE * math.log(effective_rmse) + OFFSET) / clip_norm
    return rate if grid is None else on_grid(rate, grid)


def extrapolations(effective_rmse: float, *, rounds: int, clip_norm: float = 1.0) -> list[str]:
    """In what a run is beyond the runs that the rule was fitted to, one phrase each; that the task
    is another is for the reader to know.

    >>> extrapolations(0.05, rounds=2052)
    []
    >>> extrapolations(0.9, rounds=256)
    ['effective_rmse 0.9 is outside 0.0031 to 0.332', '256 rounds in place of 2052']
    """
    least, most = ERRORS
    found = []
    if not least <= effective_rmse <= most:
        found.append(f"effective_rmse {effective_rmse:.3g} is outside {least:g} to {most:g}")
    if rounds != ROUNDS:
        found.append(f"{rounds} rounds in place of {ROUNDS}")
    if clip_norm != CLIP_NORM:
        found.append(f"clip_norm {clip_norm:g} in place of {CLIP_NORM:g}")
    return found


def on_grid(rate: float, grid: float = GRID, *, steps: int = 0) -> float:
    """The power of `grid` nearest to `rate`, or the one `steps` further up.

    >>> round(on_grid(0.36), 4), round(on_grid(0.36, steps=-1), 4)
    (0.346, 0.2035)
    """
    return float(grid ** (round(math.log(rate) / math.log(grid)) + steps))
