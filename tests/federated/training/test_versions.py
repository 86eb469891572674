"""The same run on Python 3.11 with TensorFlow 2.14 and on Python 3.13 with the newest TensorFlow.

The newest is that of the extra `train`; the tests run where `make` has both environments.
"""

import json
import os
import pathlib
import subprocess

import numpy as np
import pytest

import fedmf
from tests.cli.program import fedmf as program
from tests.federated.run_versions import TASKS

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[3]
OLD, NEW = (ROOT / name / "bin" / "python" for name in (".venv", ".venv-modern"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Returns the folders of both versions' runs, the older version first."""
    for python in (OLD, NEW):
        if not python.exists():
            pytest.skip(f"{python.relative_to(ROOT)} is not there: make setup test-modern")
    shared = tmp_path_factory.mktemp("shared")
    # Another version of SciPy fits other last digits.
    program(f"fit --rounds 6 --min-sep 2 --family banded --out {shared}/mechanism.npz")
    program(f"data synth --clients 20 --out {shared}/corpus.sqlite")
    folders = []
    for python in (OLD, NEW):
        folders.append(tmp_path_factory.mktemp("runs"))
        command = [python, "-m", "tests.federated.run_versions", folders[-1], shared]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=600)
    return folders


@pytest.fixture(params=TASKS)
def runs(request, folders):
    return [fedmf.Run.load(folder / request.param) for folder in folders]


def test_draws_are_bitwise_identical_and_noise_agrees_to_float32_rounding(folders):
    old_noise, new_noise = (np.load(folder / "noise.npz") for folder in folders)
    np.testing.assert_array_equal(new_noise["draws"], old_noise["draws"])
    # Products of matrices are summed in another order by another OpenBLAS.
    np.testing.assert_allclose(new_noise["rows"], old_noise["rows"], rtol=0, atol=1e-6)
    assert old_noise["rows"].std() > 0.5


def test_the_runs_are_of_different_versions(runs):
    old_versions, new_versions = (run.plan["versions"] for run in runs)
    for name in ("python", "tensorflow", "numpy", "scipy"):
        assert old_versions[name] != new_versions[name]


def test_cohorts_and_initial_weights_are_bitwise_identical(runs):
    old_run, new_run = runs
    for name in ("participation.csv", "config.json"):
        assert (new_run.path / name).read_bytes() == (old_run.path / name).read_bytes()
    old_identity, new_identity = (
        json.loads((run.path / "private/identity.json").read_text()) for run in runs
    )
    assert new_identity["client_ids"] == old_identity["client_ids"]
    old_program = old_identity["program"]
    new_program = new_identity["program"]
    assert new_program["initial weights"] == old_program["initial weights"]
    # Keras 3 describes layers otherwise: a resume needs accept_changed_task.
    assert new_program != old_program


def test_models_and_metrics_agree_to_float32_rounding(runs):
    old_run, new_run = runs
    for weight, expected in zip(new_run.weights, old_run.weights, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-5, atol=1e-6)
    first_loss, *_, last_loss = (row["train_loss"] for row in new_run.metrics)
    assert abs(last_loss / first_loss - 1) > 0.05  # The compared weights depend on the training.
    for row, expected in zip(new_run.metrics, old_run.metrics, strict=True):
        validation = row.pop("validation", {})
        expected_validation = expected.pop("validation", {})
        assert validation == pytest.approx(expected_validation, rel=1e-4)
        assert row == pytest.approx(expected, rel=1e-4)
