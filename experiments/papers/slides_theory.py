"""The slides' theory of learning with correlated noise, against simulation: mean estimation, linear
regression and finite time.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

import fedmf
from fedmf.experiments.papers import stationary as theory
from fedmf.experiments.papers.drawing import COLORS, DASHES
from fedmf.experiments.papers.item import Outcome, Request
from fedmf.experiments.papers.slides import slides_item
from fedmf.experiments.papers.stationary import Noise
from fedmf.experiments.table_cells import one_participation
from fedmf.reports.canvas import blank, legend_above
from fedmf.tasks.regression.data import client_examples, true_weights
from fedmf.tasks.regression.options import RegressionOptions

# A mean of chains that is further from the formula, in its standard errors, is a difference: one in
# 1.7 million for a normal mean.
FAR = 5.0
COLUMNS = ("panel", "noise", "x", "formula", "simulated", "standard error", "deviations")
Row = tuple[str, str, float, float, float, float, float]


def high(d: int) -> np.ndarray:
    """The slides' spectrum of high effective dimension, d."""
    return np.ones(d)


def low(d: int) -> np.ndarray:
    """The slides' spectrum of low effective dimension, 2 - 1 / d."""
    return np.array([1.0, *[1.0 / d] * (d - 1)])


def _point(
    at: tuple[str, float],
    noise: Noise,
    eta: float,
    spectrum: np.ndarray,
    *,
    chains: int,
    seed: int,
    sampled: bool,
) -> Row:
    """The row of a panel and an x."""
    formula = theory.error(noise, eta, spectrum, sampled=sampled)
    rounds = theory.rounds_for(noise, eta, spectrum)
    found = theory.simulated(
        noise, eta, spectrum, rounds=rounds, chains=chains, seed=seed, sampled=sampled
    )
    mean, deviation = float(found.mean()), float(found.std(ddof=1) / np.sqrt(chains))
    panel, x = at
    return panel, noise.name, x, formula, mean, deviation, (mean - formula) / deviation


def _drawn(rows: Sequence[Row], xlabel: str, names: Sequence[str]) -> Any:
    """Lines of the formula, with the simulation and two of its standard errors on
    them; a panel each.
    """
    panels = list(dict.fromkeys(row[0] for row in rows))
    figure = blank(3.2)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, panel in zip(axes, panels, strict=True):
        for i, name in enumerate(names):
            here = [row for row in rows if row[:2] == (panel, name)]
            if here:
                _, _, x, formula, mean, deviation, _ = (
                    np.array(column) for column in zip(*here, strict=True)
                )
                ax.plot(
                    x,
                    formula,
                    color=COLORS[i],
                    linestyle=DASHES[i],
                    linewidth=1.3,
                    label=f"{name}, formula",
                )
                ax.errorbar(
                    x,
                    mean,
                    2 * deviation,
                    fmt="o^sDv"[i],
                    color=COLORS[i],
                    markersize=4,
                    capsize=2,
                    label="simulated",
                )
        ax.set(xscale="log", yscale="log", xlabel=xlabel)
        ticks = sorted({row[2] for row in rows if row[0] == panel})
        ax.set_xticks(ticks, labels=[f"{x:g}" for x in ticks])
        ax.minorticks_off()
        ax.set_title(panel, fontsize=9.5)
    axes[0].set_ylabel("stationary error · ρ")
    legend_above(figure, *axes[0].get_legend_handles_labels())
    return figure


def _slope(rows: Sequence[Row], panel: str, name: str) -> float:
    """Of the formula, on logarithmic axes."""
    x, y = np.log([[row[2], row[3]] for row in rows if row[:2] == (panel, name)]).T
    return float(np.polyfit(x, y, 1)[0])


def _agreement(rows: Sequence[Row]) -> tuple[bool, str]:
    worst = max(abs(row[-1]) for row in rows)
    error = max(row[5] / row[4] for row in rows)
    return worst < FAR, (
        f"The {len(rows)} simulated errors are within {worst:.1f} standard errors of the formula "
        f"(each at most {100 * error:.1f}%)."
    )


