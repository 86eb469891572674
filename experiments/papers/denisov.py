"""Figures of Denisov et al. 2022 that are made without training."""

import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy.linalg
from matplotlib.figure import Figure

import fedmf
from fedmf.experiments.papers import printed
from fedmf.experiments.papers.clause import Clause, from_numbers, not_judged
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
    row = next(row for row in printed.DENISOV_TABLE_2 if row.rounds == ROUNDS)
    return Outcome(
        [left, right],
        clauses=judge_figure_1(
            on_sums=on_sums, on_momentum=on_momentum, honaker=row.honaker, optimum=row.optimum
        ),
        columns=(
            "round",
            *(f"sums: {k}" for k in on_sums),
            *(f"momentum: {k}" for k in on_momentum),
        ),
        rows=list(zip(rounds, *on_sums.values(), *on_momentum.values(), strict=True)),
    )


def judge_figure_1(
    *,
    on_sums: Mapping[str, np.ndarray],
    on_momentum: Mapping[str, np.ndarray],
    honaker: str,
    optimum: str,
) -> list[Clause]:
    """Judges Figure 1 by the squared errors of each round, and two losses printed in Table 2."""
    sums_rmse = {name: float(np.sqrt(y.sum())) for name, y in on_sums.items()}
    momentum_rmse = {name: float(np.sqrt(y.sum())) for name, y in on_momentum.items()}
    online, full, optimal = on_sums
    num_turns = {name: _num_turns(y) for name, y in on_sums.items()}
    turns_text = "it turns " + ", ".join(f"{k} times ({name})" for name, k in num_turns.items())
    return [
        from_numbers(
            "On prefix sums the optimum has less total error than both estimators of the tree.",
            sums_rmse[optimal] < min(sums_rmse[online], sums_rmse[full]),
            "roots of the summed squared errors: " + _listed(sums_rmse, ".1f"),
        ),
        from_numbers(
            "The totals of Honaker's online tree and of the optimum are those of Table 2.",
            printed.agrees(sums_rmse[online], honaker)
            and printed.agrees(sums_rmse[optimal], optimum),
            f"{sums_rmse[online]:.1f} and {sums_rmse[optimal]:.1f} (printed: {honaker} and "
            f"{optimum})",
        ),
        from_numbers(
            "The error of both estimators goes up and down from round to round, because of the "
            "tree; that of the optimum does not.",
            min(num_turns[online], num_turns[full]) > ROUNDS // 2 and num_turns[optimal] == 0,
            f"between rises and falls in {ROUNDS} rounds {turns_text}",
        ),
        from_numbers(
            "On momentum the mechanism optimised for momentum has the least total error of four.",
            min(momentum_rmse, key=lambda name: momentum_rmse[name]) == "optimal for momentum",
            "roots of the summed squared errors: " + _listed(momentum_rmse, ".0f"),
        ),
    ]


def _num_turns(errors: np.ndarray) -> int:
    """Returns how often a series turns from rising to falling, or from falling to rising."""
    signs = np.sign(np.diff(errors))
    return int((signs[1:] * signs[:-1] < 0).sum())


def _listed(value_by_name: Mapping[str, float], format_spec: str) -> str:
    """Returns values with their names as text."""
    return ", ".join(f"{value:{format_spec}} {name}" for name, value in value_by_name.items())


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


# A solver has reached the optimum to a relative accuracy if its loss is within it of a lower bound.
ACCURACIES = (1e-3, 1e-4, 1e-5)
# The clauses on each baseline compare the times to this accuracy.
_ACCURACY = 1e-4
# "Up to two orders of magnitude in some cases" (App. E.4).
_TWO_ORDERS = 100.0
FIXED_POINT, NEWTON, GRADIENT = "fixed point", "Newton direction", "gradient"


class Times(NamedTuple):
    """Times of a solver on one size of the problem.

    Attributes:
      solver: name of the solver.
      rounds: size n of the problem.
      reached: seconds until the loss was within each of `ACCURACIES` of its lower bound; infinite
        if the solver was stopped before.
      seconds: seconds after which the solver ended or was stopped.
    """

    solver: str
    rounds: int
    reached: tuple[float, ...]
    seconds: float


