"""Plot of how many examples of each label the clients have, as one stacked bar per client."""

import dataclasses
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fedmf.reports.canvas import canvas, whole_steps

# A bar chart of clients' labels has at most this many bars (one for each client) and colours (one
# for each label).
_MAX_BARS = 100
_MAX_COLORS = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelBars:
    """Number of examples of each label, for each plotted client.

    Attributes:
      counts: examples of each client and label, int64 (clients, labels + 1); the last column is
        that of the labels without a colour.
      label_names: texts of the labels with a colour.
      has_other_labels: whether there are labels without a colour.
      client_names: texts of the plotted clients.
      step: every `step`-th client is plotted.
      num_clients, num_examples: numbers of all clients and examples.
    """

    counts: np.ndarray
    label_names: list[str]
    has_other_labels: bool
    client_names: list[str]
    step: int
    num_clients: int
    num_examples: int


def count_labels(
    unique_labels: np.ndarray,
    label_codes: np.ndarray,
    unique_ids: np.ndarray,
    client_codes: np.ndarray,
) -> LabelBars:
    """Counts the labels of each plotted client.

    The labels and client ids of examples are given as indices into their unique values.
    """
    num_clients = unique_ids.size
    client_step = -(-num_clients // _MAX_BARS)
    label_counts = np.bincount(label_codes)
    frequent_labels = np.sort(np.argsort(-label_counts, kind="stable")[:_MAX_COLORS])
    column_by_label = np.full(unique_labels.size, frequent_labels.size)
    column_by_label[frequent_labels] = np.arange(frequent_labels.size)
    is_plotted = client_codes % client_step == 0
    client_bins = client_codes[is_plotted] // client_step
    label_columns = column_by_label[label_codes[is_plotted]]
    counts_by_client = np.zeros(
        (-(-num_clients // client_step), frequent_labels.size + 1), np.int64
    )
    np.add.at(counts_by_client, (client_bins, label_columns), 1)
    return LabelBars(
        counts=counts_by_client,
        label_names=[_truncate(label) for label in unique_labels[frequent_labels]],
        has_other_labels=unique_labels.size > frequent_labels.size,
        client_names=[_truncate(client) for client in unique_ids[::client_step]],
        step=client_step,
        num_clients=num_clients,
        num_examples=label_codes.size,
    )


def draw_label_bars(bars: LabelBars) -> bytes:
    """Draws a stacked bar for each client, and returns the PNG bytes."""
    num_bars = len(bars.counts)
    legend_names = list(bars.label_names)
    num_columns = 10 if max(map(len, legend_names)) < 5 else 3
    colors = [*_label_colors(len(legend_names)), "#c8c8c8"]
    if bars.has_other_labels:
        legend_names.append("others")
    num_legend_rows = -(-len(legend_names) // num_columns)
    figure_height = 1.1 + 0.1 * max(num_bars, 8) + 0.2 * num_legend_rows
    with canvas(figure_height, "") as (figure, png):
        ax = figure.subplots()
        _add_bars(ax, bars.counts, colors)
        share_text = f"1 in {bars.step} of " if bars.step > 1 else ""
        ax.set(
            title=(
                f"Examples of clients: {share_text}{bars.num_clients:,} clients, "
                f"{bars.num_examples:,} examples"
            ),
            xlabel="examples",
            ylabel="client",
            xlim=(0, bars.counts.sum(axis=1).max()),
            ylim=(num_bars - 0.4, -0.6),
        )
        ax.xaxis.set_major_locator(whole_steps(8))
        axis_ticks = np.arange(0, num_bars, max(1, -(-num_bars // 12)))
        ax.set_yticks(
            axis_ticks, [bars.client_names[tick] for tick in axis_ticks], parse_math=False
        )
        ax.grid(visible=False, axis="y")
        _add_legend(figure, legend_names, colors, num_columns)
    return png.getvalue()


def _add_bars(ax: Axes, counts: np.ndarray, colors: list[Any]) -> None:
    """Draws a rectangle for each positive count, where the rectangles of a client are stacked in
    its row.
    """
    row, column = np.nonzero(counts)
    x_end = np.cumsum(counts, axis=1)[row, column]
    x_start = x_end - counts[row, column]
    y_low = row - 0.43
    y_high = row + 0.43
    corners = np.array([(x_start, y_low), (x_end, y_low), (x_end, y_high), (x_start, y_high)])
    rectangle_corners = list(np.moveaxis(corners, -1, 0))
    ax.add_collection(PolyCollection(rectangle_corners, facecolors=[colors[k] for k in column]))


def _add_legend(figure: Figure, names: list[str], colors: list[Any], num_columns: int) -> None:
    """Adds a legend with the names of the labels above a plot."""
    legend = figure.legend(
        [Patch(color=color) for color in colors[: len(names)]],
        names,
        loc="outside upper center",
        ncols=num_columns,
        handlelength=1.0,
    )
    for text in legend.get_texts():
        # A $ in a label is escaped, because matplotlib would take it for the beginning of a
        # formula.
        text.set_parse_math(False)


def _truncate(value: Any) -> str:
    """Returns a label or client id as a text of at most 24 characters."""
    return f"{value!s:.24}"


def _label_colors(count: int) -> list[Any]:
    """Returns a distinct colour for each label."""
    if count <= 10:
        return [colormaps["tab10"](k) for k in range(count)]
    return [*colormaps["turbo"](np.linspace(0.04, 0.96, count))]
