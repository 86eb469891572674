"""Runs whose updates are clipped in a space scaled for an adaptive server optimizer."""

import numpy as np
import pytest

from fedmf import federated
from fedmf.runs.audit import audit_run_canaries
from tests.federated.run_small import config
from tests.federated.small_task import small_task

pytestmark = pytest.mark.tensorflow

SCALED = {"server_optimizer": "scaled-adam", "server_epsilon": 0.01, "server_learning_rate": 0.1}


def train(folder, settings, **options):
    return federated.train(small_task(), settings, folder=folder, progress=False, **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("scaled") / "run", config(scale_every=2, **SCALED), noise_seed=4)


def test_the_drift_of_the_scales_is_a_metric_of_each_round(run):
    drifts = run.table()["scale_drift"]
    assert drifts[:2] == [0, 0]
    assert [drift > 0 for drift in drifts] == [False, False, True, False, True, False]


def test_a_stopped_run_resumes_bit_for_bit(run, tmp_path):
    settings = config(scale_every=2, **SCALED)
    train(tmp_path / "parts", settings, noise_seed=4, stop_after=3)
    parts = train(tmp_path / "parts", settings, resume=True)
    assert parts.metrics == run.metrics
    for a, b in zip(parts.weights, run.weights, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_statement_names_the_option_and_guarantees_the_same(run, tmp_path):
    plain = train(tmp_path / "plain", config(), noise_seed=4)
    for name in ("statement.md", "final_statement.md"):
        scaled, other = (" ".join((of.path / name).read_text().split()) for of in (run, plain))
        assert "server optimizer scaled-adam" in scaled
        assert "scaled-" not in other
    assert run.plan["epsilon"] == plain.plan["epsilon"]
    assert run.plan["stddev"] == plain.plan["stddev"]


def test_stock_tff_trains_the_same_model(run, tmp_path):
    stock = train(tmp_path / "tff", config("tff", scale_every=2, **SCALED), noise_seed=4)
    initial = [v.numpy() for v in small_task().build_model(3).trainable_variables]
    for a, b, start in zip(run.weights, stock.weights, initial, strict=True):
        assert np.abs(a - start).max() > 0.02
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(run.table()["scale_drift"], stock.table()["scale_drift"], rtol=1e-3, atol=1e-5)


def test_canaries_are_released_along_their_directions(tmp_path):
    """The released sum along an included canary is the clip norm and noise, as without scales."""
    settings = config(canaries=3, family="none", epsilon=None, noise_multiplier=None, **SCALED)
    made = train(tmp_path / "run", settings, noise_seed=1)
    with np.load(made.path / "private" / "canaries.npz") as arrays:
        included, releases = arrays["included"], arrays["releases"]
    assert included.any()
    largest = releases[:, included].max(axis=0)
    assert np.all(largest > 0.7)
    assert audit_run_canaries(made.path).bounds


def test_the_period_of_the_scales_belongs_to_scaled_optimizers():
    with pytest.raises(ValueError, match="scale_every=2 belongs to a scaled server optimizer, not to adam"):
        config(server_optimizer="adam", scale_every=2)