def _times(solver: str, n: int, steps: Sequence[Step], bound: float) -> Times:
    """Returns the times of a solver's steps, where `bound` is a lower bound on the loss."""
    reached = tuple(
        min((seconds for seconds, loss in steps if loss <= (1 + accuracy) * bound), default=np.inf)
        for accuracy in ACCURACIES
    )
    return Times(solver, n, reached, steps[-1][0])


@figure("denisov-figure-4")
def figure_4(request: Request) -> Outcome:
    """Draws the loss of four solvers over seconds of processor time.

    On half the size, the gradient gets a hundred times the seconds in which the fixed point comes
    to the smallest of `ACCURACIES`.
    """
    n, seconds = request.pick((32, 0.3), (512, 6.0), (2048, 600.0))
    workload, single = sums_once(n)
    gram = workload.matrix.T @ workload.matrix
    ours, bound = _ours(workload, single)
    solvers = {"fedmf": ours}
    for name, method in (
        (FIXED_POINT, fixed_point(gram)),
        (NEWTON, descent(gram, newton=True)),
        (GRADIENT, descent(gram, newton=False)),
    ):
        solvers[name] = _until(method, seconds, 400)
    all_times = [_times(name, n, steps, bound) for name, steps in solvers.items()]
    all_times += _times_of_half_the_size(n // 2, seconds)
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
        clauses=judge_figure_4(all_times=all_times, rounds=n),
        columns=("solver", "seconds", "loss"),
        rows=[(name, *step) for name, steps in solvers.items() for step in steps],
        reduced="" if n == 2048 else f"n = {n} in place of 2048",
    )


def _until(method: Iterator[Step], seconds: float, max_steps: int) -> list[Step]:
    """Returns the steps of a solver until it has run for some seconds or steps."""
    steps = []
    for step in itertools.islice(method, max_steps):
        steps.append(step)
        if step[0] > seconds:
            break
    return steps


def _times_of_half_the_size(n: int, seconds: float) -> list[Times]:
    """Returns the times of the fixed point, and of the gradient with a hundred times as long."""
    workload, single = sums_once(n)
    gram = workload.matrix.T @ workload.matrix
    _, bound = _ours(workload, single)
    fixed_times = _times(FIXED_POINT, n, _until(fixed_point(gram), seconds, 60), bound)
    patience = _TWO_ORDERS * fixed_times.reached[-1]
    if np.isinf(patience):
        return [fixed_times]
    steps = _until(descent(gram, newton=False), patience, 100_000)
    return [fixed_times, _times(GRADIENT, n, steps, bound)]


def judge_figure_4(*, all_times: Sequence[Times], rounds: int) -> list[Clause]:
    """Judges Figure 4 by the times of the solvers on n = `rounds`, and on half of it."""
    by_name = {times.solver: times for times in all_times if times.rounds == rounds}
    index = ACCURACIES.index(_ACCURACY)
    fixed = by_name[FIXED_POINT]
    clauses = []
    for name in (NEWTON, GRADIENT):
        text = f"The fixed point is faster than the {name}."
        evidence = f"to within {_ACCURACY:g} of the lower bound at n = {rounds}: " + ", ".join(
            f"{times.solver} {_in_seconds(times, index)}" for times in (fixed, by_name[name])
        )
        seconds = by_name[name].reached[index]
        if np.isinf(fixed.reached[index]) and np.isinf(seconds):
            clauses.append(Clause(text=text, verdict="inconclusive", evidence=evidence))
        else:
            clauses.append(from_numbers(text, fixed.reached[index] < seconds, evidence))
    clauses.append(_judge_two_orders(all_times))
    return clauses


def _in_seconds(times: Times, index: int) -> str:
    """Returns the time to an accuracy in words."""
    if np.isinf(times.reached[index]):
        return f"not in {times.seconds:.2g} s"
    return f"in {times.reached[index]:.2g} s"


