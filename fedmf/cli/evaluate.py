"""The commands `fedmf evaluate`, `predict` and `export`, which use the model of a trained run."""

import dataclasses
import math
import pathlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.errors import BadArgument, arguments_checked, warnings_in_a_line
from fedmf.cli.options import (
    TaskCommand,
    grouped,
    json_option,
    quiet_option,
    run_task_options,
    show,
)
from fedmf.cli.values import COUNT, EXISTING, PATH, RUN, OutputFile, Parsed

if TYPE_CHECKING:
    from fedmf.training import TrainedRun

_SPLITS = ("validation", "test")


class _Rates(Parsed):
    """Type of an option whose value is a rate, several rates with commas between them, or
    "search".
    """

    name = "rates"

    def suggestions(self, ctx: click.Context) -> Iterable[str]:
        """Returns "search", the only word that the option accepts."""
        return ("search",)

    def parsed(self, text: str) -> str | list[float]:
        """Returns the rates that a text lists, or the word "search"."""
        if text == "search":
            return text
        try:
            parsed_rates = [float(rate) for rate in text.split(",")]
        except ValueError:
            parsed_rates = [math.nan]
        if not all(0 < rate < math.inf for rate in parsed_rates):
            raise ValueError(f"{text!r} must be positive numbers, such as 0.1,0.3, or search")
        return parsed_rates


_RATES = _Rates()


@click.command(cls=TaskCommand)
@click.argument("run", type=RUN)
@click.option(
    "--split",
    type=click.Choice(_SPLITS),
    help="Examples to evaluate on.  [default: test; with --fine-tune also half of each client's]",
)
@click.option(
    "--data", type=EXISTING, help="Another data file or folder of the task.  [default: the run's]"
)
@grouped(
    "each_client",
    click.option(
        "--by-client",
        is_flag=True,
        help="Also every training client by itself: mean and deciles. On the run's data they are "
        "kept in RUN, for its report.",
    ),
    click.option(
        "--fine-tune",
        "epochs",
        type=COUNT,
        metavar="EPOCHS",
        help="Also metrics by client before and after so many epochs on half of its own examples, "
        "on the other half or on --split. Its steps are clipped, and nothing is noised. On the "
        "run's data they are kept in RUN, for its report.",
    ),
    click.option(
        "--learning-rate",
        type=_RATES,
        metavar="RATE[,RATE...]|search",
        help="With --fine-tune: its rate, or several, of which a part of the half that is trained "
        "on chooses; search: 0.1, 0.3, 1 and 3 times the default.  [default: a tenth of the run's "
        "client rate]",
    ),
    click.option(
        "--clients",
        type=COUNT,
        help="With --fine-tune: most clients, sampled by the run's seed.  [default: 1000]",
    ),
    click.option(
        "--proximal-strength",
        type=click.FloatRange(min=0),
        help="With --fine-tune: lambda of Ditto's personal models.  [default: the run's]",
    ),
    click.option(
        "--out", type=OutputFile(".png"), help="With --fine-tune: a picture of the headline metric."
    ),
)
@run_task_options
@quiet_option
@json_option
def evaluate(
    run: pathlib.Path,
    split: str | None,
    data: pathlib.Path | None,
    each_client: dict[str, Any],
    task_settings: dict[str, Any],
    quiet: bool,
    as_json: bool,
) -> None:
    """Metrics of a run's model on a split and by client.

    They are exact functions of the data, which the run's guarantee does not cover.

    \b
    Example:
      fedmf evaluate runs/first
      fedmf evaluate runs/first --split validation --by-client --json
      fedmf evaluate runs/first --fine-tune 1 --clients 200 --out fine_tuned.png
      fedmf evaluate runs/first --fine-tune 1 --learning-rate search
      fedmf evaluate runs/first --data other.sqlite
      fedmf evaluate runs/python --task my_module:digits -o filters=4
    """
    from fedmf.runs.folder import RunFolder
    from fedmf.runs.notes import figures_note
    from fedmf.terminal.progress_bar import elapsed

    by_client = each_client.pop("by_client")
    picture_path = each_client.pop("out")
    fine_tuning = _fine_tuning_options(each_client, picture_path)
    trained_run = _load_trained(run, data, task_settings, quiet=quiet)
    output_values = _run_values(trained_run)
    has_run_data = _has_run_data(trained_run, data)
    if trained_run.task.data_version and has_run_data:
        output_values["data"] = "the run's"
    elif trained_run.task.data_version:
        output_values["data"] = "not the run's"
    evaluated_split = split or "test"
    with elapsed(f"evaluating on the {evaluated_split} examples", disable=quiet):
        split_metrics = trained_run.evaluate(evaluated_split)
    output_values |= {f"{evaluated_split} {name}": value for name, value in split_metrics.items()}
    run_folder = None
    has_run_task = trained_run.task.description == trained_run.plan["task"]["description"]
    if has_run_data and has_run_task and trained_run.result is not None:
        # The metrics are saved for the report of the run, so they must be those of the run's own
        # data and task.
        run_folder = RunFolder(trained_run.path)
    if by_client:
        with warnings_in_a_line():
            client_metrics = trained_run.evaluate_clients(progress=not quiet)
        if run_folder is not None:
            run_folder.write_json("clients", client_metrics)
        output_values |= _client_values(client_metrics, trained_run.task.headline)
    if fine_tuning:
        with warnings_in_a_line():
            fine_tuned = trained_run.evaluate_fine_tuned(
                **fine_tuning, split=split, progress=not quiet
            )
        if run_folder is not None:
            run_folder.write_json("fine_tuned", fine_tuned)
        output_values["fine_tuned"] = fine_tuned
        if picture_path is not None:
            fine_tuned_run = dataclasses.replace(trained_run, fine_tuned=fine_tuned)
            output_values["picture"] = _draw(fine_tuned_run, picture_path)
    show(output_values | {"note": figures_note([trained_run])}, as_json)


