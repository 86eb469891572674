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
    """Judges the order of the three columns in every row."""
    columns = _by_column(cells)
    rows = [
        (row, columns["Honaker"][row], columns["optimum"][row], columns["efficient"][row])
        for row in columns["Honaker"]
    ]
    return [
        from_numbers(
            "At every n the optimum has less error than Honaker's tree.",
            all(optimum < honaker for _, honaker, optimum, _ in rows),
            ", ".join(
                f"{optimum / honaker:.2f} of it at {row}" for row, honaker, optimum, _ in rows
            ),
        ),
        from_numbers(
            "At every n the error of the efficient mechanism is nearer to the optimum's than to "
            "the tree's.",
            all(efficient < (honaker + optimum) / 2 for _, honaker, optimum, efficient in rows),
            ", ".join(
                f"{100 * (efficient / optimum - 1):.2f}% above the optimum at {row}"
                for row, _, optimum, efficient in rows
            ),
        ),
    ]


@table(Table("denisov-table-2"), claims=_claims_of_denisov_table_2)
def denisov_table_2(scale: Scale) -> Iterator[Cell]:
    """Yields the cells of Denisov et al. 2022, App. H, Table 2."""
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
    """Judges what App. D.4 and the caption say about the losses of the rows."""
    columns = _by_column(cells)
    losses = columns["loss"]
    if OPTIMUM not in losses:
        text = (
            "Stamped mechanisms have less loss than the same without stamps; the optimum for 20 "
            "epochs has the least, within 0.2% of the lower bound; the stamped FFT with the "
            "optimal decoder has the least of those that make noise in O(n log² n)."
        )
        return [not_judged(text, "scale full computes all rows")]
    clauses = []
    rows = [row for row in printed.MULTI_EPOCH_TABLE_1 if row.label in losses]
    for name in ("(Online) Honaker", "Optimal Decoder Honaker", "FFT", "FFT Optimal Decoder"):
        loss_by_times = {row.times: losses[row.label] for row in rows if row.name == name}
        least = min(loss_by_times, key=lambda times: loss_by_times[times])
        clauses.append(
            from_numbers(
                f"{name}: with stamps there is less loss than without.",
                least > 1,
                f"{loss_by_times[least]:.2e} with {least}, {loss_by_times[1]:.2e} without",
            )
        )
    optimum = losses[OPTIMUM]
    others = min(loss for label, loss in losses.items() if label != OPTIMUM)
    bound = columns["lower bound"][OPTIMUM]
    fast_names = ("(Online) Honaker", "FFT", "FFT Optimal Decoder")
    fast = {row.label: losses[row.label] for row in rows if row.name in fast_names}
    best_label = min(fast, key=lambda label: fast[label])
    return [
        *clauses,
        from_numbers(
            "The optimum for 20 epochs has less loss than every other row.",
            optimum < others,
            f"{optimum:.3e}, and the least of the others {others:.2e}",
        ),
        from_numbers(
            "Its loss is within 0.2% of the lower bound.",
            optimum / bound - 1 < 0.002,
            f"{100 * (optimum / bound - 1):.2f}% above {bound:.3e}",
        ),
        from_numbers(
            "Of the mechanisms that make noise in O(n log² n), the stamped FFT with the optimal "
            "decoder has the least loss.",
            best_label.startswith("FFT Optimal Decoder") and "x" in best_label,
            f"{best_label}: {fast[best_label]:.2e}",
        ),
    ]


