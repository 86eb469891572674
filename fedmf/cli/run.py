"""fedmf train, demo, report."""

import contextlib
import functools
import pathlib
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.errors import Command, arguments_checked, in_option_names
from fedmf.cli.help import say
from fedmf.cli.options import (
    ConfigCommand,
    chosen_options,
    config_values,
    in_one,
    json_option,
    noise_seed_option,
    options_of,
    over,
    quiet_option,
    show,
)
from fedmf.cli.stopped import training
from fedmf.cli.values import COUNT, EXISTING_FILE, PATH, RUN, Gigabytes, OneOf, OutputFile

if TYPE_CHECKING:
    from fedmf.training import Callback


@click.command(cls=ConfigCommand)
@click.option("--out", required=True, type=PATH, help="Folder of the run.")
@click.option(
    "--config", "config_file", type=EXISTING_FILE, help="TOML or JSON file of these options."
)
@click.option("--resume", is_flag=True, help="Go on with the run in --out.")
@noise_seed_option
@in_one(
    "how",
    click.option(
        "--noise-strategy",
        type=OneOf("strategy"),
        help="How noise is made.  [default: the cheaper]",
    ),
    click.option(
        "--noise-memory",
        type=Gigabytes(),
        help="GB that noise takes before it is on disk.  [default: a quarter of the memory]",
    ),
    click.option(
        "--threads", type=COUNT, help="Most threads that compute.  [default: one on each processor]"
    ),
    click.option(
        "--cluster",
        help="Train clients on a Ray cluster: local, auto, host:port or "
        "ray://host:port (docs/cluster.md).",
    ),
    click.option(
        "--data-on-workers",
        is_flag=True,
        help="With --cluster: workers read --data themselves, at the same path.",
    ),
    click.option(
        "--stop-after", type=COUNT, help="Rounds after which it stops, to go on with --resume."
    ),
    click.option(
        "--accept-changed-task",
        is_flag=True,
        help="With --resume: go on though the task's model or loss changed; the statement says so.",
    ),
    click.option(
        "--no-test",
        is_flag=True,
        help="Leave out the test split, as for tuning; `fedmf evaluate` reads it later.",
    ),
    click.option(
        "--stop-on-divergence",
        is_flag=True,
        help="Stop, saved and with exit status 1, where the loss diverges: the private one with "
        "--private-metrics, else the exact one, which no guarantee covers.",
    ),
    click.option(
        "--early-stopping",
        type=COUNT,
        help="Stop, saved, where the loss of so many evaluations in a row is not below the least "
        "before: the private one with --private-metrics, else that of the validation, which no "
        "guarantee covers.",
    ),
    click.option(
        "--tensorboard",
        is_flag=True,
        help="Write the metrics to OUT/tensorboard: tensorboard --logdir OUT.",
    ),
    quiet_option,
)
@options_of("TrainConfig")
@json_option
def train(
    out: pathlib.Path,
    config_file: pathlib.Path | None,
    resume: bool,
    noise_seed: int | str | None,
    how: dict[str, Any],
    promise: dict[str, Any],
    as_json: bool,
) -> None:
    """Train one run, by default StackOverflow next-word prediction. Flags win over the config file.

    \b
    Example:
      fedmf data synth --clients 1000 --out corpus.sqlite
      fedmf train --data corpus.sqlite --out runs/first --rounds 60 --cohort-size 50 \\
        --min-sep 20 --client-learning-rate 4 --server-learning-rate 0.5 \\
        --server-momentum 0.9 -o loss=masked -o vocabulary-size=500 -o lstm-size=32 \\
        -o embedding-size=32 -o max-sentences=16 --epsilon 8 --noise-seed os
      fedmf train --out runs/first --resume --tensorboard
      fedmf train --data mine.sqlite --out runs/tuned --initial-model runs/first \\
        --rounds 40 --cohort-size 50 --min-sep 20 --client-learning-rate 4 \\
        --server-learning-rate 0.2 --server-momentum 0.9 -o vocabulary-data=corpus.sqlite \\
        -o loss=masked -o vocabulary-size=500 -o lstm-size=32 -o embedding-size=32 \\
        -o max-sentences=16 --epsilon 4 --noise-seed os
    """
    from fedmf import tasks
    from fedmf.runs.config import TrainConfig, read_config_file
    from fedmf.runs.folder import RunFolder
    from fedmf.runs.notes import figures_note

    with arguments_checked():
        if resume and noise_seed is not None:
            raise ValueError(
                "`noise_seed` belongs to the run, which keeps its own: leave it out with --resume"
            )
        stored = RunFolder.open(out).path / "config.json" if resume else None
        how["progress"], how["test"] = not how.pop("quiet"), not how.pop("no_test")
        values = read_config_file(stored) if stored else {}
        values = over(over(values, config_values(config_file)), chosen_options(promise))
        origin = config_file or stored
        tasks.check_separation_is_given(values)
        config = tasks.completed(
            TrainConfig.from_mapping(values, str(origin)) if origin else TrainConfig(**values)
        )
        if not resume and noise_seed is None and config.adds_noise:
            raise ValueError(
                "`noise_seed` is missing: give a secret whole number, or os to draw one"
            )
        if how.pop("data_on_workers"):
            if how["cluster"] is None:
                raise ValueError(
                    "`data_on_workers` belongs to cluster: leave it out, or name a cluster"
                )
            how["worker_task"] = functools.partial(tasks.task_from_config, config, progress=False)

    from fedmf import training as simulation

    with _dry_rounds_counted(), training(out, resume=resume) as begin:

        class Begins(simulation.Callback):
            def on_start(self, training: Any) -> None:
                begin()

        kinds: dict[str, Callable[[Any], simulation.Callback]] = {
            "tensorboard": _tensorboard,
            "stop_after": simulation.StopAfter,
            "stop_on_divergence": lambda _: simulation.StopOnDivergence(),
            "early_stopping": simulation.EarlyStopping,
        }
        asked = {name: how.pop(name) for name in kinds}
        callbacks = [kinds[name](value) for name, value in asked.items() if value]
        try:
            task = tasks.task_from_config(config, progress=how["progress"])
            if how["progress"]:
                say("task", task.description)
            run = simulation.train(
                task,
                config,
                folder=out,
                noise_seed=noise_seed,
                resume=resume,
                callbacks=[Begins(), *callbacks],
                **how,
            )
        except simulation.DivergedRun as stop:
            raise click.ClickException(str(stop)) from stop
    if run.result is None:
        note = (
            "stopped: go on with --resume; `fedmf audit` states the guarantee of the rounds so far"
        )
        show({"folder": str(run.path), "rounds": run.num_rounds(), "note": note}, as_json)
        return
    first = run.plan["task"]["headline_metric"]
    metrics = [first, *(name for name in run.result["validation"] if name != first)]
    splits = [split for split in ("validation", "test") if run.result[split]]
    values = {"folder": str(run.path)}
    values |= {f"{split} {name}": run.result[split][name] for name in metrics for split in splits}
    values |= {"epsilon": run.plan["epsilon"], "delta": run.plan["delta"]}
    if run.ended_after:
        values["ended"] = (
            f"after {run.ended_after} of {config.rounds} rounds, as --stop-at-epsilon said; the "
            "epsilon above is that of all"
        )
    if config.claimed_cohort:
        values["simulated"] = (
            f"{config.cohort_size} clients a round for a claimed cohort of {config.claimed_cohort}"
        )
    else:
        values["achieved epsilon"] = run.result["achieved"]["epsilon"]
    values["note"] = figures_note([run])
    show(values, as_json)


