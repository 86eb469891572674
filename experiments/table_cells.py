"""A printed figure beside ours: what the papers' tables are made of here."""

import dataclasses
import sys
from typing import Any

import fedmf
from fedmf.experiments import paper_figures as figures
from fedmf.mechanisms.fitting.progress import interruptible_fits, shown


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One printed figure and ours.

    Attributes:
      table: one of `paper_tables.TABLES`.
      row: the mechanism.
      column: the quantity.
      printed: the paper's figure, or "" where it prints none.
      ours: the same quantity from this package; None if `note` says why there is none yet.
      note: the sensitivity's method, or what is missing.
      nearly: why ours, where it is another figure, is as good as the printed one by a rule stated with the table; "" if it is not.
    """

    table: str
    row: str
    column: str
    printed: str
    ours: float | None
    note: str = ""
    nearly: str = ""

    @property
    def as_printed(self) -> bool:
        """Whether ours has the printed digits."""
        return self.ours is not None and bool(self.printed) and figures.agrees(self.ours, self.printed)

    @property
    def agrees(self) -> bool:
        """Whether ours has the printed digits, or is as good by the table's rule."""
        return self.as_printed or (self.ours is not None and bool(self.nearly))

    @property
    def verdict(self) -> str:
        """For people."""
        if self.ours is None:
            return self.note
        if not self.printed:
            return "not in the paper"
        if self.as_printed:
            return "ok"
        if self.nearly:
            return f"nearly: {self.nearly}"
        smaller = "smaller" if self.ours < float(self.printed.lstrip("≤")) else "larger"
        known = figures.KNOWN_DIFFERENCES.get((self.table, self.row, self.column), "not explained")
        return f"differs, {smaller}: see docs/fidelity ({known})"


class NotThereYet(Exception):
    """A family or option that this version of the package does not have."""


def fit(workload: fedmf.Workload, participation: fedmf.Participation, family: str, **options: Any) -> Any:
    """`fedmf.fit`, with progress on a terminal.

    Raises:
      NotThereYet: the family or an option does not exist.
    """
    from fedmf.mechanisms.fit import _FAMILIES

    if family not in _FAMILIES:
        raise NotThereYet(f"family {family!r} is not there yet")
    try:
        with interruptible_fits(), shown(family, enabled=sys.stderr.isatty()) as progress:
            return fedmf.fit(workload, participation, family=family, progress=progress, **options)
    except TypeError as error:
        if "is not an option of" in str(error):
            raise NotThereYet(str(error)) from error
        raise


def one_participation(rounds: int) -> fedmf.Participation:
    """One participation of each client."""
    return fedmf.Participation(rounds=rounds, schema="single")
