"""The figures of a sweep: validation over what was tuned, and the best settings over what was compared."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from fedmf.experiments.sweep_results import Best, best_settings, tuned_fields, validation_of, varying
from fedmf.reports.groups import Group, group_runs, simulation_note
from fedmf.reports.plots import canvas, in_percent, legend_below, legend_shape
from fedmf.reports.text import is_share, metric_name, plain
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run

# What a figure may have on its axis, the first that varies.
_TUNED_AXES = ("server_learning_rate", "client_learning_rate", "server_momentum")
_COMPARED_AXES = ("epsilon", "noise_multiplier", "bands", "clip_norm")
_LOGARITHMIC_FROM = 3.0  # largest value over smallest


def validation_figure(runs: Sequence[Run], smoothed_over: int = 0) -> bytes | None:
    """A PNG: the validation metric over the first number that varies, a line for each thing compared. None where no number varies."""
    names = varying(runs)
    axis = next((name for name in (*_TUNED_AXES, *_COMPARED_AXES) if name in names), None)
    if axis is None:
        return None
    # What differs on the axis alone is one line.
    anywhere = next(x for run in runs if (x := getattr(run.config, axis)) is not None)
    lines: dict[TrainConfig, list[Run]] = {}
    for run in runs:
        place: dict[str, Any] = {} if getattr(run.config, axis) is None else {axis: anywhere}
        lines.setdefault(dataclasses.replace(run.config, seed=0, data=None, **place), []).append(run)
    firsts = [dataclasses.replace(group[0], config=config) for config, group in lines.items()]
    points: list[_Points] = []
    for group in lines.values():
        of: _Points = {}
        for run in group:
            of.setdefault(getattr(run.config, axis), []).append(validation_of(run, smoothed_over))
        points.append(of)
    title = f"Validation {{}}, mean over the last {smoothed_over} rounds" if smoothed_over else "Final validation {}"
    return _drawn(axis, title, group_runs(firsts), points, runs)


def best_figure(runs: Sequence[Run], smoothed_over: int = 0) -> bytes | None:
    """A PNG: the test metric of the best settings over the first number compared. None where nothing is tuned, or no number compared."""
    names = varying(runs)
    fields = tuned_fields(runs)
    axis = next((name for name in _COMPARED_AXES if name in names and name not in fields), None)
    if axis is None or not any(name in names for name in fields):
        return None
    anywhere = next(x for run in runs if (x := getattr(run.config, axis)) is not None)
    lines: dict[tuple[Any, ...], list[Best]] = {}
    for best in best_settings(runs, smoothed_over):
        lines.setdefault(tuple((name, x) for name, x in best.compared.items() if name != axis), []).append(best)
    firsts, points = [], []
    for group in lines.values():
        run = next(run for run in runs if all(getattr(run.config, name) == x for name, x in group[0].compared.items()))
        place: dict[str, Any] = {} if getattr(run.config, axis) is None else {axis: anywhere}
        # The tuned fields differ along a line, and name none.
        tuned = {name: getattr(run.config if name == "bands" else runs[0].config, name) for name in fields}
        firsts.append(
            dataclasses.replace(run, config=dataclasses.replace(run.config, seed=0, data=None, **tuned, **place))
        )
        points.append({best.compared[axis]: best.test for best in group})
    labelled = [_of_all_bands(line, group) for line, group in zip(group_runs(firsts), lines.values(), strict=True)]
    return _drawn(axis, "Test {} of the best settings", labelled, points, runs)


def _of_all_bands(line: Group, group: Sequence[Best]) -> Group:
    """The line of best settings with a label that says the bands of all of them."""
    bands = sorted({best.tuned["bands"] for best in group if best.tuned.get("bands") is not None})
    if len(bands) < 2:
        return line
    name = f"{line.mechanism.partition(' (')[0]} ({bands[0]} to {bands[-1]} bands)"
    return dataclasses.replace(line, label=line.label.replace(line.mechanism, name), mechanism=name)


_Points = dict[float | None, list[float]]


def _drawn(axis: str, title: str, lines: Sequence[Group], points: Sequence[_Points], runs: Sequence[Run]) -> bytes:
    """Lines of means over the seeds, with bars from the least to the largest; what has no place on the axis is a level."""
    metric = runs[0].plan["task"]["headline_metric"]
    columns, rows = legend_shape([line.label for line in lines])
    with canvas(3.6 + 0.2 * rows, simulation_note(runs)) as (drawing, out):
        ax = drawing.subplots()
        for labelled, of in zip(lines, points, strict=True):
            _draw_line(ax, labelled, of)
        every = sorted({x for of in points for x in of if x is not None})
        if every[0] > 0 and every[-1] / every[0] >= _LOGARITHMIC_FROM:
            ax.set_xscale("log")
            ax.minorticks_off()
        ax.set_xticks(every, labels=[plain(float(x)) for x in every])
        ax.set_xlabel(axis.replace("_", " "))
        ax.set_title(title.format(metric_name(metric)))
        if is_share(metric):
            in_percent(ax)
        legend_below(ax, columns)
    return out.getvalue()


def _draw_line(ax: Axes, labelled: Group, of: Mapping[float | None, Sequence[float]]) -> None:
    style: dict[str, Any] = {"color": labelled.color, "linestyle": labelled.line, "label": labelled.label}
    if None in of:  # such as no noise over epsilon
        ax.axhline(math.fsum(of[None]) / len(of[None]), linewidth=1.4, **style)
        return
    places = sorted(x for x in of if x is not None)
    ax.plot(places, [sum(of[x]) / len(of[x]) for x in places], marker="o", markersize=4, linewidth=1.6, **style)
    for x in places:
        if len(of[x]) > 1:
            ax.plot([x, x], [min(of[x]), max(of[x])], color=labelled.color, linewidth=1)