def _tensorboard(asked: bool) -> "Callback":
    """Returns the callback that writes events, which needs TensorFlow."""
    from fedmf import federated

    return federated.TensorBoard()


@contextlib.contextmanager
def _dry_rounds_counted() -> Iterator[None]:
    """Says once, at the end, what the controller warns of in every such round; other warnings at
    once, without the line of code.
    """
    from fedmf.cohorts.controller import PoolRanDryWarning

    dry: list[str] = []
    with warnings.catch_warnings():
        show_others: Callable[..., None] = warnings.showwarning

        def in_a_line(message: Warning | str, category: type[Warning], *place: Any) -> None:
            if issubclass(category, PoolRanDryWarning):
                dry.append(str(message))
            elif category is UserWarning:
                say("warning", in_option_names(str(message)))
            else:
                show_others(message, category, *place)

        warnings.showwarning = in_a_line  # type: ignore[assignment]
        warnings.simplefilter("always", PoolRanDryWarning)
        try:
            yield
        finally:
            if dry:
                rest = f" (and {len(dry) - 1} more such rounds)" if len(dry) > 1 else ""
                say("warning", in_option_names(f"{dry[0]}{rest}"))


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

    The corpus is made here. About three minutes on two cores.

    \b
    Example:
      fedmf demo --out demo --seed 1 --seed 2
    """
    from fedmf.experiments import demo as driver

    with arguments_checked():
        driver.check_demo(seeds=seeds, epsilon=epsilon)
    result = driver.run_demo(out, seeds=seeds, epsilon=epsilon)
    if as_json:
        show(result, as_json)


@click.command(cls=Command)
@click.argument("runs", nargs=-1, required=True, type=RUN)
@click.option("--out", type=PATH, help="Folder to write report.html to.")
@click.option(
    "--csv",
    "table",
    type=OutputFile(".csv"),
    help="File to write the metrics of every round to, as a flat table.",
)
@click.option("--title", default="fedmf report", help="Title of the report.")
@json_option
def report(
    runs: tuple[pathlib.Path, ...],
    out: pathlib.Path | None,
    table: pathlib.Path | None,
    title: str,
    as_json: bool,
) -> None:
    """Write an HTML report of runs. Or write their metrics as a table, or both.

    \b
    Example:
      fedmf report runs/first runs/second --out report
      fedmf report runs/first --csv first.csv      # round,clients,examples,train_loss,...
    """
    from fedmf.files import write_atomically
    from fedmf.reports import write_report
    from fedmf.runs.folder import Run
    from fedmf.runs.metric_table import metrics_csv
    from fedmf.terminal.progress_bar import elapsed

    with arguments_checked():
        if out is None and table is None:
            raise ValueError(
                "out and csv are both missing: give --out FOLDER for a report, "
                "--csv FILE for a table"
            )
    with elapsed("reading the runs", disable=as_json):
        loaded = [Run.load(path) for path in runs]
    written: dict[str, str] = {}
    if table is not None:
        write_atomically(
            table, metrics_csv({str(run.path): run.metrics for run in loaded}), mode=0o600
        )
        written["csv"] = str(table)
    if out is not None:
        with elapsed("drawing the report", disable=as_json):
            written["report"] = str(write_report(loaded, out, title=title))
    if as_json:
        show(written, as_json)
    else:
        click.echo("\n".join(written.values()))
