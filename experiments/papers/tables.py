"""The tables that need no training: each printed number beside ours.

The numbers come from `experiments.paper_tables`.
"""

import functools
from collections import Counter

import numpy as np

from fedmf.experiments.paper_figures import KNOWN_DIFFERENCES
from fedmf.experiments.paper_tables import TABLES
from fedmf.experiments.papers.item import Item, Outcome, Request
from fedmf.experiments.table_cells import Cell
from fedmf.reports.canvas import BLUE, RED, SOFT, blank, whole_steps

_KINDS = {
    "as printed": (BLUE, "o"),
    "as good, by the table's rule": (SOFT, "s"),
    "other, for a known reason": (RED, "^"),
    "other, not explained": (RED, "x"),
}


def _kind(table: str, cell: Cell) -> str:
    if cell.as_printed:
        return "as printed"
    if cell.agrees:
        return "as good, by the table's rule"
    return (
        "other, for a known reason"
        if (table, cell.row, cell.column) in KNOWN_DIFFERENCES
        else "other, not explained"
    )


def compared(table: str, request: Request) -> Outcome:
    """The cells of a table: ours over the printed number, cell by cell."""
    cells = list(TABLES[table](request.scale != "full"))
    kinds = [_kind(table, cell) for cell in cells]
    printed = np.array([float(cell.printed.lstrip("≤")) for cell in cells])
    ours = np.array([cell.ours for cell in cells], dtype=np.float64)
    figure = blank(2.9)
    ax = figure.subplots()
    ratio = np.divide(ours, printed, out=np.ones_like(ours), where=printed != 0)
    for kind, (color, mark) in _KINDS.items():
        at = [i for i, other in enumerate(kinds) if other == kind]
        if at:
            ax.plot(at, ratio[at], mark, color=color, markersize=4, label=f"{kind} ({len(at)})")
    ax.axhline(1.0, color=SOFT, linewidth=0.8)
    ax.margins(y=0.2)
    ax.ticklabel_format(axis="y", useOffset=False)
    ax.xaxis.set_major_locator(whole_steps(10))
    ax.set(xlabel="number, in the order of the table", ylabel="ours / printed")
    figure.legend(loc="outside upper center", ncols=2)
    count = Counter(kinds)
    verdict = "; ".join(f"{count[kind]} {kind}" for kind in _KINDS if count[kind])
    return Outcome(
        columns=("row", "column", "printed", "ours", "comparison"),
        rows=[(c.row, c.column, c.printed, c.ours, c.verdict(table)) for c in cells],
        figure=figure,
        verdict=f"Of {len(cells)} numbers: {verdict}.",
        holds=not count["other, not explained"],
        reduced="" if request.scale == "full" else "only the rows that take seconds",
    )


# table of `paper_tables` | source | number | seconds at "small" and "full" | claim
_LISTED = """
    denisov-2 | denisov | Table 2 | 20 400 | \
        The optimal factorisation has half the error of Honaker's tree, a low-rank one little more.
    multi-epoch-1 | multi-epoch | Table 1 | 15 900 | \
        The optimum for 20 epochs has half the loss of any that is stamped or made for one.
    multi-epoch-3 | multi-epoch | Table 3 | 5 60 | \
        Noise multipliers of three targets, without and with sampling.
    multi-epoch-6 | multi-epoch | Table 6 | 5 5 | \
        Nonnegative products of a client's columns cost next to nothing in error.
    banded-2 | banded | Table 2 | 5 300 | \
        Banded matrices are nearly optimal in a fixed order, and the best where clients only \
        stay apart.
    banded-3 | banded | Table 3 | 60 900 | \
        The best number of bands falls as epsilon falls or epochs rise.
    banded-4 | banded | Table 4 | 2 2 | \
        Noise multipliers for clients 342 rounds apart (its accuracies need training).
    banded-5 | banded | Table 5 | 20 90 | \
        Noise multipliers with sampling for the tuned bands (its accuracies need training).
    banded-bands | banded | Sec. 6 | 60 600 | \
        With sampling 9, 18, 32, 64 bands suit epsilon 1, 2, 4, 8 best, and the dense optimum 16.
    banded-6 | banded | Table 6 | 5 200 | \
        The best server rate follows from the error of sums and the noise alone (accuracies as \
        printed).
    banded-7 | banded | Table 7 | 20 200 | \
        With sampling the same rule gives the best server rates (accuracies as printed).
    banded-k1 | banded | App. K.1 | 1 1 | \
        The production model's rho of zCDP as epsilon at delta 1e-10.
"""

ITEMS = tuple(
    Item(
        name=f"{source}-{number.lower().replace('. ', '-').replace('.', '-').replace(' ', '-')}",
        source=source,
        number=number,
        claim=claim,
        make=functools.partial(compared, table),
        seconds=dict(zip(("small", "full"), map(float, seconds.split()), strict=True)),
    )
    for table, source, number, seconds, claim in (
        " ".join(line.split()).split(" | ") for line in _LISTED.strip().splitlines()
    )
)
