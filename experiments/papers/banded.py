"""Figures of Choquette-Choo et al. 2023, banded matrix factorization, that need no training."""

import functools

import matplotlib.colors
import numpy as np

import fedmf
from fedmf.experiments import band_figure, band_sweep, tuning_figures, tuning_tables
from fedmf.experiments.papers.drawing import COLORS, curves, heat_maps
from fedmf.experiments.papers.item import Outcome, Request, numbered
from fedmf.experiments.privacy_tables import shown_on_terminal
from fedmf.experiments.table_cells import fit, one_participation
from fedmf.privacy.gaussian import gaussian_noise_multiplier
from fedmf.reports.canvas import SOFT, blank, legend_above

# Figures 2, 3 and 8: b parts, n rounds, m clients, B of them a round, all small enough to draw.
PARTS, ROUNDS, POPULATION, COHORT, SEED = 3, 9, 24, 3, 1


def _sampled() -> list[np.ndarray]:
    """Cohorts of all rounds, from the real controller under Alg. 6 with subsets of fixed size."""
    scheme = fedmf.CyclicFixedSize(population=POPULATION, cohort_size=COHORT, partitions=PARTS)
    controller = fedmf.ParticipationController(
        scheme.participation(ROUNDS),
        population=POPULATION,
        cohort_size=COHORT,
        seed=SEED,
        sampling=scheme,
    )
    return [controller.cohort(t) for t in range(ROUNDS)]


def figure_2(request: Request) -> Outcome:
    """Who takes part in which round: round t draws from part t mod b."""
    cohorts = _sampled()
    parts = [{int(i) for t in range(j, ROUNDS, PARTS) for i in cohorts[t]} for j in range(PARTS)]
    disjoint = all(not parts[i] & parts[j] for i in range(PARTS) for j in range(i))
    # The controller's own partition: client i is of the part that i mod b or a block of clients
    # makes; seen through the draws.
    order = sorted(
        range(POPULATION),
        key=lambda i: (next((j for j in range(PARTS) if i in parts[j]), PARTS), i),
    )
    figure = blank(3.2)
    ax = figure.subplots()
    for t, cohort in enumerate(cohorts):
        places = [order.index(int(i)) for i in cohort]
        ax.plot(
            [t + 1] * len(places),
            places,
            "o",
            color=COLORS[t % PARTS],
            markersize=6,
            label=f"part {t + 1}" if t < PARTS else None,
        )
    ends = np.cumsum([len(part) for part in parts])
    for j, (low, high) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        ax.axhspan(low - 0.5, high - 0.5, color=COLORS[j], alpha=0.08, linewidth=0)
    ax.set(xlabel="round", ylabel="clients, by part", ylim=(int(ends[-1]) - 0.5, -0.5))
    ax.set_xticks(range(1, ROUNDS + 1))
    ax.set_yticks(range(int(ends[-1])), labels=[str(i) for i in order[: int(ends[-1])]], fontsize=6)
    legend_above(figure, *ax.get_legend_handles_labels())
    sizes = {len(cohort) for cohort in cohorts}
    return Outcome(
        columns=("round", "part", "clients"),
        rows=[
            (t + 1, t % PARTS + 1, " ".join(map(str, cohort))) for t, cohort in enumerate(cohorts)
        ],
        figure=figure,
        verdict=f"In {ROUNDS} rounds of {COHORT} out of {POPULATION} clients "
        f"{'no' if disjoint else 'a'} client came in rounds of "
        f"two parts; cohorts have {', '.join(map(str, sorted(sizes)))} clients.",
        holds=disjoint and sizes == {COHORT},
        seeds=(SEED,),
    )


