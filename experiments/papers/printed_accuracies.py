"""Accuracies of trained runs beside those that Tables 4 and 5 of the multi-epoch paper print."""

import math
from collections.abc import Sequence
from typing import Any

from fedmf.experiments.papers import printed

COLUMNS = tuple(f"printed {name}" for name in ("mean", "std", "min", "max", "runs"))
# The paper has epsilon 8.824 for DP-SGD and 8.841 for factorisations; all lines of ours have 8.841.
_CLOSE = 0.05


def beside_printed(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Returns the fields `columns` and `rows` of an `Outcome`, with the printed accuracies of each
    setting beside ours.

    Printed settings that were not trained follow, without numbers of ours. Settings that are not
    printed have no printed numbers.

    Args:
      columns: columns of our rows, which begin with the line, epsilon and server learning rate.
      rows: rows of our runs.
    """
    unmatched_rows = list(printed.MULTI_EPOCH_TABLES_4_AND_5)
    all_rows: list[tuple[Any, ...]] = []
    for row in rows:
        line, epsilon, rate, *_ = row
        matching_rows = [
            printed_row
            for printed_row in unmatched_rows
            if printed_row.mechanism == line
            and math.isclose(float(printed_row.epsilon), epsilon, abs_tol=_CLOSE)
            and float(printed_row.rate) == rate
        ]
        printed_cells: tuple[Any, ...] = ("",) * len(COLUMNS)
        if matching_rows:
            printed_cells = _cells(matching_rows[0])
            unmatched_rows.remove(matching_rows[0])
        all_rows.append((*row, *printed_cells))
    num_own_columns = len(columns) - 3
    for printed_row in unmatched_rows:
        printed_setting = (
            printed_row.mechanism,
            float(printed_row.epsilon),
            float(printed_row.rate),
        )
        all_rows.append((*printed_setting, *("",) * num_own_columns, *_cells(printed_row)))
    return {"columns": (*columns, *COLUMNS), "rows": all_rows}


def _cells(row: printed.AccuracyRow) -> tuple[Any, ...]:
    """Returns the printed statistics of a row, in the order of `COLUMNS`."""
    return (row.mean, row.std, row.minimum, row.maximum, row.runs)
