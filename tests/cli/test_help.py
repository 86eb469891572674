"""The command line as people meet it: help in sections, completion, colours, and --json."""

import contextlib
import dataclasses
import io
import re

import pytest

import fedmf
from fedmf.cli import cli, main
from tests.cli.program import fedmf as program
from tests.cli.program import refused


def sections(text):
    """Title -> the first words of its lines."""
    found, title = {}, ""
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z][\w ]+:", line):
            found[title := line[:-1]] = []
        elif title and re.match(r"  \S", line):
            found[title].append(line.split()[0])
    return found


def test_commands_are_grouped_by_what_people_do():
    found = sections(program("--help").stdout)
    assert "train" in found["Run"]
    assert sorted(
        name for title, names in found.items() if title != "Options" for name in names
    ) == sorted(cli.commands)


def test_options_of_train_are_grouped():
    found = sections(program("train --help").stdout)
    assert "--min-sep" in found["Who takes part"]
    assert "--epsilon" in found["Privacy"]
    own = set(found.pop("Options of the families"))
    assert {"--buffers", "--restarts"} < own
    shown = {flag.rstrip(",") for flags in list(found.values())[1:] for flag in flags}
    fields = {
        f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(fedmf.TrainConfig)
    }
    of_tasks = {"-o", "--partition", "--clients", "--partition-seed"}
    assert shown == fields - {"--task-options", "--mechanism-options"} | of_tasks
    assert of_tasks < set(found["Task"]) | {"-o"}


def test_the_version():
    assert program("--version").stdout.startswith("fedmf, version ")


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("fedmf tr", "train"),
        ("fedmf train --min", "--min-sep"),
        ("fedmf fit --family ban", "banded"),
    ],
)
def test_completion_in_a_shell(typed, found, monkeypatch, capsys):
    assert "_FEDMF_COMPLETE=bash_complete" in program("completion bash").stdout
    monkeypatch.setenv("_FEDMF_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
    main([])
    assert capsys.readouterr().out.split() == [f"plain,{found}"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("no_color", ["", "1"])
def test_colours_on_terminals(no_color, monkeypatch):
    monkeypatch.setenv("NO_COLOR", no_color)
    terminal = Terminal()
    with contextlib.redirect_stderr(terminal), pytest.raises(SystemExit):
        main(["nonsense"])
    assert ("\x1b[" in terminal.getvalue()) == (not no_color)


def test_config_files_spell_options_as_the_command_line_does(tmp_path):
    path = tmp_path / "run.toml"
    train = f"train --config {path} --out {tmp_path}/run --noise-seed 1"
    path.write_text("cohort-size = 0\n")
    refused(train, "--cohort-size 0", "positive whole number")
    path.write_text("cohort-sise = 4\n")
    refused(train, "run.toml has an unknown field 'cohort_sise': did you mean", "cohort-size?")
    path.write_text("cohort-size = 4\ncohort_size = 5\n")
    refused(train, "which are one field", "leave one out")
    path.write_text("epsilon = 8.0\nmin-sep = 2\n[task-options]\nlstm-sise = 4\n")
    refused(train, "'lstm-sise' is none of the task", "did you mean `lstm-size`?")
