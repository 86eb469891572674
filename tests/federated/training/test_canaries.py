"""Canaries of a run: their schema, their clipping, their resume, and the audit by them."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

import fedmf
from fedmf.runs.audit import audit_run, audit_run_canaries
from fedmf.server.clipping import UpdateSum
from fedmf.training.run_setup import run_controller
from tests.cli.program import fedmf as program
from tests.cli.program import printed_by
from tests.federated import run_small, small_runs
from tests.federated.small_task import task_of_arrays
from tests.federated.training.test_adaptive_training import BOTH
from tests.privacy.test_printed_commands import printed_commands
from tests.refusals import refusal

CLIENTS = 20
CANARIES = 60
FEATURES = 3000


def wide_task():
    """Returns a task of logistic regression on clients of one example each."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((CLIENTS, FEATURES)).astype(np.float32)
    y = rng.integers(0, 2, CLIENTS)

    def model():
        return tf.keras.Sequential(
            [tf.keras.layers.Dense(2, input_shape=(FEATURES,), kernel_initializer="zeros")]
        )

    return task_of_arrays(x, y, model, batch_size=1)


def config(**changes):
    values = {
        "rounds": 8, "cohort_size": 20, "min_sep": 4, "family": "banded", "epsilon": 8.0,
        "clip_norm": 0.5, "seed": 3,
        "client_learning_rate": 0.1, "evaluate_every": 8,
        "canaries": CANARIES,
    }  # fmt: skip
    return fedmf.TrainConfig(**(values | changes))


def train(folder, settings=None, **options):
    return small_runs.train(folder, settings or config(), wide_task(), **options)


def evidence(run):
    with np.load(run.path / "private" / "canaries.npz") as arrays:
        return dict(arrays)


def took_part(run):
    rounds = np.zeros((run.config.rounds, CLIENTS + run.config.canaries), bool)
    table = np.loadtxt(run.path / "participation.csv", delimiter=",", skiprows=1, dtype=int)
    rounds[tuple(table.T)] = True
    return rounds[:, CLIENTS:]


@pytest.fixture(scope="module")
def canary_run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("canaries") / "run")


@pytest.mark.slow
def test_a_crashed_run_resumes_with_identical_canaries(canary_run, tmp_path):
    resumed_run = small_runs.broken_off(tmp_path / "parts", 5, config(), wide_task())
    resumed_run = train(resumed_run, resume=True)
    assert evidence(canary_run)["releases"].shape == (8, CANARIES)
    np.testing.assert_equal(evidence(resumed_run), evidence(canary_run))
    np.testing.assert_equal(resumed_run.weights, canary_run.weights)


def test_every_command_of_the_final_statement_runs(canary_run, monkeypatch):
    monkeypatch.chdir(canary_run.path.parent)
    commands = printed_commands((canary_run.path / "final_statement.md").read_text())
    assert commands[-1] == "fedmf audit canaries run"
    for command in commands:
        program(command)


def test_canaries_are_clients_under_the_schema(canary_run):
    rounds = took_part(canary_run)
    assert rounds.sum(axis=0).max() == 2
    assert all(np.diff(np.flatnonzero(column)).min(initial=4) >= 4 for column in rounds.T)
    assert [row["clients"] for row in canary_run.metrics] == [20] * 8
    # Canaries take the places of clients.
    assert {row["examples"] for row in canary_run.metrics} < set(range(20))
    audit = audit_run(canary_run)
    assert not audit.contradictions
    assert audit.observed.clients == CLIENTS + CANARIES
    for name in ("statement.md", "final_statement.md"):
        assert f"**Canaries.** {CANARIES} synthetic clients" in (canary_run.path / name).read_text()
    assert (canary_run.path / "private" / "canaries.npz").stat().st_mode & 0o77 == 0


@pytest.mark.parametrize(
    "adaptive",
    [pytest.param({}, id="fixed"), pytest.param(BOTH, id="adaptive", marks=pytest.mark.slow)],
)
def test_releases_contain_the_clipped_updates_of_participating_canaries(tmp_path, adaptive):
    """Without noise and with clients that hardly move, a release along a canary's direction is the
    clip norm or 0, except for other canaries.

    False positives: 480 entries beyond 6 standard deviations, 1e-6.
    """
    still = {"family": "none", "epsilon": None, "client_learning_rate": 1e-9}
    run = train(tmp_path / "run", config(**adaptive | still))
    canary_evidence = evidence(run)
    rounds = took_part(run)
    expected = run.config.clip_norm * rounds * canary_evidence["included"]
    assert 15 < canary_evidence["included"].sum() < 45
    # Products of two directions have variance 1 / 6002; up to 20 canaries meet.
    meeting = run.config.clip_norm * np.sqrt(20 / 6002)
    assert np.abs(canary_evidence["releases"] - expected).max() < 6 * meeting
    result = audit_run_canaries(run)
    assert result.took_part == CANARIES
    assert not result.exceeded  # The plan claims nothing.
    assert all(bound.epsilon_lower > 1 for bound in result.bounds)


def test_the_audit_command_reports_the_canaries(canary_run):
    report = printed_by(f"audit canaries {canary_run.path}")
    assert report["consistent"]
    assert (report["canaries"], report["took_part"]) == (CANARIES, CANARIES)
    assert {bound["epsilon_claimed"] for bound in report["bounds"]} == {canary_run.plan["epsilon"]}
    assert max(bound["epsilon_lower"] for bound in report["bounds"]) > 0.5
    assert "ABOVE" not in program(f"audit canaries {canary_run.path} --confidence 0.5").stdout


def test_updates_that_are_not_clipped_break_the_claim(tmp_path, monkeypatch):
    def unclipped(self, leaves, **norms):
        self.add_clipped(leaves, 1, 0, 0)

    monkeypatch.setattr(UpdateSum, "add", unclipped)
    broken_run = train(tmp_path / "broken", config(client_learning_rate=1e-9))
    printed_text = program(f"audit canaries {broken_run.path}", status=1).stdout
    assert "ABOVE THE CLAIM" in printed_text


def test_runs_without_canaries_evidence_are_refused(canary_run, tmp_path):
    train(tmp_path / "none", config(canaries=0, cohort_size=5), stop_after=1)
    for name in ("half", "damaged", "published"):
        shutil.copytree(canary_run.path, tmp_path / name)
    (tmp_path / "half" / "result.json").unlink()
    secret = tmp_path / "damaged" / "private" / "canaries.npz"
    secret.write_bytes(secret.read_bytes()[:100])
    (tmp_path / "published" / "private" / "canaries.npz").unlink()
    messages = {"half": "not finished", "none": "was trained without canaries"}
    for name, match in (messages | {"damaged": "damaged", "published": "published"}).items():
        with refusal(match):
            audit_run_canaries(tmp_path / name)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"canaries": 7}, "canaries=7 .* 63 parameters: use at most 6"),
        ({"canaries": 6, "zeroing_norm": 1.0}, r"entries of 1\.26, and zeroing_norm=1\.0"),
    ],
)
def test_too_many_canaries_and_zeroed_ones_are_refused(tmp_path, changes, match):
    with refusal(match):
        small_runs.train(tmp_path / "run", run_small.config(**changes))


def test_canaries_count_in_the_population():
    sampled_config = config(
        cohort_size=5, sampling="poisson", population=CLIENTS, bands=2, min_sep=None
    )
    with refusal("set population to 80"):
        run_controller(CLIENTS, sampled_config, sampled_config.plan())
