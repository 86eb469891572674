"""A run that is interrupted anywhere never has the same noise under two sums."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from fedmf.runs.folder import RunFolder
from fedmf.runs.round_metrics import RoundMetric
from fedmf.runs.rounds import CommittedRound
from fedmf.server.host_noise import noise_state_of
from fedmf.server.journal import Journal
from fedmf.training.execution.base import RunOptions
from fedmf.training.execution.choice import build_execution
from fedmf.training.under_way import Training
from tests.federated.small_runs import assert_same_run, broken_off, config, train
from tests.federated.small_task import small_task

pytestmark = pytest.mark.usefixtures("clients_in_turn")
# A kill before or after each call leaves another folder.
POINTS = (
    (RunFolder, "commit"),
    (Journal, "_write"),
    (Journal, "_end_commit"),
    (Training, "add_metrics_row"),
    (RunFolder, "add_metrics_row"),
)


def newest_release(path):
    """Returns the arrays of the newest committed round."""
    folder = RunFolder.open(path)
    with folder.locked():
        folder.read_rounds()
        return CommittedRound.of(folder.committed).release


@pytest.mark.parametrize("execution", ["fast", pytest.param("tff", marks=pytest.mark.slow)])
def test_a_run_killed_at_any_point_of_a_round_resumes_identically(tmp_path, monkeypatch, execution):
    copies = {}

    def copied_around(method):
        def wrapped(self, *args, **options):
            copy(f"before {method.__name__}")
            result = method(self, *args, **options)
            copy(f"behind {method.__name__}")
            return result

        return wrapped

    def copy(point):
        """Copies the folder as a kill in round 2 would leave it."""
        committed_rounds = RunFolder(tmp_path / "run").committed_rounds()
        if committed_rounds in (2, 3) and (point, committed_rounds) not in copies:
            copies[point, committed_rounds] = tmp_path / f"{point} {committed_rounds}"
            shutil.copytree(tmp_path / "run", copies[point, committed_rounds])

    settings = config(execution)
    with monkeypatch.context() as patch:
        for owner, name in POINTS:
            patch.setattr(owner, name, copied_around(getattr(owner, name)))
        whole_run = train(tmp_path / "run", settings)
    points = sorted(copies)[:: 1 if execution == "fast" else 5]
    assert len(sorted(copies)) >= 10
    for point in points:
        assert_same_run(whole_run, train(copies[point], settings, resume=True))


class Broken(RoundMetric):
    """A metric that cannot be computed in round 2."""

    name = "largest"

    def compute(self, finished):
        if finished.round == 2:
            raise RuntimeError("broken metric")
        return float(max(np.abs(weight).max() for weight in finished.weights_after))


class Mended(Broken):
    def compute(self, finished):
        return 0.0 if finished.round == 2 else super().compute(finished)


def test_a_metric_that_fails_and_is_fixed_does_not_change_the_release(whole_run, tmp_path):
    with pytest.raises(RuntimeError, match="broken metric"):
        train(tmp_path / "run", round_metrics=[Broken()])
    release = newest_release(tmp_path / "run")
    with pytest.raises(RuntimeError, match="broken metric"):
        train(tmp_path / "run", resume=True, round_metrics=[Broken()])
    seen = []
    run = train(tmp_path / "run", resume=True, round_metrics=[Mended()], on_round=seen.append)
    assert seen == [3, 4, 5]  # Round 2 is in `training.recorded`.
    assert [row["round"] for row in run.metrics] == list(range(6))
    assert [row["largest"] for row in run.metrics].count(0.0) == 1
    np.testing.assert_equal(run.weights, whole_run.weights)
    assert len(release) == len(newest_release(tmp_path / "run"))


def test_another_program_computes_later_rounds_and_repeats_none(tmp_path):
    """A committed round stays, whatever the resumed program would compute."""
    other_task = small_task(
        batch_size=4, build_model=lambda seed: small_task().build_model(seed + 1)
    )
    folder = broken_off(tmp_path / "run", 3)
    release = newest_release(folder)
    train(folder, task=other_task, resume=True, accept_changed_task=True, stop_after=3)
    for old_array, new_array in zip(release, newest_release(folder), strict=True):
        np.testing.assert_array_equal(old_array, new_array)
    run = train(folder, task=other_task, resume=True, accept_changed_task=True)
    assert run.plan["programs"] == [0, 3]


@pytest.mark.slow
def test_the_journal_of_a_run_in_tff_contains_neither_key_nor_noise(tmp_path):
    settings = config("tff")
    run = train(tmp_path / "run", settings, stop_after=3)
    options = RunOptions(progress=False)
    secrets = []
    with build_execution(run.task, settings.plan(), settings, 9, options=options) as execution:
        for t in range(3):
            secrets.append(execution.noise.row(t)[:8].tobytes())
        state = execution.noise.hand_in(execution.init())
    secrets.append(np.asarray(noise_state_of(state).key).tobytes())
    # Negative control: a state with all its leaves has the key.
    whole_state = tmp_path / "whole.npz"
    np.savez(whole_state, *map(np.asarray, tf.nest.flatten(state)))
    assert any(secret in whole_state.read_bytes() for secret in secrets)
    for path in [*(run.path / "private" / "journal").iterdir(), run.path / "private/rounds.jsonl"]:
        assert not any(secret in path.read_bytes() for secret in secrets)
