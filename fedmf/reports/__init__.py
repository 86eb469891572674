"""Reports that compare training runs, each of which is a self-contained HTML file with its plots as
PNG files.

Reports are made from `Run` objects, without TensorFlow.
"""

import base64
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jinja2

from fedmf import matplotlib_import  # noqa: F401
from fedmf.files import expanded, make_folder, shell_path, shell_word, write_atomically
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.privacy.rounding import up
from fedmf.reports import client_plots, metric_plots, noise_plots, tables
from fedmf.reports.canvas import Plot
from fedmf.reports.differences import BestSettings, differences_table
from fedmf.reports.groups import (
    RunGroup,
    final_by_seed,
    final_mean,
    group_runs,
    simulation_note,
    unfinished,
)
from fedmf.reports.seeds import interval_in_words
from fedmf.reports.text import (
    join,
    metric_name,
    metric_value,
    plain,
    plural,
    statement_html,
    without_subject,
)
from fedmf.runs.folder import Run
from fedmf.runs.notes import figures_note

__all__ = ["write_report"]

# A report shows a card for each group of runs if there are at most this many groups.
_MAX_CARDS = 8


@with_numpy_defaults
def write_report(
    runs: Sequence[Run], folder: str | os.PathLike[str], *, title: str
) -> pathlib.Path:
    """Writes a report on runs to folder/report.html, and its plots to folder/plots/*.png.

    Files of an earlier report in the folder are replaced.

    The HTML file includes its plots and loads nothing. Its bytes are deterministic. Only the owner
    can read the files: like the metrics of the runs, they show exact functions of client data,
    which the guarantee does not cover.

    Args:
      runs: finished or not, of one task; several seeds of one configuration are shown together.
      folder: of the report; created if it does not exist.
      title: of the report.

    Returns:
      The path of report.html.

    Raises:
      TypeError: runs holds something else.
      ValueError: runs is empty or of different tasks, or the folder cannot be written to.
    """
    return write_report_of_best(runs, folder, title=title, best=None)


def write_report_of_best(
    runs: Sequence[Run],
    folder: str | os.PathLike[str],
    *,
    title: str,
    best: BestSettings | None,
) -> pathlib.Path:
    """Writes a report as `write_report` does, in which the best settings of a sweep are compared.

    Without them, each mechanism is compared at its best rates by the last validation.
    """
    runs = list(runs)
    _check(runs)
    folder = expanded(folder)
    groups = group_runs(runs)
    plot_by_name = {
        "validation": metric_plots.accuracy_plot(groups),
        "training": metric_plots.training_plot(groups),
        "private_metrics": metric_plots.private_plot(groups),
        "clients": client_plots.clients_plot(groups),
        "fine_tuned": client_plots.fine_tuned_plot(groups),
        "noise_matrices": noise_plots.matrices_plot(groups),
        "noise_levels": noise_plots.levels_plot(groups),
        "participation": client_plots.participation_plot(runs),
        "spending": client_plots.spending_plot(runs),
    }
    report_html = _render(
        runs, groups, plot_by_name, title=title, differences=differences_table(groups, best)
    )
    try:
        make_folder(folder / "plots")
        for name, plot in plot_by_name.items():
            plot_path = folder / "plots" / f"{name}.png"
            if plot is not None:
                write_atomically(plot_path, plot.png, mode=0o600)
            else:
                # The report has no such plot, so a plot file from an earlier report is removed.
                plot_path.unlink(missing_ok=True)
        write_atomically(folder / "report.html", report_html, mode=0o600)
    except OSError as error:
        error_text = error.strerror or str(error)
        raise ValueError(
            f"cannot write the report to folder {folder} ({error_text}): name a folder you may "
            "write to"
        ) from error
    return folder / "report.html"


def _check(runs: list[Run]) -> None:
    """Raises an error if there are no runs, or if they are of different tasks."""
    for run in runs:
        if not isinstance(run, Run):
            raise TypeError(
                f"runs holds {run!r}, a {type(run).__name__}: read run folders with fedmf.Run.load"
            )
    if not runs:
        raise ValueError("runs=[] leaves nothing to report: name at least one run folder")
    task_metrics = sorted(
        {(run.plan["task"]["name"], run.plan["task"]["headline_metric"]) for run in runs}
    )
    if len(task_metrics) > 1:
        task_names = join([f"{name} ({metric})" for name, metric in task_metrics])
        raise ValueError(
            f"runs are of different tasks, {task_names}, and do not compare: write one report for "
            "each"
        )


