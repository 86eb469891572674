"""Tables of the errors and sensitivities of mechanisms.

For six rounds they have the smallest loss of prefix sums and of momentum SGD, where the signs of
C^T C are constrained as in the multi-epoch paper, App. I.3. C is the encoder.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.optimize

import fedmf
from fedmf.experiments.papers import printed
from fedmf.experiments.papers.cells import Cell, Table, table
from fedmf.experiments.papers.clause import Clause, from_numbers, not_judged
from fedmf.experiments.papers.fits import epochs, fit, one_participation, sums_once
from fedmf.experiments.papers.item import Scale

# Rows of Table 1 of the multi-epoch paper that can be computed in seconds.
_SECONDS = (
    "(Online) Honaker(n=400)x5 | (Online) Honaker(n=200)x10 | Optimal Decoder Honaker(n=400)x5 | "
    "MF(k=1, n=100)x20 | FFT(n=200)x10 | FFT Optimal Decoder(n=1000)x2"
).split(" | ")


def _by_column(cells: Sequence[Cell]) -> dict[str, dict[str, float]]:
    """Returns our numbers by column and row."""
    value_by_column: dict[str, dict[str, float]] = {}
    for cell in cells:
        value_by_column.setdefault(cell.column, {})[cell.row] = cell.ours
    return value_by_column


def _claims_of_denisov_table_2(cells: Sequence[Cell]) -> list[Clause]:
    """Judges whether the errors in every row of the table have the order that the paper states."""
    cells_by_column = _by_column(cells)
    error_rows = [
        (
            row,
            cells_by_column["Honaker"][row],
            cells_by_column["optimum"][row],
            cells_by_column["efficient"][row],
        )
        for row in cells_by_column["Honaker"]
    ]
    return [
        from_numbers(
            "At every n the optimum has less error than Honaker's tree.",
            all(optimum < honaker for _, honaker, optimum, _ in error_rows),
            ", ".join(
                f"{optimum / honaker:.2f} of it at {row}" for row, honaker, optimum, _ in error_rows
            ),
        ),
        from_numbers(
            "At every n the error of the efficient mechanism is nearer to the optimum's than to "
            "the tree's.",
            all(
                efficient < (honaker + optimum) / 2 for _, honaker, optimum, efficient in error_rows
            ),
            ", ".join(
                f"{100 * (efficient / optimum - 1):.2f}% above the optimum at {row}"
                for row, _, optimum, efficient in error_rows
            ),
        ),
    ]


@table(Table("denisov-table-2"), claims=_claims_of_denisov_table_2)
def denisov_table_2(scale: Scale) -> Iterator[Cell]:
    """Yields the cells of Table 2 of Denisov's paper. See Denisov et al. 2022, App. H."""
    for row in printed.DENISOV_TABLE_2:
        if scale != "full" and row.rounds >= 1024:
            return
        workload, single = sums_once(row.rounds)
        for column, theirs, family, options in (
            ("Honaker", row.honaker, "tree", {"decoder": "online"}),
            ("optimum", row.optimum, "dense", {"tolerance": 1e-4}),
            ("efficient", row.efficient, "low_rank", {"bands": row.bands, "rank": row.rank}),
        ):
            mechanism = fit(workload, single, family, **options)
            computed_loss = math.sqrt(fedmf.loss(mechanism, workload, single))
            yield Cell(f"{row.rounds} rounds", column, theirs, computed_loss)


OPTIMUM = "MF(k=20, n=2000)"


