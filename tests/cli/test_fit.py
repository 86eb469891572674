"""fedmf fit, run in this process: every family and option, pictures,
other people's matrices, and Ctrl-C.
"""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import fedmf
from fedmf.reports import drawn_noise
from tests.cli.program import fedmf as program
from tests.cli.program import printed_by, refused

ROUNDS = "--rounds 24 --min-sep 6"


@pytest.fixture
def run_fit(tmp_path, monkeypatch):
    """Runs fedmf fit in an empty folder, and returns what it says as JSON."""
    monkeypatch.chdir(tmp_path)
    return lambda arguments: printed_by(f"fit {arguments} --out m.npz")


@pytest.mark.parametrize(
    "arguments",
    [
        "--family identity",
        "--family tree --decoder full --restarts 4 --completion none",
        "--family banded --schema fixed_epoch --no-equal-norms",
        "--family dense --schema fixed_epoch --equal-norms",
        "--family toeplitz --coefficients nu --nu 0.1",
        "--family low_rank --bands 3 --rank 2",
        "--workload momentum_sgd --workload-momentum 0.9 --warmup 0.25 --cooldown 0.5",
        "--family banded --workload prefix_sum --cooldown 0.5",
        "--workload momentum_sgd --learning-rate-schedule 18:0.15",
        "--family banded --workload identity --max-iterations 50",
    ],
)
def test_every_family_is_fitted_with_its_options(run_fit, arguments):
    printed_values = run_fit(f"{ROUNDS} {arguments}")
    mechanism = fedmf.load_mechanism(printed_values["file"])
    schema = "fixed_epoch" if "fixed_epoch" in arguments else "min_sep"
    participation = fedmf.Participation(rounds=24, schema=schema, min_sep=6)
    assert mechanism.rounds == printed_values["rounds"] == 24
    assert printed_values["sensitivity"] == fedmf.sensitivity(mechanism, participation).value
    assert 0.0 < printed_values["rmse"] <= printed_values["max_error"]
    assert (
        (printed_values["certified_gap"] is None)
        == bool(printed_values.get("no_certificate"))
        != bool(printed_values.get("certified_for"))
    )
    if "dense" in arguments:  # The family dense names its own participation.
        assert printed_values["certified_for"] == "fixed_epoch, min_sep 6, 4 participations"


def test_show_draws_a_picture_beside_the_file(run_fit, tmp_path, monkeypatch):
    assert run_fit(f"{ROUNDS} --family tree --show")["picture"] == "m.png"
    maps = (tmp_path / "m.png").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.npz", "m.png"]
    monkeypatch.setattr(drawn_noise, "MAX_FORMED_ROUNDS", 10)
    run_fit(f"{ROUNDS} --family tree --show")
    assert len(maps) > len((tmp_path / "m.png").read_bytes()) > 1000


def test_fit_reads_matrices_of_another_program(run_fit, tmp_path):
    np.savez(tmp_path / "theirs.npz", H=np.tri(24) / 3.0, W=3.0 * np.eye(24))
    printed_values = run_fit(f"{ROUNDS} --matrices theirs.npz")
    assert printed_values["family"] == "dense"
    refused("fit --rounds 25 --min-sep 6 --matrices theirs.npz --out m.npz", "--rounds 25")


@pytest.mark.slow
def test_ctrl_c_saves_the_best_mechanism_so_far(tmp_path):
    fit = f"fit --out {tmp_path}/m.npz --rounds 700 --schema single --bands 350 --tolerance 1e-13"
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmf", *fit.split()],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    # Until the fit shows its first steps there is nothing to keep;
    # the line appears after two seconds.
    assert process.stderr is not None
    error_text = ""
    while "step" not in error_text:
        letter = process.stderr.read(1)
        assert letter, (
            f"the fit ended before it showed a step, too small for this machine: {error_text}"
        )
        error_text += letter
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    printed_text, errors = process.communicate(timeout=600)
    assert process.returncode == 130, errors
    assert "the banded fit was interrupted after" in errors
    assert "another fit starts anew" in errors
    assert errors.splitlines()[-1].startswith(
        f"fedmf: interrupted: {tmp_path / 'm.npz'} holds the best mechanism so far"
    )
    assert "certified_gap" in printed_text
    mechanism = fedmf.load_mechanism(tmp_path / "m.npz")
    assert mechanism.certificate is not None
    assert mechanism.certificate.gap > 1e-13


def test_an_error_for_a_full_disk_names_the_file(tmp_path):
    out_path = tmp_path / "m.npz"
    words = f"fit --rounds 64 --min-sep 8 --no-cache --out {out_path}".split()
    # What `ulimit -f` forbids fails as a full disk does.
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512)); from fedmf.cli "
        f"import main; main({words})"
    )
    # -B: Python would keep bytecode that the limit cut, and every later import would fail.
    finished_process = subprocess.run(
        [sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert finished_process.returncode == 1
    (line,) = finished_process.stderr.splitlines()
    assert line.endswith(f"File too large: '{out_path}'")
    assert list(tmp_path.iterdir()) == []


def test_a_warning_names_options(tmp_path):
    fit_command = "fit --rounds 24 --schema single --bands 4 --max-iterations 2 --tolerance 1e-9"
    warning = program(f"{fit_command} --no-cache --out {tmp_path}/x.npz").stderr
    assert "raise --max-iterations 2" in warning
    assert "--tolerance 1e-09" in warning
