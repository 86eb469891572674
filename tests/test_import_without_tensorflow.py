"""The mathematical half works where TensorFlow is not installed."""

import pathlib
import subprocess
import sys

import fedmf

# Imported in a fresh interpreter in which every import of TensorFlow and its companions fails.
_PROGRAM = """
import importlib, sys
for name in ("tensorflow", "tensorflow_federated", "tensorflow_privacy", "keras", "jax", "flwr"):
    sys.modules[name] = None
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def modules_above_the_line() -> list[str]:
    """Read off the files: asking the packages themselves would import TensorFlow here."""
    package = pathlib.Path(fedmf.__file__).parent
    paths = (path.relative_to(package.parent).with_suffix("") for path in package.rglob("*.py"))
    names = {".".join(path.parts).removesuffix(".__init__") for path in paths}
    return sorted(
        name
        for name in names
        if not f"{name}.".startswith(
            ("fedmf.federated.", "fedmf.flower.", "fedmf.cli.", "fedmf.__main__.")
        )
    )


def test_everything_above_the_line_imports():
    names = modules_above_the_line()
    assert {
        "fedmf.workloads",
        "fedmf.mechanisms.tree",
        "fedmf.mechanisms.banded.fit",
        "fedmf.mechanisms.error",
    } <= set(names)
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *names], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr


def test_the_block_works():
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "tensorflow"], capture_output=True, text=True, timeout=120
    )
    assert result.returncode != 0
    assert "tensorflow" in result.stderr


def test_the_strategy_for_flower_says_what_is_missing():
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "fedmf.flower"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    last = result.stderr.splitlines()[-1]
    assert "fedmf.flower needs Flower 1.42" in last
    assert "pip install 'fedmf[flower]'" in last


def test_the_tensorflow_half_says_what_is_missing():
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "fedmf.federated"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "fedmf.federated needs TensorFlow" in result.stderr
    lock = pathlib.Path(fedmf.__file__).parent / "training.lock"
    assert "tensorflow-federated==0.87.0" in lock.read_text()
    with_tff = sys.version_info < (3, 12)
    way_out = f"--no-deps -r {lock}" if with_tff else "'fedmf[train]'"
    assert f"pip install {way_out}" in result.stderr
