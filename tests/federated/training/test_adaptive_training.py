"""Runs whose updates are scaled for an adaptive server optimizer, or clipped to a norm that follows
a quantile, or both.
"""

import itertools

import numpy as np
import pytest

from tests.federated.run_small import config
from tests.federated.small_runs import assert_same_model, assert_same_run, start_of, train
from tests.federated.small_task import small_task

pytestmark = pytest.mark.usefixtures("clients_in_turn")

ADAM = {
    "server_optimizer": "scaled-adam",
    "server_epsilon": 0.01,
    "server_learning_rate": 0.1,
    "scale_every": 2,
}
QUANTILE = {"clip_quantile": 0.5, "clip_every": 2, "clip_norm": 0.2}
WAYS = {"scaled": ADAM, "quantile": QUANTILE, "both": ADAM | QUANTILE}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adaptive")
    return {name: train(folder / name, config(**way)) for name, way in WAYS.items()}


def test_what_adapts_is_a_metric_of_each_round(runs):
    drifts, norms = runs["both"].table()["scale_drift"], runs["both"].table()["clip_norm"]
    assert [drift > 0 for drift in drifts] == [False, False, True, False, True, False]
    assert norms[0] == norms[1] == pytest.approx(0.2)
    assert [a != b for a, b in itertools.pairwise(norms)] == [False, True, False, True, False]
    assert "clip_norm" not in runs["scaled"].table()
    assert "scale_drift" not in runs["quantile"].table()


def test_a_stopped_run_resumes_bit_for_bit(runs, tmp_path):
    settings = config(**WAYS["both"])
    train(tmp_path / "parts", settings, stop_after=3)
    assert_same_run(train(tmp_path / "parts", settings, resume=True), runs["both"])


def test_the_statement_names_what_adapts(runs):
    for name in ("statement.md", "final_statement.md"):
        texts = {way: " ".join((run.path / name).read_text().split()) for way, run in runs.items()}
        for words, ways in {
            "optimizer scaled-adam": ["scaled", "both"],
            "0.5 quantile": ["quantile", "both"],
        }.items():
            assert [way for way, text in texts.items() if words in text] == ways


@pytest.mark.slow
def test_stock_tff_trains_the_same_model(runs, tmp_path):
    run, stock = runs["both"], train(tmp_path / "tff", config("tff", **WAYS["both"]))
    assert_same_model([run, stock], start_of(small_task()))
    for name in ("scale_drift", "clip_norm", "noise_stddev"):
        np.testing.assert_allclose(run.table()[name], stock.table()[name], rtol=1e-3, atol=1e-5)


def test_a_plan_of_another_clipping_is_refused(tmp_path):
    plan = config(**QUANTILE).plan()
    for other in ({}, *(QUANTILE | {name: 3} for name in ("clip_every", "clip_learning_rate"))):
        with pytest.raises(ValueError, match="plan has .*clip_"):
            train(tmp_path / "run", config(**other), plan=plan)
