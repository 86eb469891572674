"""The loop: reproducible, resumable, the same on both execution paths,
and careful with what is on disk.
"""

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

import fedmf
from fedmf import federated
from fedmf.federated.training import loop
from fedmf.mechanisms import BandedMechanism
from fedmf.runs.audit import audit_run
from fedmf.runs.folder import RunFolder
from tests.federated.run_small import config
from tests.federated.small_task import small_task

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("clients_in_turn")]
ROOT = pathlib.Path(__file__).parents[3]


def train(folder, settings=None, **arguments):
    arguments = {"noise_seed": 9, "progress": False} | arguments
    return federated.train(small_task(), settings or config(), folder=folder, **arguments)


def weights_of(run):
    with np.load(run.path / "model.npz") as arrays:
        return [arrays[name] for name in arrays.files]


def assert_same_run(one, other):
    assert (one.path / "metrics.jsonl").read_bytes() == (other.path / "metrics.jsonl").read_bytes()
    assert (one.path / "participation.csv").read_bytes() == (
        other.path / "participation.csv"
    ).read_bytes()
    for a, b in zip(weights_of(one), weights_of(other), strict=True):
        np.testing.assert_array_equal(a, b)
    # Seconds, also those of the fit in plan.json, are of each run.
    first, second = (
        {k: v for k, v in run.result.items() if k not in ("seconds", "sha256")}
        for run in (one, other)
    )
    assert first == second


def test_a_run_that_tunes_does_not_read_the_test_split(tmp_path):
    def validation_alone(split):
        assert split == "validation"
        return small_task().evaluation_examples(split)

    task = dataclasses.replace(small_task(), evaluation_examples=validation_alone)
    run = federated.train(
        task, config(), folder=tmp_path / "run", noise_seed=9, progress=False, test=False
    )
    assert run.result["test"] == {}
    assert run.result["validation"]


class Crash(Exception):
    pass


def crash_after(rounds, error=Crash):
    def on_round(t):
        if t + 1 == rounds:
            raise error

    return on_round


def process(folder, execution, kill_after):
    command = [
        sys.executable,
        "-m",
        "tests.federated.run_small",
        str(folder),
        execution,
        str(kill_after),
    ]
    with open(f"{folder}.log", "ab") as log:
        return subprocess.run(
            command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, timeout=300, check=False
        )


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["fast", "tff"])
def test_six_rounds_equal_three_kill_9_and_three_more(tmp_path, execution):
    """The rounds before kill -9 in another process than those after it."""
    whole = train(tmp_path / "whole", config(execution))
    killed = process(tmp_path / "parts", execution, kill_after=3)
    assert killed.returncode == -signal.SIGKILL, (tmp_path / "parts.log").read_text()
    parts = fedmf.Run.load(tmp_path / "parts")
    assert parts.result is None
    assert len(parts.metrics) == 3
    resumed = train(tmp_path / "parts", config(execution), noise_seed=None, resume=True)
    assert_same_run(whole, resumed)

    workers = next(
        line.split()[1:]
        for line in (tmp_path / "parts.log").read_text().splitlines()
        if "workers" in line
    )
    assert bool(workers) == (execution == "tff")
    deadline = time.monotonic() + 30
    while (
        any(pathlib.Path(f"/proc/{pid}/exe").exists() for pid in workers)
        and time.monotonic() < deadline
    ):
        time.sleep(0.2)
    assert not any(pathlib.Path(f"/proc/{pid}/exe").exists() for pid in workers), (
        "a TFF worker outlived its parent"
    )


@pytest.mark.slow
def test_both_paths_train_the_same_model(tmp_path):
    fast, tff = train(tmp_path / "fast"), train(tmp_path / "tff", config("tff"))
    assert (fast.path / "participation.csv").read_bytes() == (
        tff.path / "participation.csv"
    ).read_bytes()
    initial = [v.numpy() for v in small_task().build_model(3).trainable_variables]
    for a, b, start in zip(weights_of(fast), weights_of(tff), initial, strict=True):
        assert np.abs(a - start).max() > 0.05
        np.testing.assert_allclose(a, b, atol=2e-6)  # float32, six rounds
    for one, other in zip(fast.metrics, tff.metrics, strict=True):
        assert (one["examples"], one["clients"]) == (other["examples"], other["clients"])
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-5)


