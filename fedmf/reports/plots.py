"""The report's plots, as PNG bytes: the same runs give the same bytes."""

import contextlib
import dataclasses
import io
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedmf.reports.groups import Group, mean_curve, simulation_note, unfinished, validation_curve
from fedmf.reports.text import is_share, metric_name, metric_value
from fedmf.runs.folder import Run

WIDTH = 6.4  # inches; with 10-point type this stays legible on a page and on a phone
_DPI = 220
BLUE, RED, SOFT, _INK = "#1f5f8b", "#c1440e", "#6b6b6b", "#222222"
DASHED = (0, (5, 3))
_LABELLED_LINES = 6  # more get a legend
_MAX_IN_LEGEND = 24  # of more the legend has the mechanisms alone
_MARKED_POINTS = 6  # of a line; more speak for themselves
_MAX_PANELS = 6
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelsize": 10,
    "axes.labelcolor": _INK,
    "axes.edgecolor": "#9a9a9a",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "text.color": _INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
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
    """A plot and what the report says with it.

    Attributes:
      name: of its file, without ending.
      png: the image.
      caption: what it shows and how to read it.
      note: the simulation note of the runs in it, or empty; the image carries it too.
      alt: the image in words.
    """

    name: str
    png: bytes
    caption: str
    note: str
    alt: str


@contextlib.contextmanager
def canvas(height: float, note: str) -> Iterator[tuple[Figure, io.BytesIO]]:
    """A figure in the report's style, with `note` as its footnote, that is a PNG in the buffer after the `with` block.

    It starts from matplotlib's defaults, so that nobody's matplotlibrc changes a report.
    """
    out = io.BytesIO()
    lines = textwrap.wrap(note, 118)
    foot = 0.16 * len(lines) + 0.06 if lines else 0.0
    with matplotlib.style.context(_STYLE, after_reset=True):
        share = foot / (height + foot)
        layout = ConstrainedLayoutEngine(rect=(0.0, share, 1.0, 1.0 - share))
        figure = Figure(figsize=(WIDTH, height + foot), dpi=_DPI, layout=layout)
        FigureCanvasAgg(figure)
        if lines:
            figure.text(0.012, 0.05 / (height + foot), "\n".join(lines), fontsize=7.5, color="#8a2c0d", va="bottom")
        yield figure, out
        # Software carries matplotlib's version; without it the bytes depend on the runs and the renderer alone.
        figure.savefig(out, format="png", metadata={"Software": None})


def whole_steps(most: int) -> MaxNLocator:
    """Ticks of rounds: 1, 2, 5 or a power of ten times these apart, so that they meet the ends of most runs. One round has one tick."""
    return MaxNLocator(integer=True, nbins=most, steps=[1, 2, 5, 10], min_n_ticks=1)


def in_percent(ax: Axes) -> None:
    """Labels the vertical axis of a share, a metric between 0 and 1."""
    ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%".replace("-", "−"))


