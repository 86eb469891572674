"""The training loop without TensorFlow Federated, as on Python 3.12 and later."""

import os
import subprocess
import sys

import pytest

# The program runs commands, one per line; every import of TFF and its companions fails.
_PROGRAM = """
import sys
for name in ("tensorflow_federated", "tensorflow_privacy", "jax"):
    sys.modules[name] = None
from fedmf.cli import main
for line in sys.argv[1:]:
    try:
        main(line.split())
    except SystemExit as stop:
        sys.exit(f"status {stop.code}")
"""


def without_tff(*commands):
    # Processes that fedmf starts have this value; jax sets it to 1 where TensorFlow imports it
    # first.
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-c", _PROGRAM, *commands]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_a_run_trains_and_execution_tff_says_what_to_install(tmp_path):
    run = (
        f"train --out {tmp_path}/run --task regression --rounds 2 --cohort-size 4 --min-sep 2 "
        "--epsilon 8 --noise-seed 1 --quiet --server-learning-rate 0.001"
    )
    finished_process = without_tff(run, run.replace("/run", "/other") + " --execution tff")
    assert (tmp_path / "run" / "final_statement.md").exists()
    # TensorFlow's complaints of a missing GPU, on import or when training begins, are not shown.
    error, status = finished_process.stderr.splitlines()
    assert "needs TensorFlow Federated 0.87 and TensorFlow Privacy" in error
    assert status == "status 1"
