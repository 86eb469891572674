"""fedmf calibrate: from a mechanism and a target to a plan."""

import math
import pathlib
import shlex
from typing import Any

import click

from fedmf.cli.options import (
    arguments_checked,
    gigabytes,
    json_option,
    plan_from,
    plan_options,
    sampling_options,
    show,
    simulation_options,
)


@click.command()
@click.argument("mechanism_file", metavar="MECHANISM", type=click.Path(path_type=pathlib.Path))
@plan_options
@sampling_options
@simulation_options
@click.option("--statement", is_flag=True, help="Print the privacy statement.")
@click.option("--rdp", is_flag=True, help="Renyi accounting as well, which older literature reports.")
@click.option("--explain", is_flag=True, help="Print how training would make the noise, what that costs, and why.")
@click.option(
    "--parameters", type=int, default=4_050_748, show_default=True, help="Size of the model that --explain is about."
)
@click.option(
    "--noise-memory",
    type=float,
    help="GB that --explain may plan with.  [default: a quarter of the memory]",
)
@json_option
def calibrate(
    mechanism_file: pathlib.Path,
    statement: bool,
    rdp: bool,
    explain: bool,
    parameters: int,
    noise_memory: float | None,
    as_json: bool,
    **target: Any,
) -> None:
    """The noise that gives a mechanism a guarantee, or the guarantee that a noise gives.

    \b
    Example:
      fedmf calibrate banded.npz --rounds 256 --min-sep 64 --epsilon 8 --statement
      fedmf calibrate banded.npz --rounds 256 --min-sep 64 --epsilon 8 --explain
      fedmf calibrate banded.npz --rounds 256 --min-sep 64 --epsilon 8 --sampling poisson --population 64000 --cohort-size 1000
    """
    from fedmf.noise import strategies

    with arguments_checked():
        memory = None if noise_memory is None else gigabytes("noise_memory", noise_memory)
        plan = plan_from(mechanism_file, **target)
        host, graph = [], []
        if explain:
            stream = plan.mechanism.stream().causal()
            host = strategies.host_strategies(stream, parameters, memory_bytes=memory, folder=pathlib.Path.cwd())
            graph = strategies.graph_strategies(stream, parameters)
    from fedmf.privacy.statement import calibrate_command

    command = calibrate_command(plan, shlex.quote(mechanism_file.name), rdp=rdp)
    said: dict[str, Any] = {"rdp": rdp, "commands": [command]}
    if statement and not as_json:
        click.echo(plan.statement(**said))
        if explain:
            _explain(parameters, host, graph)
        return
    summary = plan.summary()
    if rdp:
        summary["rdp_epsilon"] = plan.rdp_epsilon if math.isfinite(plan.rdp_epsilon) else None
    if statement:
        summary |= {"statement": plan.statement(**said), "statement_values": plan.statement_values(**said)}
    if explain and as_json:
        summary["noise_strategies"] = [way.summary() for way in host]
        summary["graph_noise_strategies"] = [way.summary() for way in graph]
    if not as_json:
        sensitivity = summary.pop("sensitivity")
        summary["sensitivity"] = f"{sensitivity['value']:.6g} ({'exact' if sensitivity['exact'] else 'upper bound'})"
        for name in ("participation", "certificate", "simulated_cohort", "claimed_cohort"):
            summary.pop(name)
        if plan.simulated_cohort is not None:
            summary["simulated"] = (
                f"{plan.simulated_cohort} clients a round for a claimed cohort of {plan.claimed_cohort}"
            )
        sampling = summary.pop("sampling")
        if sampling is not None:
            summary |= {
                name: sampling[name] for name in ("scheme", "groups", "probability", "per_query_noise_multiplier")
            }
            summary["unamplified_epsilon"] = sampling["unamplified_epsilon"]
    show(summary, as_json)
    if explain and not as_json:
        _explain(parameters, host, graph)


def _explain(parameters: int, host: list[Any], graph: list[Any]) -> None:
    from fedmf.noise import strategies

    click.echo(
        f"\nNoise for {parameters:,} parameters, the choice first. Cost: of a round on average over the run, in draws of one\n"
        "vector of independent Gaussians of that size. Block: rounds made at a time. Kept: rows of model size between blocks.\n"
    )
    click.echo(f"Made ahead by the host (fedmf train, federated.HostNoise):\n{strategies.explain(host)}\n")
    click.echo(
        f"In the graph (the default of federated.dp_aggregator in other pipelines):\n{strategies.explain(graph)}"
    )
