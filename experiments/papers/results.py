"""Makes an item and keeps what came out; and the page on which paper and reproduction stand side by
side.

A result is numbers.csv, figure.png and result.json in the item's folder.
"""

import csv
import importlib.metadata
import io
import json
import os
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import PIL.Image
from matplotlib.figure import Figure

from fedmf.experiments.papers.drawing import Lines, draw
from fedmf.experiments.papers.item import SOURCES, Item, Outcome, Request
from fedmf.files import make_folder, write_atomically
from fedmf.reports.canvas import as_png, in_style
from fedmf.reports.text import duration

RESULT, NUMBERS, PICTURE = "result.json", "numbers.csv", "figure.png"
_WIDTH, _COLORS = 560, 256  # of a thumbnail; fewer colours make lines alike


def run(item: Item, request: Request) -> dict[str, Any]:
    """Makes the item and writes the three files, result.json last; returns what is in that.

    Raises:
      ValueError: the item cannot be made.
    """
    if item.make is None:
        raise ValueError(f"name={item.name!r} cannot be made here: {item.why}")
    make_folder(request.folder)
    began = time.perf_counter()
    busy = sum(os.times()[:4])
    with in_style():
        outcome = item.make(request)
        table: Outcome | Lines = outcome
        if isinstance(outcome.figure, Figure):
            picture = as_png(outcome.figure)
        else:
            picture = draw(outcome.figure, outcome.note)
            if not outcome.columns:
                table = outcome.figure[0]
    fields = ("name", "source", "number", "claim", "state")
    result = {field: getattr(item, field) for field in fields} | {
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
    for name, content in (
        (NUMBERS, as_csv(table.columns, table.rows)),
        (PICTURE, picture),
        (RESULT, _json(result)),
    ):
        write_atomically(request.folder / name, content, mode=0o600)
    return result


def as_csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table as text; floats with 8 digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([f"{x:.8g}" if isinstance(x, float | np.floating) else x for x in row])
    return text.getvalue()


def _json(result: Mapping[str, Any]) -> str:
    return json.dumps(result, indent=1) + "\n"


def load(path: pathlib.Path) -> dict[str, Any] | None:
    """The result in a file; None if there is none."""
    return json.loads(path.read_text()) if path.is_file() else None


_HEAD = """# The papers' tables and figures

Made by `fedmf paper report`: do not edit it. `fedmf paper run NAME` makes one again, with its
numbers as CSV and its picture in full size. "Exact" is computed, without training. What is trained
at reduced scale trains small models on data made up for it; `--scale full` with the real file in
`--data` has the paper's size. "Holds" is decided by the numbers, as the sentence beside it says.
"Not shown": the intervals of small training runs leave it open, or contradict it.

"""


def report(items: Mapping[str, Item], results: pathlib.Path, page: pathlib.Path) -> dict[str, int]:
    """Writes `page`, and beside it a folder of its name with a thumbnail and the result of each
    item.

    Args:
      items: all there are, by name.
      results: folder of the results that `fedmf paper run` left; newer ones take the place of those
        that the page has.
      page: a Markdown file.

    Returns:
      How many items there are, have a result, and have one that holds.
    """
    kept = page.with_suffix("")
    kept.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, Any]] = {}
    for name in items:
        if (result := load(results / name / RESULT)) is not None:
            small = thumbnail((results / name / PICTURE).read_bytes())
            write_atomically(kept / f"{name}.png", small)
            write_atomically(kept / f"{name}.json", _json(result))
        if (result := load(kept / f"{name}.json")) is not None:
            found[name] = result
    write_atomically(page, page_text(items, found, kept.name))
    return {
        "items": len(items),
        "results": len(found),
        "hold": sum(result["holds"] for result in found.values()),
    }


def page_text(items: Mapping[str, Item], found: Mapping[str, dict[str, Any]], folder: str) -> str:
    """The page in Markdown.

    Args:
      items: in the page's order.
      found: name -> result.
      folder: of the thumbnails, as the page names it.
    """
    parts = [_HEAD]
    for source, title in SOURCES.items():
        rows = [
            _row(item, found.get(item.name), folder)
            for item in items.values()
            if item.source == source
        ]
        if rows:
            parts.append(
                f"## {title}\n\n| | the paper's claim, ours, and how it was made |\n|---|---|\n"
                f"{''.join(rows)}\n"
            )
    return "".join(parts).rstrip() + "\n"


def _row(item: Item, result: Mapping[str, Any] | None, folder: str) -> str:
    picture = ""
    lines = [f"*{item.claim}*"]
    state = item.state + (f". {item.why}" if item.why and result is None else "")
    if result is not None:
        picture = f"<br>![{item.number}]({folder}/{item.name}.png)"
        trained = item.study is not None
        mark = "Holds" if result["holds"] else "Not shown" if trained else "Does not hold"
        reduced = f" Reduced: {result['reduced']}." if result["reduced"] else ""
        lines.append(f"**{mark}.** {result['verdict']}{reduced}")
        # Of a sweep that was there already this would be the time of drawing; what it trained for
        # is in `reduced`.
        state += f"; {result['scale']}" + (
            "" if trained else f", {duration(result['processor_seconds'])} of processor time"
        )
    lines.append(f"{state[0].upper()}{state[1:].rstrip('.')}.")
    cells = (f"**{item.number}**<br>`{item.name}`{picture}", "<br>".join(lines))
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"


def thumbnail(png: bytes) -> bytes:
    """The picture at the page's size, in few colours."""
    image = PIL.Image.open(io.BytesIO(png)).convert("RGB")
    height = round(image.height * _WIDTH / image.width)
    small = image.resize((_WIDTH, height), PIL.Image.Resampling.LANCZOS).quantize(
        _COLORS, dither=PIL.Image.Dither.NONE
    )
    out = io.BytesIO()
    small.save(out, format="PNG", optimize=True)
    return out.getvalue()
