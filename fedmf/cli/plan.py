"""fedmf plan: questions that are answered before anything is trained."""

import click

from fedmf.cli.bands import bands, learning_rate
from fedmf.cli.participation import participation


@click.group()
def plan() -> None:
    """Answer before training: who can take part how often, how many bands, which learning rate.

    \b
    Example:
      fedmf plan bands --help
    """


for command in (participation, bands, learning_rate):
    plan.add_command(command)
