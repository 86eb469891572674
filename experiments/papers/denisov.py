"""Figures of Denisov et al. 2022 that are made without training."""

import itertools
import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import scipy.linalg
from matplotlib.figure import Figure

import fedmf
from fedmf.experiments.papers import printed
from fedmf.experiments.papers.drawing import COLORS, Line, Lines
from fedmf.experiments.papers.fits import fit, sums_once
from fedmf.experiments.papers.item import Outcome, Request, figure
from fedmf.mechanisms.dense.fit import fit_dense
from fedmf.mechanisms.fitting.progress import Stopping
from fedmf.reports.canvas import blank

# The solvers below compute the optimal factorisation for a single participation in three published
# ways, which Denisov et al. 2022, App. E.4, compare in Figure 4. Each solver yields (seconds, loss)
# after every step. It starts from X(1), the matrix of Eq. 6 at v = 1, scaled to a diagonal of ones.
# The loss is that of the encoder C with columns of norm 1, which makes it the loss of a mechanism.
# Seconds are processor time, so that a busy machine does not change them. The clock stops while a
# loss is computed for the report alone.
# A pair (seconds, loss): the time after a step of a solver, and the loss of its encoder.
Step = tuple[float, float]


class _Clock:
    """Clock of processor time, which stops while a loss is computed for the report."""

    def __init__(self) -> None:
        self.began = time.process_time()
        self.away = 0.0

    def step(self, loss: Callable[[], float]) -> Step:
        now = time.process_time()
        seconds = now - self.began - self.away
        value = loss()
        self.away += time.process_time() - now
        return seconds, value


