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
from tests.cli.program import SECRET, SMALL, TRAIN, fedmf, refused

pytestmark = pytest.mark.tensorflow
SLOW = ("--server-learning-rate", "0.001")  # for which the noise is no reason to warn
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained[0], tmp_path / "run")


def resume(run):
    return ["train", "--out", run, "--resume", "--quiet"]


@pytest.mark.parametrize(
    "content",
    [
        f"{SECRET}x\n".encode(),
        f"-{SECRET}\n".encode(),
        SECRET.encode() + b"\xff",
        SECRET.encode() * 250,  # more digits than Python reads
    ],
    ids=["letter", "negative", "bytes", "long"],
)
def test_a_damaged_seed_is_not_shown(run, content):
    seed = run / "private" / "noise_seed"
    seed.write_bytes(content)
    said = refused(
        *resume(run), words=[f"the noise seed {seed} is damaged", "put the run's own back"]
    )
    said += fedmf("--debug", *resume(run), status=2).stderr
    assert SECRET[:6] not in said
    assert "Traceback" in said


def test_a_published_run_cannot_be_resumed(run):
    shutil.rmtree(run / "private")
    words = [f"{run}/private/noise_seed is not there", "made to be published", "start a new folder"]
    refused(*resume(run), words=words)


def test_a_mechanism_of_another_length_is_named(run):
    IdentityMechanism(rounds=9).save(run / "mechanism.npz")
    refused(
        *resume(run),
        words=[f"cannot resume {run}: its mechanism.npz has 9 rounds", "has 4", "put back"],
    )


def test_a_full_disk_says_what_is_saved(corpus, tmp_path, monkeypatch):

    command = ["train", "--data", corpus, "--out", tmp_path / "run", *TRAIN, *SLOW]

    def full(*arguments, **options):
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(RunSetup, "write", full)
        refused(
            *command,
            status=1,
            words=[
                "No space left on device",
                "make room; the run had not begun: give the same command again",
            ],
        )
    save = RunFolder.save_checkpoint
    with monkeypatch.context() as patch:
        patch.setattr(
            RunFolder,
            "save_checkpoint",
            lambda self, it: (full if it.rounds_done > 2 else save)(self, it),
        )
        refused(
            *command,
            status=1,
            words=[f"2 rounds of the run are saved in {tmp_path / 'run'}: go on with --resume"],
        )
    fedmf(*resume(tmp_path / "run"))


def test_ctrl_c_before_the_first_round_says_how_to_go_on(corpus, tmp_path, monkeypatch):

    def pressed(*arguments, **options):
        raise KeyboardInterrupt

    command = ["train", "--data", corpus, "--out", tmp_path / "run", *TRAIN]
    again = "fedmf: interrupted: the run had not begun: give the same command again"
    for place, early in ((loop, "check_model"), (run_setup, "rmse")):
        with monkeypatch.context() as patch:
            patch.setattr(place, early, pressed)
            assert fedmf(*command, status=130).stderr.strip() == again
    refused(*resume(tmp_path / "run"), words=["holds no run yet", "without --resume"])
    with monkeypatch.context() as patch:
        patch.setattr(loop, "build_execution", pressed)
        said = fedmf(*command, status=130).stderr.strip()
        assert (
            said == "fedmf: interrupted: no round of the run is saved in "
            f"{tmp_path / 'run'}: go on with --resume"
        )
        # Of another run nothing is said.
        patch.setattr(loop, "check_model", pressed)
        assert fedmf(*command, status=130).stderr.strip() == "fedmf: interrupted"
    fedmf(*resume(tmp_path / "run"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cohort-size", 7], ["--cohort-size 7"]),
        (["--mechanism", "absent.npz"], ["absent.npz"]),
        (["--sampling", "poisson", "--bands", 2, "--population", 13], ["--population 13"]),
    ],
    ids=lambda v: " ".join(map(str, v))[:40],
)
def test_what_is_refused_before_the_first_round_is_exit_status_2(corpus, tmp_path, options, words):
    train = " ".join(TRAIN)
    if "--sampling" in options:  # which decides how far apart clients take part
        train = train.replace("--min-sep 2 ", "")
    refused(
        "train", "--data", corpus, "--out", tmp_path / "run", *train.split(), *options, words=words
    )
    assert not (tmp_path / "run").exists()


def test_the_same_error_in_a_round_is_a_failed_run(corpus, tmp_path, monkeypatch):
    from fedmf.tasks.stackoverflow import data

    read = data.Corpus.sentences

    def damaged(self, split, *arguments):
        # Before that it would be bad input
        if split == "train" and (tmp_path / "run" / "config.json").exists():
            raise ValueError("the data are damaged")
        return read(self, split, *arguments)

    monkeypatch.setattr(data.Corpus, "sentences", damaged)
    refused(
        "train",
        "--data",
        corpus,
        "--out",
        tmp_path / "run",
        *TRAIN,
        *SLOW,
        status=1,
        words=["the data are damaged"],
    )


def test_a_run_that_diverges_ends_with_status_1(corpus, tmp_path):
    """In the words of the command line, and without a noise seed: it adds no noise."""
    settings = [
        *SMALL,
        "--rounds",
        40,
        "--family",
        "none",
        "--server-learning-rate",
        1e9,
        "--stop-on-divergence",
    ]
    stopped = fedmf("train", "--data", corpus, "--out", tmp_path / "run", *settings, status=1)
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


def test_a_rate_far_above_the_noise_is_warned_of_in_the_words_of_the_command_line(corpus, tmp_path):
    settings = [*TRAIN, "--server-learning-rate", 1000, "--stop-after", 1]
    said = fedmf("train", "--data", corpus, "--out", tmp_path / "run", *settings).stderr
    assert (
        len(
            re.findall(
                r"fedmf: warning: --server-learning-rate 1000 is \d+ times the "
                r"0\.\d+ that the rule of",
                said,
            )
        )
        == 1
    )


def test_a_run_goes_on_whose_file_of_learning_rates_is_gone(tmp_path):
    shares = tmp_path / "shares.txt"
    shares.write_text("1 1 0.5 0.25")
    train = ["train", "--task", "regression", "--rounds", 4, "--cohort-size", 2, "--min-sep", 1]
    train += ["--family", "none", "--quiet", "--learning-rate-schedule", shares]
    fedmf(*train, "--out", tmp_path / "whole")
    fedmf(*train, "--out", tmp_path / "stopped", "--stop-after", 2)
    shares.unlink()
    fedmf(*resume(tmp_path / "stopped"))
    whole, stopped = (np.load(tmp_path / name / "model.npz") for name in ("whole", "stopped"))
    for name in whole.files:
        assert np.array_equal(whole[name], stopped[name])
    plan = json.loads((tmp_path / "stopped" / "plan.json").read_text())
    assert plan["config"]["learning_rate_schedule"] == "1.0 1.0 0.5 0.25"
