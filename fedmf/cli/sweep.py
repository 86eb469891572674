"""fedmf sweep."""

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from fedmf.cli.errors import arguments_checked, warnings_in_a_line
from fedmf.cli.options import (
    ConfigCommand,
    chosen_options,
    config_values,
    grouped,
    json_option,
    noise_seed_option,
    options_of,
    quiet_option,
    show,
)
from fedmf.cli.values import COUNT, EXISTING_FILE, PATH, Whole


@click.command(cls=ConfigCommand)
@click.option("--out", required=True, type=PATH, help="Folder of the sweep.")
@click.option(
    "--vary",
    "varied",
    multiple=True,
    help="An option of `fedmf train` and its values, such as epsilon=2,8. Repeatable; "
    "every combination is a run. With --search of a number also a range, such as clip-norm=0.1:2.",
)
@click.option(
    "--config",
    "config_file",
    type=EXISTING_FILE,
    help="TOML or JSON file of options; those that are lists vary.",
)
@grouped(
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
        type=Whole(0),
        default=0,
        help="Rounds at the end whose validations are averaged to choose the best by (the banded "
        "paper: 400); 0 for the last one alone",
    ),
    click.option(
        "--halving",
        is_flag=True,
        help="Stop the worse half of the rates after a quarter and half of the rounds, and every "
        "rate whose loss rose: by the private loss where runs have it, else by the validation "
        "loss, which no guarantee covers.",
    ),
    click.option(
        "--search",
        type=click.Choice(["optuna"]),
        help="Train no grid, but --trials runs, each chosen by the validations of those before, or "
        "by private metrics where runs have them (pip install 'fedmf[search]').",
    ),
    click.option(
        "--trials",
        type=COUNT,
        help="With --search: how many runs the folder has at the end. All count in the guarantee.",
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
    """Train a task for combinations of options: a grid or a search.

    The same command again goes on where it stopped.

    \b
    Example:
      fedmf data synth --clients 1000 --out corpus.sqlite
      fedmf sweep --data corpus.sqlite --out sweeps/first --vary family=banded,identity \\
        --vary server-learning-rate=0.2,0.5 --epsilon 8 --rounds 60 --cohort-size 50 \\
        --min-sep 20 --client-learning-rate 4 --server-momentum 0.9 -o loss=masked \\
        -o vocabulary-size=500 -o lstm-size=32 -o embedding-size=32 -o max-sentences=16 \\
        --noise-seed os --jobs 2
    """
    from fedmf.privacy.flat_config import TARGETS, with_flat_options
    from fedmf.sweeps import grid
    from fedmf.sweeps import run as driver
    from fedmf.sweeps import search as searching

    how["progress"], smoothed_over = not how.pop("quiet"), how.pop("smoothed_over")
    search, trials = how.pop("search"), how.pop("trials")
    with arguments_checked():
        fixed = with_flat_options(config_values(config_file))
        lists = {name: fixed.pop(name) for name in tuple(fixed) if isinstance(fixed[name], list)}
        from_vary: dict[str, list[Any] | grid.Range] = {}
        for text in varied:
            name, values = grid.varied_values(text)
            if name in from_vary:
                raise ValueError(f"--vary names {name} twice: give all its values at once")
            from_vary[name] = values
        # The command line wins over the file.
        single = with_flat_options(chosen_options(promise))
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
        ranges = [name for name, values in lists.items() if isinstance(values, grid.Range)]
        _check_search(search, trials, how["halving"], ranges)
        space = searching.Space(fixed=fixed, varied=lists) if search else None
        configs = driver.in_folder(
            out, space.corners() if space else grid.sweep_configs(fixed, lists)
        )
    if dry_run:
        names = searching.trials_in(out, space) if space else configs
        states = {name: driver.state(out, name) for name in names}
        left = {"trials to ask for": max(0, trials - len(names))} if space else {}
        show(states | left, as_json)
        return
    training = driver.SweepOptions(**how)
    if space is not None:
        result = searching.run_search(out, space, trials, training, smoothed_over=smoothed_over)
    else:
        with warnings_in_a_line():
            result = driver.run_sweep(out, configs, training, smoothed_over=smoothed_over)
    if as_json:
        show(result, as_json)
    elif result["text"]:
        click.echo(result["text"])
    for name, failure in result["failed"].items():
        click.echo(f"fedmf: run {name} failed: {failure['reason']}", err=True)
    if result["failed"]:
        sys.exit(max(failure["status"] for failure in result["failed"].values()))


def _check_search(
    search: str | None, trials: int | None, halving: bool, ranges: Sequence[str]
) -> None:
    if search is None and trials is not None:
        raise ValueError(f"trials={trials} are those of a search: give search=optuna beside them")
    if search is None and ranges:
        raise ValueError(
            f"--vary {ranges[0]} names a range, and a grid has values: give some, such as 0.1,2, "
            "or search=optuna"
        )
    if search is not None and trials is None:
        raise ValueError(
            "`trials` is missing: give the number of runs that the search may train, because the "
            "guarantee counts all of them"
        )
    if search is not None and halving:
        raise ValueError(
            f"search={search} trains its trials to the end, and `halving` does not: leave one out"
        )