def _claims_of_multi_epoch_table_1(cells: Sequence[Cell]) -> list[Clause]:
    """Judges the order of stamped mechanisms by loss. See Table 1 and App. D.4."""
    cells_by_column = _by_column(cells)
    loss_by_label = cells_by_column["loss"]
    if OPTIMUM not in loss_by_label:
        unjudged_text = (
            "Stamped mechanisms have less loss than the same without stamps; the optimum for 20 "
            "epochs has the least, within 0.2% of the lower bound; the stamped FFT with the "
            "optimal decoder has the least of those that make noise in O(n log² n)."
        )
        return [not_judged(unjudged_text, "scale full computes all rows")]
    clauses = []
    computed_rows = [row for row in printed.MULTI_EPOCH_TABLE_1 if row.label in loss_by_label]
    for name in ("(Online) Honaker", "Optimal Decoder Honaker", "FFT", "FFT Optimal Decoder"):
        loss_by_times = {
            row.times: loss_by_label[row.label] for row in computed_rows if row.name == name
        }
        best_times = min(loss_by_times, key=lambda times: loss_by_times[times])
        clauses.append(
            from_numbers(
                f"{name}: with stamps there is less loss than without.",
                best_times > 1,
                f"{loss_by_times[best_times]:.2e} with {best_times}, {loss_by_times[1]:.2e} "
                f"without",
            )
        )
    optimal_loss = loss_by_label[OPTIMUM]
    least_other_loss = min(loss for label, loss in loss_by_label.items() if label != OPTIMUM)
    lower_bound = cells_by_column["lower bound"][OPTIMUM]
    fast_names = ("(Online) Honaker", "FFT", "FFT Optimal Decoder")
    loss_of_fast = {
        row.label: loss_by_label[row.label] for row in computed_rows if row.name in fast_names
    }
    best_label = min(loss_of_fast, key=lambda label: loss_of_fast[label])
    return [
        *clauses,
        from_numbers(
            "The optimum for 20 epochs has less loss than every other row.",
            optimal_loss < least_other_loss,
            f"{optimal_loss:.3e}, and the least of the others {least_other_loss:.2e}",
        ),
        from_numbers(
            "Its loss is within 0.2% of the lower bound.",
            optimal_loss / lower_bound - 1 < 0.002,
            f"{100 * (optimal_loss / lower_bound - 1):.2f}% above {lower_bound:.3e}",
        ),
        from_numbers(
            "Of the mechanisms that make noise in O(n log² n), the stamped FFT with the optimal "
            "decoder has the least loss.",
            best_label.startswith("FFT Optimal Decoder") and "x" in best_label,
            f"{best_label}: {loss_of_fast[best_label]:.2e}",
        ),
    ]


@table(Table("multi-epoch-table-1"), claims=_claims_of_multi_epoch_table_1)
def multi_epoch_table_1(scale: Scale) -> Iterator[Cell]:
    """Yields the cells of Table 1 of the multi-epoch paper, with the lower bound in its caption.
    See Choquette-Choo et al. 2022, App. D.5.
    """
    twenty_epochs = epochs(2000, 20)
    for row in printed.MULTI_EPOCH_TABLE_1:
        if scale != "full" and row.label not in _SECONDS:
            continue
        loss = stamped_loss(row)
        if row.part[0] == "fft":
            # The caption says that the sensitivity of these rows is that of Theorem 2.1. Ours is
            # exact, and at most as large.
            mechanism = stamped_row(row)
            spectral_bound = _spectral_sensitivity(mechanism.encoder(), twenty_epochs)
            loss *= (spectral_bound / fedmf.sensitivity(mechanism, twenty_epochs).value) ** 2
        yield Cell(row.label, "loss", row.printed, loss)
        if row.participations == 20:
            lower_bound = stamped_row(row).part.certificate.lower_bound
            yield Cell(row.label, "lower bound", printed.MULTI_EPOCH_TABLE_1_BOUND, lower_bound)


def stamped_loss(row: printed.StampedRow) -> float:
    """Returns the loss of a row of Table 1 of the multi-epoch paper, from a cache that figures and
    the table share.
    """
    return _loss(row._replace(printed=""))


@functools.cache
def _loss(row: printed.StampedRow) -> float:
    return fedmf.loss(stamped_row(row), fedmf.prefix_sum(2000), epochs(2000, 20))


def stamped_row(row: printed.StampedRow) -> Any:
    """Returns the mechanism of a row of Table 1 of the multi-epoch paper."""
    family, options = row.part
    return stamped(family, 2000, row.times, participations=row.participations or 1, **options)


def stamped(
    family: str, rounds: int, times: int, *, participations: int = 1, **options: Any
) -> Any:
    """Returns a mechanism for prefix sums of `rounds` rounds, which repeats (stamps) a mechanism
    for a part of the rounds `times` times, as in the multi-epoch paper.

    Trees are completed: virtual rounds fill the last level of each part, without noise (App. D.3).
    Trees with Honaker's online decoder and FFTs are restarted; all other stamps use the optimal
    decoder (App. D.4).

    Args:
      family, options: family and options with which `fedmf.fit` makes a part.
      rounds: number of rounds of the run.
      times: number of parts of the run, a divisor of `rounds`.
      participations: number of participations that a dense part is optimised for.
    """
    part_rounds = rounds // times
    participation = (
        one_participation(part_rounds)
        if participations == 1
        else epochs(part_rounds, participations)
    )
    if family == "tree":
        options = {"completion": "virtual"} | options
    part_mechanism = fit(fedmf.prefix_sum(part_rounds), participation, family, **options)
    return fedmf.stamp(
        part_mechanism, times, decoder="optimal" if family == "dense" else "restarted"
    )


