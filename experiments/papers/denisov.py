"""Figures of Denisov et al. 2022 that need no training."""

import itertools
import time
import warnings

import numpy as np
from matplotlib.figure import Figure

import fedmf
from fedmf.experiments.papers import factorization_race as race
from fedmf.experiments.papers import printed
from fedmf.experiments.papers.drawing import COLORS, Line, Lines
from fedmf.experiments.papers.fits import fit, sums_once
from fedmf.experiments.papers.item import Outcome, Request, figure
from fedmf.mechanisms.dense import fit_dense
from fedmf.mechanisms.fitting.progress import Stopping
from fedmf.reports.canvas import blank

ROUNDS = 512
# The largest entry of B and C: App. G, caption of Figure 5.
LARGEST_ENTRY = "2.36"


@figure("denisov-figure-1")
def figure_1(request: Request) -> Outcome:
    """Squared error by round, of prefix sums and of the iterates of momentum SGD."""
    (sums, single), momentum = sums_once(ROUNDS), fedmf.momentum_sgd(ROUNDS, momentum=0.95)
    mechanisms = {
        "Honaker online": fit(sums, single, "tree", decoder="online"),
        "Honaker full": fit(sums, single, "tree", decoder="full"),
        "optimal for prefix sums": fit(sums, single, "dense"),
        "optimal for momentum": fit(momentum, single, "dense"),
    }
    on_momentum, on_sums = (
        {name: fedmf.per_round_error(m, w, single) ** 2 for name, m in mechanisms.items()}
        for w in (momentum, sums)
    )
    del on_sums["optimal for momentum"]
    rounds = np.arange(1, ROUNDS + 1)
    left, right = (
        Lines(series, "round", "squared error", x=rounds, title=title, ylim=(0, None))
        for series, title in ((on_sums, "prefix sums"), (on_momentum, "momentum SGD, 0.95"))
    )
    sums_rmse, momentum_rmse = (
        [float(np.sqrt(y.sum())) for y in series.values()] for series in (on_sums, on_momentum)
    )
    row = next(row for row in printed.DENISOV_TABLE_2 if row.rounds == ROUNDS)
    online, _, optimum = sums_rmse
    return Outcome(
        [left, right],
        f"The roots of the summed errors are {online:.1f} for Honaker's online tree and "
        f"{optimum:.1f} for the optimum (Table 2: {row.honaker} and {row.optimum}). On momentum "
        f"the optimum made for it has {momentum_rmse[3]:.0f}, that of prefix sums "
        f"{momentum_rmse[2]:.0f}, the trees {momentum_rmse[1]:.0f} and {momentum_rmse[0]:.0f}.",
        printed.agrees(online, row.honaker)
        and printed.agrees(optimum, row.optimum)
        and min(momentum_rmse) == momentum_rmse[3],
        columns=(
            "round",
            *(f"sums: {k}" for k in on_sums),
            *(f"momentum: {k}" for k in on_momentum),
        ),
        rows=list(zip(rounds, *on_sums.values(), *on_momentum.values(), strict=True)),
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


@figure("denisov-figure-4")
def figure_4(request: Request) -> Outcome:
    """Loss over seconds of four solvers."""
    n, seconds = request.pick((32, 0.3), (512, 6.0), (2048, 600.0))
    workload, single = sums_once(n)
    gram = workload.matrix.T @ workload.matrix
    ours, bound = _ours(workload, single)
    solvers = {"fedmf": ours}
    for name, method in (
        ("fixed point", race.fixed_point(gram)),
        ("Newton direction", race.descent(gram, newton=True)),
        ("gradient", race.descent(gram, newton=False)),
    ):
        solvers[name] = []
        for step in itertools.islice(method, 400):
            solvers[name].append(step)
            if step[0] > seconds:
                break
    times = {
        name: min((s for s, loss in steps if loss <= (1 + 1e-4) * bound), default=np.inf)
        for name, steps in solvers.items()
    }
    words = ", ".join(
        f"{name} {f'in {t:.2g} s' if t < np.inf else f'not in {seconds:g} s'}"
        for name, t in times.items()
    )
    panel = Lines(
        {
            name: Line([s for s, _ in steps], [loss / bound - 1 for _, loss in steps])
            for name, steps in solvers.items()
        },
        "seconds of processor time",
        "loss over its lower bound, minus 1",
        log="xy",
        ylim=(3e-10, None),
    )
    return Outcome(
        [panel],
        f"To within 1e-4 of the bound at n = {n}: {words}.",
        min(times["fedmf"], times["fixed point"])
        < min(times["Newton direction"], times["gradient"]),
        columns=("solver", "seconds", "loss"),
        rows=[(name, *step) for name, steps in solvers.items() for step in steps],
        reduced="" if n == 2048 else f"n = {n} in place of 2048",
    )


@figure("denisov-figure-5")
def figure_5(request: Request) -> Outcome:
    """B and C of the optimum: entries, their ranks, and a histogram."""
    workload, single = sums_once(ROUNDS)
    mechanism = fit(workload, single, "dense")
    matrices = {"B": workload.matrix @ mechanism.noising(), "C": mechanism.encoder()}
    largest = max(float(M.max()) for M in matrices.values())
    heavy = float(np.diagonal(matrices["B"]).max()) == largest
    nonnegative = all(float(M.min()) > -1e-9 for M in matrices.values())
    return Outcome(
        _entries(matrices, largest),
        f"The largest entry of either is {largest:.4f} (printed: {LARGEST_ENTRY}), "
        f"{'on' if heavy else 'not on'} the diagonal of B; {'no' if nonnegative else 'an'} entry "
        "is negative.",
        printed.agrees(largest, LARGEST_ENTRY) and heavy and nonnegative,
        columns=("matrix", "largest", "smallest", "median of those that are not 0"),
        rows=[
            (name, float(M.max()), float(M.min()), float(np.median(M[M > 1e-9])))
            for name, M in matrices.items()
        ],
    )


def _entries(matrices: dict[str, np.ndarray], largest: float) -> Figure:
    drawing = blank(7.4)
    axes = drawing.subplots(3, 2)
    for (name, M), column in zip(matrices.items(), axes.T, strict=True):
        ranks = np.searchsorted(np.sort(M, axis=None), M) / M.size
        for ax, values, kind in (
            (column[0], M / largest, f"entries / {largest:.2f}"),
            (column[1], ranks, "ranks"),
        ):
            image = ax.imshow(values, cmap="Reds", vmin=0, vmax=1)
            ax.set_title(f"{name}, {kind}")
            ax.grid(visible=False)
        column[2].hist(np.log10(M[M > 1e-9]), bins=60, color=COLORS[0])
        column[2].set(title=f"{name}, entries that are not 0", xlabel="log10", yscale="log")
    drawing.colorbar(image, ax=list(axes[:2].flat), shrink=0.6)
    return drawing
