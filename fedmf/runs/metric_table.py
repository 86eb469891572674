"""Metric rows as a flat table: one column for each number, one line for each round."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedmf.fields import flat


def columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Name -> one value for each row, NaN where a row has none. pandas.DataFrame takes it as it is.

    >>> columns([{"round": 0}, {"round": 1, "validation": {"loss": 2.0}}])
    {'round': [0, 1], 'validation_loss': [nan, 2.0]}
    """
    table = [flat(row, "_") for row in rows]
    names = dict.fromkeys(name for row in table for name in row)
    return {name: [row.get(name, math.nan) for row in table] for name in names}


def metrics_csv(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The rows of runs as CSV; an empty cell where a row has no value.

    Args:
      runs: name -> rows. Of several runs the first column, "run", is the name.
    """
    several = len(runs) > 1
    table = [
        ({"run": run} if several else {}) | flat(row, "_")
        for run, rows in runs.items()
        for row in rows
    ]
    out = io.StringIO()
    names = list(dict.fromkeys(name for row in table for name in row)) or ["round"]
    lines = csv.DictWriter(out, names, lineterminator="\n")
    lines.writeheader()
    lines.writerows(table)
    return out.getvalue()
