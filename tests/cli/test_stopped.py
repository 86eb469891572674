"""Messages and exit statuses of `fedmf train` when it is interrupted or cannot resume."""

import errno
import os
import re
import shutil

import pytest

from fedmf.federated import learner
from fedmf.mechanisms import IdentityMechanism
from fedmf.runs.folder import RunFolder
from fedmf.training import loop
from fedmf.training.run_setup import RunSetup
from tests.cli.program import SECRET, SEED, TABLE, fedmf, refused

pytestmark = pytest.mark.tensorflow
SLOW = "--server-learning-rate 0.001"  # With this rate the noise causes no warning.
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def train_command(tmp_path):
    return f"train --out {tmp_path}/run {TABLE} -o clients=12 --epsilon 8 {SEED}"


def resume_command(run):
    return f"train --out {run} --resume --quiet"


def test_a_damaged_seed_is_not_shown(run_folder):
    seed = run_folder / "private" / "noise_seed"
    seed.write_bytes(SECRET.encode() + b"\xff")
    error_line = refused(resume_command(run_folder), f"the noise seed {seed} is damaged")
    error_line += fedmf("--debug", resume_command(run_folder), status=2).stderr
    assert SECRET[:6] not in error_line
    assert "Traceback" in error_line


def test_resume_names_the_file_that_a_folder_lacks(run_folder):
    shutil.rmtree(run_folder / "private")
    refused(
        resume_command(run_folder),
        f"{run_folder}/private/noise_seed is missing",
        "made for publication",
    )
    IdentityMechanism(rounds=9).save(run_folder / "mechanism.npz")
    refused(
        resume_command(run_folder), f"cannot resume {run_folder}: its mechanism.npz has 9 rounds"
    )


@pytest.mark.usefixtures("clients_in_turn")
def test_an_error_in_a_round_sets_exit_status_1(tmp_path, monkeypatch):
    """The same error before the first round is a bad input, with exit status 2."""
    command = f"train --out {tmp_path}/run {TABLE} --epsilon 8 --noise-seed 1 {SLOW}"
    commit = RunFolder.commit

    def fails_with(error):
        def failing(folder, committed):
            if committed.t == 2:
                raise error
            commit(folder, committed)

        monkeypatch.setattr(RunFolder, "commit", failing)

    fails_with(FULL)
    refused(command, f"2 rounds of the run are saved in {tmp_path}/run", status=1)
    fails_with(ValueError("the data are damaged"))
    command = command.replace("/run", "/other").replace(SLOW, "--server-learning-rate 1000")
    error_text = fedmf(command, status=1).stderr
    assert "fedmf: error: the data are damaged" in error_text
    warning = r"fedmf: warning: --server-learning-rate 1000 is \d+ times the 0\.\d+ that"
    assert len(re.findall(warning, error_text)) == 1


def test_a_run_that_ends_before_the_first_round_says_how_to_continue(
    train_command, tmp_path, monkeypatch
):
    def ends_by(owner, name, error):
        def ends(*arguments, **options):
            raise error

        monkeypatch.setattr(owner, name, ends)

    ends_by(RunSetup, "write", FULL)
    refused(train_command, "No space left on device", "the run had not begun", status=1)
    ends_by(learner, "check_model", KeyboardInterrupt())
    expected_error = "fedmf: interrupted: the run had not begun: give the same command again"
    assert fedmf(train_command, status=130).stderr.strip() == expected_error
    monkeypatch.undo()
    ends_by(loop, "Training", KeyboardInterrupt())
    error_text = fedmf(train_command, status=130).stderr
    assert f"no round of the run is saved in {tmp_path}/run: resume it with --resume" in error_text
    # A message about another run's folder would mislead.
    ends_by(learner, "check_model", KeyboardInterrupt())
    assert fedmf(train_command, status=130).stderr.strip() == "fedmf: interrupted"


@pytest.mark.usefixtures("clients_in_turn")
def test_a_run_that_diverges_ends_with_status_1(tmp_path):
    """The error is in the words of the command line. The run adds no noise, and needs no noise
    seed.
    """
    settings = "--rounds 40 --family none --server-learning-rate 1e9 --stop-on-divergence"
    stopped_process = fedmf(f"train --out {tmp_path}/run {TABLE} {settings}", status=1)
    (line,) = stopped_process.stderr.strip().splitlines()[-1:]
    for words in ("fedmf: error: the ", "--server-learning-rate than 1e+09", "with --resume"):
        assert words in line
    assert not (tmp_path / "run" / "result.json").exists()
