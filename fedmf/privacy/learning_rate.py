"""A rule that predicts the server's learning rate from the error of the noise. It is that of the
banded paper, App. I, below Eq. 11.

The rule is a regression over 25 tuned runs of one task (StackOverflow next-word prediction: 2052
rounds, clip norm 1, server momentum 0.95, client learning rate 1, warm-up and cool-down). For other
tasks its slope can start a search, but its offset cannot.
"""

import math

from fedmf import checks
from fedmf.mechanisms.error import rmse
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.privacy.plan import Plan, check_plan, update_noise_multiplier
from fedmf.workloads import Workload

# The rule is log(rate) = SLOPE log(L_e) + OFFSET, where L_e is the effective error. The logarithms
# are natural: with decimal ones the learning rates of Table 4 would come out as 0.0005.
SLOPE = -0.95
OFFSET = -4.64
# Settings of the runs from which the paper found the rule. ERRORS is the range of their effective
# errors L_e for 1000 clients: from 0.00316 (342 bands at epsilon 16) to 0.3315 (DP-SGD at epsilon
# 1).
ROUNDS = 2052
CLIP_NORM = 1.0
ERRORS = (0.0031, 0.332)
TASK = "StackOverflow next-word prediction"
# The learning rates of the paper's experiments are powers of this number.
GRID = 1.7


@with_numpy_defaults
def effective_rmse(plan: Plan, workload: Workload, *, cohort_size: int | None = None) -> float:
    """Computes the effective error of a plan, which is the root of the mean squared error per round
    of the workload's query on mean updates, in units of the clip norm.

    It is sqrt(loss / rounds) * sigma / B, where loss is the sum of the squared errors of all rounds
    for noise multiplier 1, sigma the noise multiplier of the updates, and B the cohort size. This
    is Eq. 11 of the banded paper if the workload is the prefix sums.

    Args:
      plan: the plan, with the mechanism and its noise.
      workload: the linear query whose error is computed.
      cohort_size: B, the divisor of a round's sum; None takes the plan's claimed cohort, or the
        cohort of its sampling.

    Returns:
      The error, without a unit.

    Raises:
      TypeError, ValueError: a cohort_size that is no positive int, or None for a plan without a
        cohort; different rounds.

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
    if cohort_size is None and plan.simulation is not None:
        cohort_size = plan.simulation.claimed
    elif cohort_size is None and plan.sampling is not None:
        cohort_size = plan.sampling.cohort_size
    hint = "pass the number of clients that a round's sum is divided by"
    divisor = checks.integer("cohort_size", cohort_size, low=1, high=10**12, hint=hint)
    unit_rmse = rmse(plan.mechanism, workload, plan.participation)
    return update_noise_multiplier(plan) * unit_rmse / divisor


@with_numpy_defaults
def predicted_learning_rate(
    effective_rmse: float, *, clip_norm: float = 1.0, grid: float | None = GRID
) -> float:
    """Predicts a good learning rate of the server from the effective error. The rate is exp(-0.95
    log(effective_rmse) - 4.64), rounded to the paper's grid of learning rates.

    Args:
      effective_rmse: L_e, as the function of that name returns it for prefix sums; positive.
      clip_norm: the clip norm, by which the rate is divided. Updates are proportional to it, and
        the rule is for a clip norm of 1.
      grid: the rate is rounded to the nearest power of this number, by ratio; None for no rounding.

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
        "the rule is for runs with noise; without noise stability bounds the rate",
    )
    checks.positive("clip_norm", clip_norm, "pass the L2 bound on a client's update")
    if grid is not None and checks.finite_float("grid", grid, hint="pass a ratio, or None") <= 1:
        raise ValueError(
            f"grid={grid!r} must be above 1: pass the ratio of neighbouring "
            "rates such as 1.7, or None"
        )
    rate = math.exp(SLOPE * math.log(effective_rmse) + OFFSET) / clip_norm
    if grid is None:
        return rate
    return on_grid(rate, grid)


def extrapolations(effective_rmse: float, *, rounds: int, clip_norm: float = 1.0) -> list[str]:
    """Returns a phrase for each setting of a run that the runs behind the rule do not cover.

    The task usually differs too, and is not listed.

    >>> extrapolations(0.05, rounds=2052)
    []
    >>> extrapolations(0.9, rounds=256)
    ['effective_rmse 0.9 is outside 0.0031 to 0.332', '256 rounds in place of 2052']
    """
    smallest, largest = ERRORS
    warning_phrases = []
    if not smallest <= effective_rmse <= largest:
        warning_phrases.append(
            f"effective_rmse {effective_rmse:.3g} is outside {smallest:g} to {largest:g}"
        )
    if rounds != ROUNDS:
        warning_phrases.append(f"{rounds} rounds in place of {ROUNDS}")
    if clip_norm != CLIP_NORM:
        warning_phrases.append(f"clip_norm {clip_norm:g} in place of {CLIP_NORM:g}")
    return warning_phrases


def on_grid(rate: float, grid: float = GRID, *, steps: int = 0) -> float:
    """Rounds a learning rate to the nearest power of `grid`, and moves it `steps` powers up.

    >>> round(on_grid(0.36), 4), round(on_grid(0.36, steps=-1), 4)
    (0.346, 0.2035)
    """
    return float(grid ** (round(math.log(rate) / math.log(grid)) + steps))
