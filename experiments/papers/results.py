"""Results of reproduced items, and the page that shows papers and reproductions side by side.

A result is numbers.csv, figure.png and result.json in the item's folder.
"""

import collections
import csv
import dataclasses
import datetime
import importlib.metadata
import io
import json
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
from matplotlib.figure import Figure

from fedmf.experiments.papers import clause, provenance
from fedmf.experiments.papers.drawing import Lines, draw
from fedmf.experiments.papers.item import SOURCES, Item, Outcome, Request
from fedmf.files import make_folder, write_atomically
from fedmf.reports.canvas import as_png, in_style
from fedmf.reports.text import duration

RESULT = "result.json"
NUMBERS = "numbers.csv"
PICTURE = "figure.png"
_THUMBNAIL_WIDTH = 560
# Number of colours of a thumbnail picture. With fewer, some lines would look the same.
_THUMBNAIL_COLORS = 256


def run(item: Item, request: Request) -> dict[str, Any]:
    """Computes an item and writes its three files, result.json last. Returns the content of
    result.json.

    Raises:
      ValueError: the item cannot be made.
    """
    if item.make is None:
        raise ValueError(f"name={item.name!r} cannot be made here: {item.why}")
    make_folder(request.folder)
    # The commit is read first, because it is that of the code that this process has loaded.
    commit = provenance.code_commit()
    start_time = time.perf_counter()
    start_cpu = sum(os.times()[:4])
    with in_style():
        outcome = item.make(request)
        figure_drawing: Outcome | Lines = outcome
        if isinstance(outcome.figure, Figure):
            picture = as_png(outcome.figure)
        else:
            picture = draw(outcome.figure, outcome.note)
            if not outcome.columns:
                figure_drawing = outcome.figure[0]
    command = f"fedmf paper run {item.name} --scale {request.scale}"
    if request.data:
        command += " --data ..."
    if request.test_sentences:
        command += f" --test-sentences {request.test_sentences}"
    item_fields = ("name", "source", "number", "claim", "state")
    result = {field: getattr(item, field) for field in item_fields} | {
        "scale": request.scale,
        "reduced": outcome.reduced,
        "verdict": outcome.verdict,
        "clauses": [_clause_fields(part) for part in outcome.clauses],
        "commit": commit,
        "study": provenance.study_name(item, request),
        "settings": provenance.settings_digest(item, request),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seeds": list(outcome.seeds),
        "seconds": round(time.perf_counter() - start_time, 1),
        # This is the processor time of this process and its children, which does not depend on
        # other load on the machine.
        "processor_seconds": round(sum(os.times()[:4]) - start_cpu, 1),
        "fedmf": importlib.metadata.version("fedmf"),
        "command": command,
    }
    if item.study is not None:
        result["training_commits"] = list(outcome.training_commits)
    for name, content in (
        (NUMBERS, as_csv(figure_drawing.columns, figure_drawing.rows)),
        (PICTURE, picture),
        (RESULT, _json(result)),
    ):
        write_atomically(request.folder / name, content, mode=0o600)
    return result


def _clause_fields(part: clause.Clause) -> dict[str, Any]:
    """Returns a clause as result.json has it."""
    clause_fields = dataclasses.asdict(part)
    if part.interval is not None:
        clause_fields["interval"] = list(part.interval)
    return clause_fields


def as_csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Returns a table as CSV, where floats have 8 digits."""
    csv_text = io.StringIO()
    csv_writer = csv.writer(csv_text, lineterminator="\n")
    csv_writer.writerow(columns)
    for row in rows:
        csv_writer.writerow([f"{x:.8g}" if isinstance(x, float | np.floating) else x for x in row])
    return csv_text.getvalue()


def _json(result: Mapping[str, Any]) -> str:
    """Returns a result as JSON text."""
    return json.dumps(result, indent=1) + "\n"


def load(path: pathlib.Path) -> dict[str, Any] | None:
    """Reads the result of an item, or returns None if there is none."""
    return json.loads(path.read_text()) if path.is_file() else None


def _load_all(
    names: Iterable[str], path_of: Callable[[str], pathlib.Path]
) -> dict[str, dict[str, Any]]:
    """Returns the results that have a file, by name."""
    loaded_results = {name: load(path_of(name)) for name in names}
    return {name: result for name, result in loaded_results.items() if result is not None}


_HEAD = """# The papers' tables and figures

