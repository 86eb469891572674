"""The training loop: reproducible, resumable, and careful with files."""

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
import tensorflow as tf

import fedmf
from fedmf import federated
from fedmf.mechanisms import BandedMechanism
from fedmf.privacy.plan import Plan
from fedmf.privacy.statement import installed_versions
from fedmf.runs.folder import RunFolder
from fedmf.training import run_setup
from tests.federated.small_runs import assert_same_run, broken_off, config, small_task, train
from tests.refusals import refusal

ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*zeroed")
        return train(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="module")
def three_rounds(tmp_path_factory):
    return broken_off(tmp_path_factory.mktemp("broken") / "run", 3)


@pytest.fixture
def interrupted_folder(three_rounds, tmp_path):
    """Copies the folder of a run that was interrupted after three of six rounds."""
    return shutil.copytree(three_rounds, tmp_path / "parts")


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["fast", "tff"])
def test_a_run_killed_after_three_rounds_resumes_to_the_same_six_rounds(
    whole_run, tmp_path, execution
):
    """The rounds before kill -9 run in another process than those after it."""
    whole_run = whole_run if execution == "fast" else train(tmp_path / "whole", config(execution))
    arguments = [tmp_path / "parts", execution, "3"]
    command = [sys.executable, "-m", "tests.federated.run_small", *arguments]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    interrupted_run = fedmf.Run.load(tmp_path / "parts")
    assert interrupted_run.result is None
    assert len(interrupted_run.metrics) == 3
    assert_same_run(whole_run, train(tmp_path / "parts", config(execution), resume=True))

    workers = [
        pathlib.Path(f"/proc/{pid}/exe") for pid in killed.stdout.split("workers")[1].split()
    ]
    assert bool(workers) == (execution == "tff")
    deadline = time.monotonic() + 30
    while any(exe.exists() for exe in workers) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(exe.exists() for exe in workers), "a TFF worker outlived its parent"


def test_the_run_folder_records_the_run_and_hides_the_seed(tmp_path):
    def validation_only(split):
        assert split == "validation"
        return small_task().evaluation_examples(split)

    # Runs of a search do not read the test split.
    task = small_task(evaluation_examples=validation_only)
    settings = config(noise_multiplier=None, epsilon=8.0, claimed_cohort=40)
    run = train(tmp_path / "run", settings, task, noise_seed=918273645, test=False)
    assert run.config == settings
    assert run.result["test"] == {}
    assert run.result["validation"]
    assert run.plan["epsilon"] <= 8.0
    assert "4 clients a round simulate a cohort of 40" in run.statement
    assert "That run needs 80 clients, and the data here are of 12." in " ".join(
        run.statement.replace("\n> ", " ").split()
    )
    assert run.result["achieved"] is None  # The simulated run was not observed.
    assert run.result["participation"]["min_separation"] >= 2
    seed = run.path / "private" / "noise_seed"
    assert seed.read_text() == "918273645\n"
    assert seed.stat().st_mode & 0o077 == 0
    for path in run.path.rglob("*"):
        if path.is_file() and "private" not in path.parts:
            assert b"918273645" not in path.read_bytes(), path


@pytest.mark.slow
def test_noise_seeds_change_the_noise_and_seeds_the_cohorts(tmp_path):
    """test_noise_in_training.py has the control that noise seeds differ."""

    def participation(run):
        return (run.path / "participation.csv").read_bytes()

    first_run, second_run = (
        train(tmp_path / name, noise_seed="os", stop_after=1) for name in ("one", "other")
    )
    assert not np.array_equal(first_run.weights[0], second_run.weights[0])
    other_seed_run = train(tmp_path / "seed", config(seed=4), stop_after=1)
    assert participation(first_run) == participation(second_run) != participation(other_seed_run)


def test_ctrl_c_leaves_all_complete_rounds(whole_run, tmp_path):
    settings = config()
    broken_off(tmp_path / "parts", 3, settings, error=KeyboardInterrupt)
    assert RunFolder(tmp_path / "parts").committed_rounds() == 3
    assert_same_run(whole_run, train(tmp_path / "parts", settings, resume=True))


def test_a_crash_loses_no_round(whole_run, tmp_path):
    """Rows that a crash kept from the readable files are written from the journal."""
    interrupted_folder = broken_off(tmp_path / "parts", 5)
    for name in ("metrics.jsonl", "participation.csv", "timings.jsonl"):
        with open(interrupted_folder / name, "a") as rows:
            rows.write('{"round": 5, "cli')  # A row is half written.
    without_files = shutil.copytree(interrupted_folder, tmp_path / "none")
    for name in ("metrics.jsonl", "participation.csv", "timings.jsonl"):
        (without_files / name).unlink()
    for folder in (interrupted_folder, without_files):
        executed_rounds = []
        assert_same_run(whole_run, train(folder, resume=True, on_round=executed_rounds.append))
        assert executed_rounds == [5]


