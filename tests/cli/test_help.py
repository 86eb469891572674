"""The command line as people meet it: help in sections, completion, colours, and --json."""

import dataclasses
import json
import os
import pty
import re
import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete

import fedmf
from fedmf.cli import cli
from tests.cli.program import fedmf as program
from tests.cli.program import refused
from tests.cli.test_errors import commands

# These print no result: a script for a shell.
NO_RESULT = {"completion"}


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
    assert list(found) == ["Options", "Run", "Plan", "Prove", "Replicate", "Shell"]
    assert "train" in found["Run"]
    assert sorted(
        name for title, names in found.items() if title != "Options" for name in names
    ) == sorted(cli.commands)


@pytest.mark.parametrize("group", [[], ["plan"], ["audit"], ["data"]])
def test_what_commands_do_fits_a_line(group, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = program(*group, "--help").stdout.splitlines()
    assert len(lines) > 8
    assert not [line for line in lines[1:] if line.endswith("...")]


def test_options_of_train_are_grouped():
    found = sections(program("train --help").stdout)
    assert list(found) == [
        "Options",
        *("Who takes part", "Mechanism", "Privacy", "Task", "Devices and updates"),
        *("Optimisation", "The run", "Options of the families"),
    ]
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


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.name)
def test_every_result_can_be_json(command):
    flags = [flag for p in command.get_params(click.Context(command)) for flag in p.opts]
    assert ("--json" in flags) == (command.name not in NO_RESULT)


def test_json_of_files_that_were_written(tmp_path):
    path = tmp_path / "corpus.sqlite"
    printed = program(f"data synth --clients 3 --out {path} --quiet --json").stdout
    assert json.loads(printed) == {"task": "stackoverflow_nwp", "file": str(path)}


def test_the_version():
    assert program("--version").stdout.startswith("fedmf, version ")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("fedmf train --min", {"--min-sep"}),
        ("fedmf fit --family ban", {"banded"}),
        ("fedmf fit --buf", {"--buffers"}),
        ("fedmf audit mech", {"mechanism"}),
    ],
)
def test_completion_completes(line, words):
    *typed, incomplete = line.split()[1:]
    found = ShellComplete(cli, {}, "fedmf", "_FEDMF_COMPLETE").get_completions(typed, incomplete)
    assert {answer.value for answer in found} == words


def test_completion_in_a_shell():
    assert "_FEDMF_COMPLETE=bash_complete" in program("completion bash").stdout
    asked = {"_FEDMF_COMPLETE": "bash_complete", "COMP_WORDS": "fedmf tr", "COMP_CWORD": "1"}
    command = [sys.executable, "-m", "fedmf"]
    done = subprocess.run(
        command, env=os.environ | asked, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["plain,train"]


@pytest.mark.parametrize(("setting", "colored"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_on_terminals(setting, colored):
    ours, theirs = pty.openpty()
    environment = {
        name: value for name, value in os.environ.items() if name != "NO_COLOR"
    } | setting
    command = [sys.executable, "-m", "fedmf", "nonsense"]
    subprocess.run(command, stderr=theirs, env=environment, timeout=60)
    os.close(theirs)
    said = os.read(ours, 10_000).decode()
    os.close(ours)
    assert "error:" in said
    assert ("\x1b[" in said) == colored


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
