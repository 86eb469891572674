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
    "--stop-after", type=COUNT, help="State so many of the first rounds, if no result decided that the run ends."
)
@click.option("--table", is_flag=True, help="What the run guarantees if it ends after some of its rounds.")
@click.option("--rdp", is_flag=True, help="Renyi accounting as well, which older literature reports.")
@click.option("--explain", is_flag=True, help="Print how training would make the noise, what that costs, and why.")
@click.option("--parameters", type=COUNT, default=4_050_748, help="Size of the model that --explain is about.")
@click.option(
    "--noise-memory", type=Gigabytes(), help="GB that --explain may plan with.  [default: a quarter of the memory]"
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
      fedmf calibrate banded.npz --rounds 256 --epsilon 8 --sampling poisson --population 64000 --cohort-size 1000
    """
    from fedmf import checks
    from fedmf.noise import strategies
    from fedmf.privacy.stopping import stopped_after, stopping_table

    parameters = target["parameters"]
    with arguments_checked():
        plan = plan_from(mechanism_file, target)
        stops = stopping_table(plan) if table else []
        if target["stop_after"] is not None:
            most = plan.participation.rounds
            checks.integer(
                "stop_after", target["stop_after"], low=1, high=most, hint="a run can end before its plan, not after it"
            )
            plan = stopped_after(plan, target["stop_after"])
        host, graph = [], []
        if explain:
            stream = plan.mechanism.stream().causal()
            memory = target["noise_memory"]
            host = strategies.host_strategies(stream, parameters, memory_bytes=memory, folder=pathlib.Path.cwd())
            graph = [strategies.graph_strategy(stream, parameters)]
    extras: dict[str, Any] = {
        "rdp": rdp,
        "commands": [plan.calibrate_command(shlex.quote(mechanism_file.name), rdp=rdp)],
    }
    if statement and not as_json:
        click.echo(plan.statement(**extras))
    else:
        summary = plan.summary()
        if rdp:
            summary["rdp_epsilon"] = plan.rdp_epsilon if math.isfinite(plan.rdp_epsilon) else None
        if statement:
            summary |= {"statement": plan.statement(**extras), "statement_values": plan.statement_values(**extras)}
        if explain and as_json:
            summary["noise_strategies"] = [strategy.summary() for strategy in host]
            summary["graph_noise_strategies"] = [strategy.summary() for strategy in graph]
        if table and as_json:
            summary["stops"] = stops
        if not as_json:
            del summary["participation"], summary["certificate"]  # which the command line and the fit have said
        show(summary, as_json)
    if stops and not as_json:
        click.echo(
            "\nIf the run ends after so many rounds, and neither releases nor data decided that:\n\n  rounds  sensitivity  epsilon"
        )
        for stop in stops:
            epsilon = "infinite" if stop["epsilon"] is None else f"{stop['epsilon']:.4f}"
            click.echo(f"{stop['rounds']:>8}  {stop['sensitivity']:>11.5f}  {epsilon:>7}")
    if explain and not as_json:
        click.echo(
            f"\nNoise for {parameters:,} parameters, the choice first. Cost: of a round on average over the run, in draws of one\n"
            "vector of independent Gaussians of that size. Block: rounds made at a time. Kept: rows of model size between blocks.\n\n"
            f"Made ahead by the host (fedmf train, federated.HostNoise):\n{strategies.explain(host)}\n\n"
            f"In the graph (the default of federated.dp_aggregator in other pipelines):\n{strategies.explain(graph)}"
        )
