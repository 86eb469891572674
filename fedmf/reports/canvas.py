"""Functions that draw figures in the style of the reports as deterministic PNG files, and heat maps
of matrices.

The colour scale of a heat map is logarithmic in both directions away from 0.
"""

import contextlib
import dataclasses
import io
import textwrap
from collections.abc import Iterator, Sequence, Sized

import matplotlib.style
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

# Width of all figures in inches. At this width, 10-point type is legible on a page and on a phone.
WIDTH = 6.4
_DPI = 220
BLUE = "#1f5f8b"
RED = "#c1440e"
SOFT = "#6b6b6b"
INK = "#222222"
DASHED = (0, (5, 3))
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelsize": 10,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#9a9a9a",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 2.2,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "white",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plot:
    """Image of a report, with its caption and its description in words.

    Attributes:
      png: the bytes of the image.
      caption: text below the image.
      note: simulation note of the runs in it, which the image shows as well.
      alt: the image in words.
    """

    png: bytes
    caption: str
    note: str
    alt: str


@contextlib.contextmanager
def canvas(height: float, note: str) -> Iterator[tuple[Figure, io.BytesIO]]:
    """Yields an empty figure in the style of the reports, and a buffer for its PNG file.

    The PNG, with the note as a footnote, is in the buffer after the `with` block. The style starts
    from matplotlib's defaults, so that a matplotlibrc does not change a report.

    Args:
      height: of the figure in inches.
      note: footnote; may be empty.
    """
    png_buffer = io.BytesIO()
    with in_style():
        figure = blank(height)
        yield figure, png_buffer
        if note:
            note_lines = textwrap.wrap(note, 118)
            note_height = 0.16 * len(note_lines) + 0.06
            full_height = figure.get_figheight() + note_height
            note_fraction = note_height / full_height
            figure.set_figheight(full_height)
            figure.set_layout_engine(
                ConstrainedLayoutEngine(rect=(0.0, note_fraction, 1.0, 1.0 - note_fraction))
            )
            figure.text(
                0.012,
                0.05 / full_height,
                "\n".join(note_lines),
                fontsize=7.5,
                color="#8a2c0d",
                va="bottom",
            )
        png_buffer.write(as_png(figure))


@contextlib.contextmanager
def in_style() -> Iterator[None]:
    """Sets matplotlib's style to that of the reports within the `with` block.

    The user's matplotlibrc is ignored.
    """
    with matplotlib.style.context(STYLE, after_reset=True):
        yield


def blank(height: float) -> Figure:
    """Returns an empty figure as wide as a page, which the caller draws on within `in_style`."""
    figure = Figure(figsize=(WIDTH, height), dpi=_DPI, layout=ConstrainedLayoutEngine())
    FigureCanvasAgg(figure)
    return figure


def as_png(figure: Figure) -> bytes:
    """Renders a figure as PNG bytes, which are the same for the same figure and renderer.

    The PNG does not name the version of matplotlib.
    """
    png_buffer = io.BytesIO()
    figure.savefig(png_buffer, format="png", metadata={"Software": None})
    return png_buffer.getvalue()


def whole_steps(max_ticks: int) -> MaxNLocator:
    """Returns a matplotlib locator for at most `max_ticks` ticks at whole numbers.

    Their distance is 1, 2 or 5 times a power of ten, so that the last round of most runs has a
    tick. An axis of one round has one tick.
    """
    return MaxNLocator(integer=True, nbins=max_ticks, steps=[1, 2, 5, 10], min_n_ticks=1)