def _spectral_sensitivity(C: np.ndarray, participation: fedmf.Participation) -> float:
    """Computes sqrt(k) times the largest spectral norm of the columns of the encoder C in the
    rounds of one client, where k is the client's number of participations.

    It bounds the sensitivity (multi-epoch paper, Thm. 2.1, claim 1).
    """
    b = participation.min_sep
    k = participation.max_participations
    return math.sqrt(k) * max(float(np.linalg.norm(C[:, s::b], ord=2)) for s in range(b))


def _claims_of_multi_epoch_table_6(cells: Sequence[Cell]) -> list[Clause]:
    """Judges how the errors differ between three constraints on the encoder (multi-epoch paper,
    Table 6).
    """
    error_by_row = _by_column(cells)["error"]
    sums_errors, momentum_errors = (
        [error_by_row[f"{name}, {constraints}"] for constraints in ("signed", "pairs", "all")]
        for name in ("prefix_sum", "momentum")
    )
    relative_spread = max(sums_errors) / min(sums_errors) - 1
    relative_increase = momentum_errors[-1] / momentum_errors[0] - 1
    return [
        from_numbers(
            "For prefix sums the constraints do not change the error.",
            relative_spread < 1e-5,
            f"the errors differ by a share of {relative_spread:.0e}",
        ),
        from_numbers(
            "For momentum every further constraint costs a little error.",
            momentum_errors[0] < momentum_errors[1] < momentum_errors[2]
            and relative_increase < 0.01,
            f"{momentum_errors[0]:.4f}, {momentum_errors[1]:.4f}, {momentum_errors[2]:.4f}: "
            f"{100 * relative_increase:.2f}% in all",
        ),
    ]


@table(Table("multi-epoch-table-6", is_whole=True), claims=_claims_of_multi_epoch_table_6)
def multi_epoch_table_6(scale: Scale) -> Iterator[Cell]:
    """Yields the cells of Table 6 of the multi-epoch paper. See Choquette-Choo et al. 2022, App.
    I.3.

    The table's sensitivity is for scalar contributions, and so is ours here.
    """
    is_same_client = np.subtract.outer(np.arange(6), np.arange(6)) % 2 == 0
    workloads = {"prefix_sum": fedmf.prefix_sum(6), "momentum": fedmf.momentum_sgd(6, 0.95)}
    for name, constraints, smallest, smallest_of_pairs, error in printed.MULTI_EPOCH_TABLE_6:
        A = workloads[name].matrix
        row_name = f"{name}, {constraints}"
        C = constrained_encoder(A, min_sep=2, constraints=constraints)
        X = C.T @ C
        yield Cell(row_name, "min X", smallest, X.min())
        yield Cell(row_name, "min X, pairs", smallest_of_pairs, X[is_same_client].min())
        yield Cell(row_name, "error", error, float(np.linalg.norm(A @ np.linalg.inv(C))))


def _claims_of_banded_table_2(cells: Sequence[Cell]) -> list[Clause]:
    """Judges the caption by the errors (A) in a fixed order, and (B) under min-sep."""
    cells_by_column = _by_column(cells)
    order_text = "With (6, 342)-participation 342 bands are nearly optimal."
    min_sep_text = "Under min-sep a banded matrix has the least error."
    if "(A)" not in cells_by_column:
        unjudged_reason = "scale full computes the errors"
        return [not_judged(text, unjudged_reason) for text in (order_text, min_sep_text)]
    fixed_order_errors = cells_by_column["(A)"]
    banded_errors = {row: error for row, error in fixed_order_errors.items() if "342 bands" in row}
    best_row = min(cells_by_column["(B)"], key=lambda row: cells_by_column["(B)"][row])
    return [
        from_numbers(
            order_text,
            max(banded_errors.values()) < 1.06,
            ", ".join(
                f"{error:.3f} times the optimum: {row}" for row, error in banded_errors.items()
            ),
        ),
        from_numbers(
            min_sep_text, "bands" in best_row, f"{best_row}: {cells_by_column['(B)'][best_row]:.3f}"
        ),
    ]


