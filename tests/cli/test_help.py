"""The command line as people meet it: help in sections, completion, colours, and --json."""

import contextlib
import io
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete

from fedmf.cli import cli, main
from tests.cli.program import fedmf as program
from tests.cli.program import refused


def test_every_command_is_listed():
    help_text = program("--help").stdout
    assert [name for name in cli.commands if f"\n  {name} " not in help_text] == []


def test_version_is_printed():
    assert program("--version").stdout.startswith("fedmf, version ")


@pytest.mark.parametrize(
    ("typed", "completion"),
    [
        ("fedmf tr", "train"),
        ("fedmf train --min", "--min-sep"),
        ("fedmf fit --family ban", "banded"),
    ],
)
def test_commands_and_options_are_completed_in_a_shell(typed, completion, monkeypatch, capsys):
    assert "_FEDMF_COMPLETE=bash_complete" in program("completion bash").stdout
    monkeypatch.setenv("_FEDMF_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
    main([])
    assert capsys.readouterr().out.split() == [f"plain,{completion}"]


COMPLETED = {
    "train --family b": ["banded", "blt"],
    "train --task em": ["emnist"],
    "evaluate runs/first --task re": ["regression"],
    "train --server-optimizer scaled-": ["scaled-adam", "scaled-adagrad"],
    "train --schema m": ["min_sep"],
    "train --zeroing-norm n": ["none"],
    "train --noise-seed ": ["os"],
    "train --partition s": ["shards:"],
    "train --availability i": ["independent:"],
    "train --task emnist -o only": ["only-digits="],
    "plan participation --sampling po": ["poisson"],
    "plan compare --family banded,t": ["banded,toeplitz", "banded,tree"],
    "fit --family tree --decoder ": ["full", "online"],
    "fit --objective ": ["max", "mean"],
    "fit --completion v": ["virtual"],
    "train --data corp": ["file"],
    "plan bands --out ": ["file"],
    "audit canaries runs/": ["dir"],
    "audit runs/": ["dir"],
    "paper run banded-table-4": ["banded-table-4"],
}


@pytest.mark.parametrize("line", COMPLETED)
def test_values_are_completed(line):
    *words, incomplete = line.split(" ")
    completer = ShellComplete(cli, {}, "fedmf", "_FEDMF_COMPLETE")
    items = completer.get_completions(words, incomplete)
    assert [item.value if item.type == "plain" else item.type for item in items] == COMPLETED[line]


def test_completion_offers_the_figures_of_the_papers_that_can_be_made():
    from fedmf.experiments.papers import ITEMS

    completer = ShellComplete(cli, {}, "fedmf", "_FEDMF_COMPLETE")
    names = [item.value for item in completer.get_completions(["paper", "run"], "")]
    assert names == [name for name, item in ITEMS.items() if item.make is not None]
    assert "banded-table-1" not in names


def test_completion_of_values_imports_nothing_slow():
    code = (
        "import sys\nfrom click.shell_completion import ShellComplete\nfrom fedmf.cli import cli\n"
        f"for line in {[*COMPLETED]!r}:\n"
        "    *words, word = line.split(' ')\n"
        "    ShellComplete(cli, {}, 'fedmf', '_FEDMF_COMPLETE').get_completions(words, word)\n"
        "slow = set('scipy.optimize tensorflow dp_accounting matplotlib jinja2'.split())\n"
        "print('SLOW', sorted(slow & set(sys.modules)))"
    )
    finished_process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert finished_process.stdout == "SLOW []\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("no_color", ["", "1"])
def test_terminals_have_colours_unless_no_color_is_set(no_color, monkeypatch):
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
    refused(train, "which are the same field", "leave one out")
    path.write_text("epsilon = 8.0\nmin-sep = 2\n[task-options]\nlstm-sise = 4\n")
    refused(train, "'lstm-sise' is none of the task", "did you mean `lstm-size`?")
