"""The Python snippets of the documents run as printed.

Those that need TensorFlow, such as tff.md, have tests of their own; the build of the site
executes its cells.
"""

import ast
import importlib.util
import pathlib
import re

import numpy as np
import pytest

import fedmf
from tests.cli.program import commands_of, printed_by
from tests.cli.program import fedmf as program
from tests.test_architecture import FLOORS

DOCS = pathlib.Path(__file__).parents[1] / "docs"
PAGES = (
    "choose_mechanism",
    "participation",
    "private_metrics",
    "server",
    "test_aggregator",
)


@pytest.mark.parametrize("page", PAGES)
def test_snippets_run_as_printed(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / f"{page}.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", text, re.S)
    assert snippets
    names = {"__name__": page}
    for number, snippet in enumerate(snippets):
        exec(compile(snippet, f"docs/{page}.md snippet {number}", "exec"), names)
    printed_text = capsys.readouterr().out
    assert printed_text
    for shown_text in re.findall(r"```text\n(.*?)```", text, re.S):
        assert shown_text in printed_text


def test_the_page_on_logs_prints_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "audit_log.md").read_text()
    [snippet] = re.findall(r"```python\n(.*?)```", page, re.S)
    exec(compile(snippet, "docs/audit_log.md", "exec"), {})
    fit, audit = commands_of("audit_log.md")
    program(fit)
    printed_lines = program(audit, status=1).stdout.splitlines()
    [shown_text] = re.findall(r"```text\n(.*?)```", page, re.S)
    assert set(shown_text.splitlines()) <= set(printed_lines)
    assert (tmp_path / "audited.md").exists()


def test_the_commands_on_the_page_on_aggregators_pass(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit, audit = commands_of("test_aggregator.md")
    program(fit)
    printed_text = program(audit).stdout
    assert "consistent with the claim" in printed_text
    assert 2.5 < float(re.search(r"proved at 95% to be at least ([\d.]+)", printed_text)[1]) < 3.5


def test_independent_cohorts_have_the_epsilon_that_the_page_on_tff_states():
    plan = fedmf.PlanConfig(rounds=24, min_sep=4, epsilon=8.0).plan()
    achieved_epsilons = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        rows = [f"{t},{client}" for t in range(24) for client in rng.choice(120, 30, replace=False)]
        text = "\n".join(["round,client", *rows]) + "\n"
        ledger = fedmf.ParticipationLedger.from_csv(text, rounds=24, cohort_size=30)
        achieved_epsilons.append(fedmf.audit_ledger(ledger, plan).epsilon)
    page = " ".join((DOCS / "tff.md").read_text().split())
    assert f"then has an epsilon of about {np.mean(achieved_epsilons):.0f}." in page


def test_every_page_with_snippets_is_tested():
    tested = {
        *PAGES,
        "adaptive",
        "audit_log",  # by the test above
        "flower",  # by tests/flower
        "pytorch",  # by tests/pytorch
        "tff",
        "text",
        "examples_as_clients",
        "resume",
        "own_data",
    }
    assert {page.stem for page in DOCS.glob("*.md") if "```python" in page.read_text()} <= tested


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.stem)
def test_code_fits_the_column_of_the_site(path):
    """A column of the site has room for 88 characters of code. Some cells are not shown."""
    long_lines = []
    is_fenced = False
    is_shown = True
    for line in path.read_text().splitlines():
        if line.startswith("```"):
            is_fenced = not is_fenced
            is_shown = not line.startswith("```{glossary}")  # Lines of a glossary wrap.
        is_shown = is_shown and not re.match(r":tags: \[remove-(cell|input)\]", line)
        code = (is_fenced and is_shown) or re.match(r"    [^ |*-]", line)
        indentation = "" if is_fenced else "    "
        if code and len(line.removeprefix(indentation)) > 88:
            long_lines.append(line)
    assert long_lines == []


HOW_TO = (
    "own_data own_table text examples_as_clients tff flower pytorch server resume sweep "
    "private_selection cluster choose_mechanism choose_sampling adaptive private_metrics audit_log "
    "test_aggregator canaries full_scale"
).split()


