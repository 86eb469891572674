"""The loop: reproducible, resumable, and careful with what is on disk."""

import dataclasses
import json
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

import fedmf
from fedmf import federated
from fedmf.runs.folder import RunFolder
from tests.federated.small_runs import assert_same_run, broken_off, config, small_task, train
from tests.refusals import refusal

ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture(scope="module")
def three_rounds(tmp_path_factory):
    return broken_off(tmp_path_factory.mktemp("broken") / "run", 3)


@pytest.fixture
def parts(three_rounds, tmp_path):
    """A folder of one's own, of a run that broke off after three of six rounds."""
    return shutil.copytree(three_rounds, tmp_path / "parts")


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["fast", "tff"])
def test_six_rounds_equal_three_kill_9_and_three_more(whole, tmp_path, execution):
    """The rounds before kill -9 in another process than those after it."""
    whole = whole if execution == "fast" else train(tmp_path / "whole", config(execution))
    small = [tmp_path / "parts", execution, "3"]
    command = [sys.executable, "-m", "tests.federated.run_small", *small]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    parts = fedmf.Run.load(tmp_path / "parts")
    assert parts.result is None
    assert len(parts.metrics) == 3
    assert_same_run(whole, train(tmp_path / "parts", config(execution), resume=True))


def test_the_run_folder_says_what_was_run_and_keeps_the_seed_private(tmp_path):
    def validation_alone(split):
        assert split == "validation"
        return small_task().evaluation_examples(split)

    # As runs of a search: the test split is not read.
    task, settings = small_task(evaluation_examples=validation_alone), config(claimed_cohort=40)
    run = train(tmp_path / "run", settings, task, noise_seed=918273645, test=False)
    assert run.config == settings
    assert run.result["test"] == {}
    assert run.result["validation"]
    assert run.result["achieved"] is None  # the run that this one stands for was not observed
    assert run.result["participation"]["min_separation"] >= 2
    seed = run.path / "private" / "noise_seed"
    assert seed.read_text() == "918273645\n"
    assert seed.stat().st_mode & 0o077 == 0
    for path in run.path.rglob("*"):
        if path.is_file() and path.parent.name not in ("private", "checkpoints"):
            assert b"918273645" not in path.read_bytes(), path


def test_ctrl_c_saves_the_last_complete_round(whole, tmp_path):
    settings = config(checkpoint_every=100)
    broken_off(tmp_path / "parts", 3, settings, error=KeyboardInterrupt)
    assert RunFolder(tmp_path / "parts").saved_rounds() == 3
    assert_same_run(whole, train(tmp_path / "parts", settings, resume=True))


def test_a_crash_loses_only_the_rounds_since_the_last_checkpoint(whole, tmp_path):
    settings = config(checkpoint_every=2)
    parts = broken_off(tmp_path / "parts", 5, settings)
    with open(parts / "metrics.jsonl", "a") as rows:
        rows.write('{"round": 5, "cli')  # a row half written
    none = shutil.copytree(parts, tmp_path / "none")
    shutil.rmtree(none / "checkpoints")
    for folder, kept in ((parts, 4), (none, 0)):
        executed = []
        assert_same_run(whole, train(folder, settings, resume=True, on_round=executed.append))
        assert executed == [*range(kept, 6)]


