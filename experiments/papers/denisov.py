"""Figures of Denisov et al. 2022 that need no training."""

import functools
import time
import warnings
from typing import Any

import numpy as np

import fedmf
from fedmf.experiments import paper_figures as printed
from fedmf.experiments.papers import factorization_race as race
from fedmf.experiments.papers.drawing import COLORS, curves, table
from fedmf.experiments.papers.item import Outcome, Request, numbered
from fedmf.experiments.table_cells import fit, one_participation
from fedmf.mechanisms.dense import fit_dense
from fedmf.mechanisms.fitting.progress import Stopping
from fedmf.reports.canvas import blank, legend_above

ROUNDS = 512
# The largest entry of B and C: App. G, caption of Figure 5.
LARGEST_ENTRY = "2.36"


def figure_1(request: Request) -> Outcome:
    """Squared error by round, of prefix sums and of the iterates of momentum SGD."""
    sums, momentum = fedmf.prefix_sum(ROUNDS), fedmf.momentum_sgd(ROUNDS, momentum=0.95)
    single = one_participation(ROUNDS)
    mechanisms = {
        "Honaker online": fit(sums, single, "tree", decoder="online"),
        "Honaker full": fit(sums, single, "tree", decoder="full"),
        "optimal for prefix sums": fit(sums, single, "dense"),
        "optimal for momentum": fit(momentum, single, "dense"),
    }
    errors = [
        {
            name: fedmf.per_round_error(m, workload, single) ** 2
            for name, m in mechanisms.items()
            if workload is momentum or "momentum" not in name
        }
        for workload in (sums, momentum)
    ]
    figure = blank(2.7)
    axes = figure.subplots(1, 2)
    for ax, series, title in zip(axes, errors, ("prefix sums", "momentum SGD, 0.95"), strict=True):
        curves(ax, np.arange(1, ROUNDS + 1), series, linewidth=1.1)
        ax.set(title=title, xlabel="round", ylim=(0, None))
    axes[0].set_ylabel("squared error")
    legend_above(figure, *axes[1].get_legend_handles_labels())
    left, right = (
        {name: float(np.sqrt(y.sum())) for name, y in series.items()} for series in errors
    )
    row = next(row for row in printed.DENISOV_TABLE_2 if row.rounds == ROUNDS)
    as_printed = printed.agrees(left["Honaker online"], row.honaker) and printed.agrees(
        left["optimal for prefix sums"], row.optimum
    )
    smallest = min(right, key=lambda name: right[name])
    return Outcome(
        columns=(
            "round",
            *(f"sums: {name}" for name in errors[0]),
            *(f"momentum: {name}" for name in errors[1]),
        ),
        rows=table(
            np.arange(1, ROUNDS + 1), {**{f"s{k}": v for k, v in errors[0].items()}, **errors[1]}
        ),
        figure=figure,
        verdict=f"The roots of the summed errors are {left['Honaker online']:.1f} for Honaker's "
        f"online tree and {left['optimal for prefix sums']:.1f} for the optimum (Table 2: "
        f"{row.honaker} and {row.optimum}). On momentum the optimum made for it has "
        f"{right['optimal for momentum']:.0f}, that of prefix sums "
        f"{right['optimal for prefix sums']:.0f}, the trees {right['Honaker full']:.0f} and "
        f"{right['Honaker online']:.0f}.",
        holds=as_printed and smallest == "optimal for momentum",
    )