def mean_estimation(request: Request) -> Outcome:
    """Error over the learning rate, and over nu at one learning rate."""
    chains = request.pick(tiny=4000, small=20_000, full=200_000)
    etas = request.pick(
        tiny=(0.02, 0.1),
        small=(0.02, 0.05, 0.1, 0.2, 0.4),
        full=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4),
    )
    one = np.ones(1)
    rows: list[Row] = []

    def add(panel: str, x: float, noise: Noise, eta: float) -> None:
        rows.append(
            _point((panel, x), noise, eta, one, chains=chains, seed=len(rows), sampled=False)
        )

    for eta in etas:
        for noise in (
            theory.independent(),
            theory.damped(eta),
            theory.anti_pgd(1 - np.sqrt(2 * eta)),
        ):
            add("over eta; nu = eta", eta, noise, eta)
    for nu in (0.01, 0.02, 0.05, 0.2, 0.8):
        add(panel := "over nu; eta = 0.05", nu, theory.damped(nu), 0.05)
    agree, words = _agreement(rows)
    optima = [
        (
            theory.error(theory.best(eta, one, sampled=False), eta, one),
            theory.error(theory.damped(eta), eta, one),
        )
        for eta in etas
    ]
    closed = max(abs(best / damped - 1) for best, damped in optima)
    least = min((row for row in rows if row[0] == panel), key=lambda row: row[3])[2]
    slopes = [
        _slope(rows, rows[0][0], name) for name in ("independent", "damped anti-PGD", "nu-FTRL")
    ]
    return Outcome(
        columns=COLUMNS,
        rows=rows,
        figure=_drawn(
            rows, "eta (left), nu (right)", ("independent", "damped anti-PGD", "nu-FTRL")
        ),
        verdict=f"{words} Error grows as eta to the {slopes[0]:.2f}, {slopes[1]:.2f} and "
        f"{slopes[2]:.2f} for independent noise, anti-PGD and nu-FTRL; nu = eta is the optimum to "
        f"{closed:.0e}, and at eta = 0.05 the best nu tried is {least:g}.",
        holds=agree and closed < 1e-6 and least == 0.05 and slopes[0] < 1.2 < slopes[1] < slopes[2],
        seeds=tuple(range(len(rows))),
        reduced="stationary from round to round; no clipping, as in the slides",
    )


def linear_regression(request: Request) -> Outcome:
    """Error over the dimension, for spectra of high and low effective dimension."""
    chains, eta = (
        request.pick(tiny=400, small=512, full=4096),
        request.pick(tiny=0.05, small=0.02, full=0.02),
    )
    rows: list[Row] = []
    for panel, spectrum_of in (
        ("effective dimension d", high),
        ("effective dimension 2 - 1/d", low),
    ):
        for d in request.pick(tiny=(2, 4), small=(2, 4, 8, 16), full=(2, 4, 8, 16, 24)):
            spectrum = spectrum_of(d)
            for noise in (
                theory.independent(),
                theory.damped(eta * spectrum.min()),
                theory.best(eta, spectrum, sampled=True),
            ):
                rows.append(
                    _point(
                        (panel, d),
                        noise,
                        eta,
                        spectrum,
                        chains=chains,
                        seed=len(rows),
                        sampled=True,
                    )
                )
    agree, words = _agreement(rows)
    panels = list(dict.fromkeys(row[0] for row in rows))
    slopes = {
        (panel, name): _slope(rows, panel, name)
        for panel in panels
        for name in ("independent", "nu-FTRL", "best")
    }
    sgd, ftrl = ([slopes[panel, name] for panel in panels] for name in ("independent", "nu-FTRL"))
    return Outcome(
        columns=COLUMNS,
        rows=rows,
        figure=_drawn(rows, "dimension d", ("independent", "nu-FTRL", "best")),
        verdict=f"{words} Over d the error of independent noise grows as d to the {sgd[0]:.2f} and "
        f"{sgd[1]:.2f} for high and low effective "
        f"dimension, that of nu-FTRL as d to the {ftrl[0]:.2f} and {ftrl[1]:.2f}.",
        holds=agree and min(sgd) > 0.9 and ftrl[0] > 0.9 and ftrl[1] < 0.6,
        seeds=tuple(range(len(rows))),
        reduced="no clipping, as in the slides"
        + ("; dimensions up to 4" if request.scale == "tiny" else ""),
    )


