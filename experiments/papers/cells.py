"""Comparison of the papers' printed tables with our numbers, for tables that need no training."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fedmf.experiments.papers import printed
from fedmf.experiments.papers.clause import Clause, from_numbers, not_judged
from fedmf.experiments.papers.drawing import Line, Lines
from fedmf.experiments.papers.item import Outcome, Request, Scale, figure
from fedmf.experiments.papers.known_differences import KNOWN_DIFFERENCES


class Cell(NamedTuple):
    """Cell of a printed table, with the paper's number and ours.

    Attributes:
      row: the mechanism.
      column: the quantity.
      printed: the paper's figure.
      ours: the same quantity from this package.
      nearly: why ours, where it is another figure, is as good as the printed one by a rule stated
        with the table; "" if it is not.
    """

    row: str
    column: str
    printed: str
    ours: float
    nearly: str = ""

    @property
    def theirs(self) -> float:
        """Printed figure as a number."""
        return float(self.printed.lstrip("≤"))

    @property
    def as_printed(self) -> bool:
        """Whether our number rounds to the printed digits."""
        return printed.agrees(self.ours, self.printed)

    def kind(self, table: str) -> str:
        """Returns how well our number agrees with the printed one, as one of `KINDS`.

        The last kind is for a difference that `KNOWN_DIFFERENCES` does not list, and for a
        listed number that agrees.
        """
        is_known = (table, self.row, self.column) in KNOWN_DIFFERENCES
        if is_known == (self.as_printed or bool(self.nearly)):
            return KINDS[3]
        if is_known:
            return KINDS[2]
        return KINDS[0] if self.as_printed else KINDS[1]

    def verdict(self, table: str) -> str:
        """Returns in words how our number compares with the printed one."""
        if self.as_printed or self.nearly:
            return "ok" if self.as_printed else f"nearly: {self.nearly}"
        size_word = "smaller" if self.ours < self.theirs else "larger"
        known_key = (table, self.row, self.column)
        reason = KNOWN_DIFFERENCES.get(known_key, "not explained")
        return f"differs, {size_word}: see docs/papers ({reason})"


KINDS = (
    "as printed",
    "as good, by the table's rule",
    "other, for a known reason",
    "other, not explained",
)
Rows = Callable[[Scale], Iterable[Cell]]
# A function that returns the accuracies of trained runs as tuples of row, column, printed number,
# our number, and the number of runs.
Trained = Callable[[Request], Sequence[tuple[str, str, str, float, str]]]


# A function that judges the order of the numbers of a table, given its cells.
Claims = Callable[[Sequence[Cell]], Sequence[Clause]]


class Table(NamedTuple):
    """Settings for the comparison of a printed table with our numbers.

    Attributes:
      name: name of the item.
      rule: rule by which a number that is not as printed is as good; "" if there is none.
      trained_by: name of the item whose runs give the table's accuracies; "" if it has none.
      is_whole: whether every scale has all rows.
    """

    name: str
    rule: str = ""
    trained_by: str = ""
    is_whole: bool = False


def table(
    settings: Table, trained: Trained | None = None, claims: Claims | None = None
) -> Callable[[Rows], Rows]:
    """Returns a decorator for the function that yields the cells of an item of the catalogue.

    The function yields only the rows that take seconds, unless the scale is full.

    `trained` returns more rows, for the runs that are finished. They do not affect the outcome.
    """

    def declare(rows: Rows) -> Rows:
        compared_item = functools.partial(compared, settings, rows, trained=trained, claims=claims)
        figure(settings.name)(compared_item)
        return rows

    return declare


def compared(
    settings: Table,
    rows: Rows,
    request: Request,
    trained: Trained | None = None,
    claims: Claims | None = None,
) -> Outcome:
    """Compares the cells of a table, and plots the ratio of ours to the printed number for each
    cell.
    """
    cells = list(rows(request.scale))
    trained_cells = trained(request) if trained else ()
    cell_kinds = np.array([cell.kind(settings.name) for cell in cells])
    printed_values = np.array([cell.theirs for cell in cells])
    computed_values = np.array([cell.ours for cell in cells], dtype=np.float64)
    computed_ratios = np.divide(
        computed_values,
        printed_values,
        out=np.ones_like(computed_values),
        where=printed_values != 0,
    )
    cells_by_kind = {
        kind: np.flatnonzero(cell_kinds == kind) for kind in KINDS if kind in cell_kinds
    }
    ratio_panel = Lines(
        {
            f"{kind} ({len(at)})": Line(at, computed_ratios[at])
            for kind, at in cells_by_kind.items()
        },
        "number, in the order of the table",
        "ours / printed",
        points=True,
    )
    is_whole = settings.is_whole or request.scale == "full"
    return Outcome(
        [ratio_panel],
        clauses=judge_compared(settings=settings, cells=cells, claims=claims, is_whole=is_whole),
        columns=("row", "column", "printed", "ours", "comparison"),
        rows=[
            *((c.row, c.column, c.printed, c.ours, c.verdict(settings.name)) for c in cells),
            *trained_cells,
        ],
        reduced="" if is_whole else "only the rows that take seconds",
    )


def judge_compared(
    *, settings: Table, cells: Sequence[Cell], claims: Claims | None, is_whole: bool
) -> list[Clause]:
    """Judges the numbers of each column of a table, its orders, and the printed numbers that differ
    for a known reason, one by one.
    """
    clauses = []
    for column in dict.fromkeys(cell.column for cell in cells):
        column_cells = [cell for cell in cells if cell.column == column]
        clauses += _judge_column(settings, column, column_cells)
    if claims is not None:
        clauses += claims(cells)
    if not is_whole:
        not_judged_reason = "they take longer than seconds, and scale full computes them"
        clauses.append(not_judged("The table's other numbers are as printed.", not_judged_reason))
    if settings.trained_by:
        not_judged_reason = (
            f"accuracies need training: the runs of {settings.trained_by} give their order"
        )
        clauses.append(not_judged("The table's accuracies are as printed.", not_judged_reason))
    return clauses


def _judge_column(settings: Table, column: str, cells: Sequence[Cell]) -> list[Clause]:
    """Judges the numbers in one column of a printed table."""
    cell_kinds = [cell.kind(settings.name) for cell in cells]
    known_cells = [cell for cell, kind in zip(cells, cell_kinds, strict=True) if kind == KINDS[2]]
    judged_cells = [
        (c, kind) for c, kind in zip(cells, cell_kinds, strict=True) if kind != KINDS[2]
    ]
    clauses = []
    if judged_cells:
        nearly_right = [cell for cell, kind in judged_cells if kind == KINDS[1]]
        unexplained = [cell for cell, kind in judged_cells if kind == KINDS[3]]
        clause_text = f"Every number of the column {column} is as printed"
        if settings.rule:
            clause_text += f", or as good: {settings.rule}"
        if known_cells:
            clause_text += " (except for those below)"
        num_as_printed = len(judged_cells) - len(nearly_right) - len(unexplained)
        evidence = f"{num_as_printed} of {len(judged_cells)} as printed"
        if nearly_right:
            evidence += f", {len(nearly_right)} as good: {_listed(nearly_right)}"
        if unexplained:
            evidence += f", {len(unexplained)} otherwise: {_listed(unexplained)}"
        clauses.append(from_numbers(f"{clause_text}.", not unexplained, evidence))
    for cell in known_cells:
        known_reason = KNOWN_DIFFERENCES[settings.name, cell.row, cell.column]
        clause_text = f"{cell.row}, {column}: the number is {cell.printed}."
        clauses.append(from_numbers(clause_text, False, f"{cell.ours:.7g}: {known_reason}"))
    return clauses


def _listed(cells: Sequence[Cell]) -> str:
    """Returns text with our number and the printed one for each cell."""
    return ", ".join(f"{c.row} {c.ours:.4g} (printed: {c.printed})" for c in cells)