def test_learns_and_noise_hurts(tmp_path):
    settings = config(rounds=40, min_sep=3, family="none", noise_multiplier=None, evaluate_every=40)
    clean = train(tmp_path / "clean", settings)
    assert clean.result["test"]["accuracy"] > 0.95
    noisy = train(
        tmp_path / "noisy", dataclasses.replace(settings, family="identity", noise_multiplier=30.0)
    )
    assert noisy.result["test"]["accuracy"] < 0.6


def test_a_round_of_zeroed_clients_is_said(tmp_path, recwarn):
    with pytest.warns(UserWarning, match=r"every client of a round was zeroed.*zeroing_norm=1e-09"):
        run = train(tmp_path / "zeroed", config(zeroing_norm=1e-9))
    assert run.metrics[0]["zeroed"] == run.metrics[0]["clients"] == 4
    train(tmp_path / "kept", config(zeroing_norm=100.0))
    assert not [warning for warning in recwarn if "zeroed" in str(warning.message)]


def test_the_run_folder_says_what_was_run_and_keeps_the_seed_private(tmp_path):
    settings = config(noise_multiplier=None, epsilon=8.0, claimed_cohort=40)
    run = train(tmp_path / "run", settings, noise_seed=918273645)
    assert run.config == settings
    assert run.plan["epsilon"] <= 8.0
    assert "4 clients a round stand for 40" in run.statement
    assert "That run needs 80 clients, and the data here are of 12." in " ".join(
        run.statement.replace("\n> ", " ").split()
    )
    assert run.result["achieved"] is None  # the run that this one stands for was not observed
    assert run.result["participation"]["min_separation"] >= 2
    seed = run.path / "private" / "noise_seed"
    assert seed.read_text() == "918273645\n"
    assert seed.stat().st_mode & 0o077 == 0
    for path in run.path.rglob("*"):
        if path.is_file() and path.parent.name not in ("private", "checkpoints"):
            assert b"918273645" not in path.read_bytes(), path


@pytest.mark.slow
def test_seeds_change_what_they_say(tmp_path):
    base = train(tmp_path / "base")
    noise = train(tmp_path / "noise", noise_seed=10)
    assert (base.path / "participation.csv").read_bytes() == (
        noise.path / "participation.csv"
    ).read_bytes()
    assert not np.allclose(weights_of(base)[0], weights_of(noise)[0])
    drawn = train(tmp_path / "os", noise_seed="os")
    again = train(tmp_path / "os again", noise_seed="os")
    assert not np.allclose(weights_of(drawn)[0], weights_of(again)[0])
    other = train(tmp_path / "seed", config(seed=4))
    assert (base.path / "participation.csv").read_bytes() != (
        other.path / "participation.csv"
    ).read_bytes()


@pytest.mark.slow
def test_a_run_whose_checkpoints_were_removed_begins_again(tmp_path):
    with pytest.raises(federated.InterruptedRun):
        train(tmp_path / "parts", on_round=crash_after(3, KeyboardInterrupt))
    shutil.rmtree(tmp_path / "parts" / "checkpoints")
    train(tmp_path / "parts", noise_seed=None, resume=True)
    train(tmp_path / "whole")
    assert_same_run(fedmf.Run.load(tmp_path / "whole"), fedmf.Run.load(tmp_path / "parts"))


def test_ctrl_c_saves_the_last_complete_round(tmp_path):
    settings = config(checkpoint_every=100)
    with pytest.raises(federated.InterruptedRun, match="after 3 of 6 rounds"):
        train(tmp_path / "parts", settings, on_round=crash_after(3, KeyboardInterrupt))
    train(tmp_path / "parts", settings, noise_seed=None, resume=True)
    train(tmp_path / "whole", settings)
    assert_same_run(fedmf.Run.load(tmp_path / "whole"), fedmf.Run.load(tmp_path / "parts"))