def _decomposed(rounds: int) -> Outcome:
    """The rows of C x that the participations of one client touch."""
    mechanism = fit(fedmf.prefix_sum(rounds), one_participation(rounds), "banded", bands=PARTS)
    C = mechanism.encoder()
    touched = [[np.flatnonzero(C[:, t]) for t in range(j, rounds, PARTS)] for j in range(PARTS)]
    disjoint = all(
        len(np.concatenate(rows)) == len(np.unique(np.concatenate(rows))) for rows in touched
    )
    figure = blank(0.9 + 6.2 / PARTS)
    shades = matplotlib.colors.ListedColormap(["white", "#d9d9d9", *COLORS])
    for j, (ax, rows) in enumerate(zip(figure.subplots(1, PARTS), touched, strict=True)):
        image = np.where(C != 0, 1, 0)
        for k, (t, here) in enumerate(zip(range(j, rounds, PARTS), rows, strict=True)):
            image[here, t] = 2 + k % len(COLORS)
        ax.imshow(image, cmap=shades, vmin=0, vmax=1 + len(COLORS))
        ax.set_title(f"part {j + 1} of {PARTS}", fontsize=9.5)
        ax.set(xlabel="column of C, round")
        ax.grid(visible=False)
        ax.set_xticks(
            range(0, rounds, max(1, rounds // 9)),
            labels=range(1, rounds + 1, max(1, rounds // 9)),
            fontsize=7,
        )
        ax.set_yticks(
            range(0, rounds, max(1, rounds // 9)),
            labels=range(1, rounds + 1, max(1, rounds // 9)),
            fontsize=7,
        )
    figure.axes[0].set_ylabel("row of C x")
    return Outcome(
        columns=("part", "round", "rows of C x"),
        rows=[
            (j + 1, j + k * PARTS + 1, " ".join(str(i + 1) for i in rows))
            for j in range(PARTS)
            for k, rows in enumerate(touched[j])
        ],
        figure=figure,
        verdict=f"With {PARTS} bands the rows that two participations of one client touch have "
        f"{'nothing' if disjoint else 'rows'} in common.",
        holds=disjoint,
    )


def _span(values: np.ndarray) -> str:
    return f"{values.min():.2f} to {values.max():.2f}"


def figure_4(request: Request) -> Outcome:
    """RMSE of three mechanisms over epsilon and epochs."""
    rounds, epsilons = request.pick(
        tiny=(band_figure.QUICK_ROUNDS, band_figure.QUICK_EPSILONS),
        small=(256, band_figure.EPSILONS[::3]),
        full=(band_figure.ROUNDS, band_figure.EPSILONS),
    )
    found = band_figure.compare(rounds, epsilons, shown_on_terminal)
    over_sgd, over_mf, between = (
        found.banded / found.dp_sgd,
        found.banded / found.multi_epoch,
        found.multi_epoch / found.dp_sgd,
    )
    rows = [
        (
            epsilon,
            k,
            found.dp_sgd[i, j],
            found.multi_epoch[i, j],
            found.banded[i, j],
            int(found.bands[i, j]),
        )
        for i, epsilon in enumerate(epsilons)
        for j, k in enumerate(found.epochs)
    ]
    return Outcome(
        columns=("epsilon", "epochs", "DP-SGD", "multi-epoch MF", "BandMF", "bands"),
        rows=rows,
        figure=band_figure.picture(found),
        verdict=f"BandMF has {_span(over_sgd)} times the rmse of DP-SGD and {_span(over_mf)} times "
        f"that of multi-epoch MF, which has {_span(between)} times that of DP-SGD.",
        holds=bool((found.banded <= found.dp_sgd).all())
        and over_mf.max() < 1.15
        and between.min() < 1 < between.max(),
        reduced=""
        if rounds == band_figure.ROUNDS
        else f"n = {rounds} in place of 1024 and {len(epsilons)} epsilons",
    )


def figure_6(request: Request) -> Outcome:
    """C and C^-1 of eight factorisations, n = 64."""
    n = 64
    workload = fedmf.prefix_sum(n)

    def epochs(k: int) -> fedmf.Participation:
        return (
            one_participation(n)
            if k == 1
            else fedmf.Participation(rounds=n, schema="fixed_epoch", min_sep=n // k)
        )

    mechanisms = {
        "single-epoch": fit(workload, epochs(1), "dense"),
        "DP-SGD": fit(workload, epochs(1), "identity"),
        "8 epochs": fit(workload, epochs(8), "dense"),
        "4 epochs": fit(workload, epochs(4), "dense"),
        "8 bands": fit(workload, epochs(4), "banded", bands=8, equal_norms=False),
        "EN, 8 bands": fit(workload, epochs(4), "banded", bands=8),
        "16 bands": fit(workload, epochs(4), "banded", bands=16, equal_norms=False),
        "EN, 16 bands": fit(workload, epochs(4), "banded", bands=16),
    }
    panels = [
        (f"{name}, {letter}", M)
        for name, m in mechanisms.items()
        for letter, M in (("C", m.encoder()), ("C⁻¹", m.noising()))
    ]
    rows, right = [], True
    for name, m in mechanisms.items():
        C = m.encoder()
        norms = np.linalg.norm(C, axis=0)
        spread = float(norms.max() / norms.min())
        bands = max(int(np.max(i - j)) for i, j in [np.nonzero(np.abs(C) > 1e-12)]) + 1
        rows.append((name, bands, spread, fedmf.rmse(m, workload, epochs(4))))
        right &= spread < 1 + 1e-9 if name.startswith("EN") else True
    rmse = {row[0]: row[-1] for row in rows}
    best = min(rmse, key=lambda name: rmse[name])
    return Outcome(
        columns=(
            "mechanism",
            "bands",
            "largest over smallest column norm",
            "rmse under (k, b) = (4, 16)",
        ),
        rows=rows,
        figure=heat_maps(panels, 4, height=1.75),
        verdict=f"For 4 epochs the least rmse is {rmse[best]:.3f}, of the factorisation for "
        f"{best}; 16 bands with equal norms have {rmse['EN, 16 bands']:.3f}, without "
        f"{rmse['16 bands']:.3f}, and DP-SGD {rmse['DP-SGD']:.3f}.",
        holds=right and best == "4 epochs",
    )


def figure_7(request: Request) -> Outcome:
    """The tree's encoder, transposed, and its pseudo-inverse."""
    n = 64
    mechanism = fit(fedmf.prefix_sum(n), one_participation(n), "tree", decoder="full")
    C, N = mechanism.encoder(), mechanism.noising()
    error = float(np.abs(N - np.linalg.pinv(C)).max())
    levels = sorted({int(row.sum()) for row in C})
    return Outcome(
        columns=("quantity", "value"),
        rows=[
            ("nodes", len(C)),
            ("rounds", n),
            ("largest difference of N from numpy's pseudo-inverse", error),
        ],
        figure=heat_maps(
            [("Cᵀ of the binary tree", C.T), ("pseudo-inverse of C", N)],
            1,
            height=2.3,
            shared=False,
        ),
        verdict=f"The encoder has {len(C)} nodes, of {', '.join(map(str, levels))} rounds each; "
        f"the full decoder is its pseudo-inverse to {error:.0e}.",
        holds=len(C) == 2 * n - 1 and error < 1e-9,
    )


def figure_9(request: Request) -> Outcome:
    """Total error of BandMF over that of DP-SGD and of multi-epoch MF, at CIFAR-10's n = 2000, k =
    20, m = 50,000.
    """
    epsilons = request.pick(
        tiny=(1.0, 8.0),
        small=tuple(2.0**i for i in range(-2, 5)),
        full=tuple(2.0 ** (i / 2) for i in range(-4, 11)),
    )
    n, b, size, cohort, delta = (
        (2000, 100, 50_000, 500, 1e-5) if request.scale != "tiny" else (80, 4, 2000, 500, 1e-5)
    )
    candidates = [c for c in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100) if c <= b]
    workload, single = fedmf.prefix_sum(n), one_participation(n)
    epochs = fedmf.Participation(rounds=n, schema="fixed_epoch", min_sep=b)
    errors = np.empty((len(candidates), len(epsilons)))
    for i, bands in enumerate(candidates):
        shown_on_terminal(f"{bands} bands")
        noise = band_sweep.noise_curve(
            epsilons,
            delta,
            probability=min(1.0, bands * cohort / size),
            compositions=-(-n // bands),
        )
        errors[i] = noise * fedmf.rmse(
            fit(workload, single, "banded", bands=bands), workload, single
        )
    dense = fedmf.rmse(fit(workload, epochs, "dense", tolerance=2e-3), workload, epochs)
    multi_epoch = np.array([gaussian_noise_multiplier(e, delta) for e in epsilons]) * dense
    best = errors.argmin(axis=0)
    series = {
        "BandMF / DP-SGD": errors.min(axis=0) / errors[0],
        "BandMF / multi-epoch MF": errors.min(axis=0) / multi_epoch,
    }
    figure = blank(3.0)
    ax = figure.subplots()
    curves(ax, epsilons, series)
    for y in series.values():
        better = y < 1
        ax.plot(
            np.array(epsilons)[better],
            y[better],
            "D",
            color="#e6b800",
            markeredgecolor=SOFT,
            markersize=5,
        )
    ax.axhline(1.0, color=SOFT, linewidth=0.8)
    ax.set(xlabel="epsilon", ylabel="ratio of rmse", ylim=(0, None))
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    legend_above(figure, *ax.get_legend_handles_labels())
    # Where the ratio to multi-epoch MF, which rises, passes 1, between the epsilons tried.
    crossing = float(
        np.exp(np.interp(0.0, np.log(series["BandMF / multi-epoch MF"]), np.log(epsilons)))
    )
    return Outcome(
        columns=("epsilon", "bands", *series),
        rows=[
            (e, candidates[i], *ratios)
            for e, i, *ratios in zip(epsilons, best, *series.values(), strict=True)
        ],
        figure=figure,
        verdict=f"Over DP-SGD the ratio is {_span(series['BandMF / DP-SGD'])}; over multi-epoch MF "
        "it passes 1 at epsilon "
        f"{crossing:.1f} (printed: about 5). Bands: {', '.join(str(candidates[i]) for i in best)}.",
        holds=bool((series["BandMF / DP-SGD"] <= 1).all())
        and (request.scale == "tiny" or 4 < crossing < 8),
        reduced={"tiny": "n = 80", "small": "seven epsilons"}.get(request.scale, ""),
    )


def figure_11(request: Request) -> Outcome:
    """Tuned server rates over the effective rmse of sums and of single gradients (Eq. 11), from
    Table 6.
    """
    rows = [
        row
        for row in tuning_figures.BANDED_TABLE_6
        if request.scale != "tiny" or row.mechanism in ("DP-SGD", "Optimal TreeAgg")
    ]
    rates = np.log([float(row.optimum) for row in rows])
    figure = blank(2.9)
    axes = figure.subplots(1, 2)
    lines, columns = {}, {}
    for ax, (name, workload) in zip(
        axes, {"prefix sums": "prefix_sum", "single gradients": "identity"}.items(), strict=True
    ):
        errors = np.array(
            [tuning_tables.effective_rmse(row, amplified=False, workload=workload) for row in rows]
        )
        slope, intercept = np.polyfit(np.log(errors), rates, 1)
        lines[name] = (slope, intercept, float(np.corrcoef(np.log(errors), rates)[0, 1]))
        columns[name] = errors
        for i, mechanism in enumerate(dict.fromkeys(row.mechanism for row in rows)):
            at = [j for j, row in enumerate(rows) if row.mechanism == mechanism]
            ax.plot(
                errors[at],
                np.exp(rates[at]),
                "os^Dv"[i],
                color=COLORS[i],
                markersize=5,
                label=mechanism,
            )
        ends = np.array([errors.min(), errors.max()])
        ax.plot(ends, np.exp(intercept) * ends**slope, color=SOFT, linewidth=1)
        ax.set(xscale="log", yscale="log", xlabel=f"effective rmse, {name}")
        ax.set_title(f"slope {slope:.2f}, correlation {lines[name][2]:.2f}", fontsize=9)
    axes[0].set_ylabel("best server rate")
    legend_above(figure, *axes[0].get_legend_handles_labels())
    slope, intercept, correlation = lines["prefix sums"]
    return Outcome(
        columns=("mechanism", "epsilon", "best rate", *columns),
        rows=[
            (row.mechanism, row.epsilon, row.optimum, *(errors[i] for errors in columns.values()))
            for i, row in enumerate(rows)
        ],
        figure=figure,
        verdict=f"For prefix sums the regression is log(rate) = {slope:.2f} log(rmse) "
        f"{intercept:+.2f} (printed: -0.95 and -4.64), with correlation {correlation:.3f}; for "
        f"single gradients the correlation is {lines['single gradients'][2]:.3f}.",
        holds=request.scale == "tiny"
        or (
            abs(slope + 0.95) < 0.03
            and abs(intercept + 4.64) < 0.15
            and abs(correlation) > 0.98 > abs(lines["single gradients"][2])
        ),
        reduced="two of the five mechanisms" if request.scale == "tiny" else "",
    )


_item = functools.partial(numbered, "banded")

ITEMS = (
    _item("Figure 2", figure_2, 1, 1, "Round t draws from one of b parts of the clients, in turn."),
    _item(
        "Figure 3",
        lambda request: _decomposed(9),
        1,
        1,
        "With b bands the participations of one client touch different rows of C x.",
    ),
    _item(
        "Figure 4",
        figure_4,
        60,
        600,
        "BandMF is never worse than DP-SGD, and often better than both others.",
    ),
    _item(
        "Figure 6",
        figure_6,
        5,
        5,
        "Eight factorisations of the prefix sums and what makes their noise.",
    ),
    _item(
        "Figure 7",
        figure_7,
        1,
        1,
        "The full decoder of a binary tree is its pseudo-inverse, which is dense.",
    ),
    _item("Figure 8", lambda request: _decomposed(18), 1, 1, "Figure 3, larger."),
    _item(
        "Figure 9",
        figure_9,
        120,
        300,
        "For CIFAR-10 BandMF is never worse than DP-SGD, and better than "
        "multi-epoch MF up to epsilon 5.",
    ),
    _item(
        "Figure 11",
        figure_11,
        120,
        120,
        "The best server rate is a power of the error of the sums, and not of "
        "that of single gradients.",
    ),
)
