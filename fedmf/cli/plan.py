"""fedmf plan: questions that are answered before anything is trained."""

import pathlib
from typing import Any

import click

from fedmf.cli.bands import bands
from fedmf.cli.errors import Command, Group, arguments_checked
from fedmf.cli.options import (
    COUNT,
    EXISTING_FILE,
    Gigabytes,
    json_option,
    plan_config,
    plan_options,
    show,
)
from fedmf.cli.participation import participation


@click.group(cls=Group)
def plan() -> None:
    """Answer before training: who, bands, rate, noise.

    \b
    Example:
      fedmf plan bands --help
    """


@click.command("learning-rate", cls=Command)
@click.argument("mechanism_file", metavar="MECHANISM", type=EXISTING_FILE)
@plan_options
@json_option
def learning_rate(mechanism_file: pathlib.Path, promise: dict[str, Any], as_json: bool) -> None:
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

    with arguments_checked():
        if promise["noise_multiplier"] == 0:
            raise ValueError(
                "noise_multiplier=0: the rule is for runs with noise; without noise the rate "
                "is bounded by stability"
            )
        config = plan_config(mechanism_file, promise)
        planned = config.plan()
        cohort_size = config.claimed_cohort or config.cohort_size
        error = rule.effective_rmse(planned, config.fit_workload(), cohort_size=cohort_size)
        rate = rule.predicted_learning_rate(error, clip_norm=planned.clip_norm, grid=None)
    beyond = rule.extrapolations(
        error, rounds=planned.mechanism.rounds, clip_norm=planned.clip_norm
    )
    show(
        {
            "noise_multiplier": planned.noise_multiplier,
            "epsilon": planned.epsilon,
            "delta": planned.delta,
            "effective_rmse": error,
            "predicted_rate": rate,
            "learning_rate": rule.on_grid(rate),
            "also_try": [rule.on_grid(rate, steps=-1), rule.on_grid(rate, steps=1)],
            "fitted_to": {
                "task": rule.TASK,
                "rounds": rule.ROUNDS,
                "clip_norm": rule.CLIP_NORM,
                "effective_rmse": list(rule.ERRORS),
            },
            "extrapolates": beyond if as_json else "; ".join(beyond) or "no, if the task is that",
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
    """How training would make the noise, and what that costs.

    \b
    Example:
      fedmf plan noise banded.npz --parameters 4050748
    """
    from fedmf import load_mechanism
    from fedmf.noise import strategies

    with arguments_checked():
        stream = load_mechanism(mechanism_file).stream().causal()
        here = pathlib.Path.cwd()
        host = strategies.host_strategies(stream, parameters, memory_bytes=memory, folder=here)
        graph = [strategies.graph_strategy(stream, parameters)]
    if as_json:
        values = {"noise_strategies": [strategy.summary() for strategy in host]}
        show(values | {"graph_noise_strategies": [one.summary() for one in graph]}, as_json)
        return
    click.echo(
        f"Noise for {parameters:,} parameters, the choice first. Cost: of a round on average over "
        "the run, in draws of one\nvector of independent Gaussians of that size. Block: rounds "
        "made at a time. Kept: rows of model size between blocks.\n\n"
        "Made ahead by the host (fedmf train, federated.HostNoise):\n"
        f"{strategies.explain(host)}\n\n"
        "In the graph (the default of federated.dp_aggregator in other pipelines):\n"
        f"{strategies.explain(graph)}"
    )


for command in (participation, bands, learning_rate, noise):
    plan.add_command(command)
