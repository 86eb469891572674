"""Comparison of the papers' printed tables with our numbers, for tables that need no training."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fedmf.experiments.papers import printed
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
        """Returns the kind of agreement, one of `KINDS`.

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
        """Returns the comparison in words."""
        if self.as_printed or self.nearly:
            return "ok" if self.as_printed else f"nearly: {self.nearly}"
        size_word = "smaller" if self.ours < self.theirs else "larger"
        key = (table, self.row, self.column)
        reason = KNOWN_DIFFERENCES.get(key, "not explained")
        return f"differs, {size_word}: see docs/papers ({reason})"


KINDS = (
    "as printed",
    "as good, by the table's rule",
    "other, for a known reason",
    "other, not explained",
)
Rows = Callable[[Scale], Iterable[Cell]]
# A function that returns rows on the accuracies of trained runs: row, column, printed number, our
# number, and the number of runs.
Trained = Callable[[Request], Sequence[tuple[str, str, str, float, str]]]


def table(name: str, trained: Trained | None = None) -> Callable[[Rows], Rows]:
    """Returns a decorator for the function that yields the cells of an item of the catalogue.

    The function yields only the rows that take seconds, unless the scale is full.

    `trained` returns more rows, for the runs that are finished. They do not affect the outcome.
    """

    def declare(rows: Rows) -> Rows:
        figure(name)(functools.partial(compared, name, rows, trained=trained))
        return rows

    return declare


def compared(name: str, rows: Rows, request: Request, trained: Trained | None = None) -> Outcome:
    """Compares the cells of a table, and draws the ratio of ours to the printed number for each
    cell.
    """
    cells = list(rows(request.scale))
    trained_cells = trained(request) if trained else ()
    cell_kinds = np.array([cell.kind(name) for cell in cells])
    printed_values = np.array([cell.theirs for cell in cells])
    computed_values = np.array([cell.ours for cell in cells], dtype=np.float64)
    ratio = np.divide(
        computed_values,
        printed_values,
        out=np.ones_like(computed_values),
        where=printed_values != 0,
    )
    places = {kind: np.flatnonzero(cell_kinds == kind) for kind in KINDS if kind in cell_kinds}
    count = "; ".join(f"{len(at)} {kind}" for kind, at in places.items())
    panel = Lines(
        {f"{kind} ({len(at)})": Line(at, ratio[at]) for kind, at in places.items()},
        "number, in the order of the table",
        "ours / printed",
        points=True,
    )
    return Outcome(
        [panel],
        f"Of {len(cells)} numbers: {count}."
        + (f" {len(trained_cells)} trained accuracies." if trained_cells else ""),
        KINDS[-1] not in places,
        columns=("row", "column", "printed", "ours", "comparison"),
        rows=[
            *((c.row, c.column, c.printed, c.ours, c.verdict(name)) for c in cells),
            *trained_cells,
        ],
        reduced="" if request.scale == "full" else "only the rows that take seconds",
    )
