"""Sentences of the documents whose numbers and lists follow from the code."""

import pathlib
import re

import click
import pytest

import fedmf
from fedmf.cli import cli
from tests.test_architecture import MAX_LINES

ROOT = pathlib.Path(__file__).parents[1]


def page(name):
    return " ".join((ROOT / name).read_text().split())


def commands(command, name):
    """Returns the full names of a command, or of all commands in a group."""
    if not isinstance(command, click.Group):
        return [name]
    return [
        leaf
        for inner in command.commands
        for leaf in commands(command.commands[inner], f"{name} {inner}")
    ]


def test_the_table_of_commands_has_every_command():
    table = page("docs/reference/command_line.md").partition("Each has `--help`")[0]
    table_text = table.replace("`fedmf audit RUN`", "`fedmf audit run`")
    missing = [name for name in commands(cli, "fedmf") if f"`{name}" not in table_text]
    assert missing == []


@pytest.mark.parametrize("name", fedmf.__all__)
def test_every_public_name_has_a_place_in_the_reference(name):
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
    assert re.search(rf"auto\w+:: (\w+\.)*{name}\b", pages)


def test_the_table_of_examples_has_every_program():
    programs = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert set(re.findall(r"\]\((\w+\.py)\)", page("examples/README.md"))) == programs


def test_a_seed_of_the_system_has_as_many_bits_as_the_documents_say():
    (bits,) = re.findall(r"randbits\((\d+)\)", page("fedmf/server/source.py"))
    for name in ("SECURITY.md", "docs/randomness.md", "docs/guarantee.md"):
        assert set(re.findall(r"draws (\d+) bits", page(name))) == {bits}, name


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/built.md"])
def test_a_file_is_as_long_as_the_documents_say(name):
    assert f"in at most {MAX_LINES} lines" in page(name)


def test_the_glossary_defines_each_term_once():
    text = (ROOT / "docs" / "glossary.md").read_text()
    defined = [
        term
        for block in re.findall(r"```\{glossary\}\n(.*?)```", text, re.DOTALL)
        for term in re.findall(r"^\w.*$", block, re.MULTILINE)
    ]
    needed = (
        "round, cohort, client, update, clipped sum, release, noise vector, plan, "
        "participation schema, sampling scheme, mechanism, strategy matrix, certificate, ledger, "
        "statement"
    )
    assert set(needed.split(", ")) <= set(defined)
    assert len(defined) == len(set(defined))
