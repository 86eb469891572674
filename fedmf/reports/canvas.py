"""The figure that every picture is drawn on, as PNG bytes: the same runs give the same bytes.

And matrices as heat maps, on a colour scale that is logarithmic in both directions away from 0.
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

WIDTH = 6.4  # inches; with 10-point type this stays legible on a page and on a phone
_DPI = 220
BLUE, RED, SOFT, INK = "#1f5f8b", "#c1440e", "#6b6b6b", "#222222"
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
    """An image, its caption, the simulation note of the runs in it (the image carries it too) and
    the image in words.
    """

    png: bytes
    caption: str
    note: str
    alt: str


@contextlib.contextmanager
def canvas(height: float, note: str) -> Iterator[tuple[Figure, io.BytesIO]]:
    """A figure in the report's style, with `note` as its footnote, that is a PNG in the buffer
    after the `with` block.

    It starts from matplotlib's defaults, so that nobody's matplotlibrc changes a report.
    """
    png = io.BytesIO()
    with in_style():
        figure = blank(height)
        yield figure, png
        if note:
            lines = textwrap.wrap(note, 118)
            foot = 0.16 * len(lines) + 0.06
            height = figure.get_figheight() + foot
            figure.set_figheight(height)
            figure.set_layout_engine(
                ConstrainedLayoutEngine(rect=(0.0, foot / height, 1.0, 1.0 - foot / height))
            )
            figure.text(
                0.012, 0.05 / height, "\n".join(lines), fontsize=7.5, color="#8a2c0d", va="bottom"
            )
        png.write(as_png(figure))


@contextlib.contextmanager
def in_style() -> Iterator[None]:
    """The reports' style, whatever matplotlibrc says."""
    with matplotlib.style.context(STYLE, after_reset=True):
        yield


def blank(height: float) -> Figure:
    """An empty figure of a page's width, height in inches; draw on it inside `in_style`."""
    figure = Figure(figsize=(WIDTH, height), dpi=_DPI, layout=ConstrainedLayoutEngine())
    FigureCanvasAgg(figure)
    return figure


def as_png(figure: Figure) -> bytes:
    """The figure as PNG.

    Without matplotlib's version in it, the bytes depend on the figure and the renderer alone.
    """
    png = io.BytesIO()
    figure.savefig(png, format="png", metadata={"Software": None})
    return png.getvalue()


def whole_steps(most: int) -> MaxNLocator:
    """Ticks of rounds: 1, 2, 5 or a power of ten times these apart, so that they meet the ends of
    most runs. One round has one tick.
    """
    return MaxNLocator(integer=True, nbins=most, steps=[1, 2, 5, 10], min_n_ticks=1)


