"""`fedmf paper`: the list, the files of a result, and the page.

`test_items.py` makes every item.
"""

import dataclasses
import json
import pathlib
import re

import pytest
from matplotlib.figure import Figure

from fedmf.experiments.papers import ITEMS, Item, Outcome, Request, clause, results, theorems
from fedmf.experiments.papers.clause import VERDICTS
from tests.cli.program import fedmf, printed_by

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "papers.md"
# Tables and figures as the papers number them.
NUMBERED = {
    "denisov": {"Figure": range(1, 7), "Table": range(1, 5)},
    "multi-epoch": {"Figure": range(1, 15), "Table": range(1, 7)},
    "banded": {"Figure": range(1, 14), "Table": range(1, 8)},
}


def made(request):
    figure = Figure()
    figure.subplots().plot([1.0, 2.0])
    table = {"columns": ("x",), "rows": [(1 / 3,)]}
    clauses = [clause.from_numbers("It is a third", True, "It is a third.")]
    return Outcome(figure, **table, seeds=(4,), clauses=clauses)


ITEM = Item(
    name="banded-figure-1",
    number="Figure 1",
    claim="It is a third.",
    state="exact",
    why="",
    make=made,
    seconds={"small": 1, "full": 90},
)


def test_what_is_not_made_says_why():
    assert [n for n, item in ITEMS.items() if item.make is None and not item.why] == []


@pytest.mark.parametrize("source", NUMBERED)
def test_every_table_and_figure_is_listed(source):
    numbers = {item.number for item in ITEMS.values() if item.source == source}
    assert {f"{kind} {i}" for kind, which in NUMBERED[source].items() for i in which} <= numbers


def test_a_result_is_three_files(tmp_path):
    result = results.run(ITEM, Request(folder=tmp_path, scale="tiny"))
    assert result == results.load(tmp_path / "result.json")
    assert (tmp_path / "numbers.csv").read_text() == "x\n0.33333333\n"
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"
    expected = {"number": "Figure 1", "seeds": [4], "verdict": "reproduced"}
    expected["command"] = "fedmf paper run banded-figure-1 --scale tiny"
    assert result.items() >= expected.items()


def test_the_page_keeps_older_results_and_takes_newer_ones(tmp_path):
    other = dataclasses.replace(
        ITEM, name="banded-figure-2", state="not reproducible", why="There is nothing.", make=None
    )
    items = {"banded-figure-1": ITEM, "banded-figure-2": other}
    results.run(ITEM, Request(folder=tmp_path / "results" / ITEM.name))
    page = tmp_path / "page.md"
    found = results.report(items, tmp_path / "results", page)
    assert found == {"items": 2, "results": 1, **dict.fromkeys(VERDICTS, 0), "reproduced": 1}
    first = page.read_text()
    for words in (
        "![banded-figure-1](page/banded-figure-1.png)|**Figure 1**<br>`banded-figure-1`|",
        "|**Reproduced**|",
        "It is a third.",
        "There is nothing.",
    ):
        assert words in first
    assert results.report(items, tmp_path / "nowhere", page)["results"] == 1
    assert page.read_text() == first
    kept = tmp_path / "page" / "banded-figure-1.json"
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"verdict": "reproduced, in part"}))
    results.report(items, tmp_path / "nowhere", page)
    assert "|**Reproduced, in part**|" in page.read_text()


def test_report_keeps_the_text_around_the_gallery_and_links_to_the_pages_of_papers(tmp_path):
    page = tmp_path / "page.md"
    results.report({"banded-figure-1": ITEM}, tmp_path, page)
    around = page.read_text().replace("# The papers' tables", "# Our tables") + "\nThe end.\n"
    page.write_text(around)
    (tmp_path / "page" / "banded.md").write_text("# Banded\n")
    results.report({"banded-figure-1": ITEM}, tmp_path, page)
    assert page.read_text().startswith("# Our tables")
    assert page.read_text().endswith("\nThe end.\n")
    assert "[Figure 1](page/banded.md#banded-figure-1)" in page.read_text()


def test_the_gallery_in_docs_is_that_of_its_results():
    """Where this fails, `fedmf paper report --out docs/papers.md` writes it again."""
    kept = PAGE.with_suffix("")
    found = {path.stem: json.loads(path.read_text()) for path in sorted(kept.glob("*.json"))}
    assert len(found) >= 20
    assert results.gallery(ITEMS, found, kept) in PAGE.read_text()
    sizes = {path.stem: path.stat().st_size for path in kept.glob("*.png")}
    assert sizes.keys() == found.keys()
    assert max(sizes.values()) < 60_000
    assert sum(sizes.values()) < 3_000_000


@pytest.mark.parametrize("source", results.SOURCES)
def test_the_page_of_a_paper_has_every_item_once_and_in_order(source):
    page = (PAGE.with_suffix("") / f"{source}.md").read_text()
    marked = re.findall(r"^<!-- result: ([\w-]+) -->$", page, re.M)
    assert marked == [item.name for item in ITEMS.values() if item.source == source]


def test_list_run_and_report_print_what_they_write(tmp_path):
    listed = printed_by("paper list")
    assert list(listed) == [*ITEMS, *(statement.name for statement in theorems.STATEMENTS)]
    assert listed["banded-thm-2"]["state"] == "in code and tests"
    assert listed["banded-table-4"]["state"] == "exact"
    result = printed_by(f"paper run banded-app-k-1 --out {tmp_path}")["banded-app-k-1"]
    assert result["verdict"].startswith("reproduced")
    assert json.loads((tmp_path / "banded-app-k-1" / "result.json").read_text()) == result
    page = tmp_path / "page.md"
    assert "results" in fedmf(f"paper report --results {tmp_path} --out {page}").stdout
    assert "(page/banded-app-k-1.png)" in page.read_text()


def test_long_items_say_so_before_they_begin(tmp_path, monkeypatch):
    monkeypatch.setitem(ITEMS, ITEM.name, ITEM)
    run = f"paper run {ITEM.name} --out {tmp_path}"
    assert "about 1 min 30 s" in fedmf(f"{run} --scale full").stderr
    assert fedmf(run).stderr == ""
