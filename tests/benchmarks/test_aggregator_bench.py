import json
import subprocess
import sys

import pytest

from benchmarks.aggregator import paired

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


def bench(*arguments):
    command = [sys.executable, "-m", "benchmarks.aggregator", "--small", "--clients", "2", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_rounds_of_all_kinds_and_all_parts_are_measured():
    done = bench("--passes", "2", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert list(found["rounds"]) == ["plain mean", "blt, 4 buffers / precomputed", "blt, 4 buffers / graph"]
    for seconds in found["rounds"].values():
        assert len(seconds) == 2
        assert min(seconds) > 0
    precomputed, in_the_graph = found["rows"]["blt, 4 buffers / precomputed"], found["rows"]["blt, 4 buffers / graph"]
    assert precomputed > in_the_graph == found["rows"]["plain mean"] == 0
    assert list(found["parts"]) == [
        "zeroing and clipping",
        "making the row",
        "state through TFF",
        "adding and dividing",
    ]


def test_unknown_kinds_are_refused():
    assert "unknown: choose one of" in bench("--kind", "banded").stderr


def test_differences_are_taken_pass_by_pass():
    # A machine that slows down from pass to pass: the difference is 1 in each.
    mean, error = paired([11.0, 21.0, 31.0], [10.0, 20.0, 30.0])
    assert (mean, error) == (1.0, 0.0)
    mean, error = paired([11.0, 13.0], [10.0, 10.0])
    assert (mean, error) == (2.0, pytest.approx(1.0))
