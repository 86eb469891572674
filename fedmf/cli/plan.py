"""fedmf plan: questions that are answered before anything is trained."""

import click


@click.group()
def plan() -> None:
    """Answer before training: who can take part how often, how many bands, which learning rate.

    \b
    Example:
      fedmf plan --help
    """