def snapshot(folder):
    return {p: p.read_bytes() for p in pathlib.Path(folder).rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("settings", "resume", "said"),
    [
        ({"server_learning_rate": 0.1}, True, "server_learning_rate=0.1 .*0.5"),
        ({}, False, "already holds a run"),
    ],
)
def test_another_run_is_refused_and_touches_nothing(parts, settings, resume, said):
    """test_identity.py has all that makes it another."""
    before = snapshot(parts)
    with refusal(said):
        train(parts, config(**settings), resume=resume)
    assert snapshot(parts) == before


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        (config(cohort_size=7), {}, "cohort_size=7"),
        (config(), {"plan": config(min_sep=3).plan()}, "plan has min_sep=3"),
        (config(), {"plan": "x"}, "plan='x'"),
        (config(), {"noise_memory": 0}, "noise_memory=0"),
        (
            config(),
            {"plan": dataclasses.replace(config().plan(), longer=config().plan())},
            "is not the plan of a whole run",
        ),
        (config(), {"resume": True}, "holds no run to resume"),
        (config(stop_at_epsilon=1e-3), {}, "is passed in round 0"),
    ],
)
def test_nothing_is_made_for_a_run_that_cannot_start(tmp_path, settings, options, said):
    with refusal(said, (TypeError, ValueError)):
        train(tmp_path / "run", settings, **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_with_a_plan_of_its_own_goes_on_without_it_and_says_what_it_was(whole, tmp_path):
    plan = dataclasses.replace(config().plan(), noise_multiplier=0.7)
    resumed = train(broken_off(tmp_path / "parts", 3, plan=plan), resume=True)
    assert resumed.plan["noise_multiplier"] == 0.7
    stddevs = [row["noise_stddev"] for row in resumed.metrics]
    assert stddevs == pytest.approx([plan.stddev] * 6, rel=1e-6)
    first, second = (
        json.loads((run.path / "final_statement.json").read_text())["commands"][0]
        for run in (resumed, whole)
    )
    assert first.startswith("fedmf calibrate RUN/mechanism.npz --rounds 6 ")
    assert "--noise-multiplier 0.7" in first
    assert second.startswith("fedmf train --config config.json")
    assert second.endswith("--task MODULE:FUNCTION")  # it was trained in Python


def test_two_do_not_train_in_one_folder(parts):
    before = snapshot(parts)
    with RunFolder(parts).locked():
        for resume in (True, False):
            with refusal("another process trains in"):
                train(parts, resume=resume)
    assert snapshot(parts) == before


DIVERGING = config(
    rounds=40, client_learning_rate=50.0, zeroing_norm=None, clip_norm=100.0, evaluate_every=40
)


def test_a_run_that_diverges_says_so_once_also_after_a_resume(tmp_path):
    """The watch's own rules are tested by themselves; here a rate of 50 drives the loss up, and the
    resumed rounds know of the first. Of the noise, which allows the server's rate hardly, a new run
    warns alone.
    """
    with pytest.warns(UserWarning, match=r"server_learning_rate=0.5 is \d+ times the"):
        broken_off(tmp_path, 15, DIVERGING)
    with pytest.warns(UserWarning, match="diverges|training loss of round") as caught:
        train(tmp_path, DIVERGING, resume=True)
    said = [str(warning.message) for warning in caught]
    assert sum("`server_learning_rate` than 0.5" in words for words in said) == 1
    assert not any(" times the " in words for words in said)


@pytest.mark.slow
def test_a_run_that_diverges_stops_if_it_is_told_to(tmp_path):
    """Saved, without a result, and at every resume again, until that is without the option."""
    stop = {"callbacks": [federated.StopOnDivergence()]}
    with pytest.raises(federated.DivergedRun, match="`server_learning_rate` than 0.5") as said:
        train(tmp_path, DIVERGING, **stop)
    rounds = len(fedmf.Run.load(tmp_path).metrics)
    assert 0 < rounds < 40
    assert f"{rounds} of 40 rounds are saved in {tmp_path}" in str(said.value)
    assert RunFolder(tmp_path).saved_rounds() == rounds
    # The data decided on the end: what holds is the guarantee of all rounds.
    audit = fedmf.audit_run(tmp_path)
    assert audit.epsilon == DIVERGING.plan().epsilon
    assert "what the run showed decided that it stopped before them" in audit.unrecorded
    with pytest.raises(federated.DivergedRun, match=f"; {rounds} of 40 rounds are saved"):
        train(tmp_path, DIVERGING, resume=True, **stop)
    assert len(train(tmp_path, DIVERGING, resume=True).metrics) == 40