def powers_of_two(ax: Axes, ticks: Sequence[float]) -> None:
    """A logarithmic horizontal axis of numbers that people double, with these ticks."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks)
    _plain_numbers(ax.xaxis)


def tens(ax: Axes) -> None:
    """A logarithmic vertical axis, with ticks at 1, 2 and 5 times the powers of ten."""
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    _plain_numbers(ax.yaxis)


def _plain_numbers(axis: Axis) -> None:
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))


def in_percent(ax: Axes) -> None:
    """Labels the vertical axis of a share, a metric between 0 and 1."""
    ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%".replace("-", "−"))


def marker(values: Sized) -> str:
    """The marker of a line through these values: a line of one point is invisible."""
    return "o" if len(values) == 1 else ""


def legend_above(figure: Figure, lines: Sequence[Artist], labels: Sequence[str]) -> None:
    """A legend above the axes. The figure grows by its height."""
    longest = max(map(len, labels))
    columns = 3 if longest < 22 else 2 if longest < 40 else 1  # that fit the width
    figure.set_figheight(figure.get_figheight() + 0.2 * -(-len(labels) // columns))
    figure.legend(lines, labels, loc="outside upper center", ncols=columns)


_COLORS = "RdBu_r"  # diverging and safe for colour-blind readers; white is exactly 0
PIXELS = 560  # of a panel; larger matrices are pooled to this by us, not resampled by the renderer
_MIN_DECADES, _MAX_DECADES = 2, 5  # of the logarithmic part of a colour scale


def without_specks(matrix: np.ndarray) -> np.ndarray:
    """`matrix` with 0 where rounding left less than 1e-12 of its largest entry, which a logarithmic
    scale would show.
    """
    return np.where(np.abs(matrix) < 1e-12 * np.abs(matrix).max(), 0.0, matrix)


def shared_norm(matrices: Sequence[np.ndarray]) -> SymLogNorm:
    """One symmetric scale for all: logarithmic from the largest entry down
    to the median entry of each.

    Entries of N fall off as a power of the distance between rounds. Long runs therefore need more
    decades than short ones.
    """
    largest = max(float(np.abs(matrix).max()) for matrix in matrices)
    medians = [np.median(sizes[sizes > 1e-9 * largest]) for sizes in map(np.abs, matrices)]
    top = int(np.floor(np.log10(largest) + 1e-9))
    bottom = min(top - _MIN_DECADES, max(top - _MAX_DECADES, round(np.log10(min(medians)))))
    # Linear below a round number: the ticks of the colour bar are round and none crowds 0.
    return SymLogNorm(linthresh=10.0**bottom, linscale=1.0, vmin=-largest, vmax=largest, base=10)


def draw_heat_map(
    ax: Axes, matrix: np.ndarray, norm: SymLogNorm, *, size: tuple[int, int] | None = None
) -> None:
    """Draws `matrix`, one colour step for each of its entries or, where it is large,
    blocks of entries.

    Args:
      ax: to draw on.
      matrix: the whole matrix, or rows and columns of it at equal distances.
      norm: the colour scale.
      size: shape of the whole matrix, if `matrix` is less.
    """
    num_rows, num_columns = size or matrix.shape
    extent = (-0.5, num_columns - 0.5, num_rows - 0.5, -0.5)
    ax.imshow(
        pool(matrix, PIXELS),
        norm=norm,
        cmap=_COLORS,
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
    """The colour bar of these heat maps: ticks at powers of ten on both sides of 0, labels at as
    many as there is room for.
    """
    bar = figure.colorbar(
        ScalarMappable(norm, _COLORS),
        ax=axes,
        location=location,
        label=label,
        shrink=0.92,
        aspect=32,
        pad=0.02,
    )
    top = int(np.floor(np.log10(norm.vmax or 1.0) + 1e-9))
    bottom = round(np.log10(norm.linthresh))
    labels = {0.0: "0"}
    for power in range(top, bottom - 1, -1):
        name = f"{10.0**power:g}" if -2 <= power <= 3 else f"$10^{{{power}}}$"
        shown = (top - power) % -(-(top - bottom + 1) // 3) == 0
        labels |= {10.0**power: name if shown else "", -(10.0**power): f"−{name}" if shown else ""}
    bar.set_ticks(list(labels), labels=list(labels.values()))
    bar.ax.tick_params(labelsize=7)
    bar.ax.minorticks_off()
    bar.outline.set_linewidth(0.5)


def pool(matrix: np.ndarray, limit: int) -> np.ndarray:
    """At most limit x limit entries: the one largest in absolute value of each block, so that thin
    diagonals show.

    >>> pool(np.array([[1.0, -3.0], [0.0, 2.0]]), 1)
    array([[-3.]])
    """
    for axis in (0, 1):
        size = matrix.shape[axis]
        if size > limit:
            starts = np.linspace(0, size, limit, endpoint=False).astype(np.int64)
            high = np.maximum.reduceat(matrix, starts, axis=axis)
            low = np.minimum.reduceat(matrix, starts, axis=axis)
            matrix = np.where(high >= -low, high, low)
    return matrix
