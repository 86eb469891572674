"""A task in numpy trains, is reported, audited and stated where no framework is imported: here, and
on the workers of a Ray cluster, to the same bits.
"""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "numpy_logistic.py"
# The example as it stands, with a seed that a test can repeat and options of `train`.
PROGRAM = """
import runpy, sys
import fedmf
train = fedmf.train
fedmf.train = lambda *args, **given: train(*args, **given | {"noise_seed": 5} | %s)
runpy.run_path(sys.argv[1], run_name="__main__")
frameworks = {"tensorflow", "keras", "tf_keras", "torch", "jax", "tensorflow_federated"}
assert not frameworks & set(sys.modules), frameworks & set(sys.modules)
"""


def trained(folder, **options):
    """What the example prints; its files are in the folder."""
    folder.mkdir()
    program = folder / "program.py"  # and not on the command line, which Ray tells the cluster
    program.write_text(PROGRAM % options)
    command = [sys.executable, str(program), str(EXAMPLE)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_goes_from_data_to_report_audit_and_statement(tmp_path):
    printed = trained(tmp_path / "here")
    accuracy, epsilon = map(float, printed.removeprefix("test accuracy ").split(", "))
    assert accuracy > 0.75  # chance is 0.5
    assert 0 < epsilon <= 8
    run = tmp_path / "here" / "logistic"
    assert "# Privacy statement" in (run / "final_statement.md").read_text()
    assert (tmp_path / "here" / "logistic_report" / "report.html").stat().st_size > 10_000
    assert len(EXAMPLE.read_text().splitlines()) < 40


@pytest.mark.slow
@pytest.mark.cluster
def test_workers_of_a_cluster_train_the_same(tmp_path):
    pytest.importorskip("ray")
    trained(tmp_path / "here")
    trained(tmp_path / "there", cluster="local")
    here, there = (tmp_path / name / "logistic" for name in ("here", "there"))
    for name in ("metrics.jsonl", "participation.csv"):
        assert (here / name).read_bytes() == (there / name).read_bytes()
    with np.load(here / "model.npz") as one, np.load(there / "model.npz") as other:
        assert sorted(one) == sorted(other)
        for array in one:
            np.testing.assert_array_equal(one[array], other[array])
