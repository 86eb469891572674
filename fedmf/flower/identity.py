"""What makes a run the one that a folder keeps, and what its plan guarantees so far."""

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
    """Refuses to go on with another plan, model or divisor than the folder's.

    Args:
      folder: of the run.
      begun: plan and settings that the folder keeps.
      present: plan and settings of the program.

    Raises:
      ValueError: naming what changed.
    """
    if changes := plan_differences(present[0], begun[0]):
        raise ValueError(
            f"folder={str(folder)!r} keeps another plan than the one given ({changes}): give the "
            "plan that it was begun with, or another folder"
        )
    for name, value in present[1].items():
        if begun[1][name] != value:
            raise ValueError(
                f"folder={str(folder)!r} was begun with {name}={begun[1][name]} and not {value}: "
                "give the same, or another folder"
            )


def check_same_names(folder: pathlib.Path, begun: Model, present: Model) -> None:
    """Refuses to go on with arrays of other names than the folder's.

    Raises:
      ValueError: naming both.
    """
    if list(begun) != list(present):
        raise ValueError(
            f"folder={str(folder)!r} was begun with the arrays {shapes_of(begun)} and not "
            f"{shapes_of(present)}: give the same, or another folder"
        )


def epsilons(plan: Plan, t: int) -> str:
    """Returns epsilon after t rounds and of the whole plan, as a line of the log."""
    n = plan.participation.rounds
    whole = f"epsilon {plan.epsilon:.4g} in all {n} rounds, delta {plan.delta:g}"
    if not 0 < t < n:
        return whole
    try:
        so_far = stopped_after(plan, t).epsilon
    except ValueError:  # a plan whose first rounds have no guarantee of their own
        return f"{whole}, stated for all rounds together"
    return f"epsilon {so_far:.4g} after {t} rounds, if no output decides to end here; {whole}"


def log_plan(plan: Plan, clients_per_round: int, num_released: int) -> None:
    """Logs a plan, and what it guarantees so far and in all."""
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


def log_round(plan: Plan, t: int, came: int, dropped: Mapping[str, int]) -> None:
    """Logs what came of the replies of round t, and what the plan guarantees so far."""
    counts = ", ".join(f"{number} {why}" for why, number in dropped.items() if number)
    dropped_text = f" (dropped: {counts})" if counts else ""
    rounds = plan.participation.rounds
    so_far = epsilons(plan, t + 1)
    log.info("fedmf: round %d of %d: %d updates%s; %s", t + 1, rounds, came, dropped_text, so_far)
    if not came:
        log.warning("fedmf: no update came, so that round %d moves by noise alone", t + 1)