def learning_rate(request: Request) -> Outcome:
    """Error of linear regression over the learning rate."""
    d, chains = request.pick(tiny=(2, 400), small=(8, 512), full=(8, 4096))
    etas = request.pick(
        tiny=(0.05, 0.1), small=(0.01, 0.02, 0.05, 0.1), full=(0.005, 0.01, 0.02, 0.05, 0.1)
    )
    rows: list[Row] = []
    names = ("independent", "damped anti-PGD", "nu-FTRL", "best")
    for panel, spectrum in ((f"d = {d}, high", high(d)), (f"d = {d}, low", low(d))):
        for eta in etas:
            # sqrt(2 eta d_eff / d) makes the two terms of anti-PGD's error equal
            # (docs/fidelity.md).
            drop = min(0.9, np.sqrt(2 * eta * spectrum.sum() / d))
            for noise in (
                theory.independent(),
                theory.anti_pgd(1 - drop),
                theory.damped(eta * spectrum.min()),
                theory.best(eta, spectrum, sampled=True),
            ):
                rows.append(
                    _point(
                        (panel, eta),
                        noise,
                        eta,
                        spectrum,
                        chains=chains,
                        seed=len(rows),
                        sampled=True,
                    )
                )
    agree, words = _agreement(rows)
    slopes = {
        name: [_slope(rows, panel, name) for panel in dict.fromkeys(row[0] for row in rows)]
        for name in names
    }
    sgd, anti, ftrl = (slopes[name] for name in names[:3])
    ordered = max(sgd) < 1.4 < min(ftrl) and all(
        a < b < c for a, b, c in zip(sgd, anti, ftrl, strict=True)
    )
    said = ", ".join(f"{a:.2f} and {b:.2f} {name}" for name, (a, b) in slopes.items())
    return Outcome(
        columns=COLUMNS,
        rows=rows,
        figure=_drawn(rows, "learning rate eta", names),
        verdict=f"{words} Powers of eta, for high and low effective dimension: {said}.",
        holds=agree and ordered,
        seeds=tuple(range(len(rows))),
        reduced="no clipping, as in the slides",
    )


RHO, CLIP_NORM = 0.1, 1.0


def _trained(
    x: np.ndarray, y: np.ndarray, weights: np.ndarray, eta: float, mechanism: Any, seed: int
) -> np.ndarray:
    """Excess error of the last iterates of DP-SGD or DP-FTRL, float64 (chains,), on examples
    (rounds, chains, d), with H = I.

    Each chain sees every example once, clipped; its noise is that of a Plan of rho-zCDP.
    """
    rounds, chains, d = x.shape
    plan = fedmf.Plan(
        mechanism=mechanism,
        participation=one_participation(rounds),
        noise_multiplier=1 / np.sqrt(2 * RHO),
        clip_norm=CLIP_NORM,
        delta=1e-6,
    )
    rng, theta = np.random.default_rng(seed), np.zeros((chains, d))
    for t, row in enumerate(
        plan.mechanism.stream().rows(lambda i: rng.standard_normal((chains, d)))
    ):
        gradient = x[t] * ((x[t] * theta).sum(axis=1) - y[t])[:, None]
        norms = np.linalg.norm(gradient, axis=1, keepdims=True)
        gradient *= np.minimum(1.0, CLIP_NORM / np.maximum(norms, 1e-30))
        theta = theta - eta * (gradient + plan.stddev * row)
    return np.asarray(((theta - weights) ** 2).sum(axis=1))


def predicted(name: str, T: int, d: int) -> float:
    """Error after T steps without clipping at the best learning rate, for H = I and a start at
    distance 1 from the optimum.

    An example takes the share 1 - 2 eta + (d + 2) eta^2 of the squared distance with it, and the
    noise is taken as stationary.
    """
    etas = 2.0 ** np.arange(-11, -2, 0.25)
    noises = [theory.independent() if name == "DP-SGD" else theory.damped(eta) for eta in etas]
    return min(
        (1 - 2 * eta + (d + 2) * eta**2) ** T
        + theory.error(noise, eta, high(d), sampled=True) / RHO
        for eta, noise in zip(etas, noises, strict=True)
    )


