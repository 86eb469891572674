"""The command `fedmf calibrate`, which computes a plan from a mechanism and a privacy target."""

import math
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.errors import Command, arguments_checked
from fedmf.cli.options import json_option, plan_config, plan_options, show
from fedmf.cli.values import COUNT

if TYPE_CHECKING:
    from fedmf.mechanisms import Mechanism
    from fedmf.privacy.config import PlanConfig
    from fedmf.privacy.plan import Plan


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
    config_options: dict[str, Any],
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
    from fedmf.mechanisms.error import rmse
    from fedmf.privacy import describe
    from fedmf.privacy.plan import update_noise_multiplier
    from fedmf.privacy.statement import markdown
    from fedmf.privacy.stopping import stopped_after, stopping_table
    from fedmf.terminal.progress_bar import elapsed

    stopping_rows = []

    with arguments_checked():
        config = plan_config(config_options)
        with elapsed("reading the mechanism", disable=as_json):
            mechanism = config.fit()
        # A calibration may take minutes, so an invalid --stop-after is refused before it starts.
        if table or stop_after is not None:
            _check_stop(mechanism, config, stop_after or 1)
        plan = config.plan(mechanism)
        # The reported errors are those of the running sums of updates at clip norm 1.
        with elapsed("computing errors", disable=as_json):
            plan_rmse = rmse(mechanism, config.fit_workload(), plan.participation)
            plan_rmse *= update_noise_multiplier(plan)
            if table:
                stopping_rows = stopping_table(plan)
        if stop_after is not None:
            plan = stopped_after(plan, stop_after)
    statement_values = {}
    if statement:
        file_name = config_options["mechanism_file"].name
        repeat_command = describe.calibrate_command(plan, file_name, rdp=rdp, config=config)
        statement_values = describe.statement_values(plan, rdp=rdp, commands=[repeat_command])
    if statement and not as_json:
        click.echo(markdown(statement_values))
    else:
        cohort_size = config.claimed_cohort or config.cohort_size
        plan_values = _plan_values(plan, plan_rmse, cohort_size, rdp=rdp)
        if statement:
            plan_values["statement"] = markdown(statement_values)
            plan_values["statement_values"] = statement_values
        if table and as_json:
            plan_values["stops"] = stopping_rows
        if not as_json:
            # The output leaves out the participation, which the user gave, and the certificate,
            # which `fedmf fit` has printed.
            del plan_values["participation"], plan_values["certificate"]
        show(plan_values, as_json)
    if stopping_rows and not as_json:
        _print_stopping_table(stopping_rows)


def _check_stop(mechanism: "Mechanism", config: "PlanConfig", stop_after: int) -> None:
    """Raises ValueError if the run's guarantee cannot be computed after `stop_after` rounds."""
    from fedmf import checks
    from fedmf.privacy.stopping import first_rounds

    stop_hint = "a run can end before its plan and not after it"
    num_rounds = checks.integer("stop_after", stop_after, low=1, high=config.rounds, hint=stop_hint)
    first_rounds(mechanism, num_rounds, schema=config.schema, sampling=config.sampling)


def _plan_values(plan: "Plan", error: float, cohort_size: int, *, rdp: bool) -> dict[str, Any]:
    """Returns the summary of a plan with its errors and, with --rdp, its epsilon by Renyi
    accounting.

    Args:
      plan: the calibrated plan.
      error: root mean squared error of the running sums.
      cohort_size: number of clients that the mean divides by.
      rdp: whether to add the epsilon of Renyi accounting.
    """
    from fedmf.privacy import describe
    from fedmf.privacy.plan import rdp_epsilon
    from fedmf.privacy.source_tail import tail_remark

    plan_values = describe.plan_summary(plan)
    plan_values["rmse"] = error
    plan_values["effective_rmse"] = error / cohort_size
    source_remark = tail_remark(plan)
    if source_remark is not None:
        plan_values["noise_source"] = source_remark
    if rdp:
        renyi_epsilon = rdp_epsilon(plan)
        plan_values["rdp_epsilon"] = None
        if math.isfinite(renyi_epsilon):
            plan_values["rdp_epsilon"] = renyi_epsilon
    return plan_values


def _print_stopping_table(stopping_rows: list[dict[str, Any]]) -> None:
    """Prints the guarantees of a run that ends early, with one line for each number of rounds."""
    click.echo(
        "\nIf the run ends after so many rounds, and neither releases nor data decided that:"
        "\n\n  rounds  sensitivity  epsilon"
    )
    for row in stopping_rows:
        epsilon_text = "infinite"
        if row["epsilon"] is not None:
            epsilon_text = f"{row['epsilon']:.4f}"
        click.echo(f"{row['rounds']:>8}  {row['sensitivity']:>11.5f}  {epsilon_text:>7}")
