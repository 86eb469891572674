"""Runs with scaled updates, for an adaptive server optimizer, and with an adaptive clip norm."""

import itertools

import numpy as np
import pytest

from tests.federated.small_runs import assert_same_model, config, small_task, start_of, train

ADAM = {
    "server_optimizer": "scaled-adam",
    "server_epsilon": 0.01,
    "server_learning_rate": 0.1,
    "scale_every": 2,
}
QUANTILE = {"clip_quantile": 0.5, "clip_every": 2, "clip_norm": 0.2}
BOTH = ADAM | QUANTILE


@pytest.fixture(scope="module")
def adaptive_run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("adaptive") / "run", config(**BOTH))


def test_adaptive_clip_norms_are_metrics_of_each_round_and_stated(adaptive_run):
    drifts = adaptive_run.table()["scale_drift"]
    norms = adaptive_run.table()["clip_norm"]
    assert [drift > 0 for drift in drifts] == [False, False, True, False, True, False]
    assert norms[0] == norms[1] == pytest.approx(0.2)
    assert [norm != next_norm for norm, next_norm in itertools.pairwise(norms)] == [
        False,
        True,
        False,
        True,
        False,
    ]
    for name in ("statement.md", "final_statement.md"):
        text = " ".join((adaptive_run.path / name).read_text().split())
        assert "optimizer scaled-adam" in text
        assert "0.5 quantile" in text


@pytest.mark.slow
def test_stock_tff_trains_the_same_model(adaptive_run, tmp_path):
    stock = train(tmp_path / "tff", config("tff", **BOTH))
    assert_same_model([adaptive_run, stock], start_of(small_task()))
    for name in ("scale_drift", "clip_norm", "noise_stddev"):
        np.testing.assert_allclose(
            adaptive_run.table()[name], stock.table()[name], rtol=1e-3, atol=1e-5
        )
