"""Plots of validation metrics, training metrics and private metrics over rounds."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from fedmf.intervals import mean_band
from fedmf.reports.canvas import SOFT, Plot, canvas, in_percent, legend_above, whole_steps
from fedmf.reports.groups import (
    RunGroup,
    curves_by_seed,
    private_curve,
    runs_of,
    simulation_note,
    unfinished,
    validation_curve,
    validation_curves,
)
from fedmf.reports.seeds import LEVEL
from fedmf.reports.text import is_share, join, metric_name, metric_value, significant
from fedmf.runs.folder import Run

# The legend lists all groups of runs if there are at most this many, and otherwise only their
# mechanisms.
_MAX_LABELLED_GROUPS = 24
# The points of a line have markers if there are at most this many points.
_MAX_MARKED_POINTS = 6


def accuracy_plot(groups: Sequence[RunGroup]) -> Plot:
    """Draws the headline metric on the validation set over rounds."""
    headline_metric = groups[0].plan["task"]["headline_metric"]
    all_runs = runs_of(groups)
    figure_note = simulation_note(all_runs)
    plot_title = f"Validation {metric_name(headline_metric)} over rounds"
    final_values = []
    with canvas(3.9, figure_note) as (figure, png):
        ax = figure.subplots()
        for group in groups:
            final_value = _draw_validation(ax, group)
            if final_value is not None:
                final_values.append(f"{group.label} {metric_value(headline_metric, final_value)}")
        set_round_axis(ax, plot_title, max_ticks=8)
        ax.set_xlim(0, max(run.config.rounds for run in all_runs))
        if is_share(headline_metric):
            in_percent(ax)
            ax.set_ylim(bottom=max(0.0, ax.get_ylim()[0]))
        if not final_values:
            empty_message = "no run has been validated yet"
            ax.text(0.5, 0.5, empty_message, transform=ax.transAxes, ha="center", color=SOFT)
            ax.set_yticks([])
        line_by_label: dict[str, Line2D] = {}
        for group in groups:
            legend_label = group.mechanism
            if len(groups) <= _MAX_LABELLED_GROUPS:
                legend_label = group.label
            legend_line = Line2D([], [], color=group.color, linestyle=group.line)
            line_by_label.setdefault(legend_label, legend_line)
        legend_above(figure, list(line_by_label.values()), list(line_by_label))
    return Plot(
        png=png.getvalue(),
        caption=_accuracy_caption(groups, all_runs),
        note=figure_note,
        alt=f"Line plot: {plot_title}. Last values: {'; '.join(final_values) or 'none yet'}.",
    )


def _accuracy_caption(groups: Sequence[RunGroup], runs: Sequence[Run]) -> str:
    """Returns the caption of the plot of validation metrics."""
    headline_metric = groups[0].plan["task"]["headline_metric"]
    caption = (
        f"Validation {metric_name(headline_metric)} against the number of completed rounds, one "
        "colour for each mechanism."
    )
    if len({group.config.family for group in groups}) < len(groups):
        caption += " Shades and dashes tell apart what is of one kind."
    if len(groups) > _MAX_LABELLED_GROUPS:
        caption += " They are too many to name: the tables do."
    if len(runs) > len(groups):
        caption += (
            f" The bold line is the mean over seeds, the band its {LEVEL} interval in each round "
            "by itself, and thin lines are the seeds."
        )
    if any(unfinished(run) for run in runs):
        caption += " A cross ends the curve of an unfinished run."
    return caption


def set_round_axis(ax: Axes, title: str, *, max_ticks: int = 5) -> None:
    """Sets the title of a plot, and the label and ticks of its axis of rounds."""
    ax.set(title=title, xlabel="rounds completed")
    ax.xaxis.set_major_locator(whole_steps(max_ticks))


def _draw_validation(ax: Axes, group: RunGroup) -> float | None:
    """Draws the validation curves of a group, and returns the last value of their mean.

    It returns None if the runs have no validated round in common.
    """
    for run in group.runs:
        rounds, values = validation_curve(run)
        if len(group.runs) > 1:
            ax.plot(rounds, values, color=group.color, linewidth=0.9, alpha=0.55)
        if unfinished(run):
            ax.plot(
                rounds[-1:],
                values[-1:],
                "X",
                markersize=8,
                color=group.color,
                markeredgecolor="white",
            )
    rounds, seed_values = validation_curves(group)
    if not len(rounds):
        return None
    mean_values = _draw_band(ax, group, rounds, seed_values)
    point_marker = "o" if len(rounds) <= _MAX_MARKED_POINTS else ""
    ax.plot(
        rounds,
        mean_values,
        color=group.color,
        linestyle=group.line,
        marker=point_marker,
        markersize=4,
        clip_on=False,
    )
    return float(mean_values[-1])


def _draw_band(
    ax: Axes, group: RunGroup, rounds: np.ndarray, seed_values: np.ndarray
) -> np.ndarray:
    """Draws the intervals of a metric over seeds as a band, and returns the means.

    Args:
      ax: to draw on.
      group: whose colour the band has.
      rounds: (rounds,), numbers of completed rounds.
      seed_values: (seeds, rounds), values of the metric; one seed has no band.
    """
    if len(seed_values) < 2:
        return seed_values.mean(axis=0)
    band = mean_band(seed_values)
    ax.fill_between(rounds, band.low, band.high, color=group.color, alpha=0.13, linewidth=0)
    return band.mean


# If at least this fraction of updates was clipped in every round, a report says that all updates
# were clipped.
_ALL_CLIPPED = 0.99
# Titles of the panels that show training metrics, by the name of the column in metrics.jsonl.
_TRAINING_METRICS = {"train_loss": "training loss", "clip_fraction": "updates clipped"}


def training_plot(groups: Sequence[RunGroup]) -> Plot | None:
    """Draws the training loss and the fraction of clipped updates over rounds.

    The lines are means over the runs of a group. It returns None if no run has either metric.
    """
    all_runs = runs_of(groups)
    metric_names = [
        name for name in _TRAINING_METRICS if any(_has_metric(run, name) for run in all_runs)
    ]
    if not metric_names:
        return None
    figure_note = simulation_note(all_runs)
    final_values = []
    with canvas(2.8, figure_note) as (figure, png):
        metric_panels = figure.subplots(1, len(metric_names), squeeze=False)[0]
        for ax, name in zip(metric_panels, metric_names, strict=True):
            for group in groups:
                rounds, seed_values = curves_by_seed(group, name)
                values = _draw_band(ax, group, rounds, seed_values)
                ax.plot(rounds, values, color=group.color, linestyle=group.line, linewidth=1.4)
                final_value = f"{group.label} none"
                if len(values):
                    final_value = (
                        f"{group.label} {_TRAINING_METRICS[name]} {significant(values[-1], 4)}"
                    )
                final_values.append(final_value)
            set_round_axis(ax, _TRAINING_METRICS[name].capitalize())
            if name == "clip_fraction":
                in_percent(ax)
                ax.set_ylim(0, 1.03)
    caption = (
        "Over the clients of each round: the mean loss before the round's step, and the share of "
        "updates that were clipped."
    )
    if len(all_runs) > len(groups):
        caption += f" Lines are means over seeds, and bands their {LEVEL} intervals."
    caption += (
        " Colours are those above. These are exact functions of client data, which the "
        "guarantee does not cover."
    )
    alt_text = f"Line plots. Last values: {'; '.join(final_values)}."
    return Plot(png=png.getvalue(), caption=caption, note=figure_note, alt=alt_text)


def clipping_note(groups: Sequence[RunGroup]) -> str:
    """Returns advice on groups of runs whose updates were all clipped, or an empty text if there
    are none.
    """
    clipped_labels = []
    for group in groups:
        if all(_has_metric(run, "clip_fraction") for run in group.runs):
            _, seed_fractions = curves_by_seed(group, "clip_fraction")
            fractions = seed_fractions.mean(axis=0)
            if len(fractions) and fractions.min() >= _ALL_CLIPPED:
                clipped_labels.append(group.label)
    if not clipped_labels:
        return ""
    return (
        f"All updates were clipped ({_ALL_CLIPPED:.0%} or more in every round): "
        f"{join(clipped_labels)}. The clip norm then scales every update, and the noise with it, "
        "as the server's learning rate does, and the lengths of the updates are lost. Compare runs "
        "with a larger clip norm (--clip-norm) and a server learning rate that is smaller by the "
        "same factor: such a run differs once some updates are no longer clipped. Or let the clip "
        "norm follow a quantile of the norms (--clip-quantile 0.5), which the guarantee covers."
    )


def _has_metric(run: Run, name: str) -> bool:
    """Returns whether a run has this metric in any round."""
    return any(name in row for row in run.metrics)


# Titles of the panels that show private metrics, by the name under "private" in metrics.jsonl.
_PRIVATE_METRICS = {"loss": "private loss", "accuracy": "private accuracy"}


def private_plot(groups: Sequence[RunGroup]) -> Plot | None:
    """Draws private metrics over rounds, with bands of two standard deviations of their noise.

    Each line is that of the group's first run with private metrics. The function returns None if no
    run has private metrics.
    """
    drawn_runs = []
    for group in groups:
        private_runs = [run for run in group.runs if run.config.private_metrics]
        if private_runs:
            drawn_runs.append((group, private_runs[0]))
    if not drawn_runs:
        return None
    figure_note = simulation_note([run for _, run in drawn_runs])
    final_values = []
    with canvas(2.8, figure_note) as (figure, png):
        metric_panels = figure.subplots(1, len(_PRIVATE_METRICS))
        for ax, name in zip(metric_panels, _PRIVATE_METRICS, strict=True):
            for group, run in drawn_runs:
                metric_curve = private_curve(run, name)
                ax.plot(
                    metric_curve.rounds,
                    metric_curve.means,
                    color=group.color,
                    linestyle=group.line,
                    linewidth=1.4,
                )
                ax.fill_between(
                    metric_curve.rounds,
                    metric_curve.means - 2 * metric_curve.stds,
                    metric_curve.means + 2 * metric_curve.stds,
                    color=group.color,
                    alpha=0.2,
                    linewidth=0,
                )
                final_value = f"{metric_curve.means[-1]:.4g}" if len(metric_curve.means) else "none"
                final_values.append(f"{group.label} {_PRIVATE_METRICS[name]} {final_value}")
                axis_limit = run.config.largest_loss if name == "loss" else 1.0
            set_round_axis(ax, _PRIVATE_METRICS[name].capitalize())
            ax.set_ylim(-0.03 * axis_limit, 1.03 * axis_limit)
            if name == "accuracy":
                in_percent(ax)
    caption = (
        "Means over the clients of the rounds between validations, of the models that "
        "these rounds began with, released with noise: the guarantee covers them. Bands are two "
        "standard deviations of the noise."
    )
    if any(len(group.runs) > 1 for group, _ in drawn_runs):
        caption += " Of several seeds, the first is drawn; the bands are no intervals over seeds."
    return Plot(
        png=png.getvalue(),
        caption=caption,
        note=figure_note,
        alt=f"Line plots with bands. Last values: {'; '.join(final_values)}.",
    )
