"""`fedmf audit aggregator`: of a function in the working folder."""

import pytest

from tests.cli.program import fedmf, printed_by, refused

MODULE = """
import numpy as np

def start():
    rng = np.random.default_rng()

    def aggregate(updates):
        total = [np.zeros(array.shape) for array in updates[0]]
        for update in updates:
            norm = np.sqrt(sum((array.astype(float) ** 2).sum() for array in update))
            if np.isfinite(norm):
                for so_far, array in zip(total, update):
                    so_far += array * min(1, 1 / max(norm, 1e-12))
        return [(array + 0.3 * rng.normal(size=array.shape)) / 20 for array in total]

    return aggregate

constant = np.random.default_rng(1)

def aggregate(updates):
    return [array / 20 + constant.normal(size=array.shape) for array in updates[0]]
"""
SETTINGS = "--clients 20 --noise-multiplier 0.3 --shapes 30x20,20"


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    (tmp_path / "my_aggregator.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def test_an_honest_function_passes():
    text = fedmf(f"audit aggregator my_aggregator:start {SETTINGS}").stdout
    assert "tests failed      none" in text
    result = printed_by(f"audit aggregator my_aggregator:start {SETTINGS}")
    assert result["passed"] is True
    assert 0.3 < result["noise_multiplier_most"] < 0.4


def test_a_failed_test_sets_exit_status_1():
    """The module is imported anew: a constant seed gives the same noise."""
    text = fedmf(f"audit aggregator my_aggregator:aggregate {SETTINGS}", status=1).stdout
    assert "FAILED  start" in text


def test_bad_arguments_are_refused():
    refused(f"audit aggregator my_aggregator {SETTINGS}", "my_aggregator", "module:function")
    refused(f"audit aggregator my_aggregator:start {SETTINGS} --epsilon 8", "--epsilon 8")