@table(Table("multi-epoch-table-1"), claims=_claims_of_multi_epoch_table_1)
def multi_epoch_table_1(scale: Scale) -> Iterator[Cell]:
    """Yields the cells of Choquette-Choo et al. 2022, App. D.5, Table 1, with the lower bound in
    its caption.
    """
    twenty = epochs(2000, 20)
    for row in printed.MULTI_EPOCH_TABLE_1:
        if scale != "full" and row.label not in _SECONDS:
            continue
        loss = stamped_loss(row)
        if row.part[0] == "fft":
            # The caption says that the sensitivity of these rows is that of Theorem 2.1. Ours is
            # exact, and at most as large.
            mechanism = stamped_row(row)
            spectral = _spectral_sensitivity(mechanism.encoder(), twenty)
            loss *= (spectral / fedmf.sensitivity(mechanism, twenty).value) ** 2
        yield Cell(row.label, "loss", row.printed, loss)
        if row.participations == 20:
            bound = stamped_row(row).part.certificate.lower_bound
            yield Cell(row.label, "lower bound", printed.MULTI_EPOCH_TABLE_1_BOUND, bound)


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
    n = rounds // times
    participation = one_participation(n) if participations == 1 else epochs(n, participations)
    if family == "tree":
        options = {"completion": "virtual"} | options
    part_mechanism = fit(fedmf.prefix_sum(n), participation, family, **options)
    return fedmf.stamp(
        part_mechanism, times, decoder="optimal" if family == "dense" else "restarted"
    )


def _spectral_sensitivity(C: np.ndarray, participation: fedmf.Participation) -> float:
    """Computes sqrt(k) times the largest spectral norm of the columns of the encoder C that one
    client touches (multi-epoch paper, Thm. 2.1, claim 1).

    C is the encoder, and k is the number of participations of a client.
    """
    b = participation.min_sep
    k = participation.max_participations
    return math.sqrt(k) * max(float(np.linalg.norm(C[:, s::b], ord=2)) for s in range(b))


def _claims_of_multi_epoch_table_6(cells: Sequence[Cell]) -> list[Clause]:
    """Judges the errors under three constraints."""
    errors = _by_column(cells)["error"]
    sums, momentum = (
        [errors[f"{name}, {constraints}"] for constraints in ("signed", "pairs", "all")]
        for name in ("prefix_sum", "momentum")
    )
    spread = max(sums) / min(sums) - 1
    price = momentum[-1] / momentum[0] - 1
    return [
        from_numbers(
            "For prefix sums the constraints do not change the error.",
            spread < 1e-5,
            f"the errors differ by a share of {spread:.0e}",
        ),
        from_numbers(
            "For momentum every further constraint costs a little error.",
            momentum[0] < momentum[1] < momentum[2] and price < 0.01,
            f"{momentum[0]:.4f}, {momentum[1]:.4f}, {momentum[2]:.4f}: {100 * price:.2f}% in all",
        ),
    ]


@table(Table("multi-epoch-table-6", is_whole=True), claims=_claims_of_multi_epoch_table_6)
def multi_epoch_table_6(scale: Scale) -> Iterator[Cell]:
    """Yields the cells of Choquette-Choo et al. 2022, App. I.3, Table 6.

    The table's sensitivity is for scalar contributions, and so is ours here.
    """
    pairs = np.subtract.outer(np.arange(6), np.arange(6)) % 2 == 0
    workloads = {"prefix_sum": fedmf.prefix_sum(6), "momentum": fedmf.momentum_sgd(6, 0.95)}
    for name, constraints, smallest, smallest_of_pairs, error in printed.MULTI_EPOCH_TABLE_6:
        A = workloads[name].matrix
        row = f"{name}, {constraints}"
        C = constrained_encoder(A, min_sep=2, constraints=constraints)
        X = C.T @ C
        yield Cell(row, "min X", smallest, X.min())
        yield Cell(row, "min X, pairs", smallest_of_pairs, X[pairs].min())
        yield Cell(row, "error", error, float(np.linalg.norm(A @ np.linalg.inv(C))))