def _fine_tuning_options(
    client_options: Mapping[str, Any], picture_path: pathlib.Path | None
) -> dict[str, Any]:
    """Returns the fine-tuning options that were given on the command line.

    Raises:
      BadArgument: for options of fine-tuning without --fine-tune.
    """
    fine_tuning = {name: value for name, value in client_options.items() if value is not None}
    if "epochs" not in fine_tuning and (fine_tuning or picture_path):
        raise BadArgument(
            "`learning_rate`, `clients`, `proximal_strength` and `out` need --fine-tune EPOCHS"
        )
    return fine_tuning


def _has_run_data(trained_run: "TrainedRun", data: pathlib.Path | None) -> bool:
    """Returns whether a task evaluates on the data that the run was trained on."""
    data_version = trained_run.task.data_version
    if data_version and trained_run.data_version is not None:
        return data_version == trained_run.data_version
    return data is None


def _client_values(client_metrics: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """Returns statistics over clients of one metric, under the names that the output has for
    them.
    """
    return {
        "clients": client_metrics["clients"],
        "clients without examples": client_metrics["clients_without_examples"],
        f"clients on whose examples {metric} is not defined": client_metrics["clients_undefined"],
        f"clients on whose examples {metric} is not finite": client_metrics["clients_not_finite"],
        f"client {metric}, mean": client_metrics["mean"],
        f"client {metric}, deciles": client_metrics["deciles"],
    }


@click.command(cls=TaskCommand)
@click.argument("run", type=RUN)
@click.option(
    "--out",
    required=True,
    type=PATH,
    help="FILE.keras, or a new folder without a suffix for a SavedModel; FILE.pt for PyTorch.",
)
@run_task_options
@json_option
def export(
    run: pathlib.Path, out: pathlib.Path, task_settings: dict[str, Any], as_json: bool
) -> None:
    """Write a run's model for Keras or PyTorch, which load it without fedmf.

    \b
    Example:
      fedmf export runs/first --out model.keras
      fedmf export runs/first --out saved_model

    FILE.keras opens with tf.keras.models.load_model under the same version of Keras 2: that of
    TensorFlow 2.14, or tf-keras beside a later TensorFlow. The SavedModel opens with every
    TensorFlow: tf.saved_model.load; in Keras 2 and tf-keras also load_model; in Keras 3 only
    keras.layers.TFSMLayer(FOLDER, call_endpoint="serving_default"). FILE.pt has the state_dict of
    a PyTorch model, for load_state_dict.

    The words of a next-word run are saved too: FILE.vocabulary.json, or vocabulary.json in the
    folder. Words counted over the training clients are not covered by the guarantee.
    """
    from fedmf.runs.export import check_export_path
    from fedmf.runs.notes import selection_note
    from fedmf.terminal.progress_bar import elapsed

    with arguments_checked():
        check_export_path(out)
    trained_run = _load_trained(run, None, task_settings, quiet=as_json)
    with arguments_checked(), elapsed("writing the model", disable=as_json):
        model = trained_run.export(out)
    statement_name = "statement.md"
    if trained_run.result:
        statement_name = "final_statement.md"
    output_values = _run_values(trained_run) | {
        "model": str(out),
        **trained_run.task.learner.model_summary(model),
        "statement": str(trained_run.path / statement_name),
    }
    if selection_note(trained_run):
        output_values["note"] = selection_note(trained_run)
    show(output_values, as_json)


@click.command()
@click.argument("run", type=RUN)
@click.argument("text")
@click.option("--count", type=COUNT, default=5, help="Words to show at most.")
@json_option
def predict(run: pathlib.Path, text: str, count: int, as_json: bool) -> None:
    """Show the words that a next-word run expects after TEXT, with their probabilities.

    It needs no data: the run folder has the model and its words. Words are separated by blanks.

    \b
    Example:
      fedmf predict runs/first "how do i"
    """
    from fedmf.federated.tensorflow_import import import_tensorflow
    from fedmf.runs.folder import Run
    from fedmf.terminal.progress_bar import elapsed

    with elapsed("reading the run", disable=as_json):
        loaded_run = Run.load(run)
        import_tensorflow()
        from fedmf.tasks.stackoverflow.prediction import next_words

    with arguments_checked(), elapsed("loading the model", disable=as_json):
        word_values = next_words(loaded_run, text, count)
    show(word_values, as_json)


def _draw(run: "TrainedRun", path: pathlib.Path) -> str:
    """Draws the metrics of a run's fine-tuned clients, and returns the path or why there is no
    picture.
    """
    from fedmf.files import write_atomically
    from fedmf.reports.client_plots import fine_tuned_plot
    from fedmf.reports.groups import group_runs

    fine_tuning_plot = fine_tuned_plot(group_runs([run]))
    if fine_tuning_plot is None:
        return f"none: {run.task.headline} is defined on no client"
    write_atomically(path, fine_tuning_plot.png, mode=0o600)
    return str(path)


def _load_trained(
    path: pathlib.Path,
    data: pathlib.Path | None,
    task_settings: Mapping[str, Any],
    *,
    quiet: bool,
) -> "TrainedRun":
    """Loads a run together with its task and its model.

    Args:
      path: folder of the run.
      data: file or folder to evaluate on; None for the run's.
      task_settings: values of `run_task_options`.
      quiet: whether to show no progress.

    Raises:
      BadArgument: for the task of another model.
    """
    from fedmf.runs.folder import Run
    from fedmf.terminal.progress_bar import elapsed

    with elapsed("reading the run", disable=quiet):
        loaded_run = Run.load(path)
        from fedmf import tasks, training

    with arguments_checked():
        data_path = None
        if data is not None:
            data_path = str(data)
        loaded_task = tasks.task_of_run(
            loaded_run,
            task=task_settings["task"],
            task_options=dict(task_settings["task_options"]),
            data=data_path,
            progress=not quiet,
        )
        with elapsed("loading the model", disable=quiet):
            trained_run = training.TrainedRun.of(loaded_run, loaded_task)
            # The weights are read here because that raises an error if the task's model differs
            # from the run's.
            _ = trained_run.weights
        return trained_run


def _run_values(trained_run: "TrainedRun") -> dict[str, Any]:
    """Returns the run's folder and its number of rounds, for the output."""
    planned_rounds = trained_run.config.rounds
    if trained_run.result:
        return {"folder": str(trained_run.path), "rounds": planned_rounds}
    return {
        "folder": str(trained_run.path),
        "rounds": f"{trained_run.num_rounds()} of {planned_rounds}, the run is not finished",
    }
