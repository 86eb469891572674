"""Every snippet of the README and of the tour runs as printed.

Exceptions, stated here: `make`, and the full-size training commands. These get sizes appended that
a test can afford, and a synthetic corpus under the file name that they expect.
"""

import pathlib
import re

import pytest

from tests.cli.program import commands_in
from tests.cli.program import fedmf as program

ROOT = pathlib.Path(__file__).parents[1]
PAGES = {name: (ROOT / name).read_text() for name in ("README.md", "docs/tour.md")}


def snippets(language):
    """Those of both pages; what both print runs once."""
    places = {
        text: f"{name} {number}"
        for name, page in PAGES.items()
        for number, text in enumerate(re.findall(rf"```{language}\n(.*?)```", page, re.S))
    }
    return [pytest.param(text, id=place) for text, place in places.items()]


# Appended to what trains at full size
AFFORDABLE = (
    "--rounds 2 --min-sep 1 --cohort-size 2 --claimed-cohort 4 -o vocabulary-size=60 -o "
    "embedding-size=8 -o lstm-size=8 -o sequence-length=4 -o max-sentences=8 "
    "-o validation-sentences=50 -o test-sentences=50 --quiet"
)


def test_the_snippets_are_found():
    assert len(snippets("python")) == 2 + 7 - 1
    assert len(snippets("sh")) == 1 + 6


def test_the_readme_is_short():
    assert len(PAGES["README.md"].splitlines()) < 150


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("snippet", snippets("python"))
def test_python_snippet(snippet, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "a python snippet", "exec"), {"__name__": "readme"})
    # capfd, not capsys: TFF hands its worker the real file descriptor of standard output.
    printed = capfd.readouterr().out
    if "statement(plan)" in snippet:
        assert "Certificate" in printed
        assert "# Privacy statement" in printed


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("snippet", snippets("sh"))
def test_shell_snippet(snippet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "stackoverflow.sqlite" in snippet:
        program("data synth --clients 12 --sentences-per-client 12 --out stackoverflow.sqlite")
    for line in commands_in(snippet):
        trains = line.startswith(("fedmf train ", "fedmf sweep ")) and "stackoverflow" in line
        program(f"{line} {AFFORDABLE}" if trains else line)
        for _, path in re.findall(r"--(out|statement) (\S+)", line):
            assert (tmp_path / path).exists()


@pytest.mark.parametrize("page", PAGES)
def test_names_on_the_page_exist(page):
    import fedmf

    for name in set(re.findall(r"`fedmf\.([a-zA-Z_]+)`", PAGES[page])):
        assert hasattr(fedmf, name), name
    assert set(fedmf.__all__) <= set(dir(fedmf))


@pytest.mark.parametrize("page", PAGES)
def test_linked_documents_exist(page):
    for link in re.findall(r"\]\(([^)]+)\)", PAGES[page]):
        assert ((ROOT / page).parent / link.partition("#")[0]).exists(), link
