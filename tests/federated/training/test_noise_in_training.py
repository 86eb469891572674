"""The noise of a run: any strategy, also another one after a resume,
and what the metrics say of it.
"""

import itertools

import numpy as np
import pytest

import fedmf
from fedmf.noise.strategies import HOST_STRATEGIES
from tests.federated.run_small import config
from tests.federated.training.test_loop import Crash, crash_after, train, weights_of

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("clients_in_turn")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return weights_of(train(tmp_path_factory.mktemp("whole") / "run", config(min_sep=3)))


def assert_close(weights, expected):
    for a, b in zip(weights, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6)  # float32, six rounds


@pytest.mark.parametrize(("before", "after"), list(itertools.product(HOST_STRATEGIES, repeat=2)))
@pytest.mark.slow
def test_a_resume_may_change_the_strategy(tmp_path, whole, before, after):
    settings = config(min_sep=3)
    with pytest.raises(Crash):
        train(tmp_path / "run", settings, noise_strategy=before, on_round=crash_after(4))
    run = train(tmp_path / "run", settings, noise_seed=None, resume=True, noise_strategy=after)
    assert_close(weights_of(run), whole)


def test_the_strategies_can_be_told_apart_by_nothing_but_rounding(tmp_path, whole):
    """Negative control of the test above: another seed is no rounding."""
    other = weights_of(train(tmp_path / "other", config(min_sep=3), noise_seed=10))
    with pytest.raises(AssertionError):
        assert_close(other, whole)


def test_rows_on_disk_are_told_and_leave_nothing(tmp_path, capsys, whole):
    train(tmp_path / "quiet", config(min_sep=3), progress=True)
    assert "noise:" not in capsys.readouterr().err
    # One byte less than the arrays for blocks of one round: 2 * 3 rows to work on, 2 to keep.
    memory = 4 * 8 * sum(w.size for w in whole) - 1
    run = train(
        tmp_path / "run",
        config(min_sep=3),
        noise_strategy="recurrent",
        noise_memory=memory,
        progress=True,
    )
    assert (
        "rows carry what the future needs of the past, in a private memory map"
        in capsys.readouterr().err
    )
    assert {path.name for path in (tmp_path / "run" / "private").iterdir()} == {
        "noise_seed",
        "identity.json",
    }
    assert_close(weights_of(run), whole)


def test_impossible_strategies_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="noise_strategy='recurrent' cannot make this noise"):
        train(tmp_path / "run", config(min_sep=3), noise_strategy="recurrent", noise_memory=1000)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("execution", ["fast", "tff"])
def test_the_metrics_say_what_was_clipped_and_how_much_noise_there_was(tmp_path, execution):
    run = train(tmp_path / "run", config(execution, rounds=2, clip_norm=1e-3))
    expected = run.config.plan(fedmf.load_mechanism(run.path / "mechanism.npz")).stddev
    for row in run.metrics:
        assert row["clip_fraction"] > 0.5
        assert row["zeroed"] == 0
        assert row["noise_stddev"] == pytest.approx(expected, rel=1e-6)
    loose = train(
        tmp_path / "loose", config(execution, rounds=2, clip_norm=100.0, zeroing_norm=1e-9)
    )
    assert all(row["clip_fraction"] == 0 and row["zeroed"] > 0 for row in loose.metrics)
