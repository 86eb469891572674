"""fedmf evaluate and export: what people do with a run's model."""

import dataclasses
import math
import pathlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.errors import BadArgument, arguments_checked, warnings_in_a_line
from fedmf.cli.options import TaskCommand, in_one, json_option, quiet_option, run_task_options, show
from fedmf.cli.values import COUNT, EXISTING, PATH, RUN, OutputFile, Parsed

if TYPE_CHECKING:
    from fedmf.training import TrainedRun

_SPLITS = ("validation", "test")


class _Rates(Parsed):
    """A rate, several with commas between them, or "search"."""

    name = "rates"

    def suggestions(self, ctx: click.Context) -> Iterable[str]:
        """Returns the one word."""
        return ("search",)

    def parsed(self, text: str) -> str | list[float]:
        """Returns the rates, or "search"."""
        if text == "search":
            return text
        try:
            rates = [float(rate) for rate in text.split(",")]
        except ValueError:
            rates = [math.nan]
        if not all(0 < rate < math.inf for rate in rates):
            raise ValueError(f"{text!r} must be positive numbers, such as 0.1,0.3, or search")
        return rates


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
@in_one(
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
        help="With --fine-tune: most clients, drawn by the run's seed.  [default: 1000]",
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
    asked: dict[str, Any],
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

    by_client, picture = each_client.pop("by_client"), each_client.pop("out")
    chosen = {name: value for name, value in each_client.items() if value is not None}
    if "epochs" not in chosen and (chosen or picture):
        raise BadArgument(
            "`learning_rate`, `clients`, `proximal_strength` and `out` need --fine-tune EPOCHS"
        )
    trained = _trained(run, None if data is None else str(data), asked, quiet=quiet)
    made, recorded = trained.task, trained.plan["task"]
    values, same = _what(trained), data is None
    if made.data_version:
        same = made.data_version == recorded["data_version"]
        values["data"] = "the run's" if same else "not the run's"
    on = split or "test"
    with elapsed(f"evaluating on the {on} examples", disable=quiet):
        metrics = trained.evaluate(on)
    values |= {f"{on} {name}": value for name, value in metrics.items()}
    kept = same and made.description == recorded["description"] and trained.result is not None
    if by_client:
        with warnings_in_a_line():
            found = trained.evaluate_clients(progress=not quiet)
        if kept:
            RunFolder(trained.path).write_json("clients", found)
        metric = made.headline
        values |= {
            "clients": found["clients"],
            "clients without examples": found["clients_without_examples"],
            f"clients on whose examples {metric} is not defined": found["clients_undefined"],
            f"clients on whose examples {metric} is not finite": found["clients_not_finite"],
            f"client {metric}, mean": found["mean"],
            f"client {metric}, deciles": found["deciles"],
        }
    if chosen:
        with warnings_in_a_line():
            found = trained.evaluate_fine_tuned(**chosen, split=split, progress=not quiet)
        if kept:
            RunFolder(trained.path).write_json("fine_tuned", found)
        values["fine_tuned"] = found
        if picture is not None:
            values["picture"] = _draw(dataclasses.replace(trained, fine_tuned=found), picture)
    show(values | {"note": figures_note([trained])}, as_json)


@click.command(cls=TaskCommand)
@click.argument("run", type=RUN)
@click.option(
    "--out",
    required=True,
    type=PATH,
    help="FILE.keras, or a new folder without a suffix for a SavedModel.",
)
@run_task_options
@json_option
def export(run: pathlib.Path, out: pathlib.Path, asked: dict[str, Any], as_json: bool) -> None:
    """Write a run's model for Keras, which loads it without fedmf.

    \b
    Example:
      fedmf export runs/first --out model.keras
      fedmf export runs/first --out saved_model

    FILE.keras opens with tf.keras.models.load_model under the same version of Keras 2: that of
    TensorFlow 2.14, or tf-keras beside a later TensorFlow. The SavedModel opens with every
    TensorFlow: tf.saved_model.load; in Keras 2 and tf-keras also load_model; in Keras 3 only
    keras.layers.TFSMLayer(FOLDER, call_endpoint="serving_default").

    The words of a next-word run are saved too: FILE.vocabulary.json, or vocabulary.json in the
    folder. Words counted over the training clients are not covered by the guarantee.
    """
    from fedmf.runs.export import check_export_path
    from fedmf.terminal.progress_bar import elapsed

    with arguments_checked():
        check_export_path(out)
    trained = _trained(run, None, asked, quiet=as_json)
    with arguments_checked(), elapsed("writing the model", disable=as_json):
        model = trained.export(out)
    statement = "final_statement.md" if trained.result else "statement.md"
    show(
        _what(trained)
        | {
            "model": str(out),
            "parameters": model.count_params(),
            "inputs": _shapes(model.inputs),
            "outputs": _shapes(model.outputs),
            "statement": str(trained.path / statement),
        },
        as_json,
    )


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
        loaded = Run.load(run)
        import_tensorflow()
        from fedmf.tasks.stackoverflow.prediction import next_words

    with arguments_checked(), elapsed("loading the model", disable=as_json):
        values = next_words(loaded, text, count)
    show(values, as_json)


def _draw(run: "TrainedRun", path: pathlib.Path) -> str:
    """Draws the fine-tuned clients of a run, and says where."""
    from fedmf.files import write_atomically
    from fedmf.reports.client_plots import fine_tuned_plot
    from fedmf.reports.groups import group_runs

    plot = fine_tuned_plot(group_runs([run]))
    if plot is None:
        return f"none: {run.task.headline} is defined on no client"
    write_atomically(path, plot.png, mode=0o600)
    return str(path)


def _trained(
    path: pathlib.Path, data: str | None, asked: Mapping[str, Any], *, quiet: bool
) -> "TrainedRun":
    from fedmf.runs.folder import Run
    from fedmf.terminal.progress_bar import elapsed

    with elapsed("reading the run", disable=quiet):
        run = Run.load(path)
        from fedmf import tasks, training

    with arguments_checked():
        options = dict(asked["task_options"])
        made = tasks.task_of_run(
            run, task=asked["task"], task_options=options, data=data, progress=not quiet
        )
        with elapsed("loading the model", disable=quiet):
            trained = training.TrainedRun.of(run, made)
            _ = trained.weights  # refuses the model of another task
        return trained


def _what(trained: "TrainedRun") -> dict[str, Any]:
    rounds = trained.config.rounds
    return {
        "folder": str(trained.path),
        "rounds": rounds
        if trained.result
        else f"{trained.num_rounds()} of {rounds}, the run is not finished",
    }


def _shapes(tensors: Any) -> list[str]:
    return [
        f"{tensor.dtype.name} {tuple(tensor.shape)}".replace("None", "any") for tensor in tensors
    ]
