"""fedmf audit canaries: a lower bound on epsilon from what a run's releases betray."""

import dataclasses
import math
import pathlib
import sys

import click

from fedmf.cli.errors import Command, arguments_checked
from fedmf.cli.options import PATH, json_option, show


@click.command(cls=Command)
@click.argument("run_folder", metavar="RUN", type=PATH)
@click.option(
    "--confidence", type=float, default=0.95, help="With which all the lower bounds hold together."
)
@json_option
def canaries(run_folder: pathlib.Path, confidence: float, as_json: bool) -> None:
    """Lower bounds on the epsilon of a run trained with --canaries.

    They stand beside the claimed one.

    Each canary was in the run or out of it by a secret coin. The bounds follow from how many coins
    the releases betray. docs/audit.md says how, and what so many canaries can show. Exit status 1
    if a bound is above the claim.

    \b
    Example:
      fedmf train --data corpus.sqlite --out runs/audited --rounds 100 --cohort-size 20 \\
        --min-sep 20 --epsilon 8 \\
        --canaries 100 --noise-seed os
      fedmf audit canaries runs/audited
    """
    from fedmf.runs.audit import audit_run_canaries
    from fedmf.runs.folder import RunFolder

    with arguments_checked():
        RunFolder.open(run_folder)
        result = audit_run_canaries(run_folder, confidence=confidence)
    values = dataclasses.asdict(result) | {"consistent": not result.exceeded}
    if as_json:
        for bound in values["bounds"]:
            bound |= {
                name: value if math.isfinite(value) else None
                for name, value in bound.items()
                if "epsilon" in name
            }
        show(values, as_json)
    else:
        bounds = values.pop("bounds")
        show(values, as_json)
        click.echo(
            f"\n{'score':<14}{'assumes':<22}{'epsilon, at least':>18}{'claimed, at most':>18}"
        )
        for bound in bounds:
            lower, claimed = bound["epsilon_lower"], bound["epsilon_claimed"]
            above = click.style("  ABOVE THE CLAIM", fg="red") if lower > claimed else ""
            click.echo(
                f"{bound['score']:<14}{bound['assumes']:<22}{lower:>18.4f}{claimed:>18.4f}{above}"
            )
    if result.exceeded:
        sys.exit(1)
