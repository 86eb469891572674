"""Plots of the noise: its matrices, and how much of it there is."""

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.ticker import MaxNLocator

from fedmf.reports.groups import Group, distinct_mechanisms, distinct_noise, simulation_note
from fedmf.reports.plots import Plot, canvas, legend_shape, whole_steps
from fedmf.reports.text import significant

_COLORS = "RdBu_r"  # diverging and safe for colour-blind readers; white is exactly no noise
_PIXELS = 560  # of a panel; larger matrices are pooled to this by us, not resampled by the renderer
_FEWEST_DECADES, _MAX_DECADES = 2, 5  # of the logarithmic part of a colour scale


def matrices_plot(groups: Sequence[Group]) -> Plot | None:
    """Heat maps of N and of the correlation of N Z between rounds, for each private mechanism; None without one."""
    kinds = distinct_mechanisms(groups)
    if not kinds:
        return None
    note = simulation_note([run for _, kind in kinds for group in kind for run in group.runs])
    # N is scaled by the sensitivity: C and c C are the same mechanism, and only this product does not depend on c.
    weights = [kind[0].plan["sensitivity"]["value"] * kind[0].runs[0].noising for _, kind in kinds]
    correlations = [correlation(weight) for weight in weights]
    norms = [shared_norm(weights), shared_norm(correlations)]
    with canvas(1.0 + 2.25 * len(kinds), note) as (figure, out):
        axes = figure.subplots(len(kinds), 2, squeeze=False)
        for row, (label, kind) in enumerate(kinds):
            for ax, matrix, norm in zip(axes[row], (weights[row], correlations[row]), norms, strict=True):
                heat_map(ax, matrix, norm)
            axes[row, 0].set_title(textwrap.fill(label, 40), color=kind[0].color)
            axes[row, 1].set_title("correlation between rounds", color="#6b6b6b", fontweight="normal")
            axes[row, 0].set_ylabel("round")
        axes[-1, 0].set_xlabel("noise source")
        axes[-1, 1].set_xlabel("round")
        for column, text in ((0, "sensitivity × N"), (1, "correlation")):
            image = axes[0, column].images[0]
            bar = figure.colorbar(image, ax=axes[:, column], location="bottom", shrink=0.92, aspect=32, pad=0.02)
            places, tick_names = ticks(norms[column])
            bar.set_ticks(places, labels=tick_names)
            bar.ax.tick_params(labelsize=7)
            bar.ax.minorticks_off()
            bar.outline.set_linewidth(0.5)
            bar.set_label(text, fontsize=9)
    caption = (
        "Left: the noising matrix N times the sensitivity; row t holds the weights with which the independent noise "
        "sources enter round t, so blue entries below red ones take back noise that an earlier round added. Right: the "
        "correlation of the noise of two rounds; off the diagonal, blue noise cancels over time and white noise is "
        "fresh in every round. All mechanisms share a colour scale, logarithmic in both directions away from white."
    )
    names = ", ".join(label for label, _ in kinds)
    alt = f"Heat maps of the noising matrix and of the correlation between rounds, for {names}."
    return Plot(name="noise_matrices", png=out.getvalue(), caption=caption, note=note, alt=alt)


def shared_norm(matrices: Sequence[np.ndarray]) -> SymLogNorm:
    """One symmetric scale for all: logarithmic from the largest entry down to the median entry of each.

    Entries of N fall off as a power of the distance between rounds, so long runs need more decades than short ones.
    """
    largest = max(float(np.abs(matrix).max()) for matrix in matrices)
    top = int(np.floor(np.log10(largest) + 1e-9))
    bottom = top - _FEWEST_DECADES
    for matrix in matrices:
        sizes = np.abs(matrix[np.abs(matrix) > 1e-9 * largest])
        bottom = min(bottom, round(np.log10(np.median(sizes))))
    bottom = max(bottom, top - _MAX_DECADES)
    # Linear below a round number, so that the colour bar's ticks are round and none crowds 0.
    return SymLogNorm(linthresh=10.0**bottom, linscale=1.0, vmin=-largest, vmax=largest, base=10)


