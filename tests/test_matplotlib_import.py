"""Imports of matplotlib do not depend on MPLBACKEND, which Jupyter sets."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import fedmf


@pytest.mark.parametrize("module", ["fedmf.reports.command_pictures", "fedmf.experiments.demo"])
def test_imports_work_with_a_missing_backend(module):
    program = f"import {module}, os; print(os.environ['MPLBACKEND'])"
    backend = "module://matplotlib_inline.no_such_backend"
    process = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"MPLBACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.stdout.strip() == backend, process.stderr


def test_only_reports_and_experiments_import_matplotlib_at_module_level():
    """Others import it within functions, after fedmf.reports."""
    top = pathlib.Path(fedmf.__file__).parent
    for path in top.rglob("*.py"):
        importing = re.search(r"^(import|from) matplotlib", path.read_text(), re.MULTILINE)
        package = path.relative_to(top).parts[0]
        assert not importing or package in ("reports", "experiments"), path
