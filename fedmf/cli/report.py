"""The command `fedmf report`, which writes an HTML report of runs, or a table of their metrics."""

import pathlib

import click

from fedmf.cli.errors import Command, arguments_checked
from fedmf.cli.options import json_option, show
from fedmf.cli.values import PATH, RUN, OutputFile


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
        loaded_runs = [Run.load(path) for path in runs]
    written: dict[str, str] = {}
    if table is not None:
        write_atomically(
            table, metrics_csv({str(run.path): run.metrics for run in loaded_runs}), mode=0o600
        )
        written["csv"] = str(table)
    if out is not None:
        with elapsed("drawing the report", disable=as_json):
            written["report"] = str(write_report(loaded_runs, out, title=title))
    if as_json:
        show(written, as_json)
    else:
        click.echo("\n".join(written.values()))
