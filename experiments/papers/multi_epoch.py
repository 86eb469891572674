"""Figures without training of Choquette-Choo et al. 2022, multi-epoch matrix factorization."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

import fedmf
from fedmf.experiments import paper_figures as printed
from fedmf.experiments.error_tables import stamped_row
from fedmf.experiments.papers.drawing import COLORS, curves, heat_maps, table
from fedmf.experiments.papers.item import Outcome, Request, numbered
from fedmf.experiments.table_cells import fit, one_participation
from fedmf.privacy.gaussian import gaussian_noise_multiplier
from fedmf.reports.canvas import blank, legend_above

CIFAR = fedmf.Participation(rounds=2000, schema="fixed_epoch", min_sep=100)  # (k, b) = (20, 100)


def stackoverflow(request: Request) -> tuple[fedmf.Workload, fedmf.Participation]:
    """Momentum 0.95 and a cool-down over the last quarter, and (k, b) = (6, 342);
    fewer rounds for tests.
    """
    n = request.pick(tiny=48, small=2052, full=2052)
    rates = fedmf.WarmupCooldown(rounds=n, peak=1.0, warmup=0.0).learning_rates()
    epochs = fedmf.Participation(rounds=n, schema="fixed_epoch", min_sep=n // 6)
    return fedmf.momentum_sgd(n, momentum=0.95, learning_rates=rates), epochs


def figure_2(request: Request) -> Outcome:
    """A = B C and X = C^T C of the optimum."""
    workload, epochs = stackoverflow(request)
    mechanism = fit(workload, epochs, "dense", tolerance=2e-3)
    A, C = workload.matrix, mechanism.encoder()
    X = C.T @ C
    n, b = epochs.rounds, epochs.min_sep
    apart = np.subtract.outer(np.arange(n), np.arange(n))
    same_client = (apart % b == 0) & (apart != 0)
    largest = float(np.abs(X[same_client]).max() / np.diagonal(X).mean())
    typical = float(np.median(np.abs(X[~same_client])) / np.diagonal(X).mean())
    figure = heat_maps(
        [("A", A), ("B", A @ mechanism.noising()), ("C", C), ("X = CᵀC", X)],
        2,
        height=2.6,
        shared=False,
    )
    return Outcome(
        columns=("quantity", "value"),
        rows=[
            ("rounds", n),
            ("min_sep", b),
            ("largest |X| of two rounds of one client, over the diagonal's mean", largest),
            ("median |X| of other pairs, over the diagonal's mean", typical),
            ("gap", mechanism.certificate.gap),
        ],
        figure=figure,
        verdict=f"Columns of C for two rounds of one client (every {b}th diagonal of X) have "
        f"products of at most {largest:.1e} of the "
        f"diagonal's mean, where the median of the others is {typical:.1e}.",
        holds=largest < 0.1 * typical,
        reduced="" if n == 2052 else f"{n} rounds in place of 2052",
    )


def _by_round(
    mechanisms: Mapping[str, Any],
    workload: fedmf.Workload,
    epochs: fedmf.Participation,
    sigma: float,
) -> dict[str, np.ndarray]:
    return {
        name: (sigma * fedmf.per_round_error(m, workload, epochs)) ** 2
        for name, m in mechanisms.items()
    }


def _variance_figure(series: Mapping[str, np.ndarray], ylabel: str) -> Any:
    figure = blank(3.4)
    ax = figure.subplots()
    curves(ax, np.arange(1, len(next(iter(series.values()))) + 1), series, linewidth=1.0)
    ax.set(yscale="log", xlabel="round", ylabel=ylabel)
    legend_above(figure, *ax.get_legend_handles_labels())
    return figure


def figure_4(request: Request) -> Outcome:
    """Variance by round of prefix sums, at (4.38, 1e-5) for (k, b) = (20, 100)."""
    wanted = request.pick(
        tiny=("(Online) Honaker(n=200)x10", "FFT(n=200)x10"),
        small=(order := ("(Online) Honaker(n=2000)", "(Online) Honaker(n=200)x10",
                         "Optimal Decoder Honaker(n=400)x5",
                         "FFT Optimal Decoder(n=400)x5", "MF(k=1, n=1000)x2", "MF(k=20, n=2000)")),
        full=order,
    )  # fmt: skip
    rows = {row.label: row for row in printed.MULTI_EPOCH_TABLE_1 if row.label in wanted}
    sigma = gaussian_noise_multiplier(4.38, 1e-5)
    series = _by_round(
        {name: stamped_row(rows[name]) for name in wanted}, fedmf.prefix_sum(2000), CIFAR, sigma
    )
    losses = {name: float(y.sum()) / sigma**2 for name, y in series.items()}
    agree = [name for name in wanted if printed.agrees(losses[name], rows[name].printed)]
    return Outcome(
        columns=("round", *series),
        rows=table(np.arange(1, 2001), series),
        figure=_variance_figure(series, "variance"),
        verdict=f"At one sigma of {sigma:.4f} the totals over sigma squared are "
        + ", ".join(
            f"{losses[name]:.2e} for {name} (Table 1: {rows[name].printed})" for name in wanted
        )
        + ".",
        holds=len(agree) == len(wanted),
        reduced="" if len(wanted) > 2 else "two of the mechanisms",
    )


def figure_5(request: Request) -> Outcome:
    """Variance by round of the momentum and cool-down workload for (k, b) = (6, 342), at noise
    multiplier 1.
    """
    workload, epochs = stackoverflow(request)
    n = epochs.rounds
    single = one_participation(n)
    mechanisms = {
        "Honaker online": fit(fedmf.prefix_sum(n), epochs, "tree", decoder="online"),
        "Honaker full": fit(fedmf.prefix_sum(n), epochs, "tree", decoder="full"),
        "MF for one epoch": fit(workload, single, "dense", tolerance=1e-4),
        "MF for six epochs": fit(workload, epochs, "dense", tolerance=2e-3),
    }
    series = _by_round(mechanisms, workload, epochs, 1.0)
    totals = {name: float(y.sum()) for name, y in series.items()}
    best = min(totals, key=lambda name: totals[name])
    return Outcome(
        columns=("round", *series),
        rows=table(np.arange(1, n + 1), series),
        figure=_variance_figure(series, "variance at noise multiplier 1"),
        verdict="Total variances, in units of the optimum for six epochs: "
        + ", ".join(
            f"{total / totals['MF for six epochs']:.2f} {name}" for name, total in totals.items()
        )
        + ".",
        holds=best == "MF for six epochs" and totals["MF for one epoch"] < totals["Honaker online"],
        reduced="" if n == 2052 else f"{n} rounds in place of 2052",
    )


def figure_6(request: Request) -> Outcome:
    """Loss of prefix sums over the number of stamps, for both decoders of Honaker's tree."""
    workload = fedmf.prefix_sum(2000)
    rows = [
        row
        for row in printed.MULTI_EPOCH_TABLE_1
        if "Honaker" in row.name and (request.scale != "tiny" or row.times >= 10)
    ]
    found = {(row.name, row.times): fedmf.loss(stamped_row(row), workload, CIFAR) for row in rows}
    wrong = [
        row.label for row in rows if not printed.agrees(found[row.name, row.times], row.printed)
    ]
    times = sorted({t for _, t in found})
    series = {
        name: np.array([found[name, t] for t in times])
        for name in dict.fromkeys(row.name for row in rows)
    }
    figure = blank(2.9)
    ax = figure.subplots()
    curves(ax, times, series, marker="o", markersize=4)
    ax.plot(
        [row.times for row in rows],
        [float(row.printed) for row in rows],
        "x",
        color="black",
        label="printed, Table 1",
    )
    if request.scale != "tiny":
        optimum = fedmf.loss(fit(workload, CIFAR, "dense", tolerance=2e-3), workload, CIFAR)
        ax.axhline(optimum, color=COLORS[2], linestyle=":", label="MF for 20 epochs, no stamps")
    ax.set(xscale="log", yscale="log", xlabel="stamps", ylabel="loss")
    ax.set_xticks(times, labels=[str(t) for t in times])
    ax.minorticks_off()
    legend_above(figure, *ax.get_legend_handles_labels())
    online, full = series.values()
    return Outcome(
        columns=("stamps", *series),
        rows=table(times, series),
        figure=figure,
        verdict=f"{len(rows) - len(wrong)} of {len(rows)} losses are as printed. "
        f"The least is at {times[int(np.argmin(online))]} stamps with the online "
        f"decoder and at {times[int(np.argmin(full))]} with the optimal one, whose "
        f"loss is {float((full / online).min()):.2f} to "
        f"{float((full / online).max()):.2f} times the other's.",
        holds=not wrong and bool((full < online).all()),
        reduced="losses in place of accuracies: training needs CIFAR-10"
        + ("; two numbers of stamps" if len(times) < 5 else ""),
    )


