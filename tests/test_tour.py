"""Every snippet of the start and of the tour runs as printed; what several print, once.

Exceptions, stated here: `make`, and commands of the tour that train. These get sizes appended that
a test can afford, and those of full size a synthetic corpus under the file name that they expect.
"""

import pathlib
import re

import pytest

from tests.cli.program import SMALL_MODEL, commands_in
from tests.cli.program import fedmf as program

ROOT = pathlib.Path(__file__).parents[1]
PAGES = {name: (ROOT / name).read_text() for name in ("docs/start.md", "docs/tour.md")}


def snippets(language):
    places = {}
    for name, page in PAGES.items():
        for number, text in enumerate(re.findall(rf"```{language}\n(.*?)```", page, re.S)):
            places.setdefault(text, f"{name} {number}")
    return [pytest.param(text, place, id=place) for text, place in places.items()]


# Appended to what trains at full size
AFFORDABLE = "--rounds 2 --min-sep 1 --cohort-size 2 --claimed-cohort 4"


def test_the_snippets_are_found():
    assert len(snippets("python")) == 2 + 5 - 1
    assert len(snippets("sh")) == 1 + 6


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.usefixtures("clients_in_turn")
@pytest.mark.parametrize(("snippet", "place"), snippets("python"))
def test_python_snippet(snippet, place, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "readme"}
    exec(compile(snippet, "a python snippet", "exec"), names)
    # capfd, not capsys: TFF hands its worker the real file descriptor of standard output.
    printed = capfd.readouterr().out
    if "statement(plan)" in snippet:
        assert "Certificate" in printed
        assert "# Privacy statement" in printed
    if "dp_aggregator" in snippet:  # with cohorts that keep to the plan
        audit = names["controller"].audit(names["plan"])
        assert audit.observed.rounds == names["plan"].participation.rounds
        assert audit.contradictions == ()


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize(("snippet", "place"), snippets("sh"))
def test_shell_snippet(snippet, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    full_size = "stackoverflow.sqlite" in snippet
    if full_size:
        program("data synth --clients 12 --sentences-per-client 12 --out stackoverflow.sqlite")
    for line in commands_in(snippet):
        if "tour" in place and line.startswith(("fedmf train ", "fedmf sweep ")):
            line += f" {SMALL_MODEL} --quiet"
            line += f" {AFFORDABLE}" if full_size else ""
        program(line)
        for _, path in re.findall(r"--(out|statement) (\S+)", line):
            assert (tmp_path / path).exists()


@pytest.mark.parametrize("page", PAGES)
def test_names_on_the_page_exist(page):
    import fedmf

    for name in set(re.findall(r"`fedmf\.([a-zA-Z_]+)`", PAGES[page])):
        assert hasattr(fedmf, name), name
