"""The noise of a run: any strategy, a change of it at a resume, and its metrics."""

import numpy as np
import pytest

from fedmf.noise.host_strategies import HOST_STRATEGIES
from tests.federated.small_runs import assert_close, broken_off, config, train
from tests.refusals import refusal

# float32, six rounds
SETTINGS = config(min_sep=3)
ROUNDING = {"rtol": 0, "atol": 2e-6}


@pytest.fixture(scope="module")
def whole_weights(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole") / "run", SETTINGS).weights


@pytest.mark.slow
def test_a_resume_may_change_the_strategy(tmp_path, whole_weights):
    strategy, other_strategy = HOST_STRATEGIES
    broken_off(tmp_path, 3, SETTINGS, noise_strategy=strategy)
    broken_off(tmp_path, 5, SETTINGS, resume=True, noise_strategy=other_strategy)
    run = train(tmp_path, SETTINGS, resume=True, noise_strategy=strategy)
    assert_close(run.weights, whole_weights, **ROUNDING)


@pytest.mark.slow
def test_noise_on_disk_is_announced_and_removed(tmp_path, capsys, whole_weights):
    # Negative control: another seed changes weights by more than rounding.
    quiet = train(tmp_path / "quiet", SETTINGS, progress=True, noise_seed=10)
    assert all(
        np.abs(weight - whole_weight).max() > 1e-3
        for weight, whole_weight in zip(quiet.weights, whole_weights, strict=True)
    )
    printed_text = capsys.readouterr().err
    assert "noise:" not in printed_text
    assert all(text in printed_text for text in ("6/6", "clients/s=", "loss="))
    # Two threads have 1 + 2 + 1 rows to work on, and 2 or more rows wait: one row is too little.
    options = {
        "noise_strategy": "recurrent",
        "noise_memory": 4 * 9 * sum(map(np.size, whole_weights)),
    }
    run = train(tmp_path / "run", SETTINGS, progress=True, **options)
    assert "in a private memory map" in capsys.readouterr().err
    file_names = {path.name for path in (run.path / "private").iterdir()}
    assert file_names == {"noise_seed", "identity.json", "rounds.jsonl", "journal"}
    assert_close(run.weights, whole_weights, **ROUNDING)


def test_impossible_strategies_are_refused_before_any_file_is_written(tmp_path):
    with refusal("noise_strategy='recurrent' cannot make this noise"):
        train(tmp_path / "run", SETTINGS, noise_strategy="recurrent", noise_memory=1000)
    assert not (tmp_path / "run").exists()
