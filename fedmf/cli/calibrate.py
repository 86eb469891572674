"""fedmf calibrate: from a mechanism and a target to a plan."""

import math
import pathlib
import shlex
from typing import Any

import click

from fedmf.cli.errors import Command, arguments_checked
from fedmf.cli.options import (
    COUNT,
    EXISTING_FILE,
    Gigabytes,
    json_option,
    plan_from,
    plan_options,
    sampling_options,
    show,
    simulation_options,
)


@click.command(cls=Command)
@click.argument("mechanism_file", metavar="MECHANISM", type=EXISTING_FILE)
@plan_options
@sampling_options
@simulation_options
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
@click.option(
    "--explain",
    is_flag=True,
    help="Print how training would make the noise, what that costs, and why.",
)
@click.option(
    "--parameters", type=COUNT, default=4_050_748, help="Size of the model that --explain is about."
)
@click.option(
    "--noise-memory",
    type=Gigabytes(),
    help="GB that --explain may plan with.  [default: a quarter of the memory]",
)
@json_option
def calibrate(
    mechanism_file: pathlib.Path,
    statement: bool,
    table: bool,
    rdp: bool,
    explain: bool,
    as_json: bool,
    **target: Any,
) -> None:
    """The noise that gives a guarantee, or the guarantee of a noise.

    \b
    Example:
      fedmf calibrate banded.npz --rounds 256 --min-sep 64 --epsilon 8 --statement
      fedmf calibrate banded.npz --rounds 256 --min-sep 64 --epsilon 8 --explain
      fedmf calibrate banded.npz --rounds 256 --min-sep 64 --epsilon 8 --table
      fedmf calibrate banded.npz --rounds 256 --epsilon 8 --sampling poisson --population 64000 \\
        --cohort-size 1000
    """
    import fedmf
    from fedmf import checks
    from fedmf.mechanisms.error import rmse
    from fedmf.noise import strategies
    from fedmf.privacy.stopping import first_rounds, stopped_after, stopping_table

    parameters = target["parameters"]
    # Without sampling it is what the effective error is divided by, and no part of the plan.
    clients = target["cohort_size"] if target["sampling"] is not None else target.pop("cohort_size")
    with arguments_checked():
        if (
            target["sampling"] is None
            and None not in (clients, target["claimed"])
            and clients != target["claimed"]
        ):
            raise ValueError(
                f"cohort_size={clients} is not claimed={target['claimed']}, the cohort of the "
                "guarantee: leave it out"
            )
        if table or target["stop_after"] is not None:  # before the minutes of a calibration
            hint = "a run can end before its plan and not after it"
            stop = target["stop_after"] or 1
            checks.integer("stop_after", stop, low=1, high=target["rounds"], hint=hint)
            mechanism = fedmf.load_mechanism(mechanism_file)
            first_rounds(
                mechanism,
                min(stop, mechanism.rounds),
                schema=target["schema"],
                sampling=target["sampling"],
            )
        plan = plan_from(mechanism_file, target)
        clients = clients or plan.claimed_cohort or getattr(plan.sampling, "cohort_size", None)
        error = rmse(plan.mechanism, fedmf.prefix_sum(plan.mechanism.rounds), plan.participation)
        error *= plan.update_noise_multiplier
        stops = stopping_table(plan) if table else []
        if target["stop_after"] is not None:
            plan = stopped_after(plan, target["stop_after"])
        host, graph = [], []
        if explain:
            stream = plan.mechanism.stream().causal()
            memory = target["noise_memory"]
            host = strategies.host_strategies(
                stream, parameters, memory_bytes=memory, folder=pathlib.Path.cwd()
            )
            graph = [strategies.graph_strategy(stream, parameters)]
    extras: dict[str, Any] = {
        "rdp": rdp,
        "commands": [plan.calibrate_command(shlex.quote(mechanism_file.name), rdp=rdp)],
    }
    if statement and not as_json:
        click.echo(plan.statement(**extras))
    else:
        # Of the running sums of updates of clip norm 1, and of those of their means.
        summary = plan.summary() | {
            "rmse": error,
            "effective_rmse": None if clients is None else error / clients,
        }
        if rdp:
            summary["rdp_epsilon"] = plan.rdp_epsilon if math.isfinite(plan.rdp_epsilon) else None
        if statement:
            summary |= {
                "statement": plan.statement(**extras),
                "statement_values": plan.statement_values(**extras),
            }
        if explain and as_json:
            summary["noise_strategies"] = [strategy.summary() for strategy in host]
            summary["graph_noise_strategies"] = [strategy.summary() for strategy in graph]
        if table and as_json:
            summary["stops"] = stops
        if not as_json:
            del (
                summary["participation"],
                summary["certificate"],
            )  # which the command line and the fit have said
        show(summary, as_json)
    if stops and not as_json:
        click.echo(
            "\nIf the run ends after so many rounds, and neither releases nor data decided that:\n"
            "\n  rounds  sensitivity  epsilon"
        )
        for stop in stops:
            epsilon = "infinite" if stop["epsilon"] is None else f"{stop['epsilon']:.4f}"
            click.echo(f"{stop['rounds']:>8}  {stop['sensitivity']:>11.5f}  {epsilon:>7}")
    if explain and not as_json:
        click.echo(
            f"\nNoise for {parameters:,} parameters, the choice first. Cost: of a round on average "
            "over the run, in draws of one\n"
            "vector of independent Gaussians of that size. Block: rounds made at a time. Kept: "
            "rows of model size between blocks.\n\n"
            "Made ahead by the host (fedmf train, federated.HostNoise):\n"
            f"{strategies.explain(host)}\n\n"
            "In the graph (the default of federated.dp_aggregator in other pipelines):\n"
            f"{strategies.explain(graph)}"
        )