def test_a_crash_loses_only_the_rounds_since_the_last_checkpoint(tmp_path):
    settings = config(checkpoint_every=2)
    with pytest.raises(Crash):
        train(tmp_path / "parts", settings, on_round=crash_after(5))
    with open(tmp_path / "parts" / "metrics.jsonl", "a") as rows:
        rows.write('{"round": 5, "cli')  # a row half written
    executed = []
    train(tmp_path / "parts", settings, noise_seed=None, resume=True, on_round=executed.append)
    assert executed == [4, 5]
    assert_same_run(train(tmp_path / "whole", settings), fedmf.Run.load(tmp_path / "parts"))


def snapshot(folder):
    return {p: p.read_bytes() for p in pathlib.Path(folder).rglob("*") if p.is_file()}


def test_resume_refuses_another_config_and_touches_nothing(tmp_path):
    with pytest.raises(Crash):
        train(tmp_path / "run", on_round=crash_after(3))
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match=r"server_learning_rate=0.1 \(the run has 0.5\)"):
        train(tmp_path / "run", config(server_learning_rate=0.1), noise_seed=None, resume=True)
    plan = dataclasses.replace(config().plan(), noise_multiplier=0.1)
    with pytest.raises(ValueError, match="another plan"):
        train(tmp_path / "run", noise_seed=None, resume=True, plan=plan)
    with pytest.raises(ValueError, match="on other data"):
        federated.train(
            small_task(clients=14), config(), folder=tmp_path / "run", resume=True, progress=False
        )
    with pytest.raises(ValueError, match="already holds a run"):
        train(tmp_path / "run")
    with pytest.raises(ValueError, match="holds no run to resume"):
        train(tmp_path / "empty", noise_seed=None, resume=True)
    assert snapshot(tmp_path) == before