def lower_bound(n: np.ndarray) -> np.ndarray:
    """Mean squared error of prefix sums of n rounds at noise multiplier 1, at least (App. J.1;
    Henzinger et al. 2022, Thm. 2).
    """
    return ((2 + np.log((2 * n + 1) / 3) + np.log(2 * n + 1) / (2 * n)) / np.pi) ** 2


def analytic_error(n: int) -> float:
    """Corollary J.1 at noise multiplier 1; its sum runs to n - 1."""
    return float((n + (1 / np.sin(np.pi * (2 * np.arange(n) + 1) / (2 * n))).sum()) / n) ** 2


def figure_14(request: Request) -> Outcome:
    """Mean squared error of the FFT mechanism over n, beside bounds."""
    n = 2 ** np.arange(3, request.pick(tiny=8, small=12, full=13))
    series = {"FFT, Corollary J.1": np.array([analytic_error(int(i)) for i in n])}
    for decoder in ("plain", "optimal"):
        errors = [
            fedmf.rmse(
                fit(fedmf.prefix_sum(int(i)), one_participation(int(i)), "fft", decoder=decoder),
                fedmf.prefix_sum(int(i)),
                one_participation(int(i)),
            )
            for i in n
        ]
        series[f"FFT, {decoder} decoder"] = np.square(errors)
    series["lower bound (Henzinger et al.)"] = lower_bound(n)
    bound = series["lower bound (Henzinger et al.)"]
    figure = blank(3.0)
    ax = figure.subplots()
    curves(ax, n, series, marker="o", markersize=3)
    ax.set(xscale="log", yscale="log", xlabel="rounds n", ylabel="mean squared error")
    legend_above(figure, *ax.get_legend_handles_labels())
    analytic, plain, optimal = (float(series[name][-1] / bound[-1]) for name in list(series)[:3])
    return Outcome(
        columns=("n", *series),
        rows=table(n, series),
        figure=figure,
        verdict=f"At n = {n[-1]} the FFT's rmse is {plain**0.5:.2f} times the bound's (printed: "
        f"within 1.2; its square is {plain:.2f}), with the optimal decoder {optimal**0.5:.2f} "
        f"times. Corollary J.1 is {analytic:.1f} times the bound's square (printed: about 6).",
        holds=printed.agrees(plain**0.5, "≤1.2")
        and 5 <= analytic <= 7
        and all(bool((series[name] >= bound).all()) for name in series),
    )


_item = functools.partial(numbered, "multi-epoch")

ITEMS = (
    _item(
        "Figure 2",
        figure_2,
        90,
        90,
        "For six epochs the columns of C for two rounds of one client are orthogonal.",
    ),
    _item(
        "Figure 4",
        figure_4,
        90,
        90,
        "At equal privacy the optimum for 20 epochs has the least variance, and shows the epochs.",
    ),
    _item(
        "Figure 5",
        figure_5,
        120,
        120,
        "With momentum and cool-down the optimum for six epochs has the least total variance.",
    ),
    _item(
        "Figure 6",
        figure_6,
        60,
        60,
        "The optimal decoder of Honaker's tree beats the online one at every number of stamps.",
    ),
    _item("Figure 13", figure_2, 90, 90, "Figure 2, larger."),
    _item(
        "Figure 14",
        figure_14,
        20,
        60,
        "The error of the FFT mechanism is within a factor of 1.2 of the lower "
        "bound for all mechanisms.",
    ),
)