def _ours(workload: fedmf.Workload, single: fedmf.Participation) -> tuple[list[race.Step], float]:
    """(seconds, loss) after the steps of one fit, and the lower bound that it proves."""
    steps: list[race.Step] = []
    began = time.process_time()
    stopping = Stopping(
        tolerance=1e-9,
        max_iterations=60,
        progress=lambda step, loss, gap: steps.append((time.process_time() - began, loss)),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it ended above its tolerance
        certificate = fit_dense(workload, single, stopping).certificate
    assert certificate is not None
    return steps, certificate.lower_bound


def figure_4(request: Request) -> Outcome:
    """Loss over seconds of four solvers."""
    n, seconds = request.pick(tiny=(32, 0.3), small=(512, 6.0), full=(2048, 600.0))
    workload, single = fedmf.prefix_sum(n), one_participation(n)
    gram = workload.matrix.T @ workload.matrix
    ours, bound = _ours(workload, single)
    solvers = {"fedmf": ours}
    for name, method in {
        "fixed point": race.fixed_point(gram),
        "Newton direction": race.descent(gram, newton=True),
        "gradient": race.descent(gram, newton=False),
    }.items():
        solvers[name] = []
        for step in method:
            solvers[name].append(step)
            if step[0] > seconds or len(solvers[name]) >= 400:
                break
    figure = blank(3.2)
    ax = figure.subplots()
    for (name, steps), color in zip(solvers.items(), COLORS, strict=False):
        ax.plot(
            [s for s, _ in steps],
            [loss / bound - 1 for _, loss in steps],
            "o-",
            label=name,
            color=color,
            markersize=2.5,
            linewidth=1.2,
        )
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="seconds of processor time",
        ylabel="loss over its lower bound, minus 1",
        ylim=(3e-10, None),
    )
    legend_above(figure, *ax.get_legend_handles_labels())
    goal = 1 + 1e-4

    def reached(steps: list[race.Step]) -> float:
        return min((s for s, loss in steps if loss <= goal * bound), default=float("inf"))

    times = {name: reached(steps) for name, steps in solvers.items()}
    words = ", ".join(
        f"{name} {f'in {t:.2g} s' if t < np.inf else f'not in {seconds:g} s'}"
        for name, t in times.items()
    )
    return Outcome(
        columns=("solver", "seconds", "loss"),
        rows=[(name, *step) for name, steps in solvers.items() for step in steps],
        figure=figure,
        verdict=f"To within 1e-4 of the bound at n = {n}: {words}.",
        holds=min(times["fedmf"], times["fixed point"])
        < min(times["Newton direction"], times["gradient"]),
        reduced="" if n == 2048 else f"n = {n} in place of 2048",
    )


def figure_5(request: Request) -> Outcome:
    """B and C of the optimum: entries, their ranks, and a histogram."""
    workload = fedmf.prefix_sum(ROUNDS)
    mechanism = fit(workload, one_participation(ROUNDS), "dense")
    matrices = {"B": workload.matrix @ mechanism.noising(), "C": mechanism.encoder()}
    largest = max(float(M.max()) for M in matrices.values())
    figure = blank(7.4)
    axes = figure.subplots(3, 2)
    for (name, M), column in zip(matrices.items(), axes.T, strict=True):
        ranks = np.searchsorted(np.sort(M, axis=None), M) / M.size
        for ax, values, title in (
            (column[0], M / largest, f"{name}, entries / {largest:.2f}"),
            (column[1], ranks, f"{name}, ranks"),
        ):
            image = ax.imshow(values, cmap="Reds", vmin=0, vmax=1)
            ax.set_title(title)
            ax.grid(visible=False)
        positive = M[M > 1e-9]
        column[2].hist(np.log10(positive), bins=60, color=COLORS[0])
        column[2].set(
            title=f"{name}, entries that are not 0", xlabel="log10 of the entry", yscale="log"
        )
    axes[2, 0].set_ylabel("entries")
    figure.colorbar(image, ax=list(axes[:2].flat), shrink=0.6)
    heavy = float(np.diagonal(matrices["B"]).max()) == largest
    nonnegative = all(float(M.min()) > -1e-9 for M in matrices.values())
    rows: list[Any] = [
        (name, float(M.max()), float(M.min()), float(np.median(M[M > 1e-9])))
        for name, M in matrices.items()
    ]
    return Outcome(
        columns=("matrix", "largest", "smallest", "median of those that are not 0"),
        rows=rows,
        figure=figure,
        verdict=f"The largest entry of either is {largest:.4f} (printed: {LARGEST_ENTRY}), "
        f"{'on' if heavy else 'not on'} the diagonal "
        f"of B; {'no' if nonnegative else 'an'} entry is negative.",
        holds=printed.agrees(largest, LARGEST_ENTRY) and heavy and nonnegative,
    )


_item = functools.partial(numbered, "denisov")

ITEMS = (
    _item(
        "Figure 1",
        figure_1,
        3,
        3,
        "The optimum has less error than Honaker's trees, evenly over rounds; the one made for "
        "momentum the least on it.",
    ),
    _item(
        "Figure 4",
        figure_4,
        50,
        2400,
        "The fixed point finds the optimum up to a hundred times faster than gradient "
        "and Newton directions.",
    ),
    _item(
        "Figure 5",
        figure_5,
        5,
        5,
        "The optimal B has a heavy diagonal, and its off-diagonal structure is smooth.",
    ),
)
