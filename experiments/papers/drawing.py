"""Panels of lines, which are told apart by colour, dashes and marks, and heat maps of matrices."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from fedmf.reports.canvas import (
    INK,
    blank,
    canvas,
    draw_color_bar,
    draw_heat_map,
    in_percent,
    legend_above,
    shared_norm,
    without_specks,
)
from fedmf.reports.text import plain

# Colours by Okabe and Ito, which readers with protanopia and deuteranopia can tell apart, and two
# more. Lines differ in dashes and marks too.
COLORS = "#0072b2 #d55e00 #009e73 #cc79a7 #e69f00 #56b4e9 #222222 #8c6bb1 #7f7f7f".split()
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)), "-", (0, (3, 3)), "-")
MARKS = "osD^vPX*<h"
# Largest number of points of a line that is drawn with marks.
_MAX_MARKED_POINTS = 20


class Line(NamedTuple):
    """Line of a panel, with the ends of an interval around it. If its one x is infinite, it is a
    horizontal line.
    """

    x: Any
    y: Any
    low: Any = None
    high: Any = None


@dataclasses.dataclass(frozen=True)
class Lines:
    """Panel of lines over a common axis.

    Attributes:
      series: label -> values.
      xlabel, ylabel, title: texts. A panel without ylabel has the scale of the one to its left.
      x: x of the series that are not of type `Line`.
      beside: more lines, which are no columns of `rows`.
      column: name of x in numbers.csv, if it is not `xlabel`.
      log: axes with a logarithmic scale, "", "x", "y" or "xy".
      ticks: ticks of the x axis; by default matplotlib's.
      ylim: ends of the y axis; None for matplotlib's.
      points: the series are points without lines.
      percent: y is a fraction, drawn in percent.
      at: x of a vertical line.
    """

    series: Mapping[str, Any]
    xlabel: str = ""
    ylabel: str = ""
    _: dataclasses.KW_ONLY
    x: Any = ()
    beside: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    column: str = ""
    title: str = ""
    log: str = ""
    ticks: Sequence[float] = ()
    ylim: tuple[float | None, float | None] | None = None
    points: bool = False
    percent: bool = False
    at: float | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names of the table of the panel's series over x."""
        return (self.column or self.xlabel, *self.series)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """Rows of the table of the panel's series over x."""
        return list(zip(self.x, *self.series.values(), strict=True))

    def draw(self, ax: Axes, order: Sequence[str]) -> None:
        """Plots the panel into `ax`. A line's colour follows from its label's position in
        `order`.
        """
        for label, line in {**self.series, **self.beside}.items():
            x, y, low, high = line if isinstance(line, Line) else Line(self.x, line)
            i = order.index(label)
            color = COLORS[i % len(COLORS)]
            dashes = DASHES[i % len(DASHES)]
            if math.isinf(x[0]):
                ax.axhline(y[0], color=color, linestyle=dashes, linewidth=1.2, label=label)
                if low is not None:
                    ax.axhspan(low[0], high[0], color=color, alpha=0.15, linewidth=0)
                continue
            points = self.points and label in self.series
            mark = MARKS[i % len(MARKS)] if points or len(x) <= _MAX_MARKED_POINTS else ""
            style: dict[str, Any] = {
                "color": color,
                "marker": mark,
                "markersize": 4.5,
                "linewidth": 1.4,
            }
            ax.plot(x, y, label=label, linestyle="" if points else dashes, **style)
            if low is not None:
                ax.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
                if mark:
                    ax.vlines(x, low, high, color=color, linewidth=1.2)
        if self.at is not None:
            ax.axvline(self.at, color=INK, linewidth=0.8, linestyle=":")
        ax.set(xlabel=self.xlabel, ylabel=self.ylabel)
        ax.set_title(self.title, fontsize=9.5)
        for axis in self.log:
            ax.set(**{f"{axis}scale": "log"})
        if self.ylim:
            ax.set_ylim(*self.ylim)
        if len(self.ticks):
            ax.minorticks_off()
            ax.set_xticks(self.ticks, labels=[plain(float(x)) for x in self.ticks])
        # Without a label of the x axis, the x values serve only to separate the points.
        if not self.xlabel:
            ax.set_xticks([])
        if self.percent:
            in_percent(ax)


