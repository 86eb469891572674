"""Figures of the paper on DP-FTRL with a single epoch that are made without training. See Denisov
et al. 2022.
"""

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

# The time after a step of a solver, in seconds of processor time, and the loss of the encoder that
# the solver has reached.
Step = tuple[float, float]
# The three solvers below compute the optimal factorisation for a single participation (Denisov et
# al. 2022, App. E.4). Each starts from X(1), the matrix of Eq. 6, scaled to a diagonal of ones.


class _Clock:
    """Clock of processor time, which stops while a loss is computed for the report."""

    def __init__(self) -> None:
        self.began = time.process_time()
        self.away = 0.0

    def step(self, loss: Callable[[], float]) -> Step:
        loss_start = time.process_time()
        seconds = loss_start - self.began - self.away
        loss_value = loss()
        self.away += time.process_time() - loss_start
        return seconds, loss_value


def geometric_mean(gram: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the matrix X(v) and the vector phi(v) for the Gram matrix of a workload.

    They are those of Eq. 6 and Eq. 5. With R = sqrt(diag(v)^(1/2) gram diag(v)^(1/2)), X is R
    scaled back by diag(v)^(-1/2) from both sides, and phi(v) is R's diagonal.
    """
    root_v = np.sqrt(v)
    eigenvalues, eigenvectors = np.linalg.eigh(root_v[:, None] * gram * root_v)
    R = (eigenvectors * np.sqrt(np.maximum(eigenvalues, 0.0))) @ eigenvectors.T
    return R / np.outer(root_v, root_v), np.diagonal(R).copy()


def normalized(X: np.ndarray) -> np.ndarray:
    """Scales X = C^T C to a diagonal of ones, so that the columns of the encoder C have norm 1."""
    column_norms = np.sqrt(np.diagonal(X))
    return X / np.outer(column_norms, column_norms)


def loss_of(gram: np.ndarray, X: np.ndarray) -> float:
    """Computes the loss tr(gram X^-1) of the encoder C, where X = C^T C and `gram` is the Gram
    matrix of the workload. See Eq. 4.
    """
    return np.trace(scipy.linalg.cho_solve(scipy.linalg.cho_factor(X), gram))


def fixed_point(gram: np.ndarray) -> Iterator[Step]:
    """Yields the time and loss after each step of the fixed-point iteration v <- phi(v), where
    `geometric_mean` computes phi. See Thm. 3.2.
    """
    clock = _Clock()
    v = np.ones(len(gram))
    while True:
        X, v = geometric_mean(gram, v)
        yield clock.step(lambda X=X: loss_of(gram, normalized(X)))  # type: ignore[misc]


def descent(gram: np.ndarray, *, newton: bool) -> Iterator[Step]:
    """Yields the time and loss after each step of gradient descent, or of Newton's method with
    conjugate gradients. See Yuan et al. 2016, Alg. 1.

    Both have Armijo's rule. A step is halved until X has a Cholesky factorisation and the loss
    falls by at least a hundredth of what the slope predicts. The diagonal of X stays 1.
    """
    clock = _Clock()
    X = normalized(geometric_mean(gram, np.ones(len(gram)))[0])
    loss = loss_of(gram, X)
    step_size = 1.0
    yield clock.step(lambda: loss)
    while True:
        inverse_X = scipy.linalg.inv(X)
        negative_gradient = inverse_X @ gram @ inverse_X
        # Rounding leaves this matrix slightly asymmetric. Later steps would multiply the asymmetry,
        # so it is removed.
        negative_gradient = (negative_gradient + negative_gradient.T) / 2
        gradient = -negative_gradient
        np.fill_diagonal(gradient, 0.0)
        direction = _newton(inverse_X, negative_gradient, gradient) if newton else -gradient
        directional_derivative = np.vdot(gradient, direction)
        step_size = 1.0 if newton else 2.0 * step_size
        while True:
            candidate = X + step_size * direction
            try:
                candidate_loss = loss_of(gram, candidate)
            except np.linalg.LinAlgError:
                candidate_loss = np.inf
            if candidate_loss <= loss + 0.01 * step_size * directional_derivative:
                break
            step_size /= 2.0
            if step_size < 1e-18:
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
    squared_norm = np.vdot(residual, residual)
    for _ in range(steps):
        half_step = inverse @ direction @ pull
        hessian_product = half_step + half_step.T
        np.fill_diagonal(hessian_product, 0.0)
        step_size = squared_norm / np.vdot(direction, hessian_product)
        D, residual = D + step_size * direction, residual - step_size * hessian_product
        new_squared_norm = np.vdot(residual, residual)
        if new_squared_norm < 1e-20 * np.vdot(gradient, gradient):
            break
        direction, squared_norm = (
            residual + new_squared_norm / squared_norm * direction,
            new_squared_norm,
        )
    return D


ROUNDS = 512
# Largest entry of the matrices B and C, as printed in the caption of Figure 5 (App. G).
LARGEST_ENTRY = "2.36"


@figure("denisov-figure-1")
def figure_1(request: Request) -> Outcome:
    """Plots the squared error of four mechanisms by round, for prefix sums and for momentum SGD."""
    sums_workload, single = sums_once(ROUNDS)
    momentum_workload = fedmf.momentum_sgd(ROUNDS, momentum=0.95)
    mechanisms = {
        "Honaker online": fit(sums_workload, single, "tree", decoder="online"),
        "Honaker full": fit(sums_workload, single, "tree", decoder="full"),
        "optimal for prefix sums": fit(sums_workload, single, "dense"),
        "optimal for momentum": fit(momentum_workload, single, "dense"),
    }
    on_momentum, on_sums = (
        {name: fedmf.per_round_error(m, w, single) ** 2 for name, m in mechanisms.items()}
        for w in (momentum_workload, sums_workload)
    )
    del on_sums["optimal for momentum"]
    rounds = np.arange(1, ROUNDS + 1)
    left, right = (
        Lines(series, "round", "squared error", x=rounds, title=title, ylim=(0, None))
        for series, title in ((on_sums, "prefix sums"), (on_momentum, "momentum SGD, 0.95"))
    )
    table_row = next(
        table_row for table_row in printed.DENISOV_TABLE_2 if table_row.rounds == ROUNDS
    )
    return Outcome(
        [left, right],
        clauses=judge_figure_1(
            on_sums=on_sums,
            on_momentum=on_momentum,
            honaker=table_row.honaker,
            optimum=table_row.optimum,
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
    """Judges Figure 1 of Denisov's paper by the squared errors of each round, and two losses
    printed in Table 2.
    """
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
    change_signs = np.sign(np.diff(errors))
    return int((change_signs[1:] * change_signs[:-1] < 0).sum())


def _listed(value_by_name: Mapping[str, float], format_spec: str) -> str:
    """Returns values with their names as text."""
    return ", ".join(f"{value:{format_spec}} {name}" for name, value in value_by_name.items())


def _ours(workload: fedmf.Workload, single: fedmf.Participation) -> tuple[list[Step], float]:
    """Fits the optimal factorisation with fedmf's own solver.

    Returns the time and loss after each step, and the lower bound on the loss that the fit proves.
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


# Relative accuracies, to which the loss of a solver must come near its lower bound.
ACCURACIES = (1e-3, 1e-4, 1e-5)
# The solvers are compared by their times until the loss is within this relative accuracy of its
# lower bound.
_ACCURACY = 1e-4
# The fixed point is faster by "up to two orders of magnitude in some cases" (App. E.4).
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
    """Returns the times in which a solver reached each accuracy, where `bound` is a lower bound on
    the loss.
    """
    seconds_to_accuracy = tuple(
        min((seconds for seconds, loss in steps if loss <= (1 + accuracy) * bound), default=np.inf)
        for accuracy in ACCURACIES
    )
    return Times(solver, n, seconds_to_accuracy, steps[-1][0])


@figure("denisov-figure-4")
def figure_4(request: Request) -> Outcome:
    """Plots the loss of four solvers over seconds of processor time.

    On half the size, the gradient gets a hundred times the seconds in which the fixed point comes
    to the smallest of `ACCURACIES`.
    """
    n, seconds = request.pick((32, 0.3), (512, 6.0), (2048, 600.0))
    workload, single = sums_once(n)
    gram = workload.matrix.T @ workload.matrix
    fedmf_steps, bound = _ours(workload, single)
    steps_by_solver = {"fedmf": fedmf_steps}
    for name, solver_steps in (
        (FIXED_POINT, fixed_point(gram)),
        (NEWTON, descent(gram, newton=True)),
        (GRADIENT, descent(gram, newton=False)),
    ):
        steps_by_solver[name] = _until(solver_steps, seconds, 400)
    all_times = [_times(name, n, steps, bound) for name, steps in steps_by_solver.items()]
    all_times += _times_of_half_the_size(n // 2, seconds)
    loss_panel = Lines(
        {
            name: Line([s for s, _ in steps], [loss / bound - 1 for _, loss in steps])
            for name, steps in steps_by_solver.items()
        },
        "seconds of processor time",
        "loss over its lower bound, minus 1",
        log="xy",
        ylim=(3e-10, None),
    )
    return Outcome(
        [loss_panel],
        clauses=judge_figure_4(all_times=all_times, rounds=n),
        columns=("solver", "seconds", "loss"),
        rows=[(name, *step) for name, steps in steps_by_solver.items() for step in steps],
        reduced="" if n == 2048 else f"n = {n} in place of 2048",
    )


def _until(method: Iterator[Step], seconds: float, max_steps: int) -> list[Step]:
    """Returns the steps of a solver until it has run for `seconds` or `max_steps` steps."""
    taken_steps = []
    for step in itertools.islice(method, max_steps):
        taken_steps.append(step)
        if step[0] > seconds:
            break
    return taken_steps


def _times_of_half_the_size(n: int, seconds: float) -> list[Times]:
    """Returns the times of the fixed-point solver, and of gradient descent, which gets a hundred
    times as long, on `n` rounds.
    """
    workload, single = sums_once(n)
    gram = workload.matrix.T @ workload.matrix
    _, bound = _ours(workload, single)
    fixed_times = _times(FIXED_POINT, n, _until(fixed_point(gram), seconds, 60), bound)
    gradient_seconds = _TWO_ORDERS * fixed_times.reached[-1]
    if np.isinf(gradient_seconds):
        return [fixed_times]
    gradient_steps = _until(descent(gram, newton=False), gradient_seconds, 100_000)
    return [fixed_times, _times(GRADIENT, n, gradient_steps, bound)]


def judge_figure_4(*, all_times: Sequence[Times], rounds: int) -> list[Clause]:
    """Judges Figure 4 of Denisov's paper by the times of the solvers on `rounds` rounds, and on
    half as many.
    """
    times_by_name = {times.solver: times for times in all_times if times.rounds == rounds}
    accuracy_index = ACCURACIES.index(_ACCURACY)
    fixed_point_times = times_by_name[FIXED_POINT]
    clauses = []
    for name in (NEWTON, GRADIENT):
        clause_text = f"The fixed point is faster than the {name}."
        evidence = f"to within {_ACCURACY:g} of the lower bound at n = {rounds}: " + ", ".join(
            f"{times.solver} {_in_seconds(times, accuracy_index)}"
            for times in (fixed_point_times, times_by_name[name])
        )
        baseline_seconds = times_by_name[name].reached[accuracy_index]
        if np.isinf(fixed_point_times.reached[accuracy_index]) and np.isinf(baseline_seconds):
            clauses.append(Clause(text=clause_text, verdict="inconclusive", evidence=evidence))
        else:
            clauses.append(
                from_numbers(
                    clause_text,
                    fixed_point_times.reached[accuracy_index] < baseline_seconds,
                    evidence,
                )
            )
    clauses.append(_judge_two_orders(all_times))
    return clauses


def _in_seconds(times: Times, index: int) -> str:
    """Returns in words the time in which a solver reached an accuracy."""
    if np.isinf(times.reached[index]):
        return f"not in {times.seconds:.2g} s"
    return f"in {times.reached[index]:.2g} s"


def _judge_two_orders(all_times: Sequence[Times]) -> Clause:
    """Judges whether the fixed-point solver is a hundred times as fast as a baseline in some case.

    A case is a size, an accuracy and a baseline. A baseline that was stopped counts with the
    seconds that it ran.
    """
    clause_text = "In some cases the fixed point is faster by up to two orders of magnitude."
    fixed_by_rounds = {times.rounds: times for times in all_times if times.solver == FIXED_POINT}
    timed_cases = []
    was_stopped = False
    for times in all_times:
        if times.solver not in (NEWTON, GRADIENT):
            continue
        for i, fixed_seconds in enumerate(fixed_by_rounds[times.rounds].reached):
            if np.isinf(fixed_seconds):
                continue
            is_censored = np.isinf(times.reached[i])
            was_stopped |= is_censored
            baseline_seconds = times.seconds if is_censored else times.reached[i]
            case_text = f"{times.solver} to {ACCURACIES[i]:g} at n = {times.rounds}"
            at_least = "at least " if is_censored else ""
            timed_cases.append((baseline_seconds / fixed_seconds, at_least, case_text))
    if not timed_cases:
        return from_numbers(clause_text, False, "the fixed point came to no accuracy in time")
    largest_ratio, at_least, case_text = max(timed_cases)
    evidence = f"the largest ratio of times is {at_least}{largest_ratio:.0f} ({case_text})"
    if largest_ratio < _TWO_ORDERS and was_stopped:
        return not_judged(clause_text, f"{evidence}, and the baseline was stopped before its end")
    return from_numbers(clause_text, largest_ratio >= _TWO_ORDERS, evidence)


@figure("denisov-figure-5")
def figure_5(request: Request) -> Outcome:
    """Plots the entries of the optimum's matrices B and C, the entries' ranks, and their
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
    """Judges Figure 5 of Denisov's paper by the entries of B and C, and their printed maximum."""
    largest_entry = max(B.max(), C.max())
    num_rounds = len(B)
    # Each diagonal entry, except the first, is divided by the largest other entry of its row.
    off_diagonal = np.tril(B, -1)
    dominance = np.diagonal(B)[1:] / off_diagonal[1:].max(axis=1)
    below, across = np.tril_indices(num_rounds, -1)
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
        entry_ranks = np.searchsorted(np.sort(M, axis=None), M) / M.size
        for ax, shown_values, kind in (
            (column[0], M / largest, f"entries / {largest:.2f}"),
            (column[1], entry_ranks, "ranks"),
        ):
            image = ax.imshow(shown_values, cmap="Reds", vmin=0, vmax=1)
            ax.set_title(f"{name}, {kind}")
            ax.grid(visible=False)
        column[2].hist(np.log10(M[M > 1e-9]), bins=60, color=COLORS[0])
        column[2].set(title=f"{name}, entries that are not 0", xlabel="log10", yscale="log")
    drawing.colorbar(image, ax=list(axes[:2].flat), shrink=0.6)
    return drawing
