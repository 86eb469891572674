"""Comparison of a resumed run with its folder, and log lines about the run's guarantee."""

import pathlib
from collections.abc import Mapping
from typing import Any

from fedmf.flower.arrays import Model, shapes_of
from fedmf.flower.nodes import log
from fedmf.privacy.plan import Plan
from fedmf.privacy.same_plan import plan_differences
from fedmf.privacy.stopping import stopped_after


def check_same_run(
    folder: pathlib.Path,
    begun: tuple[Plan, Mapping[str, Any]],
    present: tuple[Plan, Mapping[str, Any]],
) -> None:
    """Raises a ValueError if a run is resumed with another plan, model or divisor than its folder
    has.

    Args:
      folder: folder of the run.
      begun: plan and settings in the folder.
      present: plan and settings of the program.

    Raises:
      ValueError: naming the difference.
    """
    begun_plan, begun_settings = begun
    present_plan, present_settings = present
    plan_changes = plan_differences(present_plan, begun_plan)
    if plan_changes:
        raise ValueError(
            f"folder={str(folder)!r} keeps another plan than the one given ({plan_changes}): give "
            "the plan that it was begun with, or another folder"
        )
    for name, value in present_settings.items():
        if begun_settings[name] != value:
            raise ValueError(
                f"folder={str(folder)!r} was begun with {name}={begun_settings[name]} and not "
                f"{value}: give the same, or another folder"
            )


def check_same_names(folder: pathlib.Path, begun: Model, present: Model) -> None:
    """Raises a ValueError if a run is resumed with other names of arrays than its folder has.

    Raises:
      ValueError: with both models' names and shapes.
    """
    if list(begun) != list(present):
        raise ValueError(
            f"folder={str(folder)!r} was begun with the arrays {shapes_of(begun)} and not "
            f"{shapes_of(present)}: give the same, or another folder"
        )


def epsilons(plan: Plan, t: int) -> str:
    """Returns a text for the log with epsilon after t rounds and epsilon of the whole plan."""
    num_rounds = plan.participation.rounds
    total_text = f"epsilon {plan.epsilon:.4g} in all {num_rounds} rounds, delta {plan.delta:g}"
    if not 0 < t < num_rounds:
        return total_text
    try:
        epsilon_so_far = stopped_after(plan, t).epsilon
    # `stopped_after` raises ValueError for plans that have no guarantee for their first rounds
    # alone.
    except ValueError:
        return f"{total_text}, stated for all rounds together"
    return (
        f"epsilon {epsilon_so_far:.4g} after {t} rounds, if no output decides to end here; "
        f"{total_text}"
    )


def log_plan(plan: Plan, clients_per_round: int, num_released: int) -> None:
    """Logs a plan and its guarantee, after the released rounds and after all rounds."""
    log.info("\t├──> Matrix-factorization differential privacy (fedmf):")
    log.info("\t│\t├── Mechanism: %s", plan.mechanism.family)
    log.info(
        "\t│\t├── Noise multiplier %.6g, clip norm %g, divisor %d",
        plan.noise_multiplier,
        plan.clip_norm,
        clients_per_round,
    )
    log.info("\t│\t├── Who takes part: %s", plan.participation)
    log.info("\t│\t└── %s", epsilons(plan, num_released))


def log_round(plan: Plan, t: int, num_updates: int, dropped: Mapping[str, int]) -> None:
    """Logs for round t its number of updates, its dropped replies, and the guarantee so far."""
    dropped_counts = ", ".join(f"{number} {reason}" for reason, number in dropped.items() if number)
    dropped_text = f" (dropped: {dropped_counts})" if dropped_counts else ""
    log.info(
        "fedmf: round %d of %d: %d updates%s; %s",
        t + 1,
        plan.participation.rounds,
        num_updates,
        dropped_text,
        epsilons(plan, t + 1),
    )
    if not num_updates:
        log.warning("fedmf: no update came, so that round %d moves by noise alone", t + 1)
