"""The command `fedmf demo`, which trains four mechanisms and writes a report that compares them."""

import pathlib

import click

from fedmf.cli.errors import Command, arguments_checked
from fedmf.cli.options import json_option, show
from fedmf.cli.values import PATH


@click.command(cls=Command)
@click.option("--out", default="demo", type=PATH, help="Folder to write.")
@click.option(
    "--seed",
    "seeds",
    multiple=True,
    type=int,
    default=(1,),
    help="Repeat for several sets of runs.",
)
@click.option("--epsilon", default=8.0, help="Privacy target of the private mechanisms.")
@json_option
def demo(out: pathlib.Path, seeds: tuple[int, ...], epsilon: float, as_json: bool) -> None:
    """Train four mechanisms side by side, and write a report.

    The corpus is synthetic. About three minutes on two cores.

    \b
    Example:
      fedmf demo --out demo --seed 1 --seed 2
    """
    from fedmf.experiments import demo as driver

    with arguments_checked():
        driver.check_demo(seeds=seeds, epsilon=epsilon)
    demo_result = driver.run_demo(out, seeds=seeds, epsilon=epsilon)
    if as_json:
        show(demo_result, as_json)