def _render(
    runs: list[Run],
    groups: list[RunGroup],
    plot_by_name: dict[str, Plot | None],
    *,
    title: str,
    differences: tables.Table | None,
) -> str:
    """Renders the HTML of a report from its runs and plots."""
    template_environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template_environment.filters["data_uri"] = lambda png: (
        "data:image/png;base64," + base64.b64encode(png).decode()
    )
    return template_environment.get_template("report.html.jinja").render(
        title=title,
        note=simulation_note(runs),
        figures_note=figures_note(runs),
        simulated=sum(run.config.claimed_cohort is not None for run in runs),
        facts=_facts(runs),
        descriptions=dict.fromkeys(run.plan["task"]["description"] for run in runs),
        metric=metric_name(runs[0].plan["task"]["headline_metric"]),
        cards=_cards(groups),
        unfinished=sum(bool(unfinished(run)) for run in runs),
        runs=len(runs),
        plots=plot_by_name,
        clipping_note=metric_plots.clipping_note(groups),
        results=tables.accuracy_table(groups),
        differences=differences,
        participation=tables.participation_table(groups),
        statements=_statements(groups),
        folders=tables.runs_table(groups),
        commands=_commands(runs, title),
        config=tables.common_config(runs),
        versions=tables.package_versions(runs),
    )


def _commands(runs: list[Run], title: str) -> list[str]:
    """Returns shell commands that repeat the runs, with another noise seed, and make this report.

    They are to be called in the folder that contains the run folders.
    """
    name_by_run = tables.folder_names(runs)
    folder_names = [name_by_run[id(run)] for run in runs]
    shell_commands = [
        f"fedmf train --config {shell_path(f'{name}/config.json')} "
        f"--out {shell_path(f'again/{name}')} --noise-seed os"
        for run, name in zip(runs, folder_names, strict=True)
        if run.config.task is not None
    ]
    folder_arguments = " ".join(map(shell_path, folder_names))
    shell_commands.append(
        f"fedmf report {folder_arguments} --out report --title {shell_word(title)}"
    )
    return shell_commands


def _facts(runs: list[Run]) -> list[tuple[str, str]]:
    """Returns the names and values in the head of a report, such as the task and the number of
    rounds.

    If runs differ, the value is a range.
    """
    claimed_cohorts = [
        run.config.claimed_cohort for run in runs if run.config.claimed_cohort is not None
    ]
    seeds = sorted({run.config.seed for run in runs})
    report_facts = [
        ("task", runs[0].plan["task"]["name"]),
        ("rounds", _range_in_words([run.config.rounds for run in runs])),
        ("clients a round", _range_in_words([run.config.cohort_size for run in runs])),
    ]
    if claimed_cohorts:
        report_facts.append(("claimed cohort", _range_in_words(claimed_cohorts)))
    client_counts = [run.plan["task"]["clients"] for run in runs]
    report_facts.append(("clients", _range_in_words(client_counts)))
    report_facts.append((plural("seed", len(seeds)), ", ".join(map(str, seeds))))
    return report_facts


def _range_in_words(values: list[int]) -> str:
    """Returns a text with the smallest and the largest of several values, or one value if all are
    equal.
    """
    if min(values) == max(values):
        return f"{min(values):,}"
    return f"{min(values):,} to {max(values):,}"


def _cards(groups: list[RunGroup]) -> list[dict[str, str]]:
    """Returns the values of a card for each group of runs, with its result and its privacy.

    If there are many groups, there are no cards.
    """
    if len(groups) > _MAX_CARDS:
        return []
    cards = []
    for group in groups:
        headline_metric = group.plan["task"]["headline_metric"]
        mean_value = final_mean(group.runs, "validation")
        validations = final_by_seed(group.runs, "validation")
        progress_text = ""
        if any(map(unfinished, group.runs)):
            progress_text = "unfinished"
        cards.append(
            {
                "label": group.label,
                "color": group.color,
                "value": metric_value(headline_metric, mean_value),
                "interval": interval_in_words(headline_metric, validations),
                "privacy": _privacy_in_words(group.plan),
                "unfinished": progress_text,
            }
        )
    return cards


def _privacy_in_words(plan: dict[str, Any]) -> str:
    """Returns a short text on the planned guarantee, such as "ε = 8, δ = 1e-6"."""
    if plan["epsilon"] is None:
        return "no privacy"
    guarantee_text = f"ε = {up(plan['epsilon'])}, δ = {plain(plan['delta'])}"
    # Plans that earlier versions of fedmf recorded lack the entry "attack_risk".
    attack_risk = plan.get("attack_risk")
    if not attack_risk:
        return guarantee_text
    return f"{guarantee_text}, attacker's advantage {up(attack_risk['advantage'])}"


def _statements(groups: list[RunGroup]) -> list[dict[str, Any]]:
    """Returns the distinct privacy statements of the runs, with the labels of their groups.

    Statements of private groups come first, because the page shows the first statement open.
    """
    labels_by_statement: dict[str, dict[str, None]] = {}
    for group in sorted(groups, key=lambda group: not group.private):
        for run in group.runs:
            statement_text = without_subject(run.statement)
            labels_by_statement.setdefault(statement_text, {})[group.label] = None
    return [
        {"label": join(list(labels)), "html": statement_html(statement_text)}
        for statement_text, labels in labels_by_statement.items()
    ]
