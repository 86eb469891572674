import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


def test_rounds_of_all_kinds_are_measured_and_train_alike():
    from fedmf.federated import native

    if native.compiler() is None:
        pytest.skip("no C compiler")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.simulation", "--small", "--json"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert len(found["numpy"]["2"]) == 3
    assert min(found["numpy"]["2"]) > 1e9
    costs = found["clients"]["2"]
    assert list(costs) == ["compiled", "differentiated", "tff"]
    for cost in costs.values():
        assert min(*cost["seconds"], *cost["cpu"], cost["first"], cost["peak"]) > 0
        # The same cohorts, models and noise: what is timed side by side is the same training.
        assert cost["loss"] == pytest.approx(costs["tff"]["loss"], rel=1e-4)
        assert len(cost["loss"]) == 2
    parts = costs["compiled"]["parts"]
    assert min(parts.values()) > 0
    assert parts["of which clip and sum"] < parts["clients"] < sum(costs["compiled"]["seconds"])


def test_operations_are_those_of_the_products():
    """By hand, for the published model: 64 sentences of 20 words, each product forward and twice backward."""
    from benchmarks.simulation import operations

    steps = 64 * 19 * 670 * 2680  # from state to state
    words = 64 * 20 * (96 * 2680 + 670 * 96 + 96 * 10004)
    assert operations("full") == pytest.approx(6 * (steps + words))
    assert round(operations("full") / 1e9, 1) == 22.9  # docs/simulation.md


def test_what_does_not_fit_the_memory_is_left_out():
    import pathlib

    from benchmarks.simulation import missing_memory

    if not pathlib.Path("/proc/meminfo").exists():
        pytest.skip("the system does not tell")
    assert missing_memory(10**6).startswith("tff is left out: 1000000 clients would take some 36005 GB and ")
