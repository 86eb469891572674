"""Figures 4 and 9 of the paper on banded matrix factorization, which compare the errors of three
mechanisms over epsilon. See Choquette-Choo et al. 2023.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

import fedmf
from fedmf.experiments.papers import printed
from fedmf.experiments.papers.band_sweep import noise_curve, sweep
from fedmf.experiments.papers.clause import Clause, from_numbers
from fedmf.experiments.papers.drawing import (
    COLORS,
    MARKS,
    YELLOW,
    draw_ratio_bar,
    draw_ratios,
    ratio_norm,
)
from fedmf.experiments.papers.fits import epochs, fit, say, span, sums_once
from fedmf.experiments.papers.item import Outcome, Request, figure
from fedmf.privacy.gaussian import gaussian_noise_multiplier
from fedmf.reports.canvas import INK, blank

DELTA = 1e-6
DP_SGD, MULTI_EPOCH, BAND_MF = "DP-SGD", "multi-epoch MF", "BandMF"


@figure("banded-figure-4")
def figure_4(request: Request) -> Outcome:
    """Plots the ratios of the errors (rmse) of three mechanisms over epsilon and epochs, and the
    errors at epsilon 1.

    The error is that of mean updates, in units of the clip norm over one epoch's cohort. A run of k
    epochs has cohorts of k times that size.
    """
    all_epsilons = tuple(2.0**i for i in range(-5, 5))
    rounds, epsilons = request.pick(
        (16, (0.25, 1.0, 8.0)), (256, (2.0**-5, 0.25, 1.0, 4.0, 16.0)), (1024, all_epsilons)
    )
    epoch_counts = tuple(2**i for i in range(rounds.bit_length()))
    sweep_results = sweep(rounds=rounds, delta=DELTA, epsilons=epsilons, epochs=epoch_counts)
    workload = fedmf.prefix_sum(rounds)
    dense_noise = []
    for k in epoch_counts:
        say(f"fitting the dense optimum of {k} epochs")
        fixed_order = epochs(rounds, k)
        mechanism = fit(workload, fixed_order, "dense", tolerance=1e-4)
        dense_noise.append(fedmf.rmse(mechanism, workload, fixed_order))
    noise_multipliers = [gaussian_noise_multiplier(epsilon, DELTA) for epsilon in epsilons]
    rmse_by_name = {
        DP_SGD: sweep_results.rmse[:, :, 0] / epoch_counts,
        MULTI_EPOCH: np.outer(noise_multipliers, dense_noise) / epoch_counts,
        BAND_MF: sweep_results.rmse.min(axis=-1) / epoch_counts,
    }
    return Outcome(
        _ratios_and_errors(epsilons, epoch_counts, rmse_by_name),
        clauses=judge_figure_4(
            epsilons=np.array(epsilons), bands=sweep_results.best, rmse_by_name=rmse_by_name
        ),
        columns=("epsilon", "epochs", *rmse_by_name, "bands"),
        rows=[
            (epsilon, k, *(y[i, j] for y in rmse_by_name.values()), int(sweep_results.best[i, j]))
            for i, epsilon in enumerate(epsilons)
            for j, k in enumerate(epoch_counts)
        ],
        reduced=f"n = {rounds} in place of 1024 and {len(epsilons)} epsilons"
        if rounds < 1024
        else "",
    )


def _ratios_and_errors(
    epsilons: Sequence[float], numbers: Sequence[int], rmse: Mapping[str, np.ndarray]
) -> Figure:
    """Plots two heat maps of ratios over epochs and epsilon, and lines at epsilon 1."""
    drawing = blank(3.3)
    axes = drawing.subplots(1, 3)
    ratio_by_title = {
        f"(a) {MULTI_EPOCH} / {DP_SGD}": rmse[MULTI_EPOCH] / rmse[DP_SGD],
        f"(b) {BAND_MF} / {DP_SGD}": rmse[BAND_MF] / rmse[DP_SGD],
    }
    color_scale = ratio_norm(list(ratio_by_title.values()))
    for ax, (title, matrix) in zip(axes, ratio_by_title.items(), strict=False):
        draw_ratios(
            ax, matrix, color_scale, title=title, x=("epochs", numbers), y=("epsilon", epsilons)
        )
    draw_ratio_bar(drawing, axes[:2], color_scale)
    epsilon_index = epsilons.index(1.0)
    for i, (name, errors) in enumerate(rmse.items()):
        line_style = {"color": COLORS[i], "marker": MARKS[i], "markersize": 3.5}
        axes[2].plot(numbers, errors[epsilon_index], label=name, linewidth=1.2, **line_style)
    axes[2].set(xlabel="epochs", xscale="log", yscale="log")
    axes[2].set_title("(c) rmse, epsilon 1", fontsize=7.5)
    axes[2].yaxis.set_minor_formatter(NullFormatter())
    axes[2].tick_params(labelsize=7)
    axes[2].legend(fontsize=7)
    return drawing


def judge_figure_4(
    *, epsilons: np.ndarray, bands: np.ndarray, rmse_by_name: Mapping[str, np.ndarray]
) -> list[Clause]:
    """Judges Figure 4 of the banded paper by the rmse of three mechanisms, each float64 (epsilons,
    epochs).

    `bands` has the best number of bands of each setting. The epochs of the last column are as many
    as the rounds.
    """
    dp_sgd, multi_epoch, banded = (rmse_by_name[name] for name in (DP_SGD, MULTI_EPOCH, BAND_MF))
    noise_ratio = multi_epoch / dp_sgd
    epsilon_index = int(np.argmin(np.abs(epsilons - 1.0)))
    is_falling = [bool((np.diff(y[epsilon_index]) < 0).all()) for y in rmse_by_name.values()]
    return [
        from_numbers(
            "In some settings DP-SGD has less error than multi-epoch MF, and in others more.",
            bool(noise_ratio.min() < 1 < noise_ratio.max()),
            f"multi-epoch MF has {span(noise_ratio)} times the error of DP-SGD",
        ),
        *_judge_improvement(epsilons, over_sgd=banded / dp_sgd, over_mf=banded / multi_epoch),
        from_numbers(
            "With as many epochs as rounds multi-epoch MF is almost identical to DP-SGD, with a "
            "very small advantage.",
            bool((noise_ratio[:, -1] < 1).all() and (noise_ratio[:, -1] > 0.9).all()),
            f"its error is {span(noise_ratio[:, -1])} times that of DP-SGD",
        ),
        from_numbers(
            "With as many epochs as rounds BandMF is DP-SGD: one band is best.",
            bool((bands[:, -1] == 1).all()),
            f"best numbers of bands: {', '.join(map(str, bands[:, -1]))}",
        ),
        from_numbers(
            "At epsilon 1 the error of all three mechanisms falls with every doubling of epochs.",
            all(is_falling),
            "; ".join(
                f"{name}: {y[epsilon_index, 0]:.3g} to {y[epsilon_index, -1]:.3g}"
                for name, y in rmse_by_name.items()
            ),
        ),
    ]


def _judge_improvement(
    epsilons: np.ndarray, over_sgd: np.ndarray, over_mf: np.ndarray
) -> list[Clause]:
    """Judges where BandMF has less error than DP-SGD and multi-epoch MF, by the ratios of its error
    to theirs, each float64 (epsilons, epochs).
    """
    is_best = (over_sgd < 1 - 1e-9) & (over_mf < 1 - 1e-9)
    wins_by_epsilon = is_best.sum(axis=1)
    winning_epsilons = ", ".join(f"{epsilon:g}" for epsilon in epsilons[wins_by_epsilon > 0])
    best_place = np.unravel_index(np.argmin(over_sgd), over_sgd.shape)
    return [
        from_numbers(
            "BandMF, which is never worse than DP-SGD because one band is DP-SGD, is strictly "
            "better than both others at some number of epochs for every epsilon from 1/2 up.",
            bool((wins_by_epsilon[epsilons >= 0.5] > 0).all()),
            f"it is better than both at epsilon {winning_epsilons or 'none'}, in {is_best.sum()} "
            f"of {is_best.size} settings, with {span(over_sgd)} times the error of DP-SGD and "
            f"{span(over_mf)} times that of multi-epoch MF",
        ),
        from_numbers(
            "The improvement over DP-SGD is largest with few epochs and a large epsilon.",
            best_place[0] == np.argmax(epsilons) and best_place[1] == 0,
            f"the least ratio, {over_sgd.min():.2f}, is at epsilon {epsilons[best_place[0]]:g} and "
            f"k = {2 ** best_place[1]}",
        ),
    ]


@figure("banded-figure-9")
def figure_9(request: Request) -> Outcome:
    """Plots the total error of BandMF for each number of bands, divided by the error of DP-SGD and
    by the error of multi-epoch MF.

    The setting is CIFAR-10 with n = 2000 rounds, k = 20 epochs and m = 50,000 images. A yellow
    marker is at the best number of bands for an epsilon, if it has less error than the other
    mechanism.
    """
    epsilons = request.pick(
        (0.25, 1.0, 8.0),
        tuple(2.0 ** (i / 2) for i in range(-4, 11)),
        tuple(2.0 ** (i / 2) for i in range(-4, 11)),
    )
    is_tiny = request.scale == "tiny"
    cohort_size = 500
    delta = 1e-5
    n, b, size = (80, 4, 2000) if is_tiny else (2000, 100, 50_000)
    candidates = [c for c in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100) if c <= b]
    workload, single = sums_once(n)
    fixed_order = epochs(n, n // b)
    banded_errors = np.empty((len(candidates), len(epsilons)))
    for i, bands in enumerate(candidates):
        say(f"{bands} bands")
        probability = min(1.0, bands * cohort_size / size)
        num_compositions = -(-n // bands)
        noise_multipliers = noise_curve(
            epsilons, delta, probability=probability, compositions=num_compositions
        )
        mechanism = fit(workload, single, "banded", bands=bands)
        banded_errors[i] = noise_multipliers * fedmf.rmse(mechanism, workload, single)
    dense_rmse = fedmf.rmse(
        fit(workload, fixed_order, "dense", tolerance=1e-4), workload, fixed_order
    )
    dense_errors = dense_rmse * np.array([gaussian_noise_multiplier(e, delta) for e in epsilons])
    ratio_by_title = {
        f"{BAND_MF} / {DP_SGD}": banded_errors / banded_errors[0],
        f"{BAND_MF} / {MULTI_EPOCH}": banded_errors / dense_errors,
    }
    over_sgd, over_mf = (matrix.min(axis=0) for matrix in ratio_by_title.values())
    best_bands = [candidates[i] for i in banded_errors.argmin(axis=0)]
    return Outcome(
        _ratios_by_bands(ratio_by_title, epsilons, candidates),
        clauses=judge_figure_9(epsilons=np.array(epsilons), over_sgd=over_sgd, over_mf=over_mf),
        columns=("epsilon", "bands", *ratio_by_title),
        rows=list(zip(epsilons, best_bands, over_sgd, over_mf, strict=True)),
        reduced="n = 80" if is_tiny else "",
    )


def _ratios_by_bands(
    ratios: Mapping[str, np.ndarray], epsilons: Sequence[float], candidates: Sequence[int]
) -> Figure:
    """Plots a heat map over epsilon and bands for each ratio, with yellow markers at ratios below 1
    that are the least for an epsilon.
    """
    drawing = blank(3.4)
    axes = drawing.subplots(1, 2)
    color_scale = ratio_norm(list(ratios.values()))
    for ax, (title, matrix) in zip(axes, ratios.items(), strict=True):
        draw_ratios(
            ax, matrix, color_scale, title=title, x=("epsilon", epsilons), y=("bands", candidates)
        )
        improved_columns = np.flatnonzero(matrix.min(axis=0) < 1 - 1e-9)
        best_rows = matrix.argmin(axis=0)[improved_columns]
        ax.plot(
            improved_columns,
            best_rows,
            "*",
            color=YELLOW,
            markeredgecolor=INK,
            markersize=8,
            linestyle="",
        )
    draw_ratio_bar(drawing, axes, color_scale)
    return drawing


# The paper says that BandMF is better "up to epsilon about 5". It is judged as a number that rounds
# to 5.
CROSSING = "5"


def judge_figure_9(
    *, epsilons: np.ndarray, over_sgd: np.ndarray, over_mf: np.ndarray
) -> list[Clause]:
    """Judges Figure 9 of the banded paper by the errors of BandMF with the best number of bands for
    each epsilon, over those of DP-SGD and of multi-epoch MF.
    """
    is_better = over_sgd < 1 - 1e-9
    # The ratio of the error to that of multi-epoch MF rises with epsilon. The crossing is the
    # epsilon at which the ratio is 1, interpolated between the epsilons that were tried.
    crossing_epsilon = float(np.exp(np.interp(0.0, np.log(over_mf), np.log(epsilons))))
    is_below_crossing = epsilons <= float(CROSSING)
    ratios_text = ", ".join(f"{r:.3g} at {e:.3g}" for e, r in zip(epsilons, over_mf, strict=True))
    return [
        from_numbers(
            "BandMF, which is never worse than DP-SGD because one band is DP-SGD, is strictly "
            "better at more than half of the epsilons, and has less than 0.9 of its error at some.",
            bool(is_better.mean() > 0.5 and over_sgd.min() < 0.9),
            f"better at {is_better.sum()} of {len(epsilons)} epsilons; {span(over_sgd)} times the "
            f"error of DP-SGD",
        ),
        from_numbers(
            f"BandMF has less error than multi-epoch MF at every epsilon up to {CROSSING}.",
            bool((over_mf[is_below_crossing] < 1).all()),
            f"ratios by epsilon: {ratios_text}",
        ),
        from_numbers(
            f"Above epsilon {CROSSING} (rounded) multi-epoch MF has less error.",
            printed.agrees(crossing_epsilon, CROSSING),
            f"the errors are equal at epsilon {crossing_epsilon:.1f}",
        ),
    ]