def test_resume_refuses_damaged_and_foreign_checkpoints(tmp_path):
    for name, seed in (("run", 9), ("other", 10)):
        with pytest.raises(Crash):
            train(tmp_path / name, noise_seed=seed, on_round=crash_after(3))
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    good = newest.read_bytes()
    newest.write_bytes(good[: len(good) // 2])
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match=f"{newest.name} is damaged or half-written"):
        train(tmp_path / "run", noise_seed=None, resume=True)
    assert snapshot(tmp_path) == before
    # The way out that the error names works: delete it, and the checkpoint before serves.
    newest.unlink()
    executed = []
    train(tmp_path / "run", noise_seed=None, resume=True, on_round=executed.append)
    assert executed == [2, 3, 4, 5]

    foreign = sorted((tmp_path / "other" / "checkpoints").iterdir())[-1]
    foreign.write_bytes(good)
    with pytest.raises(ValueError, match="belongs to another run"):
        train(tmp_path / "other", noise_seed=None, resume=True)


def test_nothing_is_made_for_a_run_that_cannot_start(tmp_path):
    for settings, words in (
        (config(cohort_size=7), "lower cohort_size"),
        (config(schema="single", min_sep=None), "raise the population to 24"),
    ):
        with pytest.raises(ValueError, match=words):
            train(tmp_path / "run", settings)
    with pytest.raises(ValueError, match="noise_seed=None"):
        train(tmp_path / "run", noise_seed=None)
    with pytest.raises(ValueError, match="calibrate the plan for the run"):
        train(tmp_path / "run", plan=config(min_sep=3).plan())
    with pytest.raises(TypeError, match="plan='x' must be a fedmf.Plan"):
        train(tmp_path / "run", plan="x")
    settings = config(claimed_cohort=40)
    with pytest.raises(
        ValueError, match="simulated_cohort=5 clients a round but the config trains cohort_size=4"
    ):
        train(
            tmp_path / "run",
            settings,
            plan=dataclasses.replace(settings.plan(), simulated_cohort=5),
        )
    with pytest.raises(ValueError, match="not possible|needs|memory"):
        train(tmp_path / "run", noise_memory=0)
    settings = config(rounds=40, min_sep=3)
    grows = BandedMechanism(diagonals=np.array([[1.0, 0.0]] + [[1.0, 2.0]] * 39))
    with pytest.raises(ValueError, match="too ill-conditioned for float32"):
        train(
            tmp_path / "run", settings, plan=dataclasses.replace(settings.plan(), mechanism=grows)
        )
    assert not (tmp_path / "run").exists()


def test_unwritable_folder_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write to folder"):
        train(tmp_path / "file" / "run")


def test_examples_are_shuffled_by_seed_round_and_client():
    task, settings = small_task(), config()
    order = lambda *a, c=settings: loop.client_epochs(task, c, *a)[0][0].tobytes()  # noqa: E731
    assert order(0, 9) == order(0, 9)
    assert len({order(0, 9), order(1, 9), order(0, 9, c=config(seed=4))}) == 3
    ((x, _),) = loop.client_epochs(task, settings, 2, 9)
    assert sorted(map(tuple, x)) == sorted(map(tuple, task.client_examples("client 9")[0]))


def test_resume_refuses_another_mechanism_that_looks_the_same(tmp_path):
    settings = config(family="banded", bands=2)

    def plan_of(a):
        diagonals = np.stack(
            [np.full(settings.rounds, a), np.full(settings.rounds, np.sqrt(1 - a * a))], axis=1
        )
        diagonals[0, 1], diagonals[-1, 0] = 0, 1  # columns of norm 1
        return dataclasses.replace(settings.plan(), mechanism=BandedMechanism(diagonals=diagonals))

    one, other = plan_of(0.8), plan_of(0.6)
    assert one.summary() == other.summary()
    with pytest.raises(Crash):
        train(tmp_path / "run", settings, plan=one, on_round=crash_after(3))
    with pytest.raises(ValueError, match=r"plan.json or mechanism.npz differs"):
        train(tmp_path / "run", settings, plan=other, noise_seed=None, resume=True)
    mechanism = (tmp_path / "run" / "mechanism.npz").read_bytes()
    other.mechanism.save(tmp_path / "run" / "mechanism.npz")
    with pytest.raises(ValueError, match=r"mechanism\.npz changed since the run was begun"):
        train(tmp_path / "run", settings, plan=other, noise_seed=None, resume=True)
    (tmp_path / "run" / "mechanism.npz").write_bytes(mechanism)
    resumed = train(tmp_path / "run", settings, plan=one, noise_seed=None, resume=True)
    assert resumed.result is not None


@pytest.mark.slow
def test_a_run_with_a_plan_of_its_own_goes_on_without_it_and_says_what_it_was(tmp_path):
    plan = dataclasses.replace(config().plan(), noise_multiplier=0.7)
    whole = train(tmp_path / "whole", plan=plan)
    with pytest.raises(Crash):
        train(tmp_path / "run", plan=plan, on_round=crash_after(3))
    resumed = train(tmp_path / "run", noise_seed=None, resume=True)
    assert_same_run(whole, resumed)
    assert resumed.plan["noise_multiplier"] == 0.7

    def first_command(run):
        return json.loads((run.path / "final_statement.json").read_text())["commands"][0]

    command = first_command(resumed)
    assert command.startswith("fedmf calibrate RUN/mechanism.npz --rounds 6 ")
    assert "--noise-multiplier 0.7" in command
    assert first_command(train(tmp_path / "of the config")).startswith(
        "fedmf train --config config.json"
    )


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    with pytest.raises(Crash):
        train(tmp_path / "run", on_round=crash_after(3))
    before = snapshot(tmp_path / "run")
    program = (
        "import sys; from fedmf.runs.folder import RunFolder\n"
        "with RunFolder(sys.argv[1]).locked(): print('locked', flush=True), input()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "run")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "locked\n"
        for arguments in ({"noise_seed": None, "resume": True}, {}):
            with pytest.raises(
                ValueError,
                match=r"another process trains in .*run: wait for it, stop it and resume",
            ):
                train(tmp_path / "run", **arguments)
        assert snapshot(tmp_path / "run") == before
        other.kill()
    assert train(tmp_path / "run", noise_seed=None, resume=True).result is not None


def test_every_client_has_an_id_of_its_own():
    with pytest.raises(ValueError, match=r"client_ids of task 'small' has 'b' more than once"):
        dataclasses.replace(small_task(), client_ids=["a", "b", "c", "b"])


def test_timings_are_apart_from_metrics(tmp_path):
    run = train(tmp_path / "run")
    assert [row["round"] for row in run.timings] == list(range(6))
    assert all("seconds" not in row for row in run.metrics)
    assert json.loads((run.path / "result.json").read_text())["seconds"] > 0
    assert sorted(os.listdir(run.path / "checkpoints")) == [
        "round-000005.ckpt",
        "round-000006.ckpt",
    ]


def test_a_log_file_gets_a_line_every_ten_seconds_and_not_every_round(tmp_path, capsys):
    train(
        tmp_path / "run", config(rounds=60, checkpoint_every=60, evaluate_every=60), progress=True
    )
    lines = capsys.readouterr().err.split("\r")
    assert all(part in lines[-1] for part in ("60/60", "clients/s=", "loss="))
    assert len(lines) < 20


DIVERGING = config(
    rounds=40, client_learning_rate=50.0, zeroing_norm=None, clip_norm=100.0, evaluate_every=40
)


def test_a_run_that_diverges_says_so_once_also_after_a_resume(tmp_path):
    """The watch's own rules are tested by themselves; here a rate of 50 drives the loss up, and the
    resumed rounds know of the first.
    """
    with pytest.raises(Crash):
        train(tmp_path, DIVERGING, on_round=crash_after(15))
    with pytest.warns(UserWarning, match="diverges|training loss of round") as caught:
        train(tmp_path, DIVERGING, resume=True, noise_seed=None)
    assert sum("server_learning_rate than 0.5" in str(warning.message) for warning in caught) == 1


def test_a_run_that_diverges_stops_if_it_is_told_to(tmp_path):
    """Saved, without a result, and at every resume again, until that is without the option."""
    with pytest.raises(
        federated.DivergedRun, match="smaller.*server_learning_rate than 0.5"
    ) as stop:
        train(tmp_path, DIVERGING, stop_on_divergence=True)
    rounds = len(fedmf.Run.load(tmp_path).metrics)
    assert 0 < rounds < 40
    assert f"{rounds} of 40 rounds are saved in {tmp_path}, and go on with resume=True" in str(
        stop.value
    )
    assert RunFolder(tmp_path).saved_rounds() == rounds
    # The data decided on the end: what holds is the guarantee of all rounds.
    audit = audit_run(tmp_path)
    assert audit.epsilon == audit.planned.epsilon == DIVERGING.plan().epsilon
    assert f"rounds {rounds} to 39 are not in the record" in audit.unrecorded
    assert "training losses decided that the run stopped before them" in audit.unrecorded
    with pytest.raises(federated.DivergedRun, match=f"; {rounds} of 40 rounds are saved"):
        train(tmp_path, DIVERGING, resume=True, noise_seed=None, stop_on_divergence=True)
    assert len(train(tmp_path, DIVERGING, resume=True, noise_seed=None).metrics) == 40


def test_a_rate_that_the_noise_hardly_allows_is_warned_of_once(tmp_path):
    settings = config(server_learning_rate=50.0, server_momentum=0.95)
    with pytest.warns(
        UserWarning,
        match=r"server_learning_rate=50 is \S+ times the 0\.\d+ that the rule of `fedmf plan",
    ):
        train(tmp_path, settings, stop_after=2)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*plan learning-rate")
        train(tmp_path, settings, resume=True, noise_seed=None)
        train(
            tmp_path / "silent",
            dataclasses.replace(settings, family="none", noise_multiplier=None),
            noise_seed=None,
        )


def test_a_run_without_noise_needs_no_noise_seed(tmp_path):
    silent = [config(family="none", noise_multiplier=None), config(noise_multiplier=0.0)]
    for number, settings in enumerate(silent):
        run = train(tmp_path / str(number), settings, noise_seed=None)
        assert (
            int((run.path / "private" / "noise_seed").read_text()) > 2**64
        )  # drawn: cohorts of a sampling follow from it
    given = config().plan()
    for settings, plan in ((config(), None), (silent[0], given), (config(), given)):
        with pytest.raises(ValueError, match="noise_seed=None"):
            train(tmp_path / "noisy", settings, noise_seed=None, plan=plan)
    without = dataclasses.replace(given, noise_multiplier=0.0)
    assert (
        train(tmp_path / "given", config(), noise_seed=None, plan=without).plan["epsilon"] is None
    )