def draw(panels: Sequence[Lines], note: str = "") -> bytes:
    """Plots panels as a PNG with one legend of all labels.

    Up to three panels are in one row, and more are in rows of two.
    """
    num_columns = len(panels) if len(panels) <= 3 else 2
    num_rows = -(-len(panels) // num_columns)
    order = list(dict.fromkeys(label for p in panels for label in (*p.series, *p.beside)))
    shares_label = not any(p.ylabel for p in panels[1:])
    handles: dict[str, Any] = {}
    with canvas(2.8 * num_rows, note) as (figure, png):
        axes = list(figure.subplots(num_rows, num_columns, sharey=shares_label, squeeze=False).flat)
        for ax in axes[len(panels) :]:
            ax.set_axis_off()
        for ax, panel in zip(axes, panels, strict=False):
            panel.draw(ax, order)
            for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        legend_above(figure, list(handles.values()), list(handles))
    return png.getvalue()


def heat_maps(
    panels: Sequence[tuple[str, np.ndarray]], columns: int, *, height: float, shared: bool = True
) -> Figure:
    """Plots matrices as heat maps in rows of `columns`, each row `height` inches high.

    All have one colour scale if `shared`, else each has its own.

    Zeros are white. The scale is logarithmic in both directions.
    """
    num_rows = -(-len(panels) // columns)
    figure = blank(height * num_rows + 0.5)
    axes = list(figure.subplots(num_rows, columns, squeeze=False).flat)
    shared_scale = shared_norm([matrix for _, matrix in panels])
    for ax, (title, matrix) in zip(axes, panels, strict=True):
        color_scale = shared_scale if shared else shared_norm([matrix])
        draw_heat_map(ax, without_specks(matrix), color_scale)
        ax.set_title(title, fontsize=9)
        ax.tick_params(labelsize=7)
        if not shared:
            draw_color_bar(figure, [ax], color_scale)
    if shared:
        draw_color_bar(figure, axes, shared_scale, location="bottom")
    return figure


# Blue is below 1, white is 1, and red is above 1.
_RATIO_COLORS = "RdBu_r"
YELLOW = "#ffe600"


def ratio_norm(ratios: Sequence[np.ndarray]) -> LogNorm:
    """Returns a logarithmic colour scale for ratios, whose middle is 1."""
    largest_log_ratio = max(
        float(np.abs(np.log(matrix[np.isfinite(matrix)])).max()) for matrix in ratios
    )
    largest_ratio = math.exp(max(largest_log_ratio, 0.01))
    return LogNorm(vmin=1 / largest_ratio, vmax=largest_ratio)


def draw_ratios(
    ax: Axes,
    ratios: np.ndarray,
    norm: LogNorm,
    *,
    title: str,
    x: tuple[str, Sequence[float]],
    y: tuple[str, Sequence[float]],
) -> None:
    """Plots ratios as a heat map of equal cells, with row 0 at the bottom.

    Args:
      ax: axes to draw on.
      ratios: positive numbers, float64 (rows, columns). Cells that are not finite stay white.
      norm: colour scale of `ratio_norm`.
      title: text above the map.
      x, y: label of the axis, and the value of each column or row.
    """
    ax.imshow(ratios, norm=norm, cmap=_RATIO_COLORS, aspect="auto", origin="lower")
    ax.grid(visible=False)
    ax.set_title(title, fontsize=7.5)
    ax.tick_params(labelsize=7)
    for axis, (label, values) in ((ax.xaxis, x), (ax.yaxis, y)):
        tick_step = -(-len(values) // 8)
        tick_positions = range(0, len(values), tick_step)
        axis.set_ticks(tick_positions, labels=[plain(float(values[i])) for i in tick_positions])
        axis.set_label_text(label)
    ax.minorticks_off()


def draw_ratio_bar(figure: Figure, axes: Sequence[Axes], norm: LogNorm) -> None:
    """Plots the colour bar of `draw_ratios` below its axes, with ticks at powers of two."""
    color_bar = figure.colorbar(
        ScalarMappable(norm, _RATIO_COLORS),
        ax=list(axes),
        location="bottom",
        label="ratio of rmse",
        aspect=40,
    )
    largest_power = math.floor(math.log2(norm.vmax or 2.0))
    if largest_power >= 1:
        ratio_ticks = [2.0**i for i in range(-largest_power, largest_power + 1)]
        color_bar.set_ticks(ratio_ticks, labels=[plain(tick) for tick in ratio_ticks])
        color_bar.minorticks_off()