def _claims_of_banded_table_2(cells: Sequence[Cell]) -> list[Clause]:
    """Judges the caption by the errors (A) in a fixed order, and (B) under min-sep."""
    columns = _by_column(cells)
    order_text = "With (6, 342)-participation 342 bands are nearly optimal."
    min_sep_text = "Under min-sep a banded matrix has the least error."
    if "(A)" not in columns:
        reason = "scale full computes the errors"
        return [not_judged(text, reason) for text in (order_text, min_sep_text)]
    errors = columns["(A)"]
    banded_errors = {row: error for row, error in errors.items() if "342 bands" in row}
    best_row = min(columns["(B)"], key=lambda row: columns["(B)"][row])
    return [
        from_numbers(
            order_text,
            max(banded_errors.values()) < 1.06,
            ", ".join(
                f"{error:.3f} times the optimum: {row}" for row, error in banded_errors.items()
            ),
        ),
        from_numbers(
            min_sep_text, "bands" in best_row, f"{best_row}: {columns['(B)'][best_row]:.3f}"
        ),
    ]


@table(Table("banded-table-2"), claims=_claims_of_banded_table_2)
def banded_table_2(scale: Scale) -> Iterator[Cell]:
    """Yields the cells of Choquette-Choo et al. 2023, App. C, Table 2.

    Errors are computed at scale full only, in units of the row "MF".
    """
    n = 2052
    workload, single = sums_once(n)
    six = epochs(n, 6)
    participation = fedmf.Participation(rounds=n, schema="min_sep", min_sep=342)
    fitted_rows = [
        (row, fit(workload, six, row.family, **row.options))
        for row in printed.BANDED_TABLE_2
        if scale == "full" or row.family in ("tree", "identity")
    ]
    best_mechanism = next((mechanism for row, mechanism in fitted_rows if row.label == "MF"), None)
    for row, mechanism in fitted_rows:
        under_six, once, min_sep = (
            fedmf.sensitivity(mechanism, p).value for p in (six, single, participation)
        )
        yield Cell(row.label, "k = 1", row.single, once / under_six)
        yield Cell(row.label, "(6, 342)", row.fixed_epoch, 1.0)
        yield Cell(row.label, "b >= 342", row.min_sep, min_sep / under_six)
        if best_mechanism is not None:
            error = fedmf.rmse(mechanism, workload, six) / fedmf.rmse(best_mechanism, workload, six)
            yield Cell(row.label, "(A)", row.error_fixed_epoch, error)
            yield Cell(row.label, "(B)", row.error_min_sep, error * (min_sep / under_six))


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
    n = len(A)
    gram = A.T @ A
    rows, columns = np.tril_indices(n)
    weights = np.where(rows == columns, 1.0, 2.0)
    # Each row of `forms` has the coefficients of a quadratic form u^T X u, as a linear function of
    # the entries in X's lower triangle. The vector u has a sign in each round of one client, and 0
    # in all other rounds.
    signs = [
        np.where(np.arange(n) % min_sep == c, s, 0.0)
        for c in range(min_sep)
        for s in itertools.product((1.0, -1.0), repeat=n)
    ]
    forms = np.unique([weights * u[rows] * u[columns] for u in signs], axis=0)
    same_client = (rows - columns) % min_sep == 0
    is_nonnegative = {"signed": rows < 0, "pairs": same_client, "all": rows >= 0}[constraints]

    def matrix(entries: np.ndarray) -> np.ndarray:
        X = np.zeros((n, n))
        X[rows, columns] = X[columns, rows] = entries
        return X

    def log_loss(entries: np.ndarray) -> tuple[float, np.ndarray]:
        X = matrix(entries)
        if np.linalg.eigvalsh(X)[0] <= 0.0:
            # The returned loss is so large that no line search accepts the point.
            return 1e9, np.zeros(len(entries))
        inverse = np.linalg.inv(X)
        loss = np.trace(gram @ inverse)
        return np.log(loss), -weights * (inverse @ gram @ inverse)[rows, columns] / loss

    solution = scipy.optimize.minimize(
        log_loss,
        np.where(rows == columns, min_sep / n, 0.0),
        jac=True,
        method="SLSQP",
        bounds=scipy.optimize.Bounds(np.where(is_nonnegative, 0.0, -np.inf), np.inf),
        constraints=scipy.optimize.LinearConstraint(forms, -np.inf, 1.0),
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    X = matrix(solution.x / (forms @ solution.x).max())
    return np.flip(np.linalg.cholesky(np.flip(X))).T
