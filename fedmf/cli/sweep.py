"""fedmf sweep."""

import pathlib
import sys
from typing import Any

import click

from fedmf.cli.errors import arguments_checked
from fedmf.cli.options import (
    COUNT,
    EXISTING_FILE,
    PATH,
    ConfigCommand,
    chosen_options,
    config_values,
    in_one,
    json_option,
    noise_seed_option,
    options_of,
    quiet_option,
    show,
)


@click.command(cls=ConfigCommand)
@click.option("--out", required=True, type=PATH, help="Folder of the sweep.")
@click.option(
    "--vary",
    "varied",
    multiple=True,
    help="An option of `fedmf train` and its values, such as epsilon=2,8. Repeatable; "
    "every combination is a run.",
)
@click.option(
    "--config",
    "config_file",
    type=EXISTING_FILE,
    help="TOML or JSON file of options; those that are lists vary.",
)
@in_one(
    "how",
    noise_seed_option,
    click.option(
        "--jobs", type=COUNT, default=1, help="Runs at a time; each needs its own memory."
    ),
    click.option(
        "--threads",
        type=COUNT,
        help="Most threads that compute in one run.  "
        "[default: the processors, divided among the jobs]",
    ),
    click.option(
        "--smoothed-over",
        type=click.IntRange(0),
        default=0,
        help="Rounds at the end whose validations are averaged to choose the best by (the banded "
        "paper: 400); 0 for the last one alone",
    ),
    click.option(
        "--halving",
        is_flag=True,
        help="Stop the worse half of the rates after a quarter and half of the rounds, by private "
        "metrics where runs have them, else by validation, which no guarantee covers.",
    ),
    click.option(
        "--cluster",
        help="Train on a Ray cluster whose machines share --out: auto, host:port or "
        "ray://host:port (docs/cluster.md).",
    ),
    click.option(
        "--cpus-per-job", type=COUNT, default=1, help="With --cluster: processors of one run."
    ),
    quiet_option,
)
@click.option(
    "--dry-run", is_flag=True, help="Name the runs and how far each is, and train nothing."
)
@options_of("TrainConfig")
@json_option
def sweep(
    out: pathlib.Path,
    varied: tuple[str, ...],
    config_file: pathlib.Path | None,
    how: dict[str, Any],
    dry_run: bool,
    promise: dict[str, Any],
    as_json: bool,
) -> None:
    """Train a task for every combination of options.

    The same command again goes on where it stopped.

    \b
    Example:
      fedmf data synth --clients 400 --out corpus.sqlite
      fedmf sweep --data corpus.sqlite --out sweeps/first --vary family=none,banded,identity \\
        --vary server-learning-rate=0.5,1,2 --epsilon 8 --rounds 20 --cohort-size 20 \\
        --min-sep 10 -o loss=masked -o vocabulary-size=500 -o lstm-size=32 -o max-sentences=16 \\
        --noise-seed os --jobs 2
    """
    from fedmf.privacy.flat_config import TARGETS, flat
    from fedmf.sweeps import grid
    from fedmf.sweeps import run as driver

    how["progress"], smoothed_over = not how.pop("quiet"), how.pop("smoothed_over")
    with arguments_checked():
        fixed = flat(config_values(config_file))
        lists = {name: fixed.pop(name) for name in tuple(fixed) if isinstance(fixed[name], list)}
        from_vary: dict[str, list[Any]] = {}
        for text in varied:
            name, values = grid.varied_values(text)
            if name in from_vary:
                raise ValueError(f"--vary names {name} twice: give all its values at once")
            from_vary[name] = values
        # The command line wins over the file.
        single = flat(chosen_options(promise))
        lists = {name: values for name, values in lists.items() if name not in single} | from_vary
        fixed = {name: value for name, value in fixed.items() if name not in from_vary} | single
        if how["noise_seed"] is None:
            if not dry_run and any(any(lists.get(n, [fixed.get(n)])) for n in TARGETS):
                raise ValueError(
                    "`noise_seed` is missing: give a secret whole number, or os to "
                    "draw one for every run"
                )
            how["noise_seed"] = "os"
        if not lists:
            raise ValueError(
                "--vary is missing: name an option and its values, such as epsilon=2,8"
            )
        configs = driver.in_folder(out, grid.sweep_configs(fixed, lists))
    if dry_run:
        show({name: driver.state(out, name) for name in configs}, as_json)
        return
    result = driver.run_sweep(out, configs, driver.Training(**how), smoothed_over=smoothed_over)
    if as_json:
        show(result, as_json)
    elif result["text"]:
        click.echo(result["text"])
    for name, failure in result["failed"].items():
        click.echo(f"fedmf: run {name} failed: {failure['reason']}", err=True)
    if result["failed"]:
        sys.exit(max(failure["status"] for failure in result["failed"].values()))
