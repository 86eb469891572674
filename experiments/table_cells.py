"""A printed figure beside ours, and what the drivers of tables and figures share."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import fedmf
from fedmf.experiments import paper_figures as figures
from fedmf.mechanisms.fitting.progress import interruptible_fits, shown


class Cell(NamedTuple):
    """One printed figure and ours.

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
    def as_printed(self) -> bool:
        """Whether ours has the printed digits."""
        return figures.agrees(self.ours, self.printed)

    @property
    def agrees(self) -> bool:
        """Whether ours has the printed digits, or is as good by the table's rule."""
        return self.as_printed or bool(self.nearly)

    def verdict(self, table: str) -> str:
        """The comparison in words."""
        if self.agrees:
            return "ok" if self.as_printed else f"nearly: {self.nearly}"
        smaller = "smaller" if self.ours < float(self.printed.lstrip("≤")) else "larger"
        reason = figures.KNOWN_DIFFERENCES.get((table, self.row, self.column), "not explained")
        return f"differs, {smaller}: see docs/fidelity ({reason})"


def fit(
    workload: fedmf.Workload, participation: fedmf.Participation, family: str, **options: Any
) -> Any:
    """`fedmf.fit`, with progress on a terminal; Ctrl-C ends it without a result."""
    with interruptible_fits(), shown(family, enabled=sys.stderr.isatty()) as progress:
        return fedmf.fit(workload, participation, family=family, progress=progress, **options)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of text with one column under another.

    >>> aligned([["family", "rate"], ["tree", "0.5"]])
    ['family  rate', 'tree    0.5']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def one_participation(rounds: int) -> fedmf.Participation:
    """One participation of each client."""
    return fedmf.Participation(rounds=rounds, schema="single")


def exit_status(main: Callable[[], int]) -> int:
    """The exit status of a driver; 130 after Ctrl-C."""
    try:
        return main()
    except KeyboardInterrupt:
        print("stopped; fits that ended are in the cache and are not repeated", file=sys.stderr)
        return 130
