"""The command `fedmf sweep`, which trains a task for combinations of options."""

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

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

if TYPE_CHECKING:
    from fedmf.runs.config import TrainConfig
    from fedmf.sweeps.first_rounds import Forecast
    from fedmf.sweeps.grid import Range
    from fedmf.sweeps.search import Space
    from fedmf.sweeps.total_budget import TotalBudget


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
    "sweep_options",
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
        "--total-epsilon",
        type=click.FLOAT,
        help="Epsilon of all runs together, divided among the fixed number of runs of the grid or "
        "of --trials, in place of a privacy target of each run.",
    ),
    click.option(
        "--private-selection",
        is_flag=True,
        help="Train a random number of trials with settings drawn from --vary, keep the best one "
        "only, and state one guarantee that covers the choice; --mean-trials is their mean.",
    ),
    click.option("--yes", is_flag=True, help="With --private-selection: draw without a question."),
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
    sweep_options: dict[str, Any],
    dry_run: bool,
    config_options: dict[str, Any],
    as_json: bool,
) -> None:
    """Train a task for a grid of options or a search over them.

    The same command again resumes the sweep where it stopped.

    \b
    Example:
      fedmf data synth --clients 1000 --out corpus.sqlite
      fedmf sweep --data corpus.sqlite --out sweeps/first --vary family=banded,identity \\
        --vary server-learning-rate=0.2,0.5 --epsilon 8 --rounds 60 --cohort-size 50 \\
        --min-sep 20 --client-learning-rate 4 --server-momentum 0.9 -o loss=masked \\
        -o vocabulary-size=500 -o lstm-size=32 -o embedding-size=32 -o max-sentences=16 \\
        --noise-seed os --jobs 2
    """
    from fedmf.sweeps import run as driver
    from fedmf.sweeps import search

    sweep_options["progress"] = not sweep_options.pop("quiet")
    smoothed_over = sweep_options.pop("smoothed_over")
    search_method = sweep_options.pop("search")
    num_trials = sweep_options.pop("trials")
    is_selection = sweep_options.pop("private_selection")
    draws_at_once = sweep_options.pop("yes")
    total_epsilon = sweep_options.pop("total_epsilon")
    budget = None
    with arguments_checked():
        settings = _read_settings(config_file, varied, config_options)
        _check_selection(is_selection, settings, draws_at_once, total_epsilon)
        if is_selection:
            _check_no_search(search_method, num_trials, sweep_options["halving"], smoothed_over)
        else:
            _check_search(search_method, num_trials, sweep_options["halving"], settings.ranges())
        if total_epsilon is not None:
            budget, settings = _divided(settings, total_epsilon, num_trials)
        if sweep_options["noise_seed"] is None:
            settings.check_needs_no_seed(dry_run)
            sweep_options["noise_seed"] = "os"
    if is_selection:
        _select(out, settings, sweep_options, dry_run, draws_at_once, as_json)
        return
    with arguments_checked():
        search_space, configs = _planned_runs(out, settings, is_search=bool(search_method))
        _check_budget(out, budget, {} if search_method else configs, dry_run)
    if dry_run:
        show(_run_states(out, configs, search_space, num_trials), as_json)
        return
    options = driver.SweepOptions(**sweep_options)
    if search_space is not None:
        result = search.run_search(
            out, search_space, num_trials, options, smoothed_over=smoothed_over
        )
    else:
        with warnings_in_a_line():
            result = driver.run_sweep(out, configs, options, smoothed_over=smoothed_over)
    _print_result(result, as_json)


class _SweepSettings(NamedTuple):
    """Fixed and varied options of the runs of a sweep."""

    fixed: dict[str, Any]
    varied: "dict[str, list[Any] | Range]"

    def have_noise(self) -> bool:
        """Returns whether any run of the sweep adds noise."""
        from fedmf.privacy.flat_config import TARGETS

        return any(any(self.varied.get(name, [self.fixed.get(name)])) for name in TARGETS)

    def check_needs_no_seed(self, dry_run: bool) -> None:
        """Raises ValueError if runs that add noise were to train without a noise seed."""
        if not dry_run and self.have_noise():
            raise ValueError(
                "`noise_seed` is missing: give a secret whole number, or os to draw one for every "
                "run"
            )

    def lists(self) -> dict[str, list[Any]]:
        """Returns the options that vary over a list of values."""
        return {name: values for name, values in self.varied.items() if isinstance(values, list)}

    def ranges(self) -> list[str]:
        """Returns the names of the options that vary over a range."""
        from fedmf.sweeps.grid import Range

        return [name for name, values in self.varied.items() if isinstance(values, Range)]


