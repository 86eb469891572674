"""fedmf calibrate: from a mechanism and a target to a plan."""

import math
from typing import Any

import click

from fedmf.cli.errors import Command, arguments_checked
from fedmf.cli.options import json_option, plan_config, plan_options, show
from fedmf.cli.values import COUNT


@click.command(cls=Command)
@plan_options
@click.option("--statement", is_flag=True, help="Print the privacy statement.")
@click.option(
    "--stop-after",
    type=COUNT,
    help="State so many of the first rounds, if no result decided that the run ends.",
)
@click.option(
    "--table", is_flag=True, help="What the run guarantees if it ends after some of its rounds."
)
@click.option(
    "--rdp", is_flag=True, help="Renyi accounting as well, which older literature reports."
)
@json_option
def calibrate(
    promise: dict[str, Any],
    statement: bool,
    stop_after: int | None,
    table: bool,
    rdp: bool,
    as_json: bool,
) -> None:
    """The noise that gives a guarantee, or the guarantee of a noise.

    \b
    Example:
      fedmf calibrate banded.npz --rounds 256 --min-sep 64 --epsilon 8 --statement
      fedmf calibrate banded.npz --rounds 256 --min-sep 64 --epsilon 8 --table
      fedmf calibrate banded.npz --rounds 256 --epsilon 8 --sampling poisson --population 64000 \\
        --cohort-size 1000
    """
    from fedmf import checks
    from fedmf.mechanisms.error import rmse
    from fedmf.privacy import describe
    from fedmf.privacy.plan import rdp_epsilon, update_noise_multiplier
    from fedmf.privacy.source_tail import tail_remark
    from fedmf.privacy.statement import markdown
    from fedmf.privacy.stopping import first_rounds, stopped_after, stopping_table
    from fedmf.terminal.progress_bar import elapsed

    with arguments_checked():
        config = plan_config(promise)
        with elapsed("reading the mechanism", disable=as_json):
            mechanism = config.fit()
        if table or stop_after is not None:  # before the minutes of a calibration
            hint = "a run can end before its plan and not after it"
            stop = checks.integer(
                "stop_after", stop_after or 1, low=1, high=config.rounds, hint=hint
            )
            first_rounds(mechanism, stop, schema=config.schema, sampling=config.sampling)
        plan = config.plan(mechanism)
        # Of the running sums of updates of clip norm 1, and of those of their means.
        with elapsed("computing errors", disable=as_json):
            error = rmse(mechanism, config.fit_workload(), plan.participation)
            error *= update_noise_multiplier(plan)
            stops = stopping_table(plan) if table else []
        if stop_after is not None:
            plan = stopped_after(plan, stop_after)
    file = promise["mechanism_file"].name
    command = describe.calibrate_command(plan, file, rdp=rdp, config=config)
    values = describe.statement_values(plan, rdp=rdp, commands=[command]) if statement else {}
    if statement and not as_json:
        click.echo(markdown(values))
    else:
        clients = config.claimed_cohort or config.cohort_size
        summary = describe.plan_summary(plan) | {"rmse": error, "effective_rmse": error / clients}
        remark = tail_remark(plan)
        if remark is not None:
            summary["noise_source"] = remark
        if rdp:
            renyi = rdp_epsilon(plan)
            summary["rdp_epsilon"] = renyi if math.isfinite(renyi) else None
        if statement:
            summary |= {"statement": markdown(values), "statement_values": values}
        if table and as_json:
            summary["stops"] = stops
        if not as_json:
            # The command line and the fit have said these.
            del summary["participation"], summary["certificate"]
        show(summary, as_json)
    if stops and not as_json:
        click.echo(
            "\nIf the run ends after so many rounds, and neither releases nor data decided that:"
            "\n\n  rounds  sensitivity  epsilon"
        )
        for row in stops:
            epsilon = "infinite" if row["epsilon"] is None else f"{row['epsilon']:.4f}"
            click.echo(f"{row['rounds']:>8}  {row['sensitivity']:>11.5f}  {epsilon:>7}")
