"""The command `fedmf plan settings`, which proposes the settings of a first run."""

import dataclasses
import pathlib
from typing import Any

import click

from fedmf.cli.errors import arguments_checked
from fedmf.cli.options import (
    TaskCommand,
    chosen_options,
    json_option,
    options_of,
    quiet_option,
    show,
)
from fedmf.cli.values import PATH


@click.command(cls=TaskCommand)
@options_of(
    "TrainConfig",
    names=("task", "data", "task_options", "epsilon", "delta"),
    required=("epsilon",),
)
@click.option(
    "--public-data",
    type=PATH,
    help="Data file of the same task, on whose clients the clip norm and the client rate are "
    "measured.  [default: the validation split, if no training client is in it]",
)
@quiet_option
@json_option
def settings(
    config_options: dict[str, Any],
    public_data: pathlib.Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Settings with which a first run learns, each with its reason.

    Cohort size, separation and rounds follow from the number of training clients. The clip norm and
    the client rate are measured on simulated clients, who hold public examples or those of the
    validation split; no training client computes an update. If no such examples are there, both are
    small numbers that suit all tasks. The server rate follows from the noise of the plan: it bounds
    the step of a round, and the noise in the model.

    It prints a `fedmf train` line.

    \b
    Example:
      fedmf plan settings --data rows.sqlite --epsilon 8
      fedmf plan settings --task emnist --data emnist.sqlite -o model=small --epsilon 10
    """
    from fedmf import tasks
    from fedmf.runs.config import TrainConfig
    from fedmf.sweeps.first_settings import first_settings

    with arguments_checked():
        config = TrainConfig(min_sep=1, **chosen_options(config_options))
        task = tasks.task_from_config(config, progress=not quiet)
        public_task = None
        if public_data is not None:
            public_config = tasks.config_on_data(tasks.completed(config), str(public_data))
            public_task = tasks.task_from_config(public_config, progress=not quiet)
        proposal = first_settings(task, config, public_task=public_task, progress=not quiet)
    values = dataclasses.asdict(proposal.config)
    if as_json:
        setting_by_name = {
            name: {"value": values[name], "reason": reason}
            for name, reason in proposal.reasons.items()
        }
        show({"settings": setting_by_name, "command": proposal.command()}, as_json)
        return
    for name, reason in proposal.reasons.items():
        click.echo(f"--{name.replace('_', '-')} {values[name]}: {reason}")
    click.echo(f"\n{proposal.command()}")
