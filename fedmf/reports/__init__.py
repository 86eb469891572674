"""Reports on training runs: one HTML file that needs nothing else, and its plots as PNG files.

They read `Run`s only, and need no TensorFlow.
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
from fedmf.reports import plots, tables
from fedmf.reports.groups import Group, final_metric, group_runs, simulation_note, unfinished
from fedmf.reports.text import (
    join,
    metric_name,
    metric_value,
    plain,
    significant,
    statement_html,
    without_subject,
)
from fedmf.runs.folder import Run
from fedmf.runs.notes import figures_note

__all__ = ["write_report"]

_MAX_CARDS = 8


@with_numpy_defaults
def write_report(
    runs: Sequence[Run], folder: str | os.PathLike[str], *, title: str
) -> pathlib.Path:
    """Writes folder/report.html and folder/plots/*.png; files of an earlier report
    there are replaced.

    The HTML file carries its plots inside and loads nothing. The same runs give the same bytes.
    Only their owner can read the files: like the runs' metrics, what they show of the clients is
    not covered by the guarantee.

    Args:
      runs: finished or not, of one task; several seeds of one configuration are shown together.
      folder: made if it is not there.
      title: of the report.

    Returns:
      The path of report.html.

    Raises:
      TypeError: runs holds something else.
      ValueError: runs is empty or of different tasks, or the folder cannot be written to.
    """
    runs = list(runs)
    _check(runs)
    folder = expanded(folder)
    groups = group_runs(runs)
    drawn = {
        "validation": plots.accuracy_plot(groups),
        "training": plots.training_plot(groups),
        "private_metrics": plots.private_plot(groups),
        "clients": plots.clients_plot(groups),
        "fine_tuned": plots.fine_tuned_plot(groups),
        "noise_matrices": plots.matrices_plot(groups),
        "noise_levels": plots.levels_plot(groups),
        "participation": plots.participation_plot(runs),
        "spending": plots.spending_plot(runs),
    }
    html = _render(runs, groups, drawn, title)
    try:
        make_folder(folder / "plots")
        for name, plot in drawn.items():
            path = folder / "plots" / f"{name}.png"
            if plot is not None:
                write_atomically(path, plot.png, mode=0o600)
            else:
                path.unlink(missing_ok=True)  # of an earlier report that had it
        write_atomically(folder / "report.html", html, mode=0o600)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(
            f"cannot write the report to folder {folder} ({reason}): name a folder you may write to"
        ) from error
    return folder / "report.html"


def _check(runs: list[Run]) -> None:
    for run in runs:
        if not isinstance(run, Run):
            raise TypeError(
                f"runs holds {run!r}, a {type(run).__name__}: read run folders with fedmf.Run.load"
            )
    if not runs:
        raise ValueError("runs=[] leaves nothing to report: name at least one run folder")
    tasks = sorted(
        {(run.plan["task"]["name"], run.plan["task"]["headline_metric"]) for run in runs}
    )
    if len(tasks) > 1:
        named = join([f"{name} ({metric})" for name, metric in tasks])
        raise ValueError(
            f"runs are of different tasks, {named}, and do not compare: write one report for each"
        )


def _render(
    runs: list[Run], groups: list[Group], drawn: dict[str, plots.Plot | None], title: str
) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data_uri"] = lambda png: (
        "data:image/png;base64," + base64.b64encode(png).decode()
    )
    return environment.get_template("report.html.jinja").render(
        title=title,
        note=simulation_note(runs),
        figures_note=figures_note(runs),
        simulated=sum(run.config.claimed_cohort is not None for run in runs),
        facts=_facts(runs),
        descriptions=dict.fromkeys(run.plan["task"]["description"] for run in runs),
        metric=metric_name(runs[0].plan["task"]["headline_metric"]),
        cards=_cards(groups) if len(groups) <= _MAX_CARDS else [],
        unfinished=sum(bool(unfinished(run)) for run in runs),
        runs=len(runs),
        plots=drawn,
        results=tables.accuracy_table(groups),
        participation=tables.participation_table(groups),
        statements=_statements(groups),
        folders=tables.runs_table(groups),
        commands=_commands(runs, title),
        config=tables.common_config(runs),
        versions=tables.versions(runs),
    )


def _commands(runs: list[Run], title: str) -> list[str]:
    """What makes the runs again, with noise of another seed, and this report; in the folder that
    holds the run folders.
    """
    name_by_run = tables.folder_names(runs)
    names = [name_by_run[id(run)] for run in runs]
    train = [
        f"fedmf train --config {shell_path(f'{name}/config.json')} "
        f"--out {shell_path(f'again/{name}')} --noise-seed os"
        for run, name in zip(runs, names, strict=True)
        if run.config.task is not None
    ]
    folders = " ".join(map(shell_path, names))
    return [*train, f"fedmf report {folders} --out report --title {shell_word(title)}"]


def _facts(runs: list[Run]) -> list[tuple[str, str]]:
    """The headline's (what, how many) pairs; a range where runs differ."""

    def span(values: list[int]) -> str:
        if min(values) == max(values):
            return f"{min(values):,}"
        return f"{min(values):,} to {max(values):,}"

    claimed = [run.config.claimed_cohort for run in runs if run.config.claimed_cohort is not None]
    seeds = {run.config.seed for run in runs}
    return [
        ("task", runs[0].plan["task"]["name"]),
        ("rounds", span([run.config.rounds for run in runs])),
        ("clients a round", span([run.config.cohort_size for run in runs])),
        *([("claimed cohort", span(claimed))] if claimed else []),
        ("clients", span([run.plan["task"]["clients"] for run in runs])),
        ("seeds" if len(seeds) > 1 else "seed", ", ".join(map(str, sorted(seeds)))),
    ]


def _cards(groups: list[Group]) -> list[dict[str, str]]:
    """Each group's result in three short lines."""
    cards = []
    for group in groups:
        values = [
            value
            for value in (final_metric(run, "validation") for run in group.runs)
            if value is not None
        ]
        epsilon = group.plan["epsilon"]
        delta = group.plan["delta"]
        risk = group.plan.get("attack_risk")  # not in older runs
        advantage = f", attacker's advantage {up(risk['advantage'], 3)}" if risk else ""
        metric = group.plan["task"]["headline_metric"]
        cards.append(
            {
                "label": group.label,
                "color": group.color,
                "value": metric_value(metric, sum(values) / len(values) if values else None),
                "privacy": "no privacy"
                if epsilon is None
                else f"ε = {significant(epsilon)}, δ = {plain(delta)}{advantage}",
                "unfinished": "unfinished" * any(map(unfinished, group.runs)),
            }
        )
    return cards


def _statements(groups: list[Group]) -> list[dict[str, Any]]:
    """Every different statement once, with the groups it is of; private ones first, since the first
    is shown open.
    """
    labels: dict[str, dict[str, None]] = {}
    for group in sorted(groups, key=lambda group: not group.private):
        for run in group.runs:
            labels.setdefault(without_subject(run.statement), {})[group.label] = None
    return [
        {"label": join(list(names)), "html": statement_html(text)} for text, names in labels.items()
    ]
