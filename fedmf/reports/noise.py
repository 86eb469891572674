"""Plots of the noise: its matrices, and how much of it there is."""

import textwrap
from collections.abc import Sequence

import numpy as np

from fedmf.reports.canvas import SOFT, Plot, canvas, legend_above, marker, whole_steps
from fedmf.reports.groups import Group, distinct_mechanisms, distinct_noise, simulation_note
from fedmf.reports.heat_map import draw_color_bar, draw_heat_map, shared_norm, without_specks
from fedmf.reports.text import significant


def matrices_plot(groups: Sequence[Group]) -> Plot | None:
    """Heat maps of N and of the correlation of N Z between rounds, for each private mechanism; None
    without one.
    """
    kinds = distinct_mechanisms(groups)
    if not kinds:
        return None
    note = simulation_note([run for _, kind in kinds for group in kind for run in group.runs])
    # N is scaled by the sensitivity: C and c C are the same mechanism, and only this product does
    # not depend on c.
    weights = [kind[0].plan["sensitivity"]["value"] * kind[0].noising for _, kind in kinds]
    columns = (
        ("sensitivity × N", "noise source", weights),
        ("correlation", "round", [*map(correlation, weights)]),
    )
    with canvas(1.0 + 2.25 * len(kinds), note) as (figure, png):
        axes = figure.subplots(len(kinds), 2, squeeze=False)
        for (name, across, matrices), below in zip(columns, axes.T, strict=True):
            norm = shared_norm(matrices)
            for ax, matrix in zip(below, matrices, strict=True):
                draw_heat_map(ax, matrix, norm)
            below[-1].set_xlabel(across)
            draw_color_bar(figure, list(below), norm, location="bottom", label=name)
        for row, (label, kind) in zip(axes, kinds, strict=True):
            row[0].set_title(textwrap.fill(label, 40), color=kind[0].color)
            row[0].set_ylabel("round")
            row[1].set_title("correlation between rounds", color=SOFT, fontweight="normal")
    caption = (
        "Left: the noising matrix N times the sensitivity; row t holds the weights with which the "
        "independent noise sources enter round t, so blue entries below red ones take back noise "
        "that an earlier round added. Right: the correlation of the noise of two rounds; off the "
        "diagonal, blue noise cancels over time and white noise is fresh in every round. All "
        "mechanisms share a colour scale, logarithmic in both directions away from white."
    )
    names = ", ".join(label for label, _ in kinds)
    alt = f"Heat maps of the noising matrix and of the correlation between rounds, for {names}."
    return Plot(png=png.getvalue(), caption=caption, note=note, alt=alt)


def correlation(noising: np.ndarray) -> np.ndarray:
    """Correlation of the rows of N Z, (rounds, rounds); 0 for a round without noise."""
    covariance = noising @ noising.T
    deviation = np.sqrt(np.diag(covariance))
    scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    return without_specks(covariance * scale[:, None] * scale[None, :])


def levels_plot(groups: Sequence[Group]) -> Plot | None:
    """Standard deviation of the noise on each round and on the sum of rounds;
    None if no group is private.
    """
    private = distinct_noise(groups)
    if not private:
        return None
    note = simulation_note([run for group in groups if group.private for run in group.runs])
    levels = [noise_levels(group) for group in private]
    with canvas(2.9, note) as (figure, png):
        for i, ax in enumerate(figure.subplots(1, 2)):
            for group, values in zip(private, levels, strict=True):
                rounds = np.arange(1, len(values[i]) + 1)
                style = {"color": group.color, "linestyle": group.line, "marker": marker(values[i])}
                ax.plot(rounds, values[i], linewidth=1.6, **style)
            ax.set_title(("Noise on one round", "Noise on the sum so far")[i])
            ax.set_xlabel(("round", "rounds completed")[i])
            ax.set(xlim=(0, None), ylim=(0, None))
            ax.xaxis.set_major_locator(whole_steps(5))
        figure.axes[0].set_ylabel("standard deviation")
        legend_above(figure, figure.axes[0].lines, [group.label for group in private])
    caption = (
        "Standard deviation of the noise in each coordinate of the cohort's average update, in the "
        "units of the model. Training adds updates up, so the right side decides: correlated noise "
        "may be larger in single rounds (left) and still smaller in the sum (right)."
    )
    alt = "Two line plots of noise levels. On the sum after the last round: " + "; ".join(
        f"{group.label} {significant(on_sum[-1])}"
        for group, (_, on_sum) in zip(private, levels, strict=True)
    )
    return Plot(png=png.getvalue(), caption=caption, note=note, alt=alt)


def noise_levels(group: Group) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviations of the noise on the average update of the cohort: of each round, and of
    the sum up to it.

    In a simulation the plan's stddev carries the factor simulated / claimed. Dividing by the
    simulated cohort therefore gives the noise on the claimed cohort's average.
    """
    scale = group.plan["stddev"] / group.config.cohort_size
    on_round = scale * np.linalg.norm(group.noising, axis=1)
    return on_round, scale * np.linalg.norm(np.cumsum(group.noising, axis=0), axis=1)