def legend_shape(labels: Sequence[str]) -> tuple[int, int]:
    """Columns in which a legend of these labels fits the figure's width, and its rows."""
    longest = max(map(len, labels))
    columns = 3 if longest < 22 else 2 if longest < 40 else 1
    return columns, -(-len(labels) // columns)


def marker(values: Sequence[float]) -> str:
    """The marker of a line through these values: a line of one point is invisible."""
    return "o" if len(values) == 1 else ""


def legend_below(ax: Axes, columns: int, *handles_and_labels: Sequence[Any], at: float = -0.16) -> None:
    """A legend under the label of the horizontal axis, for which `canvas` keeps room above its note."""
    ax.legend(*handles_and_labels, loc="upper center", bbox_to_anchor=(0.5, at), ncols=columns)


def accuracy_plot(groups: Sequence[Group]) -> Plot:
    """The headline metric on the validation set over rounds."""
    metric = groups[0].plan["task"]["headline_metric"]
    runs = [run for group in groups for run in group.runs]
    note = simulation_note(runs)
    several = any(len(group.runs) > 1 for group in groups)
    legend = len(groups) > _LABELLED_LINES
    named = {_curve_label(group): group for group in groups}
    if len(groups) > _MAX_IN_LEGEND:
        named = {}
        for group in groups:
            named.setdefault(group.mechanism, group)
    columns, rows = legend_shape(list(named))
    with canvas(3.6 + 0.2 * rows if legend else 3.9, note) as (figure, out):
        ax = figure.subplots()
        ends = [end for group in groups for end in _draw_curve(ax, group)]
        ax.set_title(f"Validation {metric_name(metric)} over rounds")
        ax.set_xlabel("rounds completed")
        if is_share(metric):
            in_percent(ax)
            ax.set_ylim(bottom=max(0.0, ax.get_ylim()[0]))
        ax.xaxis.set_major_locator(whole_steps(8))
        ax.set_xlim(0, max(run.config.rounds for run in runs))
        if not ends:
            ax.text(0.5, 0.5, "no run has been validated yet", transform=ax.transAxes, ha="center", color=SOFT)
            ax.set_yticks([])
        elif legend:
            lines = [Line2D([], [], color=group.color, linestyle=group.line) for group in named.values()]
            legend_below(ax, columns, lines, list(named))
        else:
            _label_ends(figure, ax, ends)
    caption = f"Validation {metric_name(metric)} against the number of completed rounds, one colour for each mechanism."
    families = [group.config.family for group in groups]
    if len(set(families)) < len(families):
        caption += " Shades and dashes tell apart what is of one kind."
    if len(groups) > _MAX_IN_LEGEND:
        caption += " They are too many to name: the tables do."
    if several:
        caption += " The bold line is the mean over seeds, thin lines are the seeds, and the band spans them."
    if any(unfinished(run) for run in runs):
        caption += " A cross ends the curve of an unfinished run."
    finals = [f"{end.label} {metric_value(metric, end.y)}" for end in ends]
    alt = f"Line plot of validation {metric_name(metric)} over rounds. Last values: {'; '.join(finals) or 'none yet'}."
    return Plot(name="validation", png=out.getvalue(), caption=caption, note=note, alt=alt)


@dataclasses.dataclass(frozen=True)
class _End:
    """The right end of a line, to be labelled."""

    y: float
    label: str
    color: str


def _curve_label(group: Group) -> str:
    return f"{group.label}, unfinished" if any(unfinished(run) for run in group.runs) else group.label


def _draw_curve(ax: Axes, group: Group) -> list[_End]:
    """Draws the group's lines; its end if there is one."""
    rounds, values = mean_curve(group)
    if len(group.runs) > 1:
        for run in group.runs:
            ax.plot(*validation_curve(run), color=group.color, linewidth=0.9, alpha=0.55)
        ax.fill_between(rounds, values.min(axis=0), values.max(axis=0), color=group.color, alpha=0.13, linewidth=0)
    for run in group.runs:
        own_rounds, own_values = validation_curve(run)
        if unfinished(run) and len(own_rounds):
            ax.plot(
                own_rounds[-1], own_values[-1], marker="X", markersize=8, color=group.color, markeredgecolor="white"
            )
    if not len(rounds):
        return []
    mean = values.mean(axis=0)
    marker = "o" if len(rounds) <= _MARKED_POINTS else None
    label = _curve_label(group)
    ax.plot(
        rounds, mean, color=group.color, label=label, linestyle=group.line, marker=marker, markersize=4, clip_on=False
    )
    return [_End(float(mean[-1]), label, group.color)] if np.isfinite(mean[-1]) else []


def _label_ends(figure: Figure, ax: Axes, ends: Sequence[_End]) -> None:
    """Writes each line's label to the right of the axes, at the height of its end; touching labels move apart."""
    labels = [textwrap.fill(end.label, 24) for end in ends]
    texts = [
        ax.annotate(
            label,
            xy=(1.0, 0.5),
            xycoords="axes fraction",
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=end.color,
            fontsize=9.5,
            fontweight="bold",
            annotation_clip=False,
        )
        for label, end in zip(labels, ends, strict=True)
    ]
    figure.draw_without_rendering()
    low, high = ax.get_ylim()
    height = ax.get_window_extent().height
    sizes = [text.get_window_extent().height / height + 0.012 for text in texts]
    wanted = [(end.y - low) / (high - low) for end in ends]
    for text, place, target in zip(texts, spread(wanted, sizes), wanted, strict=True):
        text.xy = (1.0, place)
        if abs(place - target) > 0.03:
            ax.annotate(
                "",
                xy=(1.0, target),
                xytext=(1.022, place),
                xycoords="axes fraction",
                annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": text.get_color(), "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0},
            )