def _read_settings(
    config_file: pathlib.Path | None, varied: Sequence[str], config_options: Mapping[str, Any]
) -> _SweepSettings:
    """Reads the options of a sweep's runs, where the command line overrides the file.

    Args:
      config_file: file of options, of which lists vary; None without one.
      varied: texts of --vary.
      config_options: other options of the command line.

    Raises:
      ValueError: for an option that --vary names twice, for bad values, and if nothing varies.
    """
    from fedmf.privacy.flat_config import with_flat_options
    from fedmf.sweeps import grid

    command_line_lists: dict[str, list[Any] | Range] = {}
    file_values = with_flat_options(config_values(config_file))
    for text in varied:
        name, values = grid.varied_values(text)
        if name in command_line_lists:
            raise ValueError(f"--vary names {name} twice: give all its values at once")
        command_line_lists[name] = values
    command_line_values = with_flat_options(chosen_options(config_options))
    fixed_values: dict[str, Any] = {}
    varied_values: dict[str, list[Any] | Range] = {}
    for name, value in file_values.items():
        if isinstance(value, list):
            if name not in command_line_values:
                varied_values[name] = value
        elif name not in command_line_lists:
            fixed_values[name] = value
    varied_values |= command_line_lists
    if not varied_values:
        raise ValueError("--vary is missing: name an option and its values, such as epsilon=2,8")
    return _SweepSettings(fixed=fixed_values | command_line_values, varied=varied_values)


def _planned_runs(
    out: pathlib.Path, settings: _SweepSettings, *, is_search: bool
) -> "tuple[Space | None, dict[str, TrainConfig]]":
    """Returns the space of a search, or None for a grid, and the runs of the grid or of the space's
    corners.
    """
    from fedmf.sweeps import folder as sweep_folder
    from fedmf.sweeps import grid
    from fedmf.sweeps.search import Space

    if is_search:
        space = Space(fixed=settings.fixed, varied=settings.varied)
        return space, sweep_folder.in_folder(out, space.corners())
    configs = grid.sweep_configs(settings.fixed, settings.lists())
    return None, sweep_folder.in_folder(out, configs)


def _run_states(
    out: pathlib.Path,
    configs: "Mapping[str, TrainConfig]",
    space: "Space | None",
    num_trials: int | None,
) -> dict[str, Any]:
    """Returns the progress of each run of a sweep, and the number of trials that are still to
    come.
    """
    from fedmf.sweeps import folder as sweep_folder
    from fedmf.sweeps import search

    if space is None:
        return {name: sweep_folder.state(out, name) for name in configs}
    assert num_trials is not None
    trial_by_name = search.trials_in(out, space)
    states: dict[str, Any] = {name: sweep_folder.state(out, name) for name in trial_by_name}
    states["trials to ask for"] = max(0, num_trials - len(trial_by_name))
    return states


def _print_result(result: dict[str, Any], as_json: bool) -> None:
    """Prints the result of a sweep and its failed runs, and exits with the largest exit status of
    these.
    """
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
    """Raises ValueError if options of a search and of a grid are combined."""
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


def _check_selection(
    is_selection: bool, settings: _SweepSettings, draws_at_once: bool, total_epsilon: float | None
) -> None:
    """Raises ValueError for options of private selection without --private-selection, and for a
    budget of all runs with it.
    """
    if is_selection and total_epsilon is not None:
        raise ValueError(
            f"total_epsilon={total_epsilon} divides a budget among all runs, and "
            "`private_selection` states one guarantee for a random number of trials: leave one of "
            "them out"
        )
    if is_selection:
        return
    if draws_at_once:
        raise ValueError("`yes` belongs to `private_selection`: give that too")
    for name in ("mean_trials", "trial_distribution", "trial_shape"):
        if name in settings.fixed or name in settings.varied:
            raise ValueError(f"`{name}` belongs to `private_selection`: give that too")


