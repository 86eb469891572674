"""Every row of the benchmarks that print a table is measured, at toy size."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from benchmarks import core, fit, noise, participation, server


def run(main, *arguments):
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, result.output.splitlines()


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(fit, marks=pytest.mark.slow),
        participation,
        server,
        pytest.param(noise, marks=[pytest.mark.tensorflow, pytest.mark.slow]),
    ],
)
def test_every_row_is_measured(module):
    status, lines = run(module.main, "--small")
    assert status == 0, lines
    names = list(module.CASES)
    assert [line[: max(map(len, names)) + 2].strip() for line in lines[-len(names) :]] == names


@pytest.mark.slow
def test_a_row_in_its_own_process_has_every_column():
    command = [sys.executable, "-m", "benchmarks.fit", "--child", "dense 2048, gap 1e-3", "--small"]
    finished_process = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=True
    )
    row = json.loads(finished_process.stdout)
    assert all(column.format(**row) for column in fit.COLUMNS.values())


def test_a_failing_row_is_named_and_fails_the_command(monkeypatch):
    def failing(command, **_):
        return subprocess.CompletedProcess(
            command, int("banded" in command[-1]), '{"x": 3}\n', "Error\nwhy\n"
        )

    monkeypatch.setattr(core.subprocess, "run", failing)
    main = core.table("fit", {"banded": None, "dense": None}, None, {"x": "{x}"}, "help")
    status, lines = run(main)
    assert status == 1
    assert [line.split() for line in lines[1:]] == [["banded", "failed:", "why"], ["dense", "3"]]
    status, lines = run(main, "--case", "tree")
    assert status == 2
    assert "is in the name of no case: banded; dense" in lines[-1]


def test_differences_are_computed_pass_by_pass():
    # A machine that slows down from pass to pass: the difference is 1 in each.
    assert core.paired([11.0, 21.0, 31.0], [10.0, 20.0, 30.0]) == (1.0, 0.0)
    assert core.paired([11.0, 13.0], [10.0, 10.0]) == (2.0, pytest.approx(1.0))
