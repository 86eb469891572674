"""The wheel: one top-level package, the data files, the locked list of the training
half, complete metadata.
"""

import email
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[1]
NEEDED = (
    "fedmf/py.typed",
    "fedmf/training.lock",
    "fedmf/__main__.py",
    "fedmf/tasks/stackoverflow/__init__.py",
    "fedmf/experiments/demo.py",
    "fedmf/reports/report.html.jinja",
    "fedmf/privacy/statement.md.jinja",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy: setuptools leaves a folder `build` in the sources."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
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
        [sys.executable, "-c", build, out], cwd=source, check=True, capture_output=True, timeout=300
    )
    (path,) = out.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_one_top_level_package_with_all_it_needs(wheel):
    names = wheel.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"fedmf"}
    assert set(NEEDED) <= set(names)
    assert wheel.read("fedmf/training.lock") == (ROOT / "requirements.lock").read_bytes()


def test_metadata(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    said = email.message_from_bytes(wheel.read(name))
    assert said["Requires-Python"] == ">=3.11"
    assert said["License"] == "Apache-2.0"
    assert said["Author"] == "fedmf contributors"
    assert said["Keywords"]
    assert "Programming Language :: Python :: 3.13" in said.get_all("Classifier")
    for required in said.get_all("Requires-Dist"):
        if required.startswith("tensorflow"):
            assert 'python_version < "3.12"' in required
            assert 'extra == "tff"' in required