def ticks(norm: SymLogNorm) -> tuple[list[float], list[str]]:
    """Powers of ten on both sides of 0, and labels for as many of them as there is room for."""
    bottom, top = round(np.log10(norm.linthresh)), int(np.floor(np.log10(norm.vmax or 1.0) + 1e-9))
    every = -(-(top - bottom + 1) // 3)
    places, labels = [0.0], ["0"]
    for power in range(top, bottom - 1, -1):
        text = f"{10.0**power:g}" if -2 <= power <= 3 else f"$10^{{{power}}}$"
        shown = (top - power) % every == 0
        for sign, value in (("", 10.0**power), ("−", -(10.0**power))):
            places.append(value)
            labels.append(sign + text if shown else "")
    return places, labels


def heat_map(ax: Axes, matrix: np.ndarray, norm: SymLogNorm) -> None:
    """Draws `matrix`, one colour step for each of its entries or, where it is large, blocks of entries."""
    rows, columns = matrix.shape
    ax.imshow(
        pool(matrix, _PIXELS),
        norm=norm,
        cmap=_COLORS,
        aspect="auto",
        extent=(-0.5, columns - 0.5, rows - 0.5, -0.5),
        interpolation="nearest",
    )
    ax.grid(visible=False)
    for spine in ax.spines.values():
        spine.set_visible(True)
        spine.set_linewidth(0.6)
    # min_n_ticks: the axis of a single round has one tick, not ten fractions of a round.
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5, min_n_ticks=1))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5, min_n_ticks=1))


def pool(matrix: np.ndarray, limit: int) -> np.ndarray:
    """At most limit x limit entries: the one largest in absolute value of each block, so that thin diagonals show.

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


def correlation(noising: np.ndarray) -> np.ndarray:
    """Correlation of the rows of N Z, (rounds, rounds); 0 for a round without noise."""
    covariance = noising @ noising.T
    deviation = np.sqrt(np.diag(covariance))
    scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    # Rounding leaves specks where the correlation is 0, which a logarithmic scale must not show.
    result = covariance * scale[:, None] * scale[None, :]
    return np.where(np.abs(result) < 1e-12, 0.0, result)


def levels_plot(groups: Sequence[Group]) -> Plot | None:
    """Standard deviation of the noise on each round and on the sum of rounds; None if no group is private."""
    private = distinct_noise(groups)
    if not private:
        return None
    note = simulation_note([run for group in groups if group.private for run in group.runs])
    labels = [group.label for group in private]
    across, rows = legend_shape(labels)
    with canvas(2.9 + 0.2 * rows, note) as (figure, out):
        each, total = figure.subplots(1, 2)
        ends = []
        for group in private:
            on_round, on_sum = noise_levels(group)
            rounds = np.arange(1, len(on_round) + 1)
            for ax, values in ((each, on_round), (total, on_sum)):
                marker = "o" if len(values) == 1 else None  # a line of one point is nothing
                ax.plot(
                    rounds,
                    values,
                    color=group.color,
                    linestyle=group.line,
                    marker=marker,
                    label=group.label,
                    linewidth=1.6,
                )
            ends.append(on_sum[-1])
        each.set_title("Noise on one round")
        total.set_title("Noise on the sum so far")
        each.set_ylabel("standard deviation")
        for ax in (each, total):
            ax.set_ylim(bottom=0)
            ax.set_xlim(left=0)
            ax.set_xlabel("round" if ax is each else "rounds completed")
            ax.xaxis.set_major_locator(whole_steps(5))
        handles, labels = each.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=across)
    caption = (
        "Standard deviation of the noise in each coordinate of the cohort's average update, in the units of the model. "
        "Training adds updates up, so the right side decides: correlated noise may be larger in single rounds (left) "
        "and still smaller in the sum (right)."
    )
    alt = "Two line plots of noise levels. On the sum after the last round: " + "; ".join(
        f"{group.label} {significant(end)}" for group, end in zip(private, ends, strict=True)
    )
    return Plot(name="noise_levels", png=out.getvalue(), caption=caption, note=note, alt=alt)


def noise_levels(group: Group) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviations of the noise on the average update of the cohort: of each round, and of the sum up to it.

    In a simulation the plan's stddev carries the factor simulated / claimed, so that dividing by the simulated cohort
    gives the noise on the claimed cohort's average.
    """
    scale = group.plan["stddev"] / group.config.cohort_size
    N = group.runs[0].noising
    on_round = np.sqrt(np.einsum("ij,ij->i", N, N))
    sums = np.cumsum(N, axis=0)
    return scale * on_round, scale * np.sqrt(np.einsum("ij,ij->i", sums, sums))
