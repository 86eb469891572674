"""fedmf plan: questions that are answered before anything is trained."""

import pathlib
from typing import Any

import click

from fedmf.cli.bands import bands
from fedmf.cli.errors import Command, Group, arguments_checked
from fedmf.cli.options import (
    COUNT,
    EXISTING_FILE,
    json_option,
    plan_from,
    plan_options,
    sampling_option,
    show,
)
from fedmf.cli.participation import participation


@click.group(cls=Group)
def plan() -> None:
    """Answer before training: participation, bands, learning rate.

    \b
    Example:
      fedmf plan bands --help
    """


@click.command("learning-rate", cls=Command)
@click.argument("mechanism_file", metavar="MECHANISM", type=EXISTING_FILE)
@plan_options
@click.option(
    "--cohort-size", type=COUNT, required=True, help="Clients that a round's sum is divided by."
)
@sampling_option
@click.option("--population", type=COUNT, help="With --sampling: the number of clients.")
@json_option
def learning_rate(
    mechanism_file: pathlib.Path, cohort_size: int, as_json: bool, **target: Any
) -> None:
    """A server learning rate for a mechanism and its noise.

    The rule (banded paper, App. I) is a regression over tuned runs of StackOverflow next-word
    prediction (2052 rounds, server momentum 0.95, client rate 1, clip norm 1, effective errors from
    0.0031 to 0.332). Beyond them it extrapolates, and says so. For another task take its slope: a
    mechanism of half the error wants a rate 1.9 times as high.

    \b
    Example:
      fedmf plan learning-rate banded.npz --rounds 256 --min-sep 64 --epsilon 8 --cohort-size 100
      fedmf plan learning-rate banded.npz --rounds 256 --epsilon 8 --cohort-size 100 \\
        --sampling poisson --population 100000
    """
    import fedmf
    from fedmf.privacy import learning_rate as rule

    with arguments_checked():
        if target["noise_multiplier"] == 0:
            raise ValueError(
                "noise_multiplier=0: the rule is for runs with noise; without noise the rate is "
                "bounded by stability"
            )
        planned = plan_from(
            mechanism_file, target | {"cohort_size": cohort_size if target["sampling"] else None}
        )
        error = rule.effective_rmse(
            planned, fedmf.prefix_sum(planned.mechanism.rounds), cohort_size=cohort_size
        )
        rate = rule.predicted_learning_rate(error, clip_norm=planned.clip_norm, grid=None)
    beyond = rule.extrapolations(
        error, rounds=planned.mechanism.rounds, clip_norm=planned.clip_norm
    )
    show(
        {
            "noise_multiplier": planned.noise_multiplier,
            "epsilon": planned.epsilon,
            "delta": planned.delta,
            "effective_rmse": error,
            "predicted_rate": rate,
            "learning_rate": rule.on_grid(rate),
            "also_try": [rule.on_grid(rate, steps=-1), rule.on_grid(rate, steps=1)],
            "fitted_to": {
                "task": rule.TASK,
                "rounds": rule.ROUNDS,
                "clip_norm": rule.CLIP_NORM,
                "effective_rmse": list(rule.ERRORS),
            },
            "extrapolates": beyond if as_json else "; ".join(beyond) or "no, if the task is that",
        },
        as_json,
    )


for command in (participation, bands, learning_rate):
    plan.add_command(command)
