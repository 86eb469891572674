import json
import subprocess
import sys

import pytest

from benchmarks.participation import CASES, controller_of


def bench(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.participation", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_can_be_made_and_begins(case):
    controller = controller_of(case, small=True)
    assert len(controller.cohort(0)) <= max(3 * controller.cohort_size, 10)


def test_the_goals_of_the_issue_are_cases():
    goals = {(case.population, case.cohort_size, case.rounds, case.schema): case.goal for case in CASES if case.goal}
    assert goals == {
        (10**7, 6500, 2000, "min_sep"): "60 s, 1 GB",
        (10**8, 6500, 2000, "min_sep"): "600 s, 3 GB",
    }


def test_one_case_is_json():
    done = bench("--small", "--case", "1 million, min_sep")
    assert set(json.loads(done.stdout)) == {
        "seconds", "milliseconds", "mebibytes", "dry", "separation", "most", "old_milliseconds"
    }  # fmt: skip
    assert "unknown: choose one of" in bench("--case", "none").stderr


@pytest.mark.slow
def test_the_table_has_a_row_for_every_case():
    done = bench("--small")
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()
    assert rows[0].split() == "clients, rounds by seconds ms a round peak MiB dry rounds separation most goal".split()
    assert "failed" not in done.stdout
    names = [row[:28].strip() for row in rows[1:] if not row.startswith("  ")]
    assert names == [case.name for case in CASES]
    assert sum(" ratio " in row for row in rows) == sum(case.beside for case in CASES)
