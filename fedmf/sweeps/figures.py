"""Figures of a sweep, which show the validation metric over the tuned number, and the test metric
of the best settings over the compared number.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmf.intervals import mean_interval
from fedmf.reports.canvas import canvas, in_percent, legend_above
from fedmf.reports.groups import RunGroup, group_runs, simulation_note
from fedmf.reports.labels import config_as_run, tuned_fields
from fedmf.reports.seeds import LEVEL, ONE_SEED, by_seed
from fedmf.reports.text import is_share, metric_name, plain
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run
from fedmf.sweeps.results import Best, best_settings, validation_of, varying

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Fields in order of preference for the x axis of a figure, which shows the first one that varies in
# the sweep.
_TUNED_AXES = ("server_learning_rate", "client_learning_rate", "server_momentum")
_COMPARED_AXES = ("epsilon", "noise_multiplier", "bands", "clip_norm")
# An axis is logarithmic if its largest value is at least this many times its smallest.
_LOGARITHMIC_FROM = 3.0
# All bars at one value on the x axis have at most this width in points.
_MAX_SHIFT = 28.0
_CROSSES = " (×: stopped, or diverged)"
# For each value on the x axis, a list with the seed and the metric of every run.
_Points = dict[float | None, list[tuple[int, float]]]


def validation_figure(
    runs: Sequence[Run],
    smoothed_over: int = 0,
    searched: Sequence[str] = (),
    *,
    stopped: Sequence[Run] = (),
) -> bytes | None:
    """Draws the final validation metric of the runs over the first number that varies between them,
    as a PNG.

    There is a line for each combination of compared values, or None if no number varies. Crosses
    below a line mark values whose runs were `stopped` or whose models diverged. For a search it
    draws a point for each run, over each of the numbers that were searched.
    """
    tried_runs = [*runs, *stopped]
    varied_names = varying(tried_runs)
    if searched:
        return _points_figure(
            runs, [name for name in varied_names if name in searched], smoothed_over
        )
    axis_name = next(
        (name for name in (*_TUNED_AXES, *_COMPARED_AXES) if name in varied_names), None
    )
    if axis_name is None:
        return None
    lines: dict[TrainConfig, tuple[Run, _Points]] = {}
    for run in runs:
        line_run = _off_axis(tried_runs, run, axis_name, {})
        _, points = lines.setdefault(line_run.config, (line_run, {}))
        points.setdefault(getattr(run.config, axis_name), []).append(
            (run.config.seed, validation_of(run, smoothed_over))
        )
    for run in stopped:
        config = _off_axis(tried_runs, run, axis_name, {}).config
        if config in lines:
            _, points = lines[config]
            points.setdefault(getattr(run.config, axis_name), []).append(
                (run.config.seed, math.nan)
            )
    run_groups = group_runs([run for run, _ in lines.values()])
    title_template = _validation_title(smoothed_over)
    return _draw_lines(
        axis_name, title_template, run_groups, [points for _, points in lines.values()], runs
    )


def _validation_title(smoothed_over: int) -> str:
    """Returns the title of a validation figure, with {} in place of the metric's name."""
    if smoothed_over:
        return f"Validation {{}}, mean over the last {smoothed_over} rounds"
    return "Final validation {}"


def _points_figure(runs: Sequence[Run], names: Sequence[str], smoothed_over: int) -> bytes | None:
    """Draws a point for each run, over each number that was searched."""
    numbers: dict[str, list[Any]] = {}
    for name in names:
        field_values = [run.config.flat().get(name) for run in runs]
        if all(type(value) in (int, float) for value in field_values):
            numbers[name] = field_values
    if not numbers:
        return None
    headline_metric = runs[0].plan["task"]["headline_metric"]
    validation_values = [validation_of(run, smoothed_over) for run in runs]
    with canvas(2.9, simulation_note(runs)) as (drawing, out):
        number_panels = drawing.subplots(1, len(numbers), sharey=True, squeeze=False)[0]
        for ax, (name, field_values) in zip(number_panels, numbers.items(), strict=True):
            (points,) = ax.plot(
                field_values, validation_values, linestyle="", marker="o", markersize=4
            )
            has_crosses = _draw_crosses(ax, field_values, validation_values, points.get_color())
            if min(field_values) > 0 and max(field_values) / min(field_values) >= _LOGARITHMIC_FROM:
                ax.set_xscale("log")
                ax.xaxis.set_major_formatter(lambda x, _: plain(float(x)))
                # An axis that spans less than a factor of 10 may contain no power of ten. So the
                # ticks between powers of ten get labels too.
                if max(field_values) / min(field_values) < 10:
                    ax.xaxis.set_minor_formatter(lambda x, _: plain(float(x)))
                else:
                    ax.xaxis.set_minor_formatter("")
            ax.set_xlabel(name.replace("_", " "))
        figure_title = _validation_title(smoothed_over).format(metric_name(headline_metric))
        if has_crosses:
            figure_title += _CROSSES
        number_panels[0].set_title(figure_title)
        if is_share(headline_metric):
            in_percent(number_panels[0])
    return out.getvalue()


