"""Flat tables of metrics, with a column for each metric and a line for each round."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedmf.fields import flat


def columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Returns metric rows as a dict of columns by name, for pandas.DataFrame.

    A column has NaN for rows without its number.

    >>> columns([{"round": 0}, {"round": 1, "validation": {"loss": 2.0}}])
    {'round': [0, 1], 'validation_loss': [nan, 2.0]}
    """
    flat_rows = [flat(row, "_") for row in rows]
    column_names = dict.fromkeys(name for row in flat_rows for name in row)
    return {name: [row.get(name, math.nan) for row in flat_rows] for name in column_names}


def metrics_csv(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Returns the metric rows of runs as CSV. A cell is empty if its row has no value.

    Args:
      runs: rows of each run by its name. If there are several runs, the first column, "run", has
        the name.
    """
    table_rows = []
    for run_name, rows in runs.items():
        name_cell = {"run": run_name} if len(runs) > 1 else {}
        table_rows += [name_cell | flat(row, "_") for row in rows]
    column_names = list(dict.fromkeys(name for row in table_rows for name in row)) or ["round"]
    csv_text = io.StringIO()
    csv_writer = csv.DictWriter(csv_text, column_names, lineterminator="\n")
    csv_writer.writeheader()
    csv_writer.writerows(table_rows)
    return csv_text.getvalue()
