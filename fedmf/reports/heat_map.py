"""Matrices as heat maps, on a colour scale that is logarithmic in both directions away from 0."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure

from fedmf.reports.canvas import whole_steps

_COLORS = "RdBu_r"  # diverging and safe for colour-blind readers; white is exactly 0
_PIXELS = 560  # of a panel; larger matrices are pooled to this by us, not resampled by the renderer
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


def draw_heat_map(ax: Axes, matrix: np.ndarray, norm: SymLogNorm) -> None:
    """Draws `matrix`, one colour step for each of its entries or, where it is large,
    blocks of entries.
    """
    rows, columns = matrix.shape
    extent = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    ax.imshow(
        pool(matrix, _PIXELS),
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
    top, bottom = int(np.floor(np.log10(norm.vmax or 1.0) + 1e-9)), round(np.log10(norm.linthresh))
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
