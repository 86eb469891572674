"""The wheel: one top-level package, the data files, the locked list of the training
half, complete metadata.
"""

import email
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[1]
NEEDED = (
    "py.typed training.lock __main__.py tasks/stackoverflow/__init__.py experiments/demo.py "
    "reports/report.html.jinja privacy/statement.md.jinja"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Builds the wheel from a copy, because setuptools leaves a folder `build` in the sources."""
    source = tmp_path_factory.mktemp("source")
    wheel_folder = tmp_path_factory.mktemp("wheel")
    for name in ("fedmf", "tasks", "experiments"):
        shutil.copytree(
            ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE", "requirements.lock"):
        shutil.copy(ROOT / name, source)
    build = (
        "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    )
    subprocess.run(
        [sys.executable, "-c", build, wheel_folder],
        cwd=source,
        check=True,
        capture_output=True,
        timeout=300,
    )
    (path,) = wheel_folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_the_wheel_has_one_top_level_package_and_its_data_files(wheel):
    names = wheel.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"fedmf"}
    assert {f"fedmf/{name}" for name in NEEDED.split()} <= set(names)
    assert wheel.read("fedmf/training.lock") == (ROOT / "requirements.lock").read_bytes()


def test_the_metadata_name_python_and_optional_requirements(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))
    assert metadata["Requires-Python"] == ">=3.11"
    for required in metadata.get_all("Requires-Dist"):
        if required.startswith("tensorflow"):
            assert 'extra == "t' in required
        if 'extra == "tff"' in required:
            assert 'python_version < "3.12"' in required


def python_3_13():
    """Returns the path of Python 3.13, which is searched as in the Makefile."""
    interpreters = sorted(pathlib.Path.home().glob(".pyenv/versions/3.13.*/bin/python3.13"))
    return next(iter(interpreters), shutil.which("python3.13"))


@pytest.mark.slow
@pytest.mark.skipif(python_3_13() is None, reason="this machine has no Python 3.13")
def test_pip_installs_a_training_half_on_a_python_without_tff(wheel, tmp_path):
    """The resolver installs 2.5 GB, without a locked list."""

    def run(*command):
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        finished_process = subprocess.run(
            command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=800
        )
        assert finished_process.returncode == 0, finished_process.stderr
        return finished_process

    words = (
        "--task regression --rounds 2 --cohort-size 4 --min-sep 2 --epsilon 8 --noise-seed 1 "
        "--server-learning-rate 0.001 --quiet"
    )
    install = ("install", "--quiet", "--no-compile")  # to bytecode, which takes a minute
    with tempfile.TemporaryDirectory() as environment:
        binaries = pathlib.Path(environment) / "bin"
        run(python_3_13(), "-m", "venv", environment)
        run(binaries / "python", "-m", "pip", *install, f"{wheel.filename}[train]")
        run(binaries / "python", "-m", "pip", "check")
        trained = run(binaries / "fedmf", "train", "--out", "run", *words.split())
    assert "achieved epsilon" in trained.stdout
    assert trained.stderr == ""
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2