@table(Table("banded-table-2"), claims=_claims_of_banded_table_2)
def banded_table_2(scale: Scale) -> Iterator[Cell]:
    """Yields the cells of Table 2 of the banded paper. See Choquette-Choo et al. 2023, App. C.

    Errors are computed at scale full only, in units of the row "MF".
    """
    num_rounds = 2052
    workload, single = sums_once(num_rounds)
    six_epochs = epochs(num_rounds, 6)
    min_sep_participation = fedmf.Participation(rounds=num_rounds, schema="min_sep", min_sep=342)
    fitted_rows = [
        (row, fit(workload, six_epochs, row.family, **row.options))
        for row in printed.BANDED_TABLE_2
        if scale == "full" or row.family in ("tree", "identity")
    ]
    best_mechanism = next((mechanism for row, mechanism in fitted_rows if row.label == "MF"), None)
    for row, mechanism in fitted_rows:
        under_six, once, min_sep = (
            fedmf.sensitivity(mechanism, p).value
            for p in (six_epochs, single, min_sep_participation)
        )
        yield Cell(row.label, "k = 1", row.single, once / under_six)
        yield Cell(row.label, "(6, 342)", row.fixed_epoch, 1.0)
        yield Cell(row.label, "b >= 342", row.min_sep, min_sep / under_six)
        if best_mechanism is not None:
            relative_error = fedmf.rmse(mechanism, workload, six_epochs) / fedmf.rmse(
                best_mechanism, workload, six_epochs
            )
            yield Cell(row.label, "(A)", row.error_fixed_epoch, relative_error)
            yield Cell(row.label, "(B)", row.error_min_sep, relative_error * (min_sep / under_six))


def constrained_encoder(A: np.ndarray, *, min_sep: int, constraints: str) -> np.ndarray:
    """Minimises tr(A^T A X^-1), where A is the workload, over matrices X = C^T C whose sensitivity
    for contributions of one dimension is at most 1.

    A is the workload, and C the encoder.

    The problem is convex. All constraints are written out, which is feasible for a few rounds only.
    With the constraints "pairs" it is the problem that `fedmf.fit(family="dense")` solves, with a
    certificate, for any number of rounds.

    Args:
      A: (n, n) workload.
      min_sep: b of the (k, b)-participation, k = ceil(n / b).
      constraints: "signed" (Eq. 34), any signs; "pairs" (Eq. 36), X_ij >= 0 for rounds of one
        client; "all" (Eq. 35), X >= 0.

    Returns:
      (n, n) lower-triangular C, scaled to sensitivity 1 for contributions of one dimension.
    """
    num_rounds = len(A)
    gram = A.T @ A
    rows, columns = np.tril_indices(num_rounds)
    entry_weights = np.where(rows == columns, 1.0, 2.0)
    # Each row of `quadratic_forms` has the coefficients of a quadratic form u^T X u, as a linear
    # function of the entries in X's lower triangle. The vector u has a sign in each round of one
    # client, and 0 in all other rounds.
    sign_vectors = [
        np.where(np.arange(num_rounds) % min_sep == c, s, 0.0)
        for c in range(min_sep)
        for s in itertools.product((1.0, -1.0), repeat=num_rounds)
    ]
    quadratic_forms = np.unique(
        [entry_weights * u[rows] * u[columns] for u in sign_vectors], axis=0
    )
    is_same_client = (rows - columns) % min_sep == 0
    is_nonnegative = {"signed": rows < 0, "pairs": is_same_client, "all": rows >= 0}[constraints]

    def matrix(entries: np.ndarray) -> np.ndarray:
        X = np.zeros((num_rounds, num_rounds))
        X[rows, columns] = X[columns, rows] = entries
        return X

    def log_loss(entries: np.ndarray) -> tuple[float, np.ndarray]:
        X = matrix(entries)
        if np.linalg.eigvalsh(X)[0] <= 0.0:
            # The returned loss is so large that no line search accepts the point.
            return 1e9, np.zeros(len(entries))
        inverse_X = np.linalg.inv(X)
        loss = np.trace(gram @ inverse_X)
        return np.log(loss), -entry_weights * (inverse_X @ gram @ inverse_X)[rows, columns] / loss

    solution = scipy.optimize.minimize(
        log_loss,
        np.where(rows == columns, min_sep / num_rounds, 0.0),
        jac=True,
        method="SLSQP",
        bounds=scipy.optimize.Bounds(np.where(is_nonnegative, 0.0, -np.inf), np.inf),
        constraints=scipy.optimize.LinearConstraint(quadratic_forms, -np.inf, 1.0),
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    X = matrix(solution.x / (quadratic_forms @ solution.x).max())
    return np.flip(np.linalg.cholesky(np.flip(X))).T
