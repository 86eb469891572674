"""The command line as people meet it: help in sections, completion, colours, and --json."""

import contextlib
import io

import pytest

from fedmf.cli import cli, main
from tests.cli.program import fedmf as program
from tests.cli.program import refused


def test_every_command_is_listed():
    shown = program("--help").stdout
    assert [name for name in cli.commands if f"\n  {name} " not in shown] == []


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