`fedmf paper run NAME` computes one again.
It writes the numbers as CSV and the picture in full size.

"""
# `report` replaces the part of a page between this line and the next constant, and keeps the rest
# of the page.
_BEGIN = "<!-- fedmf paper report writes from here -->\n"
_END = "<!-- fedmf paper report writes to here -->\n"


def report(items: Mapping[str, Item], results: pathlib.Path, page: pathlib.Path) -> dict[str, int]:
    """Writes the page, and beside it a folder with a thumbnail and the result of each item.

    Args:
      items: all items, by name.
      results: folder of the results of `fedmf paper run`, which replace older ones of the page.
      page: a Markdown file. Text of an existing page around the two lines of `report` stays.

    The page keeps the history of each item, which the result that is replaced joins.

    Returns:
      The numbers of items, of results, and of results by verdict. A verdict "in part" counts as the
      verdict.

    Raises:
      ValueError: two items that share runs have results of other code or settings. Nothing is
        written then.
    """
    page_folder = page.with_suffix("")
    new_results = _load_all(items, lambda name: results / name / RESULT)
    page_results = _load_all(items, lambda name: page_folder / f"{name}.json")
    result_by_name = page_results | {
        name: provenance.with_history(result, page_results.get(name))
        for name, result in new_results.items()
    }
    provenance.check_shared_runs(items, result_by_name)
    page_folder.mkdir(parents=True, exist_ok=True)
    for name in new_results:
        small_picture = thumbnail((results / name / PICTURE).read_bytes())
        write_atomically(page_folder / f"{name}.png", small_picture)
        write_atomically(page_folder / f"{name}.json", _json(result_by_name[name]))
    before, after = _surroundings(page)
    write_atomically(page, before + gallery(items, result_by_name, page_folder) + after)
    count_by_verdict = collections.Counter(
        clause.base_verdict(result["verdict"]) for result in result_by_name.values()
    )
    return {
        "items": len(items),
        "results": len(result_by_name),
        **{verdict: count_by_verdict[verdict] for verdict in clause.VERDICTS},
    }


def _surroundings(page: pathlib.Path) -> tuple[str, str]:
    """Returns the text of a page before and after its gallery."""
    page_text = page.read_text() if page.is_file() else ""
    if _BEGIN not in page_text or _END not in page_text:
        return _HEAD + _BEGIN, _END
    text_before = page_text.partition(_BEGIN)[0]
    text_after = page_text.partition(_END)[2]
    return text_before + _BEGIN, _END + text_after


def gallery(
    items: Mapping[str, Item], result_by_name: Mapping[str, dict[str, Any]], folder: pathlib.Path
) -> str:
    """Returns a table of pictures, verdicts and claims for each paper, in Markdown.

    A paper that has a page of its own in the folder gets links to it. The sentences of its verdicts
    are on that page.

    Args:
      items: items in the gallery's order.
      result_by_name: results of some of the items.
      folder: folder of the thumbnails and of the papers' pages, beside the gallery's page.
    """
    sections = []
    for source, title in SOURCES.items():
        source_items = [item for item in items.values() if item.source == source]
        source_page = f"{folder.name}/{source}.md" if (folder / f"{source}.md").is_file() else None
        item_rows = [
            _row(item, describe(item, result_by_name.get(item.name)), folder.name, source_page)
            for item in source_items
        ]
        if item_rows:
            sections.append(
                f"\n## {title}\n\n|picture|item|verdict|the paper's claim|\n"
                f"|---|---|---|---|\n{''.join(item_rows)}"
            )
    return "".join(sections) + "\n"


class Description(NamedTuple):
    """Texts that describe an item and its result.

    Attributes:
      verdict: one to four words.
      why: why there is no result; empty if there is one.
      clauses: clauses of the claim with their verdicts, as result.json has them.
      reduced: sizes that are smaller than in the paper; empty if none is.
      origin: how the result was computed; empty if there is none.
      has_picture: whether the result has a picture.
    """

    verdict: str
    why: str
    clauses: Sequence[Mapping[str, Any]]
    reduced: str
    origin: str
    has_picture: bool


def describe(item: Item, result: Mapping[str, Any] | None) -> Description:
    """Returns texts that describe an item, and its result if it has one."""
    state_text = _capitalized(item.state)
    if result is None and item.make is None:
        return Description(state_text, item.why, (), "", "", False)
    if result is None:
        return Description("No result here", "", (), "", f"`fedmf paper run {item.name}`", False)
    origin = f"{state_text}; scale {result['scale']}"
    # If a figure or table needs training, its processor time is left out: the recorded time may be
    # only that of drawing the picture. The sentence on its reduced scale has the training time.
    if item.study is None:
        origin += f"; {duration(result['processor_seconds'])} of processor time"
    if "commit" in result:
        result_commit = provenance.short_commit(result["commit"])
        origin += f"; {result['date']}, code of commit {result_commit}"
        training_commits = result.get("training_commits", [result["commit"]])
        if training_commits != [result["commit"]]:
            commits_text = ", ".join(map(provenance.short_commit, training_commits))
            origin += f"; runs trained by the code of {commits_text}"
    verdict_text = _capitalized(result["verdict"])
    return Description(verdict_text, "", result["clauses"], result["reduced"], origin, True)


def clause_line(part: Mapping[str, Any]) -> str:
    """Returns a clause of result.json with its verdict and numbers, as one sentence."""
    clause_text = part["text"].rstrip(".")
    clause_evidence = part["evidence"].rstrip(".")
    return f"{_capitalized(part['verdict'])}: {clause_text} ({clause_evidence})."


def _capitalized(text: str) -> str:
    """Returns a text whose first letter is a capital."""
    return f"{text[0].upper()}{text[1:]}"


def _row(item: Item, description: Description, folder: str, page: str | None) -> str:
    """Returns the row of one item, with a link to the paper's page if it has one."""
    picture = f"![{item.name}]({folder}/{item.name}.png)" if description.has_picture else ""
    item_title = f"**{item.number}**<br>`{item.name}`"
    item_claim = item.claim
    if page is not None:
        item_title = f"[{item.number}]({page}#{item.name})"
    else:
        clause_lines = map(clause_line, description.clauses)
        detail_lines = [description.why, *clause_lines, description.reduced, description.origin]
        item_claim += "".join(f"<br>{detail.rstrip('.')}." for detail in detail_lines if detail)
    row_cells = (picture, item_title, f"**{description.verdict}**", item_claim)
    return f"|{'|'.join(cell.replace('|', '/') for cell in row_cells)}|\n"


def thumbnail(png: bytes) -> bytes:
    """Returns a picture scaled to the page's size, in few colours."""
    full_image = PIL.Image.open(io.BytesIO(png)).convert("RGB")
    small_height = round(full_image.height * _THUMBNAIL_WIDTH / full_image.width)
    small_image = full_image.resize(
        (_THUMBNAIL_WIDTH, small_height), PIL.Image.Resampling.LANCZOS
    ).quantize(_THUMBNAIL_COLORS, dither=PIL.Image.Dither.NONE)
    png_buffer = io.BytesIO()
    small_image.save(png_buffer, format="PNG", optimize=True)
    return png_buffer.getvalue()
