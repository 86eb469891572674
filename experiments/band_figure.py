"""Banded Fig. 4, drawn again: `python -m experiments.band_figure [--quick] [--out figure_4.png]`, with its numbers beside it as JSON.

rmse of prefix sums of mean updates for n = 1024 rounds and delta = 1e-6, over epsilon and epochs: DP-SGD amplified by Poisson sampling,
multi-epoch MF (the best encoder of all for that many epochs, without amplification), and BandMF with its best number of bands, amplified.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import matplotlib.colors
import numpy as np
from matplotlib.axes import Axes

import fedmf
from fedmf.experiments.band_sweep import sweep
from fedmf.experiments.table_cells import fit
from fedmf.files import write_atomically
from fedmf.privacy.gaussian import gaussian_noise_multiplier
from fedmf.reports.plots import canvas

ROUNDS, DELTA = 1024, 1e-6
EPSILONS = tuple(2.0**i for i in range(-5, 5))
# For tests and a first look.
QUICK_ROUNDS, QUICK_EPSILONS = 16, (1.0, 8.0)

_COLORS = {"DP-SGD": "#6b6b6b", "Multi-epoch MF": "#c1440e", "BandMF": "#1f5f8b"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """rmse of three mechanisms over (epsilon, epochs), float64 (epsilons, epochs) each, and BandMF's bands.

    Of means: k epochs have cohorts of k times one epoch's, by which the errors of sums are divided; one epoch's cohort is the unit.
    """

    rounds: int
    delta: float
    epsilons: tuple[float, ...]
    epochs: tuple[int, ...]
    dp_sgd: np.ndarray
    multi_epoch: np.ndarray
    banded: np.ndarray
    bands: np.ndarray

    def summary(self) -> dict[str, Any]:
        """In plain JSON types."""
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        }


def compare(
    rounds: int,
    epsilons: tuple[float, ...],
    *,
    delta: float = DELTA,
    progress: Callable[[str], None] = lambda phrase: None,
) -> Comparison:
    """Fits and calibrates everything in the figure; rounds must be a power of two."""
    epochs = tuple(2**i for i in range(rounds.bit_length()))
    table = sweep(rounds=rounds, delta=delta, epsilons=epsilons, epochs=epochs, progress=progress)
    workload = fedmf.prefix_sum(rounds)
    dense = []
    for k in epochs:
        progress(f"fitting the dense optimum of {k} epochs")
        participation = fedmf.Participation(rounds=rounds, schema="fixed_epoch", min_sep=rounds // k)
        mechanism = fit(workload, participation, "dense", tolerance=1e-3)
        dense.append(fedmf.rmse(mechanism, workload, participation))
    cohorts = np.array(epochs, dtype=np.float64)
    whole = np.array([gaussian_noise_multiplier(epsilon, delta) for epsilon in epsilons])
    return Comparison(
        rounds=rounds,
        delta=delta,
        epsilons=epsilons,
        epochs=epochs,
        dp_sgd=table.rmse[:, :, 0] / cohorts,
        multi_epoch=whole[:, None] * np.array(dense) / cohorts,
        banded=table.rmse.min(axis=-1) / cohorts,
        bands=table.best,
    )


def picture(found: Comparison) -> bytes:
    """A PNG: three ratios over (epsilon, epochs) and the errors over epochs at one epsilon."""
    ratios = (
        ("(a) multi-epoch MF / DP-SGD", found.multi_epoch / found.dp_sgd),
        ("(b) BandMF / DP-SGD", found.banded / found.dp_sgd),
        ("(c) BandMF / multi-epoch MF", found.banded / found.multi_epoch),
    )
    furthest = max(float(np.abs(np.log(ratio)).max()) for _, ratio in ratios)
    # Symmetric about 1, so that white is "as good".
    low, high = float(np.exp(-furthest)), float(np.exp(furthest))
    norm = matplotlib.colors.LogNorm(low, high)
    with canvas(6.6, "") as (figure, out):
        axes = figure.subplots(2, 2)
        for ax, (title, ratio) in zip(axes.flat, ratios, strict=False):
            _heat(ax, found, ratio, norm, 0.55 * furthest)
            ax.set_title(title)
        bar = figure.colorbar(
            axes[0, 0].images[0], ax=list(axes.flat), location="bottom", aspect=50, shrink=0.7, pad=0.02
        )
        bar.set_label("ratio of rmse, logarithmic; blue: the first mechanism is better", fontsize=8)
        places = [x for x in (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0) if low <= x <= high]
        bar.set_ticks(places, labels=[f"{x:g}" for x in places])
        bar.ax.minorticks_off()
        bar.ax.tick_params(labelsize=8)
        at = int(np.argmin(np.abs(np.log(found.epsilons))))
        ax = axes[1, 1]
        for name, values in (("DP-SGD", found.dp_sgd), ("Multi-epoch MF", found.multi_epoch), ("BandMF", found.banded)):
            ax.plot(found.epochs, values[at], "o-", label=name, color=_COLORS[name], markersize=3.5, linewidth=1.6)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log", base=2)
        ax.set_title(f"(d) rmse of means at epsilon {found.epsilons[at]:g}")
        ax.set_xlabel("epochs")
        ax.set_ylabel("unit: clip norm / one epoch's cohort", fontsize=8)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.tick_params(labelsize=7)
        ax.legend(fontsize=8)
    return out.getvalue()


def _heat(ax: Axes, found: Comparison, ratio: np.ndarray, norm: matplotlib.colors.LogNorm, strong: float) -> None:
    ax.imshow(ratio, norm=norm, cmap="RdBu_r", aspect="auto", origin="lower")
    ax.grid(visible=False)
    ax.set_xticks(range(len(found.epochs)), labels=[str(k) for k in found.epochs], rotation=60)
    ax.set_yticks(range(len(found.epsilons)), labels=[f"{epsilon:g}" for epsilon in found.epsilons])
    ax.tick_params(labelsize=7, length=2)
    ax.set_xlabel("epochs")
    ax.set_ylabel("epsilon")
    for (i, j), value in np.ndenumerate(ratio):
        color = "white" if abs(np.log(value)) > strong else "#222222"
        ax.text(
            j, i, f"{value:.2f}" if value < 9.95 else f"{value:.1f}", ha="center", va="center", fontsize=5, color=color
        )


def main(arguments: list[str] | None = None) -> int:
    """Computes, draws and says where."""
    parser = argparse.ArgumentParser(prog="python -m experiments.band_figure", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds and two epsilons")
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("figure_4.png"), help="the picture; numbers go beside it"
    )
    options = parser.parse_args(arguments)
    if options.out.suffix != ".png":
        parser.error(f"--out {options.out} does not end in .png")
    if not options.out.parent.is_dir() or options.out.is_dir():
        parser.error(f"--out {options.out} is not a file in a folder that exists: create it, or choose another")
    began = time.perf_counter()

    def progress(phrase: str) -> None:
        print(f"[{time.perf_counter() - began:6.1f} s] {phrase}", file=sys.stderr, flush=True)

    found = compare(*((QUICK_ROUNDS, QUICK_EPSILONS) if options.quick else (ROUNDS, EPSILONS)), progress=progress)
    write_atomically(options.out, picture(found))
    numbers = options.out.with_suffix(".json")
    write_atomically(numbers, (json.dumps(found.summary(), indent=1) + "\n").encode())
    print(f"{options.out} and {numbers}, {time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("stopped; fits that ended are in the cache and are not repeated", file=sys.stderr)
        sys.exit(130)
