"""Plots of the noise: its matrices, and how much of it there is."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.ticker import MaxNLocator

from fedmf.reports.groups import Group, distinct_mechanisms, simulation_note
from fedmf.reports.plots import Plot, canvas
from fedmf.reports.text import significant

_COLORS = "RdBu_r"  # diverging and safe for colour-blind readers; white is exactly no noise
_PIXELS = 560  # of a panel; larger matrices are pooled to this by us, not resampled by the renderer
_DECADES = 3


def matrices_plot(groups: Sequence[Group]) -> Plot | None:
    """Heat maps of N and of the correlation of N Z between rounds, for each private mechanism; None without one."""
    kinds = distinct_mechanisms(groups)
    if not kinds:
        return None
    note = simulation_note([run for _, kind in kinds for group in kind for run in group.runs])
    # N is scaled by the sensitivity: C and c C are the same mechanism, and only this product does not depend on c.
    weights = [kind[0].plan["sensitivity"]["value"] * kind[0].runs[0].noising for _, kind in kinds]
    largest = max(float(np.abs(weight).max()) for weight in weights)
    with canvas(1.0 + 2.25 * len(kinds), note) as (figure, out):
        axes = figure.subplots(len(kinds), 2, squeeze=False)
        for row, ((label, kind), weight) in enumerate(zip(kinds, weights, strict=True)):
            left = _heat_map(axes[row, 0], weight, largest)
            right = _heat_map(axes[row, 1], correlation(weight), 1.0)
            axes[row, 0].set_title(label, color=kind[0].color)
            axes[row, 1].set_title("correlation between rounds", color="#6b6b6b", fontweight="normal")
            axes[row, 0].set_ylabel("round")
        axes[-1, 0].set_xlabel("noise source")
        axes[-1, 1].set_xlabel("round")
        for column, image, text in ((0, left, "sensitivity × N"), (1, right, "correlation")):
            bar = figure.colorbar(image, ax=axes[:, column], location="bottom", shrink=0.92, aspect=32, pad=0.02)
            top = image.norm.vmax
            ticks = [0.0] + [sign * tick for tick in (top, top / 10, top / 100) for sign in (1, -1)]
            bar.set_ticks(sorted(ticks), labels=[significant(tick, 2).replace("-", "−") for tick in sorted(ticks)])
            bar.ax.tick_params(labelsize=8)
            bar.ax.minorticks_off()
            bar.outline.set_linewidth(0.5)
            bar.set_label(text, fontsize=9)
    caption = (
        "Left: the noising matrix N times the sensitivity; row t holds the weights with which the independent noise "
        "sources enter round t, so blue entries below red ones take back noise that an earlier round added. Right: the "
        "correlation of the noise of two rounds; off the diagonal, blue noise cancels over time and white noise is "
        "fresh in every round. All mechanisms share a colour scale, logarithmic in both directions away from white."
    )
    labels = ", ".join(label for label, _ in kinds)
    alt = f"Heat maps of the noising matrix and of the correlation between rounds, for {labels}."
    return Plot(name="noise_matrices", png=out.getvalue(), caption=caption, note=note, alt=alt)


def _heat_map(ax: Axes, matrix: np.ndarray, largest: float) -> Any:
    """Draws `matrix`, one colour step for each of its entries, on a symmetric logarithmic scale up to `largest`."""
    rows, columns = matrix.shape
    norm = SymLogNorm(linthresh=largest / 10**_DECADES, linscale=0.4, vmin=-largest, vmax=largest, base=10)
    extent = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    image = ax.imshow(
        pool(matrix, _PIXELS), norm=norm, cmap=_COLORS, aspect="auto", extent=extent, interpolation="nearest"
    )
    ax.grid(visible=False)
    for spine in ax.spines.values():
        spine.set_visible(True)
        spine.set_linewidth(0.6)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    return image


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
    private = [group for group in groups if group.private]
    if not private:
        return None
    note = simulation_note([run for group in private for run in group.runs])
    with canvas(3.2, note) as (figure, out):
        each, total = figure.subplots(1, 2)
        ends = []
        for group in private:
            on_round, on_sum = noise_levels(group)
            rounds = np.arange(1, len(on_round) + 1)
            for ax, values in ((each, on_round), (total, on_sum)):
                ax.plot(rounds, values, color=group.color, linestyle=group.line, label=group.label, linewidth=1.6)
            ends.append(on_sum[-1])
        each.set_title("Noise on one round")
        total.set_title("Noise on the sum so far")
        each.set_ylabel("standard deviation")
        for ax in (each, total):
            ax.set_ylim(bottom=0)
            ax.set_xlim(left=0)
            ax.set_xlabel("round" if ax is each else "rounds completed")
            ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        handles, labels = each.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3 if max(map(len, labels)) < 22 else 2)
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