def finite_time(request: Request) -> Outcome:
    """Error after T steps with clipping, at the best learning rate, of the task `regression`."""
    chains, d = request.pick(tiny=16, small=64, full=256), 4
    lengths = request.pick(
        tiny=(128, 512), small=(256, 512, 1024, 2048, 4096), full=(256, 512, 1024, 2048, 4096, 8192)
    )
    data = RegressionOptions(
        features=d, decay=0.0, examples=1, noise=0.01, shift=0.0, clients=chains * lengths[-1]
    )
    examples = [client_examples(data, i) for i in range(data.clients)]
    x = np.stack([a[0] for a, _ in examples]).astype(np.float64).reshape(lengths[-1], chains, d)
    y = np.array([b[0, 0] for _, b in examples], dtype=np.float64).reshape(lengths[-1], chains)
    weights, half = true_weights(data), chains // 2
    rows: list[tuple[str, int, float, float, float]] = []
    for name in ("DP-SGD", "nu-DP-FTRL"):
        for T in lengths:
            tried = []
            for eta in 2.0 ** np.arange(-9, 0, 0.5):
                noise = theory.independent() if name == "DP-SGD" else theory.damped(eta)
                tried.append(
                    (eta, _trained(x[:T], y[:T], weights, eta, noise.mechanism(T), len(rows)))
                )
            # Half of the chains choose the learning rate, the other half report.
            eta, found = min(tried, key=lambda pair: float(pair[1][:half].mean()))
            report = found[half:]
            rows.append(
                (
                    name,
                    T,
                    eta,
                    float(report.mean()),
                    float(report.std(ddof=1) / np.sqrt(len(report))),
                )
            )
    figure = blank(3.0)
    ax = figure.subplots()
    slopes = {}
    for i, name in enumerate(("DP-SGD", "nu-DP-FTRL")):
        T, mean, deviation = np.array(
            [(row[1], row[3], row[4]) for row in rows if row[0] == name]
        ).T
        formula = [predicted(name, int(t), d) for t in T]
        ax.errorbar(
            T,
            mean,
            2 * deviation,
            fmt="o^"[i],
            color=COLORS[i],
            capsize=2,
            markersize=4,
            label=f"{name}, clipped",
        )
        ax.plot(
            T,
            formula,
            color=COLORS[i],
            linestyle=DASHES[i],
            linewidth=1.3,
            label=f"{name}, formula without clipping",
        )
        slopes[name] = [float(np.polyfit(np.log(T), np.log(y), 1)[0]) for y in (mean, formula)]
    ax.set(
        xscale="log", yscale="log", xlabel="iterations T", ylabel="error at the best learning rate"
    )
    ax.set_xticks(lengths, labels=[str(t) for t in lengths])
    ax.minorticks_off()
    legend_above(figure, *ax.get_legend_handles_labels())
    last = {row[0]: row[3] for row in rows}
    sgd, ftrl = slopes["DP-SGD"], slopes["nu-DP-FTRL"]
    return Outcome(
        columns=("mechanism", "T", "learning rate", "error", "standard error"),
        rows=rows,
        figure=figure,
        verdict=f"With rho = {RHO:g}, clip norm 1 and d = {d} the error falls as T to the "
        f"{sgd[0]:.2f} with independent noise and to the {ftrl[0]:.2f} with correlated; the "
        f"formula without clipping has {sgd[1]:.2f} and {ftrl[1]:.2f}, since its logarithms count "
        f"at these T. At T = {lengths[-1]} the errors are {last['DP-SGD']:.2g} and "
        f"{last['nu-DP-FTRL']:.2g}.",
        holds=ftrl[0] < sgd[0] - 0.2 and last["nu-DP-FTRL"] < last["DP-SGD"],
        seeds=(data.seed, *range(len(rows))),
        reduced="labels with little noise, which leaves the error of privacy",
    )


ITEMS = (
    slides_item("mean-estimation", "Mean estimation", mean_estimation, 20, 300,
          "The stationary error is of order eta with independent noise and eta² log²(1 / eta) "
          "with the best, which is nu = eta."),
    slides_item("linear-regression", "Linear regression", linear_regression, 60, 900,
          "Noisy SGD's error grows with the dimension, that of nu-Noisy-FTRL with "
          "the effective dimension."),
    slides_item("learning-rate", "Learning rate dependence", learning_rate, 90, 900,
          "Noisy SGD's error goes as eta, nu-Noisy-FTRL's as eta², damped anti-PGD's as eta^1.5."),
    slides_item("finite-time", "Finite-time rates", finite_time, 90, 900,
          "With clipping and the best learning rate the privacy error falls as 1 / T with "
          "independent noise and 1 / T² with correlated."),
)  # fmt: skip
