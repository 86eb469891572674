"""The command `fedmf plan`, which answers questions about a plan before anything is trained."""

import pathlib
from typing import Any

import click

from fedmf.cli.bands import bands
from fedmf.cli.compare import compare
from fedmf.cli.errors import Command, Group, arguments_checked
from fedmf.cli.options import json_option, plan_config, plan_options, show
from fedmf.cli.participation import participation
from fedmf.cli.settings import settings
from fedmf.cli.values import COUNT, EXISTING_FILE, Gigabytes


@click.group(cls=Group)
def plan() -> None:
    """Answer questions before training (settings, who, bands, rate, noise).

    \b
    Example:
      fedmf plan bands --help
    """


@click.command("learning-rate", cls=Command)
@plan_options
@json_option
def learning_rate(config_options: dict[str, Any], as_json: bool) -> None:
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
    from fedmf.privacy import learning_rate as rule
    from fedmf.privacy.attack_risk import attack_risk

    with arguments_checked():
        if config_options["noise_multiplier"] == 0:
            raise ValueError(
                "noise_multiplier=0: the rule is for runs with noise; without noise the rate "
                "is bounded by stability"
            )
        config = plan_config(config_options)
        planned_run = config.plan()
        cohort_size = config.claimed_cohort or config.cohort_size
        effective_error = rule.effective_rmse(
            planned_run, config.fit_workload(), cohort_size=cohort_size
        )
        predicted_rate = rule.predicted_learning_rate(
            effective_error, clip_norm=planned_run.clip_norm, grid=None
        )
    extrapolations = rule.extrapolations(
        effective_error, rounds=planned_run.mechanism.rounds, clip_norm=planned_run.clip_norm
    )
    extrapolations_values: list[str] | str = extrapolations
    if not as_json:
        extrapolations_values = "; ".join(extrapolations) or "no, if the task is that"
    show(
        {
            "noise_multiplier": planned_run.noise_multiplier,
            "epsilon": planned_run.epsilon,
            "delta": planned_run.delta,
            "attack_risk": attack_risk(planned_run).values(),
            "effective_rmse": effective_error,
            "predicted_rate": predicted_rate,
            "learning_rate": rule.on_grid(predicted_rate),
            "also_try": [
                rule.on_grid(predicted_rate, steps=-1),
                rule.on_grid(predicted_rate, steps=1),
            ],
            "fitted_to": {
                "task": rule.TASK,
                "rounds": rule.ROUNDS,
                "clip_norm": rule.CLIP_NORM,
                "effective_rmse": list(rule.ERRORS),
            },
            "extrapolates": extrapolations_values,
        },
        as_json,
    )


@click.command(cls=Command)
@click.argument("mechanism_file", metavar="MECHANISM", type=EXISTING_FILE)
@click.option("--parameters", type=COUNT, default=4_050_748, help="Size of the model.")
@click.option(
    "--noise-memory",
    "memory",
    type=Gigabytes(),
    help="GB that may be planned with.  [default: a quarter of the memory]",
)
@json_option
def noise(mechanism_file: pathlib.Path, parameters: int, memory: int | None, as_json: bool) -> None:
    """The strategies by which training can make the noise, and their costs.

    \b
    Example:
      fedmf plan noise banded.npz --parameters 4050748
    """
    from fedmf import load_mechanism
    from fedmf.noise.graph_strategies import graph_strategy
    from fedmf.noise.host_strategies import host_strategies
    from fedmf.noise.strategy import explain

    with arguments_checked():
        noise_stream = load_mechanism(mechanism_file).stream().causal()
        scratch_folder = pathlib.Path.cwd()
        host_options = host_strategies(
            noise_stream, parameters, memory_bytes=memory, folder=scratch_folder
        )
        graph_options = [graph_strategy(noise_stream, parameters)]
    if as_json:
        strategy_values = {
            "noise_strategies": [strategy.summary() for strategy in host_options],
            "graph_noise_strategies": [strategy.summary() for strategy in graph_options],
        }
        show(strategy_values, as_json)
        return
    click.echo(
        f"Noise for {parameters:,} parameters, the choice first. Cost: of a round on average over "
        "the run, in draws of one\nvector of independent Gaussians of that size. Block: rounds "
        "computed at a time. State: vectors of model size between blocks.\n\n"
        "Precomputed by the host (fedmf train, federated.HostNoise):\n"
        f"{explain(host_options)}\n\n"
        "In the graph (the default of federated.dp_aggregator in other pipelines):\n"
        f"{explain(graph_options)}"
    )


for command in (settings, participation, bands, learning_rate, noise, compare):
    plan.add_command(command)
