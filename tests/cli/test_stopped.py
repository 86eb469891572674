"""What `fedmf train` says that was stopped, or cannot go on; and what it exits with."""

import errno
import json
import os
import re
import shutil

import numpy as np
import pytest

from fedmf.federated.training import loop, run_setup
from fedmf.federated.training.run_setup import RunSetup
from fedmf.mechanisms import IdentityMechanism
from fedmf.runs.folder import RunFolder
from tests.cli.program import SECRET, SEED, TRAIN, fedmf, refused

pytestmark = pytest.mark.tensorflow
# A table of numbers, for what is the same for every task.
TABLE = (
    "--task regression --rounds 4 --cohort-size 4 --min-sep 2 --checkpoint-every 2 "
    "--evaluate-every 2 --quiet"
)
SLOW = "--server-learning-rate 0.001"  # for which the noise is no reason to warn
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def train(tmp_path):
    return f"train --out {tmp_path}/run {TABLE} -o clients=12 --epsilon 8 {SEED}"


def resume(run):
    return f"train --out {run} --resume --quiet"


def test_a_damaged_seed_is_not_shown(run):
    seed = run / "private" / "noise_seed"
    seed.write_bytes(SECRET.encode() + b"\xff")
    said = refused(resume(run), f"the noise seed {seed} is damaged")
    said += fedmf("--debug", resume(run), status=2).stderr
    assert SECRET[:6] not in said
    assert "Traceback" in said


def test_a_published_run_cannot_be_resumed(run):
    shutil.rmtree(run / "private")
    refused(resume(run), f"{run}/private/noise_seed is not there", "made to be published")


def test_a_mechanism_of_another_length_is_named(run):
    IdentityMechanism(rounds=9).save(run / "mechanism.npz")
    refused(resume(run), f"cannot resume {run}: its mechanism.npz has 9 rounds")


@pytest.mark.usefixtures("clients_in_turn")
def test_a_full_disk_says_what_is_saved(tmp_path, monkeypatch):
    command = f"train --out {tmp_path}/run {TABLE} --epsilon 8 --noise-seed 1 {SLOW}"

    def full(*arguments, **options):
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(RunSetup, "write", full)
        refused(command, "No space left on device", "the run had not begun", status=1)
    save = RunFolder.save_checkpoint
    with monkeypatch.context() as patch:
        patch.setattr(
            RunFolder,
            "save_checkpoint",
            lambda self, it: (full if it.rounds_done > 2 else save)(self, it),
        )
        refused(command, f"2 rounds of the run are saved in {tmp_path}/run", status=1)


def test_ctrl_c_before_the_first_round_says_how_to_go_on(train, tmp_path, monkeypatch):
    def pressed(*arguments, **options):
        raise KeyboardInterrupt

    again = "fedmf: interrupted: the run had not begun: give the same command again"
    for place, early in ((loop, "check_model"), (loop, "build_execution"), (run_setup, "rmse")):
        with monkeypatch.context() as patch:
            patch.setattr(place, early, pressed)
            assert fedmf(train, status=130).stderr.strip() == again
    refused(resume(tmp_path / "run"), "holds no run yet")
    with monkeypatch.context() as patch:
        patch.setattr(loop, "Training", pressed)
        said = fedmf(train, status=130).stderr
        assert f"no round of the run is saved in {tmp_path}/run: go on with --resume" in said
        # Of another run nothing is said.
        patch.setattr(loop, "check_model", pressed)
        assert fedmf(train, status=130).stderr.strip() == "fedmf: interrupted"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--cohort-size 7", "--cohort-size 7"),
        ("--mechanism absent.npz", "absent.npz"),
        ("--sampling poisson --bands 2 --population 13", "--population 13"),
    ],
)
def test_what_is_refused_before_the_first_round_is_exit_status_2(train, tmp_path, options, words):
    if "--sampling" in options:  # which decides how far apart clients take part
        train = train.replace("--min-sep 2 ", "")
    refused(f"{train} {options}", words)
    assert not (tmp_path / "run").exists()


def test_the_same_error_in_a_round_is_a_failed_run_whose_rate_was_warned_of(
    corpus, tmp_path, monkeypatch
):
    from fedmf.tasks.stackoverflow import data

    read = data.Corpus.sentences

    def damaged(self, split, *arguments):
        # Before that it would be bad input
        if split == "train" and (tmp_path / "run" / "config.json").exists():
            raise ValueError("the data are damaged")
        return read(self, split, *arguments)

    monkeypatch.setattr(data.Corpus, "sentences", damaged)
    train = f"train --data {corpus} --out {tmp_path}/run {TRAIN} --server-learning-rate 1000"
    said = fedmf(train, status=1).stderr
    assert "fedmf: error: " in said
    assert "the data are damaged" in said
    warning = r"fedmf: warning: --server-learning-rate 1000 is \d+ times the 0\.\d+ that"
    assert len(re.findall(warning, said)) == 1


@pytest.mark.usefixtures("clients_in_turn")
def test_a_run_that_diverges_ends_with_status_1(tmp_path):
    """In the words of the command line, and without a noise seed: it adds no noise."""
    settings = "--rounds 40 --family none --server-learning-rate 1e9 --stop-on-divergence"
    stopped = fedmf(f"train --out {tmp_path}/run {TABLE} {settings}", status=1)
    assert not stopped.stdout
    (line,) = stopped.stderr.strip().splitlines()[-1:]
    assert line.startswith("fedmf: error: the ")
    for words in (
        "--server-learning-rate than 1e+09",
        " of 40 rounds are saved in ",
        "with --resume and without --stop-on-divergence",
    ):
        assert words in line
    assert (tmp_path / "run" / "checkpoints").is_dir()
    assert not (tmp_path / "run" / "result.json").exists()


@pytest.mark.usefixtures("clients_in_turn")
@pytest.mark.slow
def test_a_run_goes_on_whose_file_of_learning_rates_is_gone(tmp_path):
    shares = tmp_path / "shares.txt"
    shares.write_text("1 1 0.5 0.25")
    train = "train --task regression --rounds 4 --cohort-size 2 --min-sep 1 --family none --quiet"
    train += f" --learning-rate-schedule {shares}"
    fedmf(f"{train} --out {tmp_path}/whole")
    fedmf(f"{train} --out {tmp_path}/stopped --stop-after 2")
    shares.unlink()
    fedmf(f"train --out {tmp_path}/stopped --resume --quiet")
    whole, stopped = (np.load(tmp_path / name / "model.npz") for name in ("whole", "stopped"))
    for name in whole.files:
        assert np.array_equal(whole[name], stopped[name])
    plan = json.loads((tmp_path / "stopped" / "plan.json").read_text())
    assert plan["config"]["learning_rate_schedule"] == "1.0 1.0 0.5 0.25"
