"""The command `fedmf train`, which trains one run."""

import contextlib
import dataclasses
import functools
import pathlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.errors import arguments_checked, in_option_names
from fedmf.cli.help import say
from fedmf.cli.options import (
    ConfigCommand,
    chosen_options,
    config_values,
    grouped,
    json_option,
    merged,
    noise_seed_option,
    options_of,
    quiet_option,
    show,
)
from fedmf.cli.stopped import training
from fedmf.cli.values import COUNT, EXISTING_FILE, PATH, Gigabytes, OneOf

if TYPE_CHECKING:
    from fedmf.runs.config import TrainConfig
    from fedmf.training import Callback, TrainedRun


@click.command(cls=ConfigCommand)
@click.option("--out", required=True, type=PATH, help="Folder of the run.")
@click.option(
    "--config", "config_file", type=EXISTING_FILE, help="TOML or JSON file of these options."
)
@click.option("--resume", is_flag=True, help="Go on with the run in --out.")
@noise_seed_option
@grouped(
    "train_options",
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
        "--device", help="Where clients of a PyTorch model train: cpu or cuda.  [default: cpu]"
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
        "--stop-after", type=COUNT, help="Rounds after which it stops, to be resumed with --resume."
    ),
    click.option(
        "--accept-changed-task",
        is_flag=True,
        help="With --resume: resume even if the task's model or loss changed; the statement then "
        "says so.",
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
    click.option(
        "--tracker",
        "trackers",
        type=click.Choice(("mlflow", "wandb")),
        multiple=True,
        help="Record the run in MLflow, or in Weights & Biases offline, in a folder beside OUT.",
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
    train_options: dict[str, Any],
    config_options: dict[str, Any],
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
    from fedmf.runs.folder import RunFolder

    with arguments_checked():
        if resume and noise_seed is not None:
            raise ValueError(
                "`noise_seed` belongs to the run, which keeps its own: leave it out with --resume"
            )
        stored_config = None
        if resume:
            stored_config = RunFolder.open(out).path / "config.json"
        config = _read_config(stored_config, config_file, config_options)
        if not resume and noise_seed is None and config.adds_noise:
            raise ValueError(
                "`noise_seed` is missing: give a secret whole number, or os to draw one"
            )
        settings = _train_settings(train_options, config)

    from fedmf import training as simulation

    with _dry_rounds_counted(), training(out, resume=resume) as begin:

        class Begins(simulation.Callback):
            def on_start(self, training: Any) -> None:
                begin()

        callbacks = [Begins(), *settings.callbacks()]
        try:
            task = tasks.task_from_config(config, progress=settings.show_progress)
            if settings.show_progress:
                say("task", task.description)
            trained_run = simulation.train(
                task,
                config,
                folder=out,
                noise_seed=noise_seed,
                resume=resume,
                progress=settings.show_progress,
                callbacks=callbacks,
                **settings.machine_options,
            )
        except simulation.DivergedRun as stop:
            raise click.ClickException(str(stop)) from stop
    show(_result_values(trained_run, config), as_json)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _TrainSettings:
    """Settings of one call of `fedmf train` that are not part of the run's configuration.

    Attributes:
      show_progress: whether progress bars are shown.
      callback_options: values of the options that add a callback, by name.
      machine_options: keyword arguments of `fedmf.training.train`.
    """

    show_progress: bool
    callback_options: Mapping[str, Any]
    machine_options: Mapping[str, Any]

    def callbacks(self) -> "list[Callback]":
        """Returns the training callbacks that the command line asks for."""
        from fedmf import training as simulation

        callbacks: list[Callback] = []
        if self.callback_options["tensorboard"]:
            callbacks.append(_tensorboard())
        callbacks += _trackers(self.callback_options["trackers"])
        if self.callback_options["stop_after"]:
            callbacks.append(simulation.StopAfter(self.callback_options["stop_after"]))
        if self.callback_options["stop_on_divergence"]:
            callbacks.append(simulation.StopOnDivergence())
        if self.callback_options["early_stopping"]:
            callbacks.append(simulation.EarlyStopping(self.callback_options["early_stopping"]))
        return callbacks


def _train_settings(train_options: Mapping[str, Any], config: "TrainConfig") -> _TrainSettings:
    """Returns the settings of a training command that are not part of the run's configuration.

    Raises:
      ValueError: for --data-on-workers without a cluster.
    """
    from fedmf import tasks

    machine_options = dict(train_options)
    show_progress = not machine_options.pop("quiet")
    machine_options["test"] = not machine_options.pop("no_test")
    if machine_options.pop("data_on_workers"):
        if train_options["cluster"] is None:
            raise ValueError(
                "`data_on_workers` belongs to cluster: leave it out, or name a cluster"
            )
        machine_options["worker_task"] = functools.partial(
            tasks.task_from_config, config, progress=False
        )
    callback_names = (
        "tensorboard",
        "trackers",
        "stop_after",
        "stop_on_divergence",
        "early_stopping",
    )
    return _TrainSettings(
        show_progress=show_progress,
        callback_options={name: machine_options.pop(name) for name in callback_names},
        machine_options=machine_options,
    )


def _read_config(
    stored_config: pathlib.Path | None,
    config_file: pathlib.Path | None,
    config_options: dict[str, Any],
) -> "TrainConfig":
    """Reads a run's configuration. The command line overrides the file, and the file a resumed run.

    Args:
      stored_config: config of the run to resume; None for a new run.
      config_file: file of options; None without one.
      config_options: options of the command line.

    Raises:
      TypeError, ValueError: naming the option that cannot work.
    """
    from fedmf import tasks
    from fedmf.runs.config import TrainConfig, read_config_file

    config_fields: dict[str, Any] = {}
    if stored_config is not None:
        config_fields = read_config_file(stored_config)
    config_fields = merged(config_fields, config_values(config_file))
    config_fields = merged(config_fields, chosen_options(config_options))
    tasks.check_separation_is_given(config_fields)
    source_file = config_file or stored_config
    if source_file is None:
        return tasks.completed(TrainConfig(**config_fields))
    return tasks.completed(TrainConfig.from_mapping(config_fields, str(source_file)))


def _result_values(trained_run: "TrainedRun", config: "TrainConfig") -> dict[str, Any]:
    """Returns the metrics and the guarantee of a run, for the output.

    For a run that has stopped before its end, these are the rounds and the way to resume.
    """
    from fedmf.runs.notes import figures_note

    values: dict[str, Any] = {"folder": str(trained_run.path)}
    run_result = trained_run.result
    if run_result is None:
        values["rounds"] = trained_run.num_rounds()
        values["note"] = (
            "stopped: resume it with --resume; `fedmf audit` states the guarantee of the rounds so "
            "far"
        )
        return values
    headline_metric = trained_run.plan["task"]["headline_metric"]
    other_metrics = [name for name in run_result["validation"] if name != headline_metric]
    for metric in (headline_metric, *other_metrics):
        for split in ("validation", "test"):
            if run_result[split]:
                values[f"{split} {metric}"] = run_result[split][metric]
    values |= {"epsilon": trained_run.plan["epsilon"], "delta": trained_run.plan["delta"]}
    if trained_run.ended_after:
        values["ended"] = (
            f"after {trained_run.ended_after} of {config.rounds} rounds, as --stop-at-epsilon "
            "said; the epsilon above is that of all"
        )
    if config.claimed_cohort:
        values["simulated"] = (
            f"{config.cohort_size} clients a round for a claimed cohort of {config.claimed_cohort}"
        )
    else:
        values["achieved epsilon"] = run_result["achieved"]["epsilon"]
    values["note"] = figures_note([trained_run])
    return values


def _tensorboard() -> "Callback":
    """Returns the callback that writes TensorBoard events, which needs TensorFlow."""
    from fedmf import federated

    return federated.TensorBoard()


def _trackers(names: Sequence[str]) -> "list[Callback]":
    """Returns the callbacks that record the run in these experiment trackers.

    Raises:
      ImportError: the package of a tracker is not installed.
    """
    if not names:
        return []
    from fedmf.trackers import TRACKERS

    return [TRACKERS[name]() for name in dict.fromkeys(names)]


@contextlib.contextmanager
def _dry_rounds_counted() -> Iterator[None]:
    """Counts warnings of the block that too few clients were eligible, and prints one warning with
    the number of rounds.

    Other warnings are printed at once, without the line of code.
    """
    from fedmf.cohorts.draws import PoolRanDryWarning

    dry_messages: list[str] = []
    with warnings.catch_warnings():
        show_warning: Callable[..., None] = warnings.showwarning

        def show_in_a_line(message: Warning | str, category: type[Warning], *location: Any) -> None:
            if issubclass(category, PoolRanDryWarning):
                dry_messages.append(str(message))
            elif category is UserWarning:
                say("warning", in_option_names(str(message)))
            else:
                show_warning(message, category, *location)

        warnings.showwarning = show_in_a_line  # type: ignore[assignment]
        warnings.simplefilter("always", PoolRanDryWarning)
        try:
            yield
        finally:
            if dry_messages:
                message = dry_messages[0]
                if len(dry_messages) > 1:
                    message += f" (and {len(dry_messages) - 1} more such rounds)"
                say("warning", in_option_names(message))
