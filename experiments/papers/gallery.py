"""The page on which paper and reproduction stand side by side, from results on disk."""

import io
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import PIL.Image

from fedmf.experiments.papers.item import SOURCES, Item
from fedmf.experiments.papers.runner import PICTURE, load
from fedmf.files import write_atomically
from fedmf.reports.text import duration

_WIDTH, _COLORS = 560, 256  # of a thumbnail; fewer colours make lines alike
_HEAD = """# The papers' tables and figures

Made by `fedmf paper report`: do not edit it. `fedmf paper run NAME` makes one again, with its
numbers as CSV and its picture in full size. "Exact" is computed, without training. What is trained
at reduced scale trains small models on data made up for it; `--scale full` with the real file in
`--data` has the paper's size. "Holds" is decided by the numbers, as the sentence beside it says.
"Not shown": the intervals of small training runs leave it open, or contradict it.

"""


def report(items: Mapping[str, Item], results: pathlib.Path, page: pathlib.Path) -> dict[str, int]:
    """Writes `page`, and beside it a folder of its name with a thumbnail
    and the result of each item.

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
        if (result := load(results / name)) is not None:
            write_atomically(
                kept / f"{name}.png", thumbnail((results / name / PICTURE).read_bytes())
            )
            write_atomically(kept / f"{name}.json", json.dumps(result, indent=1) + "\n")
        if (path := kept / f"{name}.json").is_file():
            found[name] = json.loads(path.read_text())
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
    picture, lines = "", [f"*{item.claim}*"]
    state = item.state + (f". {item.why}" if item.why and result is None else "")
    if result is not None:
        picture = f"<br>![{item.number}]({folder}/{item.name}.png)"
        trained = item.state != "exact"
        mark = (
            "**Holds.**"
            if result["holds"]
            else "**Not shown.**"
            if trained
            else "**Does not hold.**"
        )
        reduced = f" Reduced: {result['reduced']}." if result["reduced"] else ""
        lines.append(f"{mark} {result['verdict']}{reduced}")
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
