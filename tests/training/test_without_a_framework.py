"""The example in numpy runs from data to statement without importing a framework, in this process
and on a Ray cluster with bitwise identical results.
"""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "numpy_logistic.py"
# Runs the example with a fixed noise seed and with options of `train`.
PROGRAM = """
import runpy, sys
import fedmf
train = fedmf.train
fedmf.train = lambda *args, **options: train(*args, **options | {"noise_seed": 5} | %s)
runpy.run_path(sys.argv[1], run_name="__main__")
frameworks = {"tensorflow", "keras", "tf_keras", "torch", "jax", "tensorflow_federated"}
assert not frameworks & set(sys.modules), frameworks & set(sys.modules)
"""


def run_example(folder, **options):
    """Runs the example in a new folder, and returns what it prints."""
    folder.mkdir()
    # The program has a noise seed, and Ray sends the command line to the cluster.
    program = folder / "program.py"
    program.write_text(PROGRAM % options)
    command = [sys.executable, str(program), str(EXAMPLE)]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_the_example_writes_a_report_and_a_statement(tmp_path):
    printed_text = run_example(tmp_path / "example")
    accuracy, epsilon = map(float, printed_text.removeprefix("test accuracy ").split(", "))
    assert accuracy > 0.75  # Guessing gives 0.5.
    assert 0 < epsilon <= 8
    run = tmp_path / "example" / "logistic"
    assert "# Privacy statement" in (run / "final_statement.md").read_text()
    assert (tmp_path / "example" / "logistic_report" / "report.html").stat().st_size > 10_000
    assert len(EXAMPLE.read_text().splitlines()) < 40


@pytest.mark.slow
@pytest.mark.cluster
def test_the_example_on_a_cluster_equals_that_in_one_process(tmp_path):
    pytest.importorskip("ray")
    run_example(tmp_path / "process")
    run_example(tmp_path / "cluster", cluster="local")
    process_run = tmp_path / "process" / "logistic"
    cluster_run = tmp_path / "cluster" / "logistic"
    for name in ("metrics.jsonl", "participation.csv"):
        assert (cluster_run / name).read_bytes() == (process_run / name).read_bytes()
    cluster_weights = dict(np.load(cluster_run / "model.npz"))
    np.testing.assert_equal(cluster_weights, dict(np.load(process_run / "model.npz")))
