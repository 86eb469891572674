"""The Python snippets of the documents run as printed. docs/pipeline.md has a test of its own, because it needs TensorFlow."""

import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).parents[1] / "docs"
PAGES = ("accounting", "participation")


@pytest.mark.parametrize("page", PAGES)
def test_snippets_run_as_printed(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.S)
    assert snippets
    for number, snippet in enumerate(snippets):
        exec(compile(snippet, f"docs/{page}.md snippet {number}", "exec"), {"__name__": page})
    assert capsys.readouterr().out


def test_no_page_with_snippets_is_forgotten():
    tested = {*PAGES, "pipeline"}
    assert {page.stem for page in DOCS.glob("*.md") if "```python" in page.read_text()} <= tested