def geometric_mean(gram: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns X(v) and phi(v) of Eqs. 6 and 5 for the Gram matrix of a workload and a vector v.

    With R = sqrt(diag(v)^(1/2) gram diag(v)^(1/2)), X is R scaled back by diag(v)^(-1/2) from both
    sides, and phi(v) is R's diagonal.
    """
    root = np.sqrt(v)
    values, vectors = np.linalg.eigh(root[:, None] * gram * root)
    R = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return R / np.outer(root, root), np.diagonal(R).copy()


def normalized(X: np.ndarray) -> np.ndarray:
    """Scales X = C^T C to a diagonal of ones, so that the columns of the encoder C have norm 1."""
    norms = np.sqrt(np.diagonal(X))
    return X / np.outer(norms, norms)


def loss_of(gram: np.ndarray, X: np.ndarray) -> float:
    """Computes the loss tr(gram X^-1) of Eq. 4, where X = C^T C and `gram` is the Gram matrix of
    the workload.
    """
    return np.trace(scipy.linalg.cho_solve(scipy.linalg.cho_factor(X), gram))


def fixed_point(gram: np.ndarray) -> Iterator[Step]:
    """Yields the steps of the fixed-point iteration v <- phi(v) (Thm. 3.2)."""
    clock = _Clock()
    v = np.ones(len(gram))
    while True:
        X, v = geometric_mean(gram, v)
        yield clock.step(lambda X=X: loss_of(gram, normalized(X)))  # type: ignore[misc]


def descent(gram: np.ndarray, *, newton: bool) -> Iterator[Step]:
    """Yields steps of gradient descent, or of Newton's method with conjugate gradients (Yuan et al.
    2016, Alg. 1), both with Armijo's rule.

    A step is halved until X has a Cholesky factorisation and the loss falls by at least a hundredth
    of what the slope predicts. The diagonal of X stays 1.
    """
    clock = _Clock()
    X = normalized(geometric_mean(gram, np.ones(len(gram)))[0])
    loss = loss_of(gram, X)
    size = 1.0
    yield clock.step(lambda: loss)
    while True:
        inverse = scipy.linalg.inv(X)
        pull = inverse @ gram @ inverse
        # Rounding leaves this matrix slightly asymmetric. Later steps would multiply the asymmetry,
        # so it is removed.
        pull = (pull + pull.T) / 2
        gradient = -pull
        np.fill_diagonal(gradient, 0.0)
        direction = _newton(inverse, pull, gradient) if newton else -gradient
        slope = np.vdot(gradient, direction)
        size = 1.0 if newton else 2.0 * size
        while True:
            candidate = X + size * direction
            try:
                candidate_loss = loss_of(gram, candidate)
            except np.linalg.LinAlgError:
                candidate_loss = np.inf
            if candidate_loss <= loss + 0.01 * size * slope:
                break
            size /= 2.0
            if size < 1e-18:
                return
        X = candidate
        loss = candidate_loss
        yield clock.step(lambda loss=loss: loss)  # type: ignore[misc]


def _newton(
    inverse: np.ndarray, pull: np.ndarray, gradient: np.ndarray, steps: int = 5
) -> np.ndarray:
    """Solves H D = -gradient off the diagonal for the Newton direction D, where H is the Hessian,
    by a few conjugate-gradient steps.

    The Hessian H maps D to inverse D pull + pull D inverse.
    """
    D = np.zeros_like(gradient)
    residual = -gradient
    direction = residual
    square = np.vdot(residual, residual)
    for _ in range(steps):
        half_step = inverse @ direction @ pull
        H = half_step + half_step.T
        np.fill_diagonal(H, 0.0)
        share = square / np.vdot(direction, H)
        D, residual = D + share * direction, residual - share * H
        new_squared_norm = np.vdot(residual, residual)
        if new_squared_norm < 1e-20 * np.vdot(gradient, gradient):
            break
        direction, square = residual + new_squared_norm / square * direction, new_squared_norm
    return D


ROUNDS = 512
# Largest entry of the matrices B and C, as printed in the caption of Figure 5 (App. G).
LARGEST_ENTRY = "2.36"


@figure("denisov-figure-1")
def figure_1(request: Request) -> Outcome:
    """Draws the squared error of four mechanisms by round, for prefix sums and for momentum SGD."""
    sums, single = sums_once(ROUNDS)
    momentum = fedmf.momentum_sgd(ROUNDS, momentum=0.95)
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
        [np.sqrt(y.sum()) for y in series.values()] for series in (on_sums, on_momentum)
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


def _ours(workload: fedmf.Workload, single: fedmf.Participation) -> tuple[list[Step], float]:
    """Fits the optimum with fedmf's own solver.

    Returns (seconds, loss) after each step, and the lower bound on the loss that the fit proves.
    """
    steps: list[Step] = []
    start_time = time.process_time()
    stopping = Stopping(
        tolerance=1e-9,
        max_iterations=60,
        progress=lambda step, loss, gap: steps.append((time.process_time() - start_time, loss)),
    )
    with warnings.catch_warnings():
        # The fit is stopped early on purpose, so its warning that it ended above its tolerance is
        # ignored.
        warnings.simplefilter("ignore")
        certificate = fit_dense(workload, single, stopping).certificate
    assert certificate is not None
    return steps, certificate.lower_bound


@figure("denisov-figure-4")
def figure_4(request: Request) -> Outcome:
    """Draws the loss of four solvers over seconds of processor time."""
    n, seconds = request.pick((32, 0.3), (512, 6.0), (2048, 600.0))
    workload, single = sums_once(n)
    gram = workload.matrix.T @ workload.matrix
    ours, bound = _ours(workload, single)
    solvers = {"fedmf": ours}
    for name, method in (
        ("fixed point", fixed_point(gram)),
        ("Newton direction", descent(gram, newton=True)),
        ("gradient", descent(gram, newton=False)),
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
    """Draws the entries of the optimum's matrices B and C, the entries' ranks, and their
    histogram.
    """
    workload, single = sums_once(ROUNDS)
    mechanism = fit(workload, single, "dense")
    matrices = {"B": workload.matrix @ mechanism.noising(), "C": mechanism.encoder()}
    largest_entry = max(M.max() for M in matrices.values())
    has_heavy_diagonal = np.diagonal(matrices["B"]).max() == largest_entry
    is_nonnegative = all(M.min() > -1e-9 for M in matrices.values())
    return Outcome(
        _entries(matrices, largest_entry),
        f"The largest entry of either is {largest_entry:.4f} (printed: {LARGEST_ENTRY}), "
        f"{'on' if has_heavy_diagonal else 'not on'} the diagonal of B; "
        f"{'no' if is_nonnegative else 'an'} entry is negative.",
        printed.agrees(largest_entry, LARGEST_ENTRY) and has_heavy_diagonal and is_nonnegative,
        columns=("matrix", "largest", "smallest", "median of those that are not 0"),
        rows=[(name, M.max(), M.min(), np.median(M[M > 1e-9])) for name, M in matrices.items()],
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
