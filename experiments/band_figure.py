"""Banded Fig. 4: its numbers and its picture, for `fedmf paper run banded-figure-4`.

rmse of prefix sums of mean updates for n = 1024 rounds and delta = 1e-6, over epsilon and epochs:
DP-SGD amplified by Poisson sampling, multi-epoch MF (the best encoder of all for that many epochs,
without amplification), and BandMF with its best number of bands, amplified.
"""

from collections.abc import Callable
from typing import NamedTuple

import matplotlib.colors
import numpy as np
from matplotlib.axes import Axes

import fedmf
from fedmf.experiments.band_sweep import sweep
from fedmf.experiments.table_cells import fit
from fedmf.privacy.gaussian import gaussian_noise_multiplier
from fedmf.reports.canvas import canvas

ROUNDS, DELTA = 1024, 1e-6
EPSILONS = tuple(2.0**i for i in range(-5, 5))
# For tests and a first look.
QUICK_ROUNDS, QUICK_EPSILONS = 16, (1.0, 8.0)


class Comparison(NamedTuple):
    """rmse of three mechanisms over (epsilon, epochs), float64 (epsilons, epochs) each, and
    BandMF's bands.

    The errors are those of means, in units of the clip norm over one epoch's cohort. A run of k
    epochs has cohorts of k times that size.
    """

    rounds: int
    delta: float
    epsilons: tuple[float, ...]
    epochs: tuple[int, ...]
    dp_sgd: np.ndarray
    multi_epoch: np.ndarray
    banded: np.ndarray
    bands: np.ndarray


def compare(
    rounds: int, epsilons: tuple[float, ...], progress: Callable[[str], None]
) -> Comparison:
    """Fits and calibrates everything in the figure; rounds must be a power of two."""
    epochs = tuple(2**i for i in range(rounds.bit_length()))
    table = sweep(rounds=rounds, delta=DELTA, epsilons=epsilons, epochs=epochs, progress=progress)
    workload, dense = fedmf.prefix_sum(rounds), []
    for k in epochs:
        progress(f"fitting the dense optimum of {k} epochs")
        participation = fedmf.Participation(
            rounds=rounds, schema="fixed_epoch", min_sep=rounds // k
        )
        mechanism = fit(workload, participation, "dense", tolerance=1e-3)
        dense.append(fedmf.rmse(mechanism, workload, participation))
    noise = np.array([gaussian_noise_multiplier(epsilon, DELTA) for epsilon in epsilons])
    errors = (table.rmse[:, :, 0], np.outer(noise, dense), table.rmse.min(axis=-1))
    dp_sgd, multi_epoch, banded = (error / np.array(epochs) for error in errors)
    return Comparison(rounds, DELTA, epsilons, epochs, dp_sgd, multi_epoch, banded, table.best)


def picture(comparison: Comparison) -> bytes:
    """A PNG: three ratios over (epsilon, epochs), and the errors over epochs at one epsilon."""
    _, _, epsilons, epochs, dp_sgd, multi_epoch, banded, _ = comparison
    ratios = {
        "(a) multi-epoch MF / DP-SGD": multi_epoch / dp_sgd,
        "(b) BandMF / DP-SGD": banded / dp_sgd,
        "(c) BandMF / multi-epoch MF": banded / multi_epoch,
    }
    # Symmetric about 1, so that white is "as good".
    high = float(np.exp(max(np.abs(np.log(ratio)).max() for ratio in ratios.values())))
    norm = matplotlib.colors.LogNorm(1 / high, high)
    with canvas(6.6, "") as (figure, out):
        axes = figure.subplots(2, 2)
        for ax, (title, ratio) in zip(axes.flat, ratios.items(), strict=False):
            _heat(ax, comparison, ratio, norm)
            ax.set_title(title)
        bar = figure.colorbar(
            axes[0, 0].images[0],
            ax=list(axes.flat),
            location="bottom",
            aspect=50,
            shrink=0.7,
            pad=0.02,
        )
        bar.set_label("ratio of rmse, logarithmic; blue: the first mechanism is better", fontsize=8)
        ticks = [x for x in (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0) if 1 / high <= x <= high]
        bar.set_ticks(ticks, labels=[f"{x:g}" for x in ticks])
        bar.ax.minorticks_off()
        bar.ax.tick_params(labelsize=8)
        ax, i = axes[1, 1], int(np.argmin(np.abs(np.log(epsilons))))
        for name, color, errors in (
            ("DP-SGD", "#6b6b6b", dp_sgd),
            ("Multi-epoch MF", "#c1440e", multi_epoch),
            ("BandMF", "#1f5f8b", banded),
        ):
            ax.plot(epochs, errors[i], "o-", label=name, color=color, markersize=3.5, linewidth=1.6)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log", base=2)
        ax.set_title(f"(d) rmse of means, epsilon {epsilons[i]:g}")
        ax.set_xlabel("epochs")
        ax.set_ylabel("unit: clip norm / one epoch's cohort", fontsize=8)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.tick_params(labelsize=7)
        ax.legend(fontsize=8)
    return out.getvalue()


def _heat(
    ax: Axes, comparison: Comparison, ratio: np.ndarray, norm: matplotlib.colors.LogNorm
) -> None:
    ax.imshow(ratio, norm=norm, cmap="RdBu_r", aspect="auto", origin="lower")
    ax.grid(visible=False)
    ax.set_xticks(
        range(len(comparison.epochs)), labels=[str(k) for k in comparison.epochs], rotation=60
    )
    ax.set_yticks(
        range(len(comparison.epsilons)), labels=[f"{epsilon:g}" for epsilon in comparison.epsilons]
    )
    ax.tick_params(labelsize=7, length=2)
    ax.set_xlabel("epochs")
    ax.set_ylabel("epsilon")
    for (i, j), value in np.ndenumerate(ratio):
        text = f"{value:.2f}" if value < 9.95 else f"{value:.1f}"
        color = "white" if abs(norm(value) - 0.5) > 0.275 else "#222222"
        ax.text(j, i, text, ha="center", va="center", fontsize=5, color=color)
