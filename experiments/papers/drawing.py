"""What the figures share: curves told apart by colour and dashes, and rows of heat maps."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedmf.reports.canvas import blank, marker
from fedmf.reports.heat_map import draw_color_bar, draw_heat_map, shared_norm, without_specks

# Okabe and Ito's colours, which readers with protanopia and deuteranopia tell apart,
# and dashes besides.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)), "-", (0, (3, 3)), "-")


def curves(
    ax: Axes, x: Sequence[float] | np.ndarray, series: Mapping[str, np.ndarray], **options: Any
) -> None:
    """Draws the series over x, in the order of the colours."""
    for i, (label, y) in enumerate(series.items()):
        color, dashes = COLORS[i % len(COLORS)], DASHES[i % len(DASHES)]
        ax.plot(
            x,
            y,
            label=label,
            color=color,
            linestyle=dashes,
            **{"linewidth": 1.5, "marker": marker(x), **options},
        )


def table(
    x: Sequence[float] | np.ndarray, series: Mapping[str, np.ndarray]
) -> list[tuple[float, ...]]:
    """Rows of x and the series at it."""
    return list(zip(x, *series.values(), strict=True))


def heat_maps(
    panels: Sequence[tuple[str, np.ndarray]], columns: int, *, height: float, shared: bool = True
) -> Figure:
    """Matrices in rows of so many, each of this height in inches, on one colour scale
    or on one each.

    Zeros are white. The scale is logarithmic in both directions.
    """
    rows = -(-len(panels) // columns)
    figure = blank(height * rows + 0.5)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    norm = shared_norm([matrix for _, matrix in panels])
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    for ax, (title, matrix) in zip(axes, panels, strict=False):
        scale = norm if shared else shared_norm([matrix])
        draw_heat_map(ax, without_specks(matrix), scale)
        ax.set_title(title, fontsize=9)
        ax.tick_params(labelsize=7)
        if not shared:
            draw_color_bar(figure, [ax], scale)
    if shared:
        draw_color_bar(figure, axes, norm, location="bottom")
    return figure
