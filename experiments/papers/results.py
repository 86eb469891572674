"""Results of reproduced items, and the page that shows papers and reproductions side by side.

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

RESULT = "result.json"
NUMBERS = "numbers.csv"
PICTURE = "figure.png"
_THUMBNAIL_WIDTH = 560
_THUMBNAIL_COLORS = 256  # with fewer colours some lines would look the same


def run(item: Item, request: Request) -> dict[str, Any]:
    """Computes an item and writes its three files, result.json last. Returns the content of
    result.json.

    Raises:
      ValueError: the item cannot be made.
    """
    if item.make is None:
        raise ValueError(f"name={item.name!r} cannot be made here: {item.why}")
    make_folder(request.folder)
    start_time = time.perf_counter()
    start_cpu = sum(os.times()[:4])
    with in_style():
        outcome = item.make(request)
        table: Outcome | Lines = outcome
        if isinstance(outcome.figure, Figure):
            picture = as_png(outcome.figure)
        else:
            picture = draw(outcome.figure, outcome.note)
            if not outcome.columns:
                table = outcome.figure[0]
    command = f"fedmf paper run {item.name} --scale {request.scale}"
    if request.data:
        command += " --data ..."
    if request.test_sentences:
        command += f" --test-sentences {request.test_sentences}"
    fields = ("name", "source", "number", "claim", "state")
    result = {field: getattr(item, field) for field in fields} | {
        "scale": request.scale,
        "reduced": outcome.reduced,
        "verdict": outcome.verdict,
        "holds": bool(outcome.holds),
        "seeds": list(outcome.seeds),
        "seconds": round(time.perf_counter() - start_time, 1),
        # This is the time of this process and its children, which other load on the machine does
        # not change.
        "processor_seconds": round(sum(os.times()[:4]) - start_cpu, 1),
        "fedmf": importlib.metadata.version("fedmf"),
        "command": command,
    }
    for name, content in (
        (NUMBERS, as_csv(table.columns, table.rows)),
        (PICTURE, picture),
        (RESULT, _json(result)),
    ):
        write_atomically(request.folder / name, content, mode=0o600)
    return result


def as_csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Returns a table as CSV, where floats have 8 digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([f"{x:.8g}" if isinstance(x, float | np.floating) else x for x in row])
    return text.getvalue()


def _json(result: Mapping[str, Any]) -> str:
    """Returns a result as JSON text."""
    return json.dumps(result, indent=1) + "\n"


def load(path: pathlib.Path) -> dict[str, Any] | None:
    """Reads the result of an item, or returns None if there is none."""
    return json.loads(path.read_text()) if path.is_file() else None


_HEAD = """# The papers' tables and figures

Made by `fedmf paper report`: do not edit it. `fedmf paper run NAME` makes one again, with its
numbers as CSV and its picture in full size. "Exact" is computed, without training. What is trained
at reduced scale trains small models on data made up for it; `--scale full` with the real file in
`--data` has the paper's size. "Holds" is decided by the numbers, as the sentence beside it says.
"Not shown": the intervals of small training runs leave it open, or contradict it.

"""


def report(items: Mapping[str, Item], results: pathlib.Path, page: pathlib.Path) -> dict[str, int]:
    """Writes the page, and beside it a folder with a thumbnail and the result of each item.

    Args:
      items: all items, by name.
      results: folder of the results of `fedmf paper run`, which replace older ones of the page.
      page: a Markdown file.

    Returns:
      The numbers of items, of results, and of results that hold.
    """
    page_folder = page.with_suffix("")
    page_folder.mkdir(parents=True, exist_ok=True)
    result_by_name: dict[str, dict[str, Any]] = {}
    for name in items:
        new_result = load(results / name / RESULT)
        if new_result is not None:
            small_picture = thumbnail((results / name / PICTURE).read_bytes())
            write_atomically(page_folder / f"{name}.png", small_picture)
            write_atomically(page_folder / f"{name}.json", _json(new_result))
        result = load(page_folder / f"{name}.json")
        if result is not None:
            result_by_name[name] = result
    write_atomically(page, page_text(items, result_by_name, page_folder.name))
    return {
        "items": len(items),
        "results": len(result_by_name),
        "hold": sum(result["holds"] for result in result_by_name.values()),
    }


def page_text(
    items: Mapping[str, Item], result_by_name: Mapping[str, dict[str, Any]], folder: str
) -> str:
    """Returns the page of all items in Markdown.

    Args:
      items: items in the page's order.
      result_by_name: results of some of the items.
      folder: folder of the thumbnails, as the page names it.
    """
    sections = [_HEAD]
    for source, title in SOURCES.items():
        source_items = [item for item in items.values() if item.source == source]
        rows = [_row(item, result_by_name.get(item.name), folder) for item in source_items]
        if rows:
            sections.append(
                f"## {title}\n\n| | the paper's claim, ours, and how it was made |\n|---|---|\n"
                f"{''.join(rows)}\n"
            )
    return "".join(sections).rstrip() + "\n"


def _row(item: Item, result: Mapping[str, Any] | None, folder: str) -> str:
    """Returns the row of the page for one item."""
    picture = ""
    lines = [f"*{item.claim}*"]
    state = item.state
    if result is None:
        if item.why:
            state += f". {item.why}"
    else:
        picture = f"<br>![{item.number}]({folder}/{item.name}.png)"
        is_trained = item.study is not None
        verdict = f"**{_mark(result, is_trained=is_trained)}.** {result['verdict']}"
        if result["reduced"]:
            verdict += f" Reduced: {result['reduced']}."
        lines.append(verdict)
        state += f"; {result['scale']}"
        # The time of an item that trains may be that of drawing alone. Its time of training is in
        # `reduced`.
        if not is_trained:
            state += f", {duration(result['processor_seconds'])} of processor time"
    lines.append(f"{state[0].upper()}{state[1:].rstrip('.')}.")
    cells = (f"**{item.number}**<br>`{item.name}`{picture}", "<br>".join(lines))
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"


def _mark(result: Mapping[str, Any], *, is_trained: bool) -> str:
    """Returns the verdict on a result in one or two words."""
    if result["holds"]:
        return "Holds"
    return "Not shown" if is_trained else "Does not hold"


def thumbnail(png: bytes) -> bytes:
    """Returns a picture scaled to the page's size, in few colours."""
    image = PIL.Image.open(io.BytesIO(png)).convert("RGB")
    height = round(image.height * _THUMBNAIL_WIDTH / image.width)
    small = image.resize((_THUMBNAIL_WIDTH, height), PIL.Image.Resampling.LANCZOS).quantize(
        _THUMBNAIL_COLORS, dither=PIL.Image.Dither.NONE
    )
    out = io.BytesIO()
    small.save(out, format="PNG", optimize=True)
    return out.getvalue()
