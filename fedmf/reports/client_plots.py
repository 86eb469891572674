"""Plots of how clients differ in their metric, their number of participations and their spent
budget.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from fedmf.reports.canvas import DASHED, INK, RED, SOFT, Plot, canvas, in_percent, legend_above
from fedmf.reports.groups import RunGroup, simulation_note
from fedmf.reports.text import is_share, metric_name, metric_value, plain
from fedmf.runs.folder import Run

_BAR_COLOR = "#51677f"
_ZERO_BAR_COLOR = "#c9c9c9"
# If a bar chart has at most this many bars, each bar is labelled with its value.
_MAX_LABELLED_BARS = 16


def _draw_deciles(
    ax: Axes, group: RunGroup, metric: str, deciles: Sequence[float], *, hollow: bool = False
) -> Line2D:
    """Draws the deciles of a metric over the clients of a group as a line, and returns it."""
    percents = range(10, 100, 10)
    (line,) = ax.plot(percents, deciles, "o", color=group.color, linestyle=group.line, markersize=4)
    if hollow:
        line.set(linewidth=1.0, markerfacecolor="white")
    ax.set_xlabel("percent of clients at or below")
    ax.set_xticks(percents)
    if is_share(metric):
        in_percent(ax)
    return line


def _group_runs(groups: Sequence[RunGroup]) -> Iterator[tuple[RunGroup, Run]]:
    """Yields each run of all groups, together with its group."""
    for group in groups:
        for run in group.runs:
            yield group, run


def clients_plot(groups: Sequence[RunGroup]) -> Plot | None:
    """Draws how the headline metric differs between training clients, by its deciles.

    It returns None if the metric was not measured by client for any run.
    """
    measured_runs = [
        (group, run, run.clients) for group, run in _group_runs(groups) if run.clients is not None
    ]
    if not measured_runs:
        return None
    headline_metric = groups[0].plan["task"]["headline_metric"]
    figure_note = simulation_note([run for _, run, _ in measured_runs])
    decile_ranges = []
    exclusion_texts = []
    with canvas(2.9, figure_note) as (figure, png):
        ax = figure.subplots()
        line_by_label: dict[str, Line2D] = {}
        for group, run, clients in measured_runs:
            run_name = f"{group.label}, seed {run.config.seed}"
            deciles = clients["deciles"]
            line_by_label.setdefault(
                group.label, _draw_deciles(ax, group, headline_metric, deciles)
            )
            decile_range = " to ".join(metric_value(headline_metric, deciles[i]) for i in (0, -1))
            decile_ranges.append(f"{run_name}: {decile_range} over {clients['clients']:,} clients")
            exclusion_texts += _excluded_clients(run_name, clients)
        ax.set_title(f"{metric_name(headline_metric).capitalize()} over training clients")
        legend_above(figure, list(line_by_label.values()), list(line_by_label))
    caption = (
        f"Deciles of the {metric_name(headline_metric)} on the training examples of each client by "
        "itself (`fedmf evaluate --by-client`). A flat line serves all clients alike."
    )
    if exclusion_texts:
        caption += (
            " Clients on whose examples it is undefined or not finite are left out: "
            f"{'; '.join(exclusion_texts)}."
        )
    alt_text = f"Line plot. From the first to the ninth decile: {'; '.join(decile_ranges)}."
    return Plot(png=png.getvalue(), caption=caption, note=figure_note, alt=alt_text)


def _excluded_clients(run_name: str, clients: Mapping[str, Any]) -> list[str]:
    """Returns texts that say how many clients of a run have no value of the metric, and why."""
    exclusion_texts = []
    # Runs of earlier fedmf versions did not record the number of clients whose metric is not
    # finite.
    for reason in ("undefined", "not_finite"):
        num_clients = clients.get(f"clients_{reason}", 0)
        if num_clients:
            exclusion_texts.append(f"{reason.replace('_', ' ')} on {num_clients:,} of {run_name}")
    return exclusion_texts


def fine_tuned_plot(groups: Sequence[RunGroup]) -> Plot | None:
    """Draws deciles of the headline metric before and after fine-tuning, and of its change.

    It returns None if the metric is defined on no client of any run.
    """
    headline_metric = groups[0].plan["task"]["headline_metric"]
    measured_runs = [
        (group, run, run.fine_tuned)
        for group, run in _group_runs(groups)
        if run.fine_tuned is not None and run.fine_tuned["metrics"][headline_metric]["clients"]
    ]
    if not measured_runs:
        return None
    figure_note = simulation_note([run for _, run, _ in measured_runs])
    run_means = []
    with canvas(2.9, figure_note) as (figure, png):
        value_panel, change_panel = figure.subplots(1, 2)
        change_panel.axhline(0.0, color=SOFT, linewidth=0.9)
        line_by_label: dict[str, Line2D] = {}
        for group, run, fine_tuned in measured_runs:
            metric_values = fine_tuned["metrics"][headline_metric]
            label_prefix = f"{group.label}, " if len(groups) > 1 else ""
            for stage in ("before", "after"):
                deciles = metric_values[stage]["deciles"]
                is_before = stage == "before"
                decile_line = _draw_deciles(
                    value_panel, group, headline_metric, deciles, hollow=is_before
                )
                line_by_label.setdefault(f"{label_prefix}{stage} fine-tuning", decile_line)
            _draw_deciles(change_panel, group, headline_metric, metric_values["change"]["deciles"])
            run_name = f"{group.label}, seed {run.config.seed}"
            run_means.append(f"{run_name}, {_fine_tuning_in_words(headline_metric, fine_tuned)}")
        value_panel.set_title(metric_name(headline_metric).capitalize())
        change_panel.set_title("Each client's change")
        legend_above(figure, list(line_by_label.values()), list(line_by_label))
    means_text = "; ".join(run_means)
    caption = (
        f"Deciles over clients of the {metric_name(headline_metric)} before and after the model is "
        "trained on half of the client's examples, on the other half or the split that is named; "
        f"and of the change. Means: {means_text}. The guarantee does not cover these exact "
        "functions of data."
    )
    return Plot(
        png=png.getvalue(),
        caption=caption,
        note=figure_note,
        alt=f"Line plots. Means: {means_text}.",
    )


def _fine_tuning_in_words(metric: str, fine_tuned: Mapping[str, Any]) -> str:
    """Returns a text with the options of fine-tuning, the means before and after it, and the
    numbers of clients.
    """
    metric_values = fine_tuned["metrics"][metric]
    means_text = " to ".join(
        metric_value(metric, metric_values[stage]["mean"]) for stage in ("before", "after")
    )
    option_text = f"--fine-tune {fine_tuned['epochs']}"
    if "learning_rate" in fine_tuned:
        option_text += f" --learning-rate {plain(fine_tuned['learning_rate'])}"
    num_not_finite = metric_values.get("clients_not_finite", 0)
    num_excluded = (
        metric_values["clients_undefined"] + num_not_finite + sum(fine_tuned["left_out"].values())
    )
    return (
        f"{option_text}, on {fine_tuned['measured_on']}: {means_text} "
        f"over {metric_values['clients']:,} clients, {num_excluded:,} left out, "
        f"{num_not_finite:,} of these for values that are not finite"
    )


def participation_plot(runs: Sequence[Run]) -> Plot | None:
    """Draws a histogram of how many rounds each client took part in, over finished runs.

    It returns None if no run is finished, or if rounds, cohorts or populations differ: a mean over
    such runs would be the count of no run.
    """
    finished_runs = [run for run in runs if run.result is not None]
    run_sizes = {
        (run.config.rounds, run.config.cohort_size, _participation(run)["population"])
        for run in finished_runs
    }
    if len(run_sizes) != 1:
        return None
    figure_note = simulation_note(finished_runs)
    with canvas(2.8, figure_note) as (figure, png):
        ax = figure.subplots()
        ax.set_title("How often clients took part")
        alt_text = f"Bar plot. {_draw_participation(ax, finished_runs)}"
    caption = (
        "Clients by the number of rounds in which they took part; the grey bar "
        "counts those that never did."
    )
    if len(finished_runs) > 1:
        caption += " Bars are means over runs, and lines span the smallest and the largest count."
    return Plot(png=png.getvalue(), caption=caption, note=figure_note, alt=alt_text)


def _draw_participation(ax: Axes, runs: Sequence[Run]) -> str:
    """Draws a histogram of participations, averaged over runs of the same size, and returns it in
    words.
    """
    histograms = [_clients_by_participations(run) for run in runs]
    planned_limits = {run.plan["participation"]["max_participations"] for run in runs}
    planned_limit = None
    if len(planned_limits) == 1:
        planned_limit = planned_limits.pop()
    num_bars = 1 + max(map(max, histograms))
    if planned_limit is not None and planned_limit <= 2 * num_bars:
        num_bars = max(num_bars, planned_limit + 1)
    num_times = np.arange(num_bars)
    clients_by_run = np.array(
        [[histogram.get(t, 0) for t in num_times] for histogram in histograms]
    )
    mean_clients = clients_by_run.mean(axis=0)
    error_bars: np.ndarray | None = None
    if (clients_by_run != mean_clients).any():
        error_bars = np.stack(
            [mean_clients - clients_by_run.min(axis=0), clients_by_run.max(axis=0) - mean_clients]
        )
    participation_bars = ax.bar(
        num_times,
        mean_clients,
        color=[_participation_color(t, planned_limit) for t in num_times],
        yerr=error_bars,
        ecolor=INK,
        capsize=3,
    )
    if num_bars <= _MAX_LABELLED_BARS:
        ax.bar_label(participation_bars, fmt="{:,.0f}", padding=3, fontsize=9)
    ax.margins(y=0.15)
    axis_label = "participations of one client"
    if planned_limit is not None:
        axis_label += f", planned limit {planned_limit:,}"
    ax.set_xlabel(axis_label)
    if planned_limit is not None and planned_limit < num_bars:
        ax.axvline(planned_limit + 0.5, color=INK, linewidth=1.2, linestyle=DASHED)
    ax.set_ylabel("clients")
    ax.grid(axis="x", visible=False)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=16, min_n_ticks=1))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    return "; ".join(
        f"{t} times: {num_clients:,.0f} clients"
        for t, num_clients in zip(num_times, mean_clients, strict=True)
    )


def _participation_color(times: int, limit: int | None) -> str:
    """Returns the colour of the bar for this number of participations of a client."""
    if times == 0:
        return _ZERO_BAR_COLOR
    if limit is not None and times > limit:
        return RED
    return _BAR_COLOR


def _participation(run: Run) -> dict[str, Any]:
    """Returns the participation statistics from the result of a finished run."""
    assert run.result is not None
    participation: dict[str, Any] = run.result["participation"]
    return participation


def _clients_by_participations(run: Run) -> dict[int, int]:
    """Returns the number of clients of a finished run by their number of participations."""
    participation = _participation(run)
    histogram = {int(times): int(count) for times, count in participation["histogram"].items()}
    return histogram | {0: participation["population"] - participation["clients"]}


def spending_plot(runs: Sequence[Run]) -> Plot | None:
    """Draws a histogram of the share of the participation budget that clients spent.

    It returns None if no finished run has a budget, or if their populations differ.
    """
    finished_runs = [run for run in runs if run.result is not None]
    recorded_participations = [
        _participation(run)
        for run in finished_runs
        if "clients_by_share_spent" in _participation(run)
    ]
    if len({participation["population"] for participation in recorded_participations}) != 1:
        return None
    histograms = [
        participation["clients_by_share_spent"] for participation in recorded_participations
    ]
    share_intervals = list(histograms[0])
    clients_by_run = [
        [histogram[interval] for interval in share_intervals] for histogram in histograms
    ]
    mean_clients = np.mean(clients_by_run, axis=0)
    figure_note = simulation_note(finished_runs)
    with canvas(2.8, figure_note) as (figure, png):
        ax = figure.subplots()
        spending_bars = ax.bar(share_intervals, mean_clients, color=_BAR_COLOR)
        ax.bar_label(spending_bars, fmt="{:,.0f}", padding=3, fontsize=9)
        ax.set(
            title="What clients spent of their budget",
            xlabel="share of the squared budget",
            ylabel="clients",
        )
        ax.margins(y=0.15)
        ax.grid(axis="x", visible=False)
    caption = (
        "Clients that took part by what their rounds cost: their summed |X|, in parts of the "
        "squared participation budget."
    )
    if len(recorded_participations) > 1:
        caption += " Bars are means over runs."
    bars_in_words = [
        f"{interval}: {num_clients:,.0f} clients"
        for interval, num_clients in zip(share_intervals, mean_clients, strict=True)
    ]
    alt_text = f"Bar plot. {'; '.join(bars_in_words)}"
    return Plot(png=png.getvalue(), caption=caption, note=figure_note, alt=alt_text)
