"""One mechanism as a picture: its matrices and the error it leaves in each round."""

import numpy as np
from matplotlib.ticker import StrMethodFormatter

from fedmf.reports.canvas import BLUE, SOFT, canvas, marker, whole_steps
from fedmf.reports.heat_map import draw_color_bar, draw_heat_map, shared_norm, without_specks


def mechanism_picture(
    title: str, *, encoder: np.ndarray | None, noising: np.ndarray | None, errors: np.ndarray
) -> bytes:
    """A PNG with heat maps of C, N and X = C^T C, and the error of each round.

    Args:
      title: of the picture.
      encoder: C, (m, n), scaled to sensitivity 1; None where it is too large to be made, then only
        errors are drawn.
      noising: N, (n, m), scaled by the sensitivity; None as encoder.
      errors: standard deviation of each round's error at noise multiplier 1 and clip norm 1, (n,).
    """
    panels = []
    if encoder is not None and noising is not None:
        panels = [
            (encoder, "encoder C", "round", "released row"),
            (noising, "noising N", "noise source", "round"),
            (encoder.T @ encoder, "gram X = CᵀC", "round", "round"),
        ]
    with canvas(6.3 if panels else 3.2, "") as (figure, png):
        figure.suptitle(title, fontsize=10.5, fontweight="bold")
        *maps, ax = figure.subplots(2, 2).flat if panels else [figure.subplots()]
        for heat_map, (matrix, name, across, down) in zip(maps, panels, strict=True):
            norm = shared_norm([matrix])
            draw_heat_map(heat_map, without_specks(matrix), norm)
            heat_map.set(title=name, xlabel=across, ylabel=down)
            draw_color_bar(figure, [heat_map], norm)
        rmse = float(np.sqrt(np.mean(np.square(errors))))
        ax.axhline(rmse, color=SOFT, linewidth=0.9, linestyle="--")
        ax.plot(errors, color=BLUE, linewidth=1.0, marker=marker(errors))
        ax.set(
            title=f"error by round (rmse {rmse:.4g})", xlabel="round", ylabel="standard deviation"
        )
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_locator(whole_steps(5))
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    return png.getvalue()