def test_a_resume_accepts_a_plan_that_differs_by_rounding(whole_run, tmp_path):
    """The run began where epsilon has another 16th digit, and resumes with a newly calibrated plan.

    The noise stays that of the run.
    """
    versions = {"python": "3.9.0", "scipy": "1.9.3"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_setup, "installed_versions", lambda: versions)
        patch.setattr(Plan, "epsilon", property(lambda plan: 7.9999994480834))
        broken_off(tmp_path, 3)
    rounded_plan = dataclasses.replace(config().plan(), noise_multiplier=0.3 * (1 + 1e-13))
    resumed_run = train(tmp_path, resume=True, plan=rounded_plan)
    assert_same_run(whole_run, resumed_run)
    assert resumed_run.plan["epsilon"] == 7.9999994480834
    assert resumed_run.plan["versions"] == versions


def test_a_plan_that_another_version_computes_differently_is_refused_with_both_versions(tmp_path):
    versions = installed_versions() | {"scipy": "0.9"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_setup, "installed_versions", lambda: versions)
        broken_off(tmp_path, 1)
    other_plan = dataclasses.replace(config().plan(), noise_multiplier=0.3001)
    with refusal("noise_multiplier=0.3001 .was 0.3. .it was begun with scipy 0.9 .here is"):
        train(tmp_path, resume=True, plan=other_plan)
    with refusal("another program: loss from_logits.* begun with scipy 0.9 .here is"):
        train(
            tmp_path,
            task=small_task(loss=tf.keras.losses.SparseCategoricalCrossentropy()),
            resume=True,
        )


def snapshot(folder):
    return {path: path.read_bytes() for path in pathlib.Path(folder).rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("settings", "task", "options", "match"),
    [
        ({"server_learning_rate": 0.1}, None, {}, "server_learning_rate=0.1 .*0.5"),
        ({}, None, {"plan": config(noise_multiplier=0.31).plan()}, "another plan"),
        ({}, small_task(client_ids=[f"client {i}" for i in range(14)]), {}, "on other data"),
        ({}, None, {"resume": False}, "already holds a run"),
    ],
    ids=["config", "plan", "data", "a new run"],
)
def test_another_run_in_the_folder_is_refused_and_changes_no_file(
    interrupted_folder, settings, task, options, match
):
    files_before = snapshot(interrupted_folder)
    with refusal(match):
        train(interrupted_folder, config(**settings), task, **{"resume": True} | options)
    assert snapshot(interrupted_folder) == files_before


