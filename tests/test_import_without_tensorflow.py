"""The mathematical half works where TensorFlow is not installed."""

import pathlib
import subprocess
import sys

import pytest

import fedmf
from fedmf.tasks import TASKS
from tests.test_architecture import SOURCES, part_of

LOCK = pathlib.Path(fedmf.__file__).parent / "training.lock"
BELOW = {"federated", "pytorch", "flower", "cli", "__main__", "tasks", "experiments"}
# Imported in a fresh interpreter in which every import of TensorFlow and its companions fails.
_PROGRAM = """
import importlib, sys
BLOCKED = "tensorflow tensorflow_federated tensorflow_privacy keras jax torch flwr"
for name in BLOCKED.split():
    sys.modules[name] = None
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def imported(*names):
    command = [sys.executable, "-c", _PROGRAM, *names]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_everything_above_the_line_imports():
    """So do options of the tasks, and the writers of their substitutes."""
    names = [name for name in SOURCES if part_of(name) not in BELOW]
    assert {"fedmf.workloads", "fedmf.mechanisms.banded.fit"} <= set(names)
    result = imported(*names, *(function.partition(":")[0] for function in TASKS.values()))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("name", "needed", "way_out"),
    [
        ("fedmf.flower", "Flower 1.42", "'fedmf[flower]'"),
        ("fedmf.pytorch", "PyTorch 2.4", "'fedmf[torch]'"),
        (
            "fedmf.federated",
            "TensorFlow",
            f"--no-deps -r {LOCK}" if sys.version_info < (3, 12) else "'fedmf[train]'",
        ),
    ],
)
def test_names_that_need_tensorflow_say_what_to_install(name, needed, way_out):
    last_line = imported(name).stderr.splitlines()[-1]
    assert f"{name} needs {needed}" in last_line
    assert f"pip install {way_out}" in last_line


def test_the_list_of_what_to_install_has_tff():
    assert "tensorflow-federated==0.87.0" in LOCK.read_text()