def spread(wanted: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """Centres for labels of these sizes, near the wanted ones and not overlapping; in 0..1 as far as they fit.

    >>> spread([0.5, 0.5], [0.1, 0.1])
    [0.45, 0.55]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    # Blocks of touching labels: (members, centre); a block that touches the one below it merges with it.
    blocks: list[tuple[list[int], float]] = []
    for i in order:
        members, centre = [i], wanted[i]
        while True:
            size = sum(sizes[j] for j in members)
            centre = min(max(centre, size / 2), max(1 - size / 2, size / 2))
            if not blocks:
                break
            below, below_centre = blocks[-1]
            if below_centre + sum(sizes[j] for j in below) / 2 <= centre - size / 2:
                break
            blocks.pop()
            members = below + members
            centre = sum(wanted[j] for j in members) / len(members)
        blocks.append((members, centre))
    places = [0.0] * len(wanted)
    for members, centre in blocks:
        at = centre - sum(sizes[j] for j in members) / 2
        for j in members:
            places[j] = at + sizes[j] / 2
            at += sizes[j]
    return [round(place, 9) for place in places]


def participation_plot(runs: Sequence[Run]) -> Plot | None:
    """How many clients took part how often, over the finished runs; None if there is none.

    Runs of other rounds, cohorts or populations have a panel of their own: a mean over them would be the count of no run.
    """
    finished = [run for run in runs if run.result is not None]
    if not finished:
        return None
    kinds: dict[tuple[int, int, int], list[Run]] = {}
    for run in finished:
        assert run.result is not None
        seen = run.result["participation"]
        kinds.setdefault((run.config.rounds, run.config.cohort_size, seen["population"]), []).append(run)
    drawn = list(kinds.items())[:_MAX_PANELS]
    note = simulation_note([run for _, members in drawn for run in members])
    alts = []
    with canvas(2.8 * len(drawn), note) as (figure, out):
        for ax, (kind, members) in zip(figure.subplots(len(drawn), 1, squeeze=False).flat, drawn, strict=True):
            which = "" if len(kinds) == 1 else ": {:,} rounds with {:,} of {:,} clients".format(*kind)
            ax.set_title(f"How often clients took part{which}")
            alts.append(f"Bar plot{which}. {_draw_participation(ax, members)}")
    caption = "Clients by the number of rounds in which they took part; the grey bar counts those that never did."
    spreads = [len({tuple(_clients_by_count(run)) for run in members}) > 1 for _, members in drawn]
    if len(kinds) > 1:
        caption += " Runs of other rounds, cohorts or populations are apart."
        if any(len(members) > 1 for _, members in drawn):
            caption += " Each panel is the mean over its finished runs"
            caption += ", with lines from the smallest to the largest count." if any(spreads) else ", which all agree."
        if len(drawn) < len(kinds):
            caption += f" Of {len(kinds)} such kinds of runs the first {len(drawn)} are shown."
    elif len(finished) > 1:
        caption += f" Mean over the {len(finished)} finished runs"
        caption += ", with lines from the smallest to the largest count." if any(spreads) else ", which all agree."
    return Plot(name="participation", png=out.getvalue(), caption=caption, note=note, alt=" ".join(alts))


def _draw_participation(ax: Axes, runs: Sequence[Run]) -> str:
    """Bars of the mean over these runs, which have the same number of clients and rounds; the bars in words."""
    counts = [_clients_by_count(run) for run in runs]
    most = max(len(row) for row in counts)
    table = np.array([row + [0] * (most - len(row)) for row in counts])
    limits = {_enforced_limit(run) for run in runs}
    limit = limits.pop() if len(limits) == 1 else None
    shown = most if limit is None or limit > 2 * most else max(most, limit + 1)
    table = np.pad(table, ((0, 0), (0, shown - most)))
    mean, times = table.mean(axis=0), np.arange(shown)
    colors = ["#c9c9c9" if t == 0 else "#c1440e" if limit is not None and t > limit else "#51677f" for t in times]
    ax.bar(times, mean, color=colors, width=0.8)
    if (table != table[0]).any():
        spread_of_runs = np.stack([mean - table.min(axis=0), table.max(axis=0) - mean])
        ax.errorbar(times, mean, yerr=spread_of_runs, fmt="none", ecolor=_INK, elinewidth=1, capsize=3)
    if shown <= 16:
        for t, clients in zip(times, mean, strict=True):
            height = table[:, t].max()
            ax.annotate(
                f"{clients:,.0f}", (t, height), xytext=(0, 4), textcoords="offset points", ha="center", fontsize=9
            )
    ax.set_ylim(0, 1.25 * max(1, table.max()))  # room for the numbers, and above them for the limit
    if limit is not None and limit < shown:
        ax.axvline(limit + 0.5, color=_INK, linewidth=1.2, linestyle=(0, (4, 3)))
        ax.annotate(
            f"planned limit: {limit}",
            (limit + 0.5, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(-5, -2),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=9,
        )
    ax.set_xlabel("participations of one client")
    ax.set_ylabel("clients")
    ax.grid(axis="x", visible=False)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=16, min_n_ticks=1))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    return "; ".join(f"{t} times: {clients:,.0f} clients" for t, clients in zip(times, mean, strict=True))


def _enforced_limit(run: Run) -> int:
    """Most participations that the controller allows; of a sampled run the plan's own count is a unit of noise, not a limit."""
    sampling = run.plan.get("sampling")
    return int((sampling["guaranteed_participation"] if sampling else run.plan["participation"])["max_participations"])


def _clients_by_count(run: Run) -> list[int]:
    """Entry i: the number of clients that took part i times."""
    assert run.result is not None
    seen = run.result["participation"]
    histogram = {int(times): int(clients) for times, clients in seen["histogram"].items()}
    histogram[0] = seen["population"] - seen["clients"]
    return [histogram.get(times, 0) for times in range(max(histogram) + 1)]
