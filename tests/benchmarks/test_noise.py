import json
import subprocess
import sys

import pytest

from benchmarks.noise import header
from benchmarks.noise_cases import CASES, TFP_CASES, timed_rounds
from benchmarks.noise_engines import ENGINES

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


def bench(*arguments):
    command = [sys.executable, "-m", "benchmarks.noise", "--rounds", "48", "--size", "1000", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_measures_a_mechanism(engine):
    name = (TFP_CASES if engine == "tfp" else CASES)[-1].name
    done = bench("--engine", engine, "--row", name, "--json")
    found = json.loads(done.stdout)
    assert (found["row"], found["engine"]) == (name, engine)
    assert len(found["milliseconds"]) == 3
    assert min(found["milliseconds"]) > 0
    assert found["iid_milliseconds"] > 0
    assert found["memory"] >= 0


def test_the_table_has_the_columns_of_the_issue():
    done = bench("--engine", "graph", "--row", "identity", "--row", "banded, 8 bands")
    lines = done.stdout.splitlines()
    assert lines[0] == header(48)
    assert [line[:30].strip() for line in lines[1:]] == ["identity", "banded, 8 bands"]
    assert "failed" not in done.stdout


def test_unknown_rows_and_too_few_rounds_are_refused():
    assert "unknown: choose one of identity" in bench("--row", "none").stderr
    assert "at least 24" in bench("--rounds", "10").stderr


def test_full_size_rounds_are_those_of_the_issue():
    assert timed_rounds(2052) == (10, 1000, 2040)
