import json
import subprocess
import sys

import pytest

from benchmarks.fit import CASES


def bench(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.fit", *arguments], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def table():
    done = bench("--small")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_case_has_a_row_with_a_goal(table):
    assert table[0].split() == ["fit", "seconds", "products", "steps", "gap", "rmse", "peak", "GiB", "goal"]
    assert [row[:32].strip() for row in table[1:]] == [case.name for case in CASES]
    for row, case in zip(table[1:], CASES, strict=True):
        assert "failed" not in row
        assert row.endswith(case.goal)


def test_gaps_are_those_asked_for(table):
    for row, case in zip(table[1:], CASES, strict=True):
        if "tolerance" in case.options:
            assert float(row[32:].split()[3]) <= case.options["tolerance"]


def test_one_case_is_json():
    done = bench("--small", "--case", CASES[0].name)
    assert set(json.loads(done.stdout)) == {"seconds", "steps", "gap", "rmse", "memory"}
    assert "unknown: choose one of" in bench("--case", "none").stderr