def _check_no_search(
    search: str | None, trials: int | None, halving: bool, smoothed_over: int
) -> None:
    """Raises ValueError for options of a sweep that private selection does not have."""
    option_values = {
        "search": search,
        "trials": trials,
        "halving": halving,
        "smoothed_over": smoothed_over,
    }
    for name, value in option_values.items():
        if value:
            raise ValueError(
                f"`{name}` cannot be given with `private_selection`, whose trials are drawn at "
                "random and run to their end: leave one of them out"
            )


def _select(
    out: pathlib.Path,
    settings: _SweepSettings,
    sweep_options: dict[str, Any],
    dry_run: bool,
    draws_at_once: bool,
    as_json: bool,
) -> None:
    """Runs a private selection and prints its result."""
    from fedmf.privacy.trial_count import TrialCount
    from fedmf.sweeps.first_rounds import selection_forecast
    from fedmf.sweeps.run import SweepOptions
    from fedmf.sweeps.selection import run_selection
    from fedmf.sweeps.selection_space import SelectionSpace

    with arguments_checked():
        space = SelectionSpace(
            fixed={"mean_trials": TrialCount.mean_trials} | settings.fixed, varied=settings.varied
        )
        if dry_run:
            show(_forecast_values(selection_forecast(out, space, None)), as_json)
            return

    def confirm(estimate: "Forecast") -> None:
        """Prints the forecast of a selection, and asks whether to draw."""
        for name, value in _forecast_values(estimate).items():
            click.echo(f"{name}: {value}", err=True)
        if not draws_at_once:
            click.confirm(
                "Draw the number of trials now, and train them all?", abort=True, err=True
            )
        click.echo("fedmf: trials train, and nothing tells how many there are", err=True)

    with arguments_checked(), warnings_in_a_line():
        options = SweepOptions(**sweep_options)
        result = run_selection(out, space, options, confirm=confirm)
    _print_result(result, as_json)


def _forecast_values(estimate: "Forecast") -> dict[str, Any]:
    """Returns the forecast of a private selection by name, for the output."""
    from fedmf.reports.text import duration

    quantile_names = {"median": "median", "percentile_90": "90%", "percentile_99": "99%"}
    values: dict[str, Any] = {
        "guarantee": f"epsilon {estimate.plan.epsilon:.6g} at delta {estimate.plan.delta:g}, "
        "of the selected model",
        "noise multiplier of each trial": f"{estimate.plan.noise_multiplier:.6g}",
        "selected by": estimate.score,
    }
    for quantile, count in estimate.quantiles.items():
        name = quantile_names[quantile]
        values[f"number of trials, {name}"] = f"at most {count}"
        if estimate.seconds is not None:
            values[f"time, {name}"] = f"about {duration(estimate.seconds[quantile])}"
    return values


def _divided(
    settings: _SweepSettings, total_epsilon: float, num_trials: int | None
) -> "tuple[TotalBudget, _SweepSettings]":
    """Divides a total epsilon among the runs of a sweep, and returns its settings with the share of
    each run.
    """
    from fedmf.sweeps import grid
    from fedmf.sweeps.search import Space
    from fedmf.sweeps.total_budget import check_no_target, divided

    check_no_target(settings.fixed, settings.varied)
    # Any target will do to see which runs add noise and sample clients.
    fixed_values = settings.fixed | {"epsilon": total_epsilon}
    if num_trials is None:
        configs = grid.sweep_configs(fixed_values, settings.lists())
    else:
        configs = Space(fixed=fixed_values, varied=settings.varied).corners()
    budget, fixed = divided(settings.fixed, total_epsilon, configs.values(), num_trials)
    return budget, settings._replace(fixed=fixed)


def _check_budget(
    out: pathlib.Path,
    budget: "TotalBudget | None",
    configs: "Mapping[str, TrainConfig]",
    dry_run: bool,
) -> None:
    """Records the budget of a sweep before its first run.

    Raises:
      ValueError: the folder has another budget, or the command has none where the folder has one.
    """
    from fedmf.sweeps.total_budget import TotalBudget

    if budget is not None and not dry_run:
        budget.reserve(out, configs)
    elif budget is None and TotalBudget.of(out) is not None:
        raise ValueError(
            f"{out} holds a sweep with `total_epsilon`, to which other runs would add: give it "
            "again, or name another folder"
        )