def _draw_crosses(
    ax: Any, positions: Sequence[float], heights: Sequence[float], color: str
) -> bool:
    """Marks points without a finite height at the foot of the axes, and returns whether there are
    any.
    """
    lost_positions = [
        x for x, height in zip(positions, heights, strict=True) if not math.isfinite(height)
    ]
    if not lost_positions:
        return False
    cross_style = {"marker": "x", "linestyle": "", "markersize": 5, "color": color}
    ax.plot(
        lost_positions,
        [0.03] * len(lost_positions),
        transform=ax.get_xaxis_transform(),
        **cross_style,
    )
    return True


def best_figure(
    runs: Sequence[Run],
    smoothed_over: int = 0,
    searched: Sequence[str] = (),
    *,
    stopped: Sequence[Run] = (),
) -> bytes | None:
    """Draws the test metric of the best settings over the first compared number, as a PNG.

    Returns None if no field is tuned, no number is compared, or settings were searched.
    """
    tried_runs = [*runs, *stopped]
    varied_names = varying(tried_runs)
    tuned_names = tuned_fields(tried_runs)
    if searched:
        return None
    axis_name = next(
        (name for name in _COMPARED_AXES if name in varied_names and name not in tuned_names), None
    )
    if axis_name is None or not any(name in varied_names for name in tuned_names):
        return None
    lines: dict[tuple[Any, ...], list[Best]] = {}
    for best in best_settings(runs, smoothed_over, stopped=stopped):
        line_key = tuple((name, x) for name, x in best.compared.items() if name != axis_name)
        lines.setdefault(line_key, []).append(best)
    first_runs = []
    for group in lines.values():
        first_run = next(
            first_run for first_run in runs if _has_values(first_run, group[0].compared)
        )
        # The tuned fields, except the number of bands, vary along a line, so the line's label
        # leaves them out.
        tuned_values = {
            name: getattr(runs[0].config, name) for name in tuned_names if name != "bands"
        }
        first_runs.append(_off_axis(runs, first_run, axis_name, tuned_values))
    line_groups = [
        _of_all_bands(line, group)
        for line, group in zip(group_runs(first_runs), lines.values(), strict=True)
    ]
    values_by_position = [
        {best.compared[axis_name]: list(best.test.items()) for best in group}
        for group in lines.values()
    ]
    return _draw_lines(
        axis_name, "Test {} of the best settings", line_groups, values_by_position, runs
    )


def _has_values(run: Run, values: Mapping[str, Any]) -> bool:
    """Returns whether the fields of a run have these values."""
    config_values = config_as_run(run).flat()
    return all(config_values.get(name) == value for name, value in values.items())


def _off_axis(runs: Sequence[Run], run: Run, axis: str, fields: Mapping[str, Any]) -> Run:
    """Returns a copy of a run without the fields that vary along a line of the figure, so that all
    runs of a line have equal copies.

    The copy has seed 0, no data path and a common value on the axis.

    A run without a value on the axis has its own line.
    """
    if getattr(run.config, axis) is not None:
        axis_values = (getattr(any_run.config, axis) for any_run in runs)
        fields = {**fields, axis: next(value for value in axis_values if value is not None)}
    config_off_axis = dataclasses.replace(config_as_run(run), seed=0, data=None, **fields)
    return dataclasses.replace(run, config=config_off_axis)


