"""The figure that every picture is drawn on, as PNG bytes: the same runs give the same bytes."""

import contextlib
import dataclasses
import io
import textwrap
from collections.abc import Iterator, Sequence, Sized

import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

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
