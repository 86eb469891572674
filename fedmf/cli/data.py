"""The command `fedmf data`, which makes, imports and describes the data files of tasks."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import click

from fedmf.cli.errors import BadArgument, Group, arguments_checked
from fedmf.cli.help import say
from fedmf.cli.options import (
    TaskCommand,
    chosen_options,
    grouped,
    json_option,
    options_of,
    quiet_option,
    show,
)
from fedmf.cli.values import COUNT, EXISTING_FILE, PATH, OutputFile, Whole

# Smallest vocabulary that write_synthetic_corpus accepts with its default number of topics.
_MIN_WORDS = 259
# Options for sizes that `data synth` accepts, by task.
_SIZES_BY_TASK = {
    "stackoverflow_nwp": ("clients", "sentences_per_client", "vocabulary_size"),
    "emnist": ("clients", "examples_per_client", "only_digits"),
    "cifar10": ("examples", "test_examples"),
}


@click.group(cls=Group)
def data() -> None:
    """Make, import and describe the data files of tasks."""


@data.command()
@click.option(
    "--task",
    type=click.Choice(tuple(_SIZES_BY_TASK)),
    default="stackoverflow_nwp",
    help="The task that is to read the file.",
)
@click.option(
    "--out", required=True, type=PATH, help="File to write: SQLite, or .tar.gz of cifar10."
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Same seed, same file.")
@grouped(
    "sizes",
    click.option("--clients", type=COUNT, help="Training clients.  [default: 1000; emnist: 200]"),
    click.option(
        "--sentences-per-client",
        type=float,
        help="stackoverflow_nwp: mean number; users differ.  [default: 64]",
    ),
    click.option(
        "--words",
        "vocabulary_size",
        type=Whole(_MIN_WORDS),
        help="stackoverflow_nwp: different words of the language.  [default: 1000]",
    ),
    click.option(
        "--examples-per-client", type=COUNT, help="emnist: mean number of images.  [default: 100]"
    ),
    click.option(
        "--only-digits/--letters",
        default=None,
        help="emnist: 10 classes, or 62 as well.  [default: --only-digits]",
    ),
    click.option(
        "--examples", type=COUNT, help="cifar10: images of the training batches.  [default: 5000]"
    ),
    click.option("--test-examples", type=COUNT, help="cifar10: test images.  [default: 1000]"),
)
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@quiet_option
@json_option
def synth(
    task: str,
    out: pathlib.Path,
    quiet: bool,
    seed: int,
    overwrite: bool,
    sizes: dict[str, Any],
    as_json: bool,
) -> None:
    """Write a synthetic substitute for a task's data file, in the real file's format.

    \b
    Example:
      fedmf data synth --clients 4000 --out corpus.sqlite
      fedmf data synth --task emnist --clients 200 --out emnist.sqlite
      fedmf data synth --task cifar10 --examples 5000 --out shapes.tar.gz
    """
    from fedmf.tasks import cifar10, emnist, stackoverflow

    writers: dict[str, Callable[..., Any]] = {
        "stackoverflow_nwp": stackoverflow.write_synthetic_corpus,
        "emnist": emnist.write_synthetic,
        "cifar10": cifar10.write_synthetic,
    }
    chosen_sizes = {name: value for name, value in sizes.items() if value is not None}
    with arguments_checked():
        for name, value in chosen_sizes.items():
            if name not in _SIZES_BY_TASK[task]:
                task_names = [key for key, names in _SIZES_BY_TASK.items() if name in names]
                raise ValueError(
                    f"{name}={value} belongs to task={' or '.join(task_names)}, not to "
                    f"task={task}: leave it out"
                )
        writers[task](out, seed=seed, overwrite=overwrite, progress=not quiet, **chosen_sizes)
    if as_json:
        show({"task": task, "file": str(out)}, as_json)
    else:
        click.echo(str(out))


@data.command("import")
@click.argument("file", type=EXISTING_FILE)
@options_of("ImportOptions", group="options", defaults=True)
@click.option("--out", required=True, type=PATH, help="SQLite file to write.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@quiet_option
@json_option
def import_(
    file: pathlib.Path,
    options: dict[str, Any],
    out: pathlib.Path,
    overwrite: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Make a data file of your own rows.

    FILE is CSV, JSON lines or Parquet with a user and a text in each row, or with a user, a label
    and numbers or a text.

    \b
    Example:
      fedmf data import posts.csv --user-column author --text-column body --out corpus.sqlite
      fedmf train --data corpus.sqlite ...
      fedmf data import rows.csv --user-column author --label-column section \\
        --number-columns "age,words" --out rows.sqlite
      fedmf train --data rows.sqlite -o model=logistic ...
    """
    from fedmf.tasks.classification import import_rows
    from fedmf.tasks.row_table import ImportOptions
    from fedmf.tasks.stackoverflow import import_text

    with arguments_checked():
        import_options = ImportOptions(**options)
        import_table: Callable[..., Any] = import_text
        if import_options.label_column is not None:
            import_table = import_rows
        import_summary = import_table(
            file, out, import_options, overwrite=overwrite, progress=not quiet
        )
    values = dataclasses.asdict(import_summary)
    notes = []
    if not as_json:
        notes = values.pop("notes", [])
    show(values, as_json)
    for note in notes:
        say("note", note)


@data.command()
@click.argument("file", type=PATH, required=False)
@json_option
def info(file: pathlib.Path | None, as_json: bool) -> None:
    """Describe a data file of any task that ships.

    Without FILE it is the StackOverflow file in TFF's own cache.

    \b
    Example:
      fedmf data info corpus.sqlite
      fedmf data info shapes.tar.gz
    """
    from fedmf.tasks.describe import describe_file

    try:
        with arguments_checked():
            file_description = describe_file(file)
    except BadArgument as error:
        # The library says "by data=FILE", but this command takes the file as an argument.
        raise BadArgument(error.message.replace("by data=FILE", "as FILE")) from error
    show(file_description, as_json)


@data.command(cls=TaskCommand)
@click.option("--out", required=True, type=OutputFile(".png"), help="PNG file to write.")
@options_of("TrainConfig", names=("task", "data", "task_options"))
@quiet_option
@json_option
def picture(out: pathlib.Path, config_options: dict[str, Any], quiet: bool, as_json: bool) -> None:
    """Draw which training client has how many examples of which label.

    \b
    Example:
      fedmf data picture --task emnist --data emnist.sqlite --out writers.png
      fedmf data picture --task emnist --data emnist.sqlite --partition dirichlet:0.3 \\
        --clients 60 --out who.png
    """
    import numpy as np

    from fedmf import partition, tasks
    from fedmf.runs.config import TrainConfig
    from fedmf.terminal import progress_bar
    from fedmf.training.examples import split_weights

    with arguments_checked():
        config = tasks.completed(
            TrainConfig(family="none", min_sep=1, **chosen_options(config_options))
        )
        task = tasks.task_from_config(config, progress=not quiet)
        client_ids = []
        label_arrays = []
        for client in progress_bar.bar(
            task.client_ids, desc="reading", unit="client", disable=quiet
        ):
            client_labels, _ = split_weights(task.examples_of(client)[1])
            if getattr(client_labels, "ndim", None) != 1:
                raise ValueError(
                    f"task={config.task} has no one label for each example: choose another task"
                )
            label_arrays.append(client_labels)
            client_ids += [client] * len(client_labels)
        partition.picture(np.concatenate(label_arrays), client_ids, out)
    show(
        {"clients": len(task.client_ids), "examples": len(client_ids), "picture": str(out)}, as_json
    )