def test_resume_refuses_a_damaged_or_foreign_journal(interrupted_folder, tmp_path):
    newest_file = interrupted_folder / "private" / "journal" / "000003.npz"
    content = newest_file.read_bytes()
    newest_file.write_bytes(content[: len(content) // 2])
    files_before = snapshot(interrupted_folder)
    with refusal("private/journal is missing or damaged"):
        train(interrupted_folder, resume=True)
    assert snapshot(interrupted_folder) == files_before

    other_folder = broken_off(tmp_path / "other", 3, noise_seed=10)
    (other_folder / "private" / "journal" / "000003.npz").write_bytes(content)
    with refusal("private/noise_seed changed since the run was begun"):
        train(other_folder, resume=True)


GROWS = BandedMechanism(diagonals=np.array([[1.0, 0.0]] + [[1.0, 2.0]] * 39))
CLAIMED = config(claimed_cohort=40, cohort_size=5)
LONG = config(rounds=40, min_sep=3)


@pytest.mark.parametrize(
    ("settings", "options", "match"),
    [
        (config(cohort_size=7), {}, "cohorts of 7"),
        (config(schema="single", min_sep=None), {}, "population"),
        (config(), {"noise_seed": None}, "noise_seed=None"),
        (config(), {"plan": config(min_sep=3).plan()}, "plan has min_sep=3"),
        (config(), {"plan": "x"}, "plan='x'"),
        (config(claimed_cohort=40), {"plan": CLAIMED.plan()}, "cohort_size=5 .*4"),
        (config(), {"noise_memory": 0}, "noise_memory=0"),
        (LONG, {"plan": dataclasses.replace(LONG.plan(), mechanism=GROWS)}, "float32"),
        (
            config(),
            {"plan": dataclasses.replace(config().plan(), longer=config().plan())},
            "is not the plan of a whole run",
        ),
        (config(), {"resume": True}, "holds no run to resume"),
        (config(stop_at_epsilon=1e-3), {}, "is exceeded in round 0"),
    ],
)
def test_a_run_that_cannot_start_makes_no_folder(tmp_path, settings, options, match):
    with refusal(match, (TypeError, ValueError)):
        train(tmp_path / "run", settings, **options)
    assert not (tmp_path / "run").exists()


def test_an_unwritable_folder_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with refusal("cannot write to folder"):
        train(tmp_path / "file" / "run")


@pytest.mark.slow
def test_a_run_with_its_own_plan_resumes_without_it(whole_run, tmp_path):
    plan = dataclasses.replace(config().plan(), noise_multiplier=0.7)
    resumed_run = train(broken_off(tmp_path / "parts", 3, plan=plan), resume=True)
    assert resumed_run.plan["noise_multiplier"] == 0.7
    stddevs = {row["noise_stddev"] for row in resumed_run.metrics}
    assert stddevs.isdisjoint(row["noise_stddev"] for row in whole_run.metrics)
    assert len(stddevs) == 1

    statement = json.loads((resumed_run.path / "final_statement.json").read_text())
    command = statement["commands"][1]
    assert command.startswith("fedmf calibrate parts/mechanism.npz --rounds 6 ")
    assert "--noise-multiplier 0.7" in command


def test_two_processes_do_not_train_in_one_folder(interrupted_folder):
    files_before = snapshot(interrupted_folder)
    program = (
        "import sys; from fedmf.runs.folder import RunFolder\n"
        "with RunFolder(sys.argv[1]).locked(): print('locked', flush=True), input()"
    )
    command = [sys.executable, "-c", program, str(interrupted_folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other_process:
        assert other_process.stdout.readline() == "locked\n"
        for resume in (True, False):
            with refusal("is in use by another run"):
                train(interrupted_folder, resume=resume)
        assert snapshot(interrupted_folder) == files_before
        other_process.kill()
    with RunFolder(interrupted_folder).locked():
        pass


def test_timings_are_in_a_file_of_their_own(whole_run):
    assert [row["round"] for row in whole_run.timings] == list(range(6))
    assert all("seconds" not in row for row in whole_run.metrics)
    assert json.loads((whole_run.path / "result.json").read_text())["seconds"] > 0
    assert os.listdir(whole_run.path / "private" / "journal") == ["000006.npz"]


DIVERGING = config(
    rounds=40, client_learning_rate=50.0, zeroing_norm=None, clip_norm=100.0, evaluate_every=40
)


def test_a_diverging_run_warns_once_also_after_a_resume(tmp_path):
    """A learning rate of 50 drives the loss up, and the resumed rounds know of the first warning.

    test_divergence.py has the rules.
    """
    broken_off(tmp_path, 15, DIVERGING)
    with pytest.warns(UserWarning, match="diverges|training loss of round") as caught_warnings:
        train(tmp_path, DIVERGING, resume=True)
    assert (
        sum(
            "`server_learning_rate` than 0.5" in str(warning.message) for warning in caught_warnings
        )
        == 1
    )


@pytest.mark.slow
def test_a_diverging_run_stops_with_stop_on_divergence(tmp_path):
    """The run is saved without a result, and stops at every resume with the callback."""
    with pytest.raises(federated.DivergedRun, match="`server_learning_rate` than 0.5") as stop:
        train(tmp_path, DIVERGING, callbacks=[federated.StopOnDivergence()])
    rounds = len(fedmf.Run.load(tmp_path).metrics)
    assert 0 < rounds < 40
    assert f"{rounds} of 40 rounds are saved in {tmp_path}" in str(stop.value)
    assert RunFolder(tmp_path).committed_rounds() == rounds
    # The data decided on the end, so that the guarantee of all rounds holds.
    audit = fedmf.audit_run(tmp_path)
    assert audit.epsilon == audit.planned.epsilon == DIVERGING.plan().epsilon
    assert f"rounds {rounds} to 39 are not in the record" in audit.unrecorded
    assert "the run was stopped before them because of its results" in audit.unrecorded
    with pytest.raises(federated.DivergedRun, match=f"; {rounds} of 40 rounds are saved"):
        train(tmp_path, DIVERGING, resume=True, callbacks=[federated.StopOnDivergence()])
    assert len(train(tmp_path, DIVERGING, resume=True).metrics) == 40


@pytest.mark.slow
def test_a_learning_rate_too_large_for_the_noise_warns_once(tmp_path):
    """A resume does not warn again. test_divergence.py has the case without noise."""
    settings = config(rounds=3, server_learning_rate=50.0, server_momentum=0.95)
    with pytest.warns(UserWarning, match=r"server_learning_rate=50 is \S+ times the 0\.\d+ that"):
        train(tmp_path, settings, stop_after=2)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*plan learning-rate")
        train(tmp_path, settings, resume=True)


@pytest.mark.slow
def test_a_run_without_noise_needs_no_noise_seed(tmp_path):
    silent_settings = [config(family="none", noise_multiplier=None), config(noise_multiplier=0.0)]
    for number, settings in enumerate(silent_settings):
        run = train(tmp_path / str(number), settings, noise_seed=None, stop_after=1)
        # The seed is drawn, because sampled cohorts follow from it.
        assert int((run.path / "private" / "noise_seed").read_text()) > 2**64
    noisy_plan = config().plan()
    for settings, plan in (
        (config(), None),
        (silent_settings[0], noisy_plan),
        (config(), noisy_plan),
    ):
        with refusal("noise_seed=None"):
            train(tmp_path / "noisy", settings, noise_seed=None, plan=plan)
    silent_plan = dataclasses.replace(noisy_plan, noise_multiplier=0.0)
    run = train(tmp_path / "given", noise_seed=None, plan=silent_plan, stop_after=1)
    assert run.plan["epsilon"] is None
