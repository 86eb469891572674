"""Figures of the slides on correlated noise and buffered linear Toeplitz (BLT) mechanisms: errors,
times and approximations.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import fedmf
from fedmf.experiments import paper_figures as printed
from fedmf.experiments.papers.drawing import curves, table
from fedmf.experiments.papers.item import Item, Outcome, Request
from fedmf.experiments.table_cells import fit, one_participation
from fedmf.noise.stream import NoiseStream
from fedmf.reports.canvas import blank, legend_above

# name -> family and options, for n rounds of prefix sums
FAMILIES: dict[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    "independent": ("identity", lambda n: {}),
    "32 bands": ("toeplitz", lambda n: {"bands": min(n, 32), "objective": "max"}),
    "BLT, 2 buffers": ("blt", lambda n: {"buffers": 2, "objective": "max"}),
    "BLT, 4 buffers": ("blt", lambda n: {"buffers": 4, "objective": "max"}),
    "optimal": ("toeplitz", lambda n: {"coefficients": "sqrt"}),
}


def max_error(request: Request) -> Outcome:
    """The largest error of a prefix sum over n, at noise multiplier 1."""
    n = 2 ** np.arange(4, request.pick(tiny=9, small=15, full=18))

    def largest(name: str, rounds: int) -> float:
        family, options = FAMILIES[name]
        workload, single = fedmf.prefix_sum(rounds), one_participation(rounds)
        return fedmf.max_error(fit(workload, single, family, **options(rounds)), workload, single)

    series = {name: np.array([largest(name, int(i)) for i in n]) for name in FAMILIES}
    series["log(n) / π + 1.0663"] = np.log(n) / np.pi + printed.SLIDES_CONSTANT
    figure = blank(3.0)
    ax = figure.subplots()
    curves(ax, n, series, marker="o", markersize=3)
    ax.set(xscale="log", yscale="log", xlabel="rounds n", ylabel="largest error")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    legend_above(figure, *ax.get_legend_handles_labels())
    off = np.abs(series["optimal"] - series["log(n) / π + 1.0663"])
    root = float(np.abs(series["independent"] / np.sqrt(n) - 1).max())
    excess = float((series["BLT, 4 buffers"] / series["optimal"]).max() - 1)
    return Outcome(
        columns=("n", *series),
        rows=table(n, series),
        figure=figure,
        verdict=f"The optimum is log(n) / pi + 1.0663 to within {off[-1]:.1e} at n = {n[-1]} and "
        f"{off[0]:.1e} at n = {n[0]}; independent noise is the root of n to {root:.0e}; four "
        f"buffers have at most {100 * excess:.2f}% more than the optimum.",
        # The next term of the expansion of Landau's constants is 1 / (4 pi n).
        holds=bool((np.abs(4 * np.pi * n * off - 1) < 0.1).all())
        and root < 1e-12
        and excess < 0.01,
    )


def _seconds(action: Callable[[], object], repeats: int) -> float:
    """The least of so many times, in seconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)


def _row_maker(stream: NoiseStream, Z: np.ndarray, t: int) -> Callable[[], object]:
    """What makes row t of the noise from draws Z and, of a recurrence or buffers, a state of the
    right size.
    """
    if stream.contraction is not None:
        weights = stream.contraction[t, : t + 1]
        return lambda: weights @ Z[: t + 1]
    state = np.zeros((stream.width, Z.shape[1]))
    return lambda: stream.step(t, Z[t], state)