def powers_of_two(ax: Axes, ticks: Sequence[float]) -> None:
    """Makes the horizontal axis of a plot logarithmic with base 2, and sets its ticks."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks)
    _plain_numbers(ax.xaxis)


def tens(ax: Axes) -> None:
    """Makes the vertical axis of a plot logarithmic, with ticks at 1, 2, 5, 10, 20 and so on."""
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    _plain_numbers(ax.yaxis)


def _plain_numbers(axis: Axis) -> None:
    """Labels the ticks of a logarithmic axis by plain numbers, such as 0.5 or 20."""
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))


def in_percent(ax: Axes) -> None:
    """Labels the vertical axis of a plot in percent, for a metric between 0 and 1."""
    ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%".replace("-", "−"))


def marker(values: Sized) -> str:
    """Returns the marker of a plotted line. A line of one point needs a marker to be visible, and
    other lines have none.
    """
    return "o" if len(values) == 1 else ""


def legend_above(figure: Figure, lines: Sequence[Artist], labels: Sequence[str]) -> None:
    """Draws a legend above the axes, and makes the figure taller to give it room."""
    longest_label = max(map(len, labels))
    # The legend has as many columns as fit the width of the figure.
    num_columns = 1
    if longest_label < 22:
        num_columns = 3
    elif longest_label < 40:
        num_columns = 2
    num_rows = -(-len(labels) // num_columns)
    figure.set_figheight(figure.get_figheight() + 0.2 * num_rows)
    figure.legend(lines, labels, loc="outside upper center", ncols=num_columns)


# The colours of heat maps diverge from white at 0, and are safe for colour-blind readers.
_COLOR_MAP = "RdBu_r"
# A heat map has at most this many pixels in each direction. Larger matrices are pooled to this size
# before they are rendered.
PIXELS = 560
# The logarithmic part of a colour scale has between 2 and 5 decades.
_MIN_DECADES = 2
_MAX_DECADES = 5


def without_specks(matrix: np.ndarray) -> np.ndarray:
    """Returns a copy of a matrix in which entries below 1e-12 times the largest are 0.

    Such entries are rounding errors, which a logarithmic scale would show.
    """
    return np.where(np.abs(matrix) < 1e-12 * np.abs(matrix).max(), 0.0, matrix)


def shared_norm(matrices: Sequence[np.ndarray]) -> SymLogNorm:
    """Returns a colour scale, symmetric about 0, for the heat maps of several matrices.

    It is logarithmic from the largest entry down to the smallest median entry of a matrix, and
    linear around 0. Entries of N decay as a power of the distance between rounds, so that long runs
    need more decades than short ones.
    """
    largest_magnitude = max(float(np.abs(matrix).max()) for matrix in matrices)
    median_magnitudes = [
        np.median(sizes[sizes > 1e-9 * largest_magnitude]) for sizes in map(np.abs, matrices)
    ]
    top_power = _top_power(largest_magnitude)
    median_power = round(np.log10(min(median_magnitudes)))
    # The linear part of the colour scale ends at a power of ten, so that ticks of the colour bar
    # near 0 do not overlap.
    bottom_power = min(top_power - _MIN_DECADES, max(top_power - _MAX_DECADES, median_power))
    return SymLogNorm(
        linthresh=10.0**bottom_power,
        linscale=1.0,
        vmin=-largest_magnitude,
        vmax=largest_magnitude,
        base=10,
    )


def _top_power(largest: float) -> int:
    """Returns the exponent of the largest power of ten that is at most a value."""
    return int(np.floor(np.log10(largest) + 1e-9))


def draw_heat_map(
    ax: Axes, matrix: np.ndarray, norm: SymLogNorm, *, size: tuple[int, int] | None = None
) -> None:
    """Draws a matrix as a heat map, in which each block of a large matrix has a single colour.

    Args:
      ax: to draw on.
      matrix: the full matrix, or rows and columns of it at equal distances.
      norm: the colour scale.
      size: shape of the full matrix; None for that of `matrix`.
    """
    num_rows, num_columns = size or matrix.shape
    extent = (-0.5, num_columns - 0.5, num_rows - 0.5, -0.5)
    ax.imshow(
        pool(matrix, PIXELS),
        norm=norm,
        cmap=_COLOR_MAP,
        aspect="auto",
        extent=extent,
        interpolation="nearest",
    )
    ax.grid(visible=False)
    ax.spines[:].set(visible=True, linewidth=0.6)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(whole_steps(5))


def draw_color_bar(
    figure: Figure, axes: list[Axes], norm: SymLogNorm, *, location: str = "right", label: str = ""
) -> None:
    """Draws the colour bar of heat maps, with ticks at powers of ten on both sides of 0.

    About three ticks on each side have labels.
    """
    color_bar = figure.colorbar(
        ScalarMappable(norm, _COLOR_MAP),
        ax=axes,
        location=location,
        label=label,
        shrink=0.92,
        aspect=32,
        pad=0.02,
    )
    top_power = _top_power(norm.vmax or 1.0)
    bottom_power = round(np.log10(norm.linthresh))
    label_distance = -(-(top_power - bottom_power + 1) // 3)
    label_by_tick = {0.0: "0"}
    for power in range(top_power, bottom_power - 1, -1):
        tick_value = 10.0**power
        label_by_tick |= {tick_value: "", -tick_value: ""}
        if (top_power - power) % label_distance == 0:
            tick_label = f"{tick_value:g}" if -2 <= power <= 3 else f"$10^{{{power}}}$"
            label_by_tick |= {tick_value: tick_label, -tick_value: f"−{tick_label}"}
    color_bar.set_ticks(list(label_by_tick), labels=list(label_by_tick.values()))
    color_bar.ax.tick_params(labelsize=7)
    color_bar.ax.minorticks_off()
    color_bar.outline.set_linewidth(0.5)


def pool(matrix: np.ndarray, limit: int) -> np.ndarray:
    """Reduces a matrix to at most limit x limit entries.

    Each is the entry with the largest absolute value in a block, so that thin diagonals stay
    visible.

    >>> pool(np.array([[1.0, -3.0], [0.0, 2.0]]), 1)
    array([[-3.]])
    """
    for axis in (0, 1):
        axis_length = matrix.shape[axis]
        if axis_length > limit:
            pool_starts = np.linspace(0, axis_length, limit, endpoint=False).astype(np.int64)
            highest_values = np.maximum.reduceat(matrix, pool_starts, axis=axis)
            lowest_values = np.minimum.reduceat(matrix, pool_starts, axis=axis)
            matrix = np.where(highest_values >= -lowest_values, highest_values, lowest_values)
    return matrix
