"""Plots of the noise, with heat maps of its matrices and its standard deviation by round."""

import textwrap
from collections.abc import Sequence

import numpy as np

from fedmf.reports.canvas import (
    SOFT,
    Plot,
    canvas,
    draw_color_bar,
    draw_heat_map,
    legend_above,
    marker,
    shared_norm,
)
from fedmf.reports.drawn_noise import MAX_DRAWN_ROUNDS, drawn_noise
from fedmf.reports.groups import (
    RunGroup,
    distinct_mechanisms,
    distinct_noise,
    noise_levels,
    runs_of,
    simulation_note,
)
from fedmf.reports.metric_plots import set_round_axis
from fedmf.reports.text import significant


def matrices_plot(groups: Sequence[RunGroup]) -> Plot | None:
    """Draws heat maps of the noise matrix N and of noise correlations, for each mechanism.

    It returns None if no group is private.
    """
    labelled_mechanisms = distinct_mechanisms(groups)
    if not labelled_mechanisms:
        return None
    drawn_groups: list[RunGroup] = []
    noise_matrices = []
    correlations = []
    for _, same_noise in labelled_mechanisms:
        drawn_groups += same_noise
        # The product of noise matrix and sensitivity is shown, because it is the same for an
        # encoder C and any multiple c C.
        sensitivity = same_noise[0].plan["sensitivity"]["value"]
        weight, correlation = drawn_noise(same_noise[0].mechanism_of_noise, sensitivity)
        noise_matrices.append(weight)
        correlations.append(correlation)
    figure_note = simulation_note(runs_of(drawn_groups))
    panel_columns = (
        ("sensitivity × N", "noise source", noise_matrices),
        ("correlation", "round", correlations),
    )
    with canvas(1.0 + 2.25 * len(labelled_mechanisms), figure_note) as (figure, png):
        axes = figure.subplots(len(labelled_mechanisms), 2, squeeze=False)
        for (bar_label, axis_label, matrices), column in zip(panel_columns, axes.T, strict=True):
            color_norm = shared_norm([matrix.entries for matrix in matrices])
            for ax, matrix in zip(column, matrices, strict=True):
                draw_heat_map(ax, matrix.entries, color_norm, size=matrix.size)
            column[-1].set_xlabel(axis_label)
            draw_color_bar(figure, list(column), color_norm, location="bottom", label=bar_label)
        for row, (label, same_noise) in zip(axes, labelled_mechanisms, strict=True):
            row[0].set_title(textwrap.fill(label, 40), color=same_noise[0].color)
            row[0].set_ylabel("round")
            row[1].set_title("correlation between rounds", color=SOFT, fontweight="normal")
    caption = (
        "Left: the noising matrix N times the sensitivity; row t holds the weights with which the "
        "independent noise sources enter round t, so blue entries below red ones take back noise "
        "that an earlier round added. Right: the correlation of the noise of two rounds; off the "
        "diagonal, blue noise cancels over time and white noise is fresh in every round. All "
        "mechanisms share a colour scale, logarithmic in both directions away from white."
    )
    if any(group.config.rounds > MAX_DRAWN_ROUNDS for group in drawn_groups):
        caption += f" Of longer runs {MAX_DRAWN_ROUNDS:,} rounds at equal distances are drawn."
    mechanism_labels = ", ".join(label for label, _ in labelled_mechanisms)
    alt_text = (
        "Heat maps of the noising matrix and of the correlation between rounds, for "
        f"{mechanism_labels}."
    )
    return Plot(png=png.getvalue(), caption=caption, note=figure_note, alt=alt_text)


def levels_plot(groups: Sequence[RunGroup]) -> Plot | None:
    """Draws the standard deviation of the noise in each round, and in the sum of rounds so far.

    It returns None if no group is private.
    """
    private_groups = distinct_noise(groups)
    if not private_groups:
        return None
    figure_note = simulation_note(runs_of([group for group in groups if group.private]))
    levels_by_group = [noise_levels(group) for group in private_groups]
    levels_by_title = {
        "Noise on one round": [level.of_rounds for level in levels_by_group],
        "Noise on the sum so far": [level.of_sums for level in levels_by_group],
    }
    with canvas(2.9, figure_note) as (figure, png):
        for ax, (title, deviations) in zip(
            figure.subplots(1, 2), levels_by_title.items(), strict=True
        ):
            for group, values in zip(private_groups, deviations, strict=True):
                round_numbers = np.arange(1, len(values) + 1)
                line_style = {
                    "color": group.color,
                    "linestyle": group.line,
                    "marker": marker(values),
                }
                ax.plot(round_numbers, values, linewidth=1.6, **line_style)
            set_round_axis(ax, title)
            ax.set(xlim=(0, None), ylim=(0, None))
        figure.axes[0].set(xlabel="round", ylabel="standard deviation")
        legend_above(figure, figure.axes[0].lines, [group.label for group in private_groups])
    caption = (
        "Standard deviation of the noise in each coordinate of the cohort's average update, in the "
        "units of the model. Training adds updates up, so the right side decides: correlated noise "
        "may be larger in single rounds (left) and still smaller in the sum (right)."
    )
    final_levels = [
        f"{group.label} {significant(level.of_sums[-1])}"
        for group, level in zip(private_groups, levels_by_group, strict=True)
    ]
    alt_text = (
        "Two line plots of noise levels. On the sum after the last round: "
        f"{'; '.join(final_levels)}"
    )
    return Plot(png=png.getvalue(), caption=caption, note=figure_note, alt=alt_text)