def _judge_two_orders(all_times: Sequence[Times]) -> Clause:
    """Judges whether the fixed point is a hundred times as fast in some case.

    A case is a size, an accuracy and a baseline. A baseline that was stopped counts with the
    seconds that it ran.
    """
    text = "In some cases the fixed point is faster by up to two orders of magnitude."
    fixed_by_rounds = {times.rounds: times for times in all_times if times.solver == FIXED_POINT}
    ratios = []
    was_stopped = False
    for times in all_times:
        if times.solver not in (NEWTON, GRADIENT):
            continue
        for i, fixed_seconds in enumerate(fixed_by_rounds[times.rounds].reached):
            if np.isinf(fixed_seconds):
                continue
            is_censored = np.isinf(times.reached[i])
            was_stopped |= is_censored
            seconds = times.seconds if is_censored else times.reached[i]
            case = f"{times.solver} to {ACCURACIES[i]:g} at n = {times.rounds}"
            prefix = "at least " if is_censored else ""
            ratios.append((seconds / fixed_seconds, prefix, case))
    if not ratios:
        return from_numbers(text, False, "the fixed point came to no accuracy in time")
    ratio, prefix, case = max(ratios)
    evidence = f"the largest ratio of times is {prefix}{ratio:.0f} ({case})"
    if ratio < _TWO_ORDERS and was_stopped:
        return not_judged(text, f"{evidence}, and the baseline was stopped before its end")
    return from_numbers(text, ratio >= _TWO_ORDERS, evidence)


@figure("denisov-figure-5")
def figure_5(request: Request) -> Outcome:
    """Draws the entries of the optimum's matrices B and C, the entries' ranks, and their
    histogram.
    """
    workload, single = sums_once(ROUNDS)
    mechanism = fit(workload, single, "dense")
    matrices = {"B": workload.matrix @ mechanism.noising(), "C": mechanism.encoder()}
    largest_entry = max(M.max() for M in matrices.values())
    return Outcome(
        _entries(matrices, largest_entry),
        clauses=judge_figure_5(B=matrices["B"], C=matrices["C"], largest=LARGEST_ENTRY),
        columns=("matrix", "largest", "smallest", "median of those that are not 0"),
        rows=[(name, M.max(), M.min(), np.median(M[M > 1e-9])) for name, M in matrices.items()],
    )


def judge_figure_5(*, B: np.ndarray, C: np.ndarray, largest: str) -> list[Clause]:
    """Judges Figure 5 by the entries of B and C, and the printed largest entry."""
    largest_entry = max(B.max(), C.max())
    n = len(B)
    # Every entry of the diagonal, except the first, over the largest other entry of its row.
    off_diagonal = np.tril(B, -1)
    dominance = np.diagonal(B)[1:] / off_diagonal[1:].max(axis=1)
    below, across = np.tril_indices(n, -1)
    is_falling = (B[below, across] <= B[below - 1, across]) & (
        B[below, across] <= B[below, across + 1]
    )
    smallest_entry = min(B.min(), C.min())
    return [
        from_numbers(
            f"The largest entry of B and C is {largest}.",
            printed.agrees(largest_entry, largest),
            f"{largest_entry:.4f}",
        ),
        from_numbers(
            "The diagonal of B is heavy: in every row its entry is the largest, and the largest "
            "entry of both matrices lies on it.",
            bool(dominance.min() > 1) and np.diagonal(B).max() == largest_entry,
            f"an entry of the diagonal is {dominance.min():.2f} to {dominance.max():.2f} times "
            f"the largest other entry of its row",
        ),
        from_numbers(
            "Off the diagonal the entries of B have an order: they fall with every step away from "
            "the diagonal.",
            bool(is_falling.all()),
            f"true of {100 * is_falling.mean():.4g}% of the {len(below)} entries",
        ),
        from_numbers(
            "The smallest entries are 0: no entry of B or C is negative.",
            bool(smallest_entry > -1e-9),
            f"the smallest entry is {smallest_entry:.1e}",
        ),
    ]


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