def _of_all_bands(line: RunGroup, group: Sequence[Best]) -> RunGroup:
    """Returns the group of a line of best settings, labelled with the smallest and the largest
    number of bands.
    """
    band_counts = sorted(
        {best.tuned["bands"] for best in group if best.tuned.get("bands") is not None}
    )
    if len(band_counts) < 2:
        return line
    line_name = f"{line.mechanism.partition(' (')[0]} ({band_counts[0]} to {band_counts[-1]} bands)"
    return dataclasses.replace(
        line, label=line.label.replace(line.mechanism, line_name), mechanism=line_name
    )


def _draw_lines(
    axis: str, title: str, lines: Sequence[RunGroup], points: Sequence[_Points], runs: Sequence[Run]
) -> bytes:
    """Draws lines of means over the seeds, with vertical bars for their intervals.

    A cross at the foot marks a value without a mean. A line without a value on the axis is drawn
    as a horizontal line.
    """
    headline_metric = runs[0].plan["task"]["headline_metric"]
    values_by_line = [
        {x: list(by_seed(pairs).values()) for x, pairs in line_points.items()}
        for line_points in points
    ]
    has_bars = any(len(values) > 1 for line in values_by_line for values in line.values())
    spacing = min(4.0, _MAX_SHIFT / len(lines)) if has_bars else 0.0
    has_crosses = False
    with canvas(3.6, simulation_note(runs)) as (drawing, out):
        ax = drawing.subplots()
        for index, (line, values) in enumerate(zip(lines, values_by_line, strict=True)):
            # The bars of several lines stand side by side.
            shift = spacing * (index - (len(lines) - 1) / 2)
            has_crosses |= _draw_line(ax, line, values, shift)
        all_positions = set(itertools.chain.from_iterable(points))
        axis_ticks = sorted(x for x in all_positions if x is not None)
        if axis_ticks[0] > 0 and axis_ticks[-1] / axis_ticks[0] >= _LOGARITHMIC_FROM:
            ax.set_xscale("log")
            ax.minorticks_off()
        ax.set_xticks(axis_ticks, labels=[plain(float(x)) for x in axis_ticks])
        seeds_text = ONE_SEED
        if has_bars:
            seeds_text = f"bars: {LEVEL} intervals over seeds"
        ax.set_xlabel(f"{axis.replace('_', ' ')} ({seeds_text})")
        if has_crosses:
            title += _CROSSES
        ax.set_title(title.format(metric_name(headline_metric)))
        if is_share(headline_metric):
            in_percent(ax)
        legend_above(drawing, *ax.get_legend_handles_labels())
    return out.getvalue()


def _draw_line(
    ax: "Axes", line: RunGroup, values: Mapping[float | None, list[float]], shift: float
) -> bool:
    """Draws the means of a line and their intervals over seeds, and returns whether it has crosses.

    Args:
      ax: to draw on.
      line: whose colour, style and label are used.
      values: for each value on the x axis, the metric of each seed.
      shift: in points, to the right.
    """
    from matplotlib.transforms import ScaledTranslation

    style: dict[str, Any] = {"color": line.color, "linestyle": line.line, "label": line.label}
    # A run without noise has no epsilon, so it has no place on the x axis.
    if None in values:
        ax.axhline(float(np.mean(values[None])), linewidth=1.4, **style)
        interval = mean_interval(values[None])
        if interval is not None:
            ax.axhspan(interval.low, interval.high, color=line.color, alpha=0.13, linewidth=0)
        return False
    line_positions = sorted(x for x in values if x is not None)
    mean_values = [float(np.mean(values[x])) for x in line_positions]
    figure = ax.get_figure()
    assert figure is not None
    shifted = ax.transData + ScaledTranslation(shift / 72, 0, figure.dpi_scale_trans)
    drawn_lines = ax.plot(
        line_positions, mean_values, marker="o", markersize=4, linewidth=1.6, **style
    )
    for x in line_positions:
        interval = mean_interval(values[x])
        if interval is not None:
            ends = (interval.low, interval.high)
            drawn_lines += ax.plot([x, x], ends, color=line.color, linewidth=1.2)
    # Lines are shifted after they have set the limits of the axes.
    for drawn_line in drawn_lines:
        drawn_line.set_transform(shifted)
    return _draw_crosses(ax, line_positions, mean_values, line.color)
