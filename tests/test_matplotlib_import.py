"""Pictures do not depend on MPLBACKEND, which Jupyter sets for the commands of its cells."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import fedmf


@pytest.mark.parametrize("module", ["fedmf.reports.pictures", "fedmf.experiments.demo"])
def test_a_backend_that_is_not_there_does_no_harm(module):
    program = f"import {module}, os; print(os.environ['MPLBACKEND'])"
    backend = "module://matplotlib_inline.no_such_backend"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"MPLBACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.strip() == backend, ran.stderr


def test_matplotlib_is_imported_by_packages_that_fix_its_import():
    """Or within a function that imports fedmf.reports first."""
    top = pathlib.Path(fedmf.__file__).parent
    for path in top.rglob("*.py"):
        importing = re.search(r"^(import|from) matplotlib", path.read_text(), re.MULTILINE)
        package = path.relative_to(top).parts[0]
        assert not importing or package in ("reports", "experiments"), path
