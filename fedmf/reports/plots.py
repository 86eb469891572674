"""The report's plots of runs: validation over rounds, and how often clients took part."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from fedmf.reports.canvas import DASHED, INK, RED, SOFT, Plot, canvas, in_percent, legend_above, whole_steps
from fedmf.reports.groups import Group, mean_curve, simulation_note, unfinished, validation_curve
from fedmf.reports.text import is_share, metric_name, metric_value
from fedmf.runs.folder import Run

_MAX_NAMED_LINES = 24  # of more the legend has the mechanisms alone
_MAX_MARKED_POINTS = 6  # of a line
_MAX_LABELLED_BARS = 16


def accuracy_plot(groups: Sequence[Group]) -> Plot:
    """The headline metric on the validation set over rounds."""
    metric = groups[0].plan["task"]["headline_metric"]
    runs = [run for group in groups for run in group.runs]
    note, title = simulation_note(runs), f"Validation {metric_name(metric)} over rounds"
    with canvas(3.9, note) as (figure, png):
        ax = figure.subplots()
        last = [f"{group.label} {metric_value(metric, end)}" for group in groups for end in _draw_curve(ax, group)]
        ax.set(title=title, xlabel="rounds completed", xlim=(0, max(run.config.rounds for run in runs)))
        ax.xaxis.set_major_locator(whole_steps(8))
        if is_share(metric):
            in_percent(ax)
            ax.set_ylim(bottom=max(0.0, ax.get_ylim()[0]))
        if not last:
            ax.text(0.5, 0.5, "no run has been validated yet", transform=ax.transAxes, ha="center", color=SOFT)
            ax.set_yticks([])
        every_group_named = len(groups) <= _MAX_NAMED_LINES
        named: dict[str, Line2D] = {}
        for group in groups:
            name = group.label if every_group_named else group.mechanism
            named.setdefault(name, Line2D([], [], color=group.color, linestyle=group.line))
        legend_above(figure, list(named.values()), list(named))
    caption = f"Validation {metric_name(metric)} against the number of completed rounds, one colour for each mechanism."
    if len({group.config.family for group in groups}) < len(groups):
        caption += " Shades and dashes tell apart what is of one kind."
    if not every_group_named:
        caption += " They are too many to name: the tables do."
    if len(runs) > len(groups):
        caption += " The bold line is the mean over seeds, thin lines are the seeds, and the band spans them."
    if any(unfinished(run) for run in runs):
        caption += " A cross ends the curve of an unfinished run."
    alt = f"Line plot: {title}. Last values: {'; '.join(last) or 'none yet'}."
    return Plot(png=png.getvalue(), caption=caption, note=note, alt=alt)


def _draw_curve(ax: Axes, group: Group) -> list[float]:
    """Draws the group's lines. Its last mean value, if there is one."""
    for run in group.runs:
        rounds, values = validation_curve(run)
        if len(group.runs) > 1:
            ax.plot(rounds, values, color=group.color, linewidth=0.9, alpha=0.55)
        if unfinished(run):
            ax.plot(rounds[-1:], values[-1:], "X", markersize=8, color=group.color, markeredgecolor="white")
    rounds, seeds = mean_curve(group)
    if not len(rounds):
        return []
    mean = seeds.mean(axis=0)
    ax.fill_between(rounds, seeds.min(axis=0), seeds.max(axis=0), color=group.color, alpha=0.13, linewidth=0)
    marked = "o" if len(rounds) <= _MAX_MARKED_POINTS else ""
    ax.plot(rounds, mean, color=group.color, linestyle=group.line, marker=marked, markersize=4, clip_on=False)
    return [float(mean[-1])]


def participation_plot(runs: Sequence[Run]) -> Plot | None:
    """How many clients took part how often, over the finished runs.

    None without one, and where rounds, cohorts or populations differ: a mean over them would be the count of no run.
    """
    done = [(run, run.result["participation"]["population"]) for run in runs if run.result is not None]
    if len({(run.config.rounds, run.config.cohort_size, population) for run, population in done}) != 1:
        return None
    drawn = [run for run, _ in done]
    note = simulation_note(drawn)
    with canvas(2.8, note) as (figure, png):
        ax = figure.subplots()
        ax.set_title("How often clients took part")
        alt = f"Bar plot. {_draw_participation(ax, drawn)}"
    caption = "Clients by the number of rounds in which they took part; the grey bar counts those that never did."
    if len(drawn) > 1:
        caption += " Bars are means over runs, and lines span the smallest and the largest count."
    return Plot(png=png.getvalue(), caption=caption, note=note, alt=alt)


def _draw_participation(ax: Axes, runs: Sequence[Run]) -> str:
    """Bars of the mean over these runs, which have the same number of clients and rounds; the bars in words."""
    counts = [_clients_by_count(run) for run in runs]
    limits = {run.plan["participation"]["max_participations"] for run in runs}
    limit = limits.pop() if len(limits) == 1 else None
    most = 1 + max(map(max, counts))
    shown = most if limit is None or limit > 2 * most else max(most, limit + 1)
    times = np.arange(shown)
    table = np.array([[count.get(t, 0) for t in times] for count in counts])
    mean = table.mean(axis=0)
    colors = ["#c9c9c9" if t == 0 else RED if limit is not None and t > limit else "#51677f" for t in times]
    spread = np.stack([mean - table.min(axis=0), table.max(axis=0) - mean])
    bars = ax.bar(times, mean, color=colors, yerr=spread if spread.any() else None, ecolor=INK, capsize=3)
    if shown <= _MAX_LABELLED_BARS:
        ax.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=9)
    ax.margins(y=0.15)
    ax.set_xlabel("participations of one client" + ("" if limit is None else f", planned limit {limit:,}"))
    if limit is not None and limit < shown:
        ax.axvline(limit + 0.5, color=INK, linewidth=1.2, linestyle=DASHED)
    ax.set_ylabel("clients")
    ax.grid(axis="x", visible=False)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=16, min_n_ticks=1))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    return "; ".join(f"{t} times: {clients:,.0f} clients" for t, clients in zip(times, mean, strict=True))


def _clients_by_count(run: Run) -> dict[int, int]:
    """Clients that took part so often, for every number of times."""
    assert run.result is not None
    seen = run.result["participation"]
    histogram = {int(times): int(clients) for times, clients in seen["histogram"].items()}
    return histogram | {0: seen["population"] - seen["clients"]}