def noise_time(request: Request) -> Outcome:
    """Seconds that the noise of iteration t takes, for a model of d parameters."""
    n, d, repeats = request.pick(tiny=(64, 500, 3), small=(1024, 20_000, 7), full=(4096, 20_000, 7))
    Z = np.random.default_rng(0).standard_normal((n, d))
    rounds = np.array([2**i for i in range(n.bit_length())]) - 1
    rounds = rounds[rounds < n][3:]
    series = {}
    for name, (family, options) in FAMILIES.items():
        stream = fit(fedmf.prefix_sum(n), one_participation(n), family, **options(n)).stream()
        series[name] = 1e3 * np.array(
            [_seconds(_row_maker(stream, Z, int(t)), repeats) for t in rounds]
        )
    figure = blank(3.0)
    ax = figure.subplots()
    curves(ax, rounds + 1, series, marker="o", markersize=3)
    ax.set(xscale="log", yscale="log", xlabel="iteration t", ylabel=f"milliseconds, d = {d:,}")
    legend_above(figure, *ax.get_legend_handles_labels())
    growth = {name: float(y[-1] / y[len(y) // 2]) for name, y in series.items()}
    factor = float((rounds[-1] + 1) / (rounds[len(rounds) // 2] + 1))
    others = max(growth[name] for name in series if name not in ("optimal", "independent"))
    return Outcome(
        columns=("iteration", *series),
        rows=table(rounds + 1, series),
        figure=figure,
        verdict=f"From iteration {rounds[len(rounds) // 2] + 1} to {rounds[-1] + 1}, {factor:.0f} "
        f"times as far, the optimum's noise takes {growth['optimal']:.1f} times as long, that of "
        f"bands and buffers at most {others:.1f} times.",
        holds=growth["optimal"] > 0.4 * factor and others < 2,
        seeds=(0,),
    )


def circle(n: int) -> np.ndarray:
    """Points of the circle abs(x) = 1 - 1 / n, close together where the root is steep; by symmetry
    the upper half.
    """
    return (1 - 1 / n) * np.exp(1j * np.concatenate([[0.0], np.geomspace(1e-9, np.pi, 20_000)]))


def approximation(request: Request) -> Outcome:
    """Largest error of rational and polynomial generating functions on the circle
    abs(x) = 1 - 1 / n.
    """
    n, most = request.pick(tiny=(64, 3), small=(2048, 8), full=(16384, 10))
    x = circle(n)
    root = np.sqrt(1 - x)
    degrees = np.arange(1, most + 1)
    rational, inverse, excess = np.empty(most), np.empty(most), np.empty(most)
    workload, single = fedmf.prefix_sum(n), one_participation(n)
    optimum = fit(workload, single, "toeplitz", coefficients="sqrt")
    for i, d in enumerate(degrees):
        blt = fit(workload, single, "blt", buffers=int(d), objective="max")
        r = np.prod(
            [
                (1 - a * x) / (1 - b * x)
                for a, b in zip(blt.decays, blt.inverse_decays, strict=True)
            ],
            axis=0,
        )
        rational[i], inverse[i] = np.abs(r - root).max(), np.abs(1 / r - 1 / root).max()
        excess[i] = fedmf.max_error(blt, workload, single) - fedmf.max_error(
            optimum, workload, single
        )
    bands = 2 ** np.arange(int(np.log2(n)) + 1)
    c = optimum.toeplitz_coefficients()
    # Coefficients are positive: a truncated series errs most at x = 1 - 1 / n.
    polynomial = np.array(
        [1 / abs(root[0]) - np.polynomial.polynomial.polyval(1 - 1 / n, c[:b]) for b in bands]
    )
    series = {
        "largest |r(x) - √(1 - x)|": rational,
        "3 exp(-√d)": 3 * np.exp(-np.sqrt(degrees)),
        "max error above the optimum": np.maximum(excess, 1e-9),
    }
    figure = blank(2.9)
    left, right = figure.subplots(1, 2)
    curves(left, degrees, series, marker="o", markersize=3)
    left.set(yscale="log", xlabel="degree d of a rational r, buffers")
    curves(right, bands, {"polynomial": polynomial}, marker="o", markersize=3)
    right.plot(
        degrees, inverse, "s--", color="#d55e00", markersize=3, linewidth=1.5, label="rational"
    )
    right.set(xscale="log", yscale="log", xlabel="degree: bands or buffers")
    right.set_title("error on 1/√(1 - x)", fontsize=9.5)
    right.legend(fontsize=8)
    left.legend(fontsize=7, loc="lower left")
    as_good = next(
        (int(b) for b, e in zip(bands, polynomial, strict=True) if e <= inverse[-1]), None
    )
    return Outcome(
        columns=("degree", *series, "on 1 / sqrt(1 - x)"),
        rows=table(degrees, series | {"inverse": inverse}),
        figure=figure,
        verdict=f"On abs(x) = 1 - 1/{n} the error falls from {rational[0]:.2g} with one buffer to "
        f"{rational[-1]:.1g} with {most}; 3 exp(-sqrt d) at that degree is "
        f"{3 * np.exp(-(most**0.5)):.2g}. On 1 / sqrt(1 - x) it takes a polynomial "
        f"{as_good or f'more than {n}'} bands to come to what {most} buffers have.",
        holds=bool((rational <= 3 * np.exp(-np.sqrt(degrees))).all())
        and (as_good is None or as_good > 4 * most),
    )


def slides_item(name: str, number: str, make: Any, small: float, full: float, claim: str) -> Item:
    """What the slides show under no number."""
    return Item(
        name=f"slides-{name}",
        source="slides",
        number=number,
        claim=claim,
        make=make,
        seconds={"small": small, "full": full},
    )


ITEMS = (
    slides_item(
        "max-error",
        "Max error",
        max_error,
        10,
        60,
        "The optimal Toeplitz mechanism has max error log(n) / pi + constant, "
        "independent noise sqrt(n).",
    ),
    slides_item(
        "noise-time",
        "Noise generation time",
        noise_time,
        10,
        60,
        "The noise of iteration t costs the optimum t vectors, bands and "
        "buffers a constant number.",
    ),
    slides_item(
        "approximation",
        "Approximation quality",
        approximation,
        10,
        60,
        "Rational functions of degree d come within 3 exp(-sqrt d) of the square root; "
        "polynomials need far more.",
    ),
)