@pytest.mark.parametrize("name", HOW_TO)
def test_how_to_pages_are_short_and_name_needs_and_errors(name):
    page = (DOCS / f"{name}.md").read_text()
    assert len(page.split()) <= 1500
    for words in ("\n**You need** ", "\n## What can go wrong\n", "\n## Read on\n"):
        assert page.count(words) == 1
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S)
    long = [line for line in prose.splitlines() if len(line) > 100 and not line.startswith("|")]
    assert not [line for line in long if "](http" not in line]


def test_the_page_on_the_layout_has_the_tested_layers_and_names_existing_files():
    page = (DOCS / "built.md").read_text()
    _, lowest_layer, upper_layers = page.partition("    memory\n")
    block = lowest_layer + upper_layers.partition("\n\n")[0]
    floors = [set(re.findall(r"\w+", line)) for line in block.splitlines()]
    assert floors == FLOORS
    for name in re.findall(r"`((?:fedmf|tasks|tests|experiments|docs)/[\w/.]+)`", page):
        assert (DOCS.parent / name).exists(), name


def test_the_page_on_the_layout_names_existing_functions():
    """In the table "Where is what" a name in code follows the file that defines it."""
    page = (DOCS / "built.md").read_text()
    answers = re.findall(r"`(fedmf/[\w/]+\.py)`: `([\w.]+)`", page)
    assert len(answers) >= 14
    for path, name in answers:
        body = ast.parse((DOCS.parent / path).read_text()).body
        for name_part in name.split("."):
            definitions = [node for node in body if getattr(node, "name", None) == name_part]
            assert definitions, f"{path} has no {name}"
            body = definitions[0].body if isinstance(definitions[0], ast.ClassDef) else []


def test_the_commands_of_the_replication_are_accepted(tmp_path, monkeypatch):
    """At full size they take weeks: sweeps are only laid out, and fits are of a few rounds."""
    monkeypatch.chdir(tmp_path)
    runs = []
    for line in commands_of("full_scale.md"):
        if line.startswith("fedmf sweep "):
            runs.append(len(printed_by(f"{line} --dry-run")))
        elif line.startswith("fedmf fit "):
            small_min_sep = "--min-sep 4" if "--min-sep" in line else ""
            program(f"{line} --rounds 24 {small_min_sep}")
        else:
            program(f"{line} --dry-run --json")
    assert runs == [180, 35, 3, 3, 20, 35, 9, 9, 9, 9, 9, 9]
    assert not list(tmp_path.glob("sweeps"))


CAPTIONS = ["Tutorials", "How-to", "Explanation", "Papers", "Reference"]
MOST_LINKS = 12


def page_tree():
    path = DOCS / "extensions" / "places.py"
    spec = importlib.util.spec_from_file_location("places", path)
    tree_module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tree_module)
    return tree_module.page_tree(DOCS, [])


def test_the_sidebar_has_five_captions_of_few_links():
    toctrees = re.findall(r"```\{toctree\}\n:caption: ([^\n]*)\n(.*?)```", page_tree().index, re.S)
    assert [caption for caption, _ in toctrees] == CAPTIONS
    for caption, entries in toctrees:
        assert 1 <= len(re.findall(r"^[\w/-]+$", entries, re.M)) <= MOST_LINKS, caption


def test_pages_other_than_reference_and_papers_have_at_most_1500_words():
    """The reference has tables of fields and files, and a paper's page has all of its figures."""
    toctrees = re.findall(r":caption: ([^\n]*)\n(.*?)```", (DOCS / "index.md").read_text(), re.S)
    pages = [
        page
        for caption, entries in toctrees
        if caption not in ("Papers", "Reference")
        for page in re.findall(r"^ *([\w/-]+)\?$", entries, re.M)
    ]
    assert len(pages) > 25
    words_by_page = {page: len((DOCS / f"{page}.md").read_text().split()) for page in pages}
    assert {page: words for page, words in words_by_page.items() if words > 1500} == {}


def test_the_front_page_lists_every_page():
    """A page that it does not place appears behind the how-to pages."""
    tree = page_tree()
    placed = set(re.findall(r"^ *([\w/-]+)\??$", (DOCS / "index.md").read_text(), re.M))
    visible = set(re.findall(r"^[\w/-]+$", tree.index.partition("```{toctree}")[2], re.M))
    assert visible <= placed
