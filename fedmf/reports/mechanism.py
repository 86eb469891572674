"""One mechanism as a picture: its matrices and the error it leaves in each round."""

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fedmf.reports.noise import heat_map, shared_norm, ticks
from fedmf.reports.plots import canvas

_COLOR = "#1b5e9b"


def mechanism_picture(
    title: str, *, encoder: np.ndarray | None, noising: np.ndarray | None, errors: np.ndarray
) -> bytes:
    """A PNG with heat maps of C, N and X = C^T C, and the error of each round.

    Args:
      title: of the picture.
      encoder: C, (m, n), scaled to sensitivity 1; None where it is too large to be made, then only errors are drawn.
      noising: N, (n, m), scaled by the sensitivity; None as encoder.
      errors: standard deviation of each round's error at noise multiplier 1 and clip norm 1, (n,).
    """
    pictured = encoder is not None and noising is not None
    with canvas(6.3 if pictured else 3.2, "") as (figure, out):
        figure.suptitle(title, fontsize=10.5, fontweight="bold")
        if encoder is not None and noising is not None:
            axes = figure.subplots(2, 2)
            panels = (
                (axes[0, 0], encoder, "encoder C", ("round", "released row")),
                (axes[0, 1], noising, "noising N", ("noise source", "round")),
                (axes[1, 0], encoder.T @ encoder, "gram X = CᵀC", ("round", "round")),
            )
            for ax, matrix, name, (across, down) in panels:
                # Rounding leaves specks where an entry is 0, which a logarithmic scale must not show.
                norm = shared_norm([matrix])
                heat_map(ax, np.where(np.abs(matrix) < 1e-12 * np.abs(matrix).max(), 0.0, matrix), norm)
                ax.set_title(name)
                ax.set_xlabel(across)
                ax.set_ylabel(down)
                bar = figure.colorbar(ax.images[0], ax=ax, shrink=0.9, aspect=24, pad=0.02)
                places, tick_names = ticks(norm)
                bar.set_ticks(places, labels=tick_names)
                bar.ax.tick_params(labelsize=7)
                bar.ax.minorticks_off()
                bar.outline.set_linewidth(0.5)
            ax = axes[1, 1]
        else:
            ax = figure.subplots()
        n = len(errors)
        rmse = float(np.sqrt(np.mean(np.square(errors))))
        ax.axhline(rmse, color="#9a9a9a", linewidth=0.9, linestyle="--")
        # A single round is a point, not a line; jagged lines of many rounds must not fill the panel.
        ax.plot(np.arange(n), errors, color=_COLOR, linewidth=1.0, marker="o" if n == 1 else "")
        ax.set_title(f"error by round (rmse {rmse:.4g})")
        ax.set_xlabel("round")
        ax.set_ylabel("standard deviation")
        ax.set_ylim(bottom=0)
        if n == 1:
            ax.set_xlim(-0.5, 0.5)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5, min_n_ticks=1))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda t, _: f"{t:,.0f}"))
    return out.getvalue()
