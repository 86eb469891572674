"""Makes an item and writes what came out: numbers.csv, figure.png and result.json in its folder."""

import csv
import importlib.metadata
import io
import json
import os
import pathlib
import time
from typing import Any

import numpy as np

from fedmf.experiments.papers.item import Item, Request
from fedmf.files import make_folder, write_atomically
from fedmf.reports.canvas import as_png, in_style

RESULT, NUMBERS, PICTURE = "result.json", "numbers.csv", "figure.png"


def run(item: Item, request: Request) -> dict[str, Any]:
    """Makes the item and writes the three files, result.json last; returns what is in that.

    Raises:
      ValueError: the item cannot be made.
    """
    if item.make is None:
        raise ValueError(f"name={item.name!r} cannot be made here: {item.why}")
    make_folder(request.folder)
    began, busy = time.perf_counter(), sum(os.times()[:4])
    with in_style():
        outcome = item.make(request)
        picture = outcome.figure if isinstance(outcome.figure, bytes) else as_png(outcome.figure)
    result = {
        "name": item.name,
        "source": item.source,
        "number": item.number,
        "claim": item.claim,
        "state": item.state,
        "scale": request.scale,
        "reduced": outcome.reduced,
        "verdict": outcome.verdict,
        "holds": bool(outcome.holds),
        "seeds": list(outcome.seeds),
        "seconds": round(time.perf_counter() - began, 1),
        # Of this process and those it has waited for: what a busy machine does not change.
        "processor_seconds": round(sum(os.times()[:4]) - busy, 1),
        "fedmf": importlib.metadata.version("fedmf"),
        "command": f"fedmf paper run {item.name} --scale {request.scale}"
        + (" --data ..." if request.data else "")
        + (f" --test-sentences {request.test_sentences}" if request.test_sentences else ""),
    }
    write_atomically(request.folder / NUMBERS, as_csv(outcome.columns, outcome.rows), mode=0o600)
    write_atomically(request.folder / PICTURE, picture, mode=0o600)
    write_atomically(request.folder / RESULT, json.dumps(result, indent=1) + "\n", mode=0o600)
    return result


def as_csv(columns: Any, rows: Any) -> str:
    """A table as text; floats with 8 digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([f"{x:.8g}" if isinstance(x, float | np.floating) else x for x in row])
    return text.getvalue()


def load(folder: pathlib.Path) -> dict[str, Any] | None:
    """The result in a folder; None if there is none."""
    path = folder / RESULT
    return json.loads(path.read_text()) if path.is_file() else None
