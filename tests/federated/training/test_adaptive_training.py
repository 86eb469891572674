"""Runs whose updates are scaled for an adaptive server optimizer, or clipped to a norm that follows
a quantile, or both.
"""

import itertools

import numpy as np
import pytest

from fedmf import federated
from fedmf.runs.audit import audit_run, audit_run_canaries
from tests.federated.run_small import config
from tests.federated.small_task import small_task

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("clients_in_turn")]

ADAM = {
    "server_optimizer": "scaled-adam",
    "server_epsilon": 0.01,
    "server_learning_rate": 0.1,
    "scale_every": 2,
}
QUANTILE = {"clip_quantile": 0.5, "clip_every": 2, "clip_norm": 0.2}
WAYS = {"scaled": ADAM, "quantile": QUANTILE, "both": ADAM | QUANTILE}


def train(folder, settings, **options):
    return federated.train(small_task(), settings, folder=folder, progress=False, **options)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adaptive")
    return {name: train(folder / name, config(**way), noise_seed=4) for name, way in WAYS.items()}


def test_what_adapts_is_a_metric_of_each_round(runs):
    drifts, norms = runs["both"].table()["scale_drift"], runs["both"].table()["clip_norm"]
    assert [drift > 0 for drift in drifts] == [False, False, True, False, True, False]
    assert norms[0] == norms[1] == pytest.approx(0.2)
    assert [a != b for a, b in itertools.pairwise(norms)] == [False, True, False, True, False]
    assert "clip_norm" not in runs["scaled"].table()
    assert "scale_drift" not in runs["quantile"].table()


@pytest.mark.parametrize(
    "way",
    [pytest.param({"server_optimizer": "adam"}, marks=pytest.mark.slow), WAYS["both"]],
    ids=["plain adam", "both"],
)
def test_a_stopped_run_resumes_bit_for_bit(way, runs, tmp_path):
    settings = config(**way)
    whole = (
        runs["both"] if way is WAYS["both"] else train(tmp_path / "whole", settings, noise_seed=4)
    )
    train(tmp_path / "parts", settings, noise_seed=4, stop_after=3)
    parts = train(tmp_path / "parts", settings, resume=True)
    assert parts.metrics == whole.metrics
    for a, b in zip(parts.weights, whole.weights, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_statement_names_what_adapts_and_guarantees_the_same(runs, tmp_path):
    plain = train(tmp_path / "plain", config(), noise_seed=4)
    for name in ("statement.md", "final_statement.md"):
        texts = {way: " ".join((run.path / name).read_text().split()) for way, run in runs.items()}
        other = " ".join((plain.path / name).read_text().split())
        for words, ways in {
            "optimizer scaled-adam": ("scaled", "both"),
            "0.5 quantile": ("quantile", "both"),
        }.items():
            assert [way for way, text in texts.items() if words in text] == list(ways)
            assert words not in other
    for run in runs.values():
        assert run.plan["epsilon"] == plain.plan["epsilon"]
        assert audit_run(run.path).epsilon == pytest.approx(audit_run(plain.path).epsilon)
    assert runs["scaled"].plan["stddev"] == plain.plan["stddev"]


@pytest.mark.slow
def test_stock_tff_trains_the_same_model(runs, tmp_path):
    run, stock = runs["both"], train(tmp_path / "tff", config("tff", **WAYS["both"]), noise_seed=4)
    initial = [v.numpy() for v in small_task().build_model(3).trainable_variables]
    for a, b, start in zip(run.weights, stock.weights, initial, strict=True):
        assert np.abs(a - start).max() > 0.02
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    for name in ("scale_drift", "clip_norm", "noise_stddev"):
        np.testing.assert_allclose(run.table()[name], stock.table()[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("way", list(WAYS))
def test_canaries_are_released_along_their_directions(way, tmp_path):
    """Without noise the released sum along a canary that is in is its clip norm, and what others
    have along it.
    """
    settings = config(canaries=3, family="none", epsilon=None, noise_multiplier=None, **WAYS[way])
    made = train(tmp_path / "run", settings, noise_seed=1)
    with np.load(made.path / "private" / "canaries.npz") as arrays:
        included, releases = arrays["included"], arrays["releases"]
    assert included.any()
    assert np.all(releases[:, included].max(axis=0) > 0.7 * settings.clip_norm)
    assert audit_run_canaries(made.path).bounds


def test_what_sets_the_scales_belongs_to_optimizers_that_have_them():
    with pytest.raises(
        ValueError, match="scale_every=2 belongs to a scaled server_optimizer, not to adam"
    ):
        config(server_optimizer="adam", scale_every=2)


def test_a_plan_of_another_clipping_is_refused(tmp_path):
    with pytest.raises(
        ValueError,
        match=r"plan has quantile_clipping=QuantileClipping\(.* but the config asks for None",
    ):
        train(tmp_path / "run", config(), plan=config(**QUANTILE).plan(), noise_seed=1)
    plan = config(**QUANTILE).plan()
    for name, other in {"clip_share": 0.1, "clip_every": 3, "clip_learning_rate": 0.5}.items():
        with pytest.raises(
            ValueError,
            match=r"plan has quantile_clipping=.* but the config asks for QuantileClipping",
        ):
            train(tmp_path / "run", config(**QUANTILE | {name: other}), plan=plan, noise_seed=1)
