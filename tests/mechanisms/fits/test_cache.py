"""The cache of fits: hits, misses, damaged files and parallel processes."""

import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

import fedmf
from fedmf import disk_cache
from fedmf.mechanisms.fitting import cache as fit_cache
from fedmf.workloads import Workload, momentum_sgd, prefix_sum
from tests.mechanisms.schemas import separated, single

SINGLE = single(24)


@pytest.fixture(autouse=True)
def _all_fits_are_stored(monkeypatch):
    monkeypatch.setattr(fit_cache, "MIN_SECONDS", 0.0)


def files(folder):
    """Returns the names of the files in a folder, which may be missing."""
    if not folder.exists():
        return []
    return sorted(path.name for path in folder.iterdir())


def steps_of(folder, workload=None, participation=SINGLE, **options):
    """Returns the mechanism and the number of steps of its fit, 0 if it came from the cache."""
    steps = []
    if workload is None:
        workload = prefix_sum(24)
    options = {"family": "banded", "bands": 4, "cache": folder, **options}
    return fedmf.fit(
        workload, participation, progress=lambda *step: steps.append(step), **options
    ), len(steps)


def test_a_repeated_fit_is_read_from_the_cache(tmp_path):
    first_fit, steps = steps_of(tmp_path / "new")
    assert steps > 0
    second_fit, steps = steps_of(tmp_path / "new")
    assert steps == 0
    assert np.array_equal(first_fit.encoder(), second_fit.encoder())
    assert first_fit.certificate == second_fit.certificate


def test_every_input_of_a_fit_changes_its_file_name(tmp_path):
    inputs = [
        {},
        {"bands": 5},
        {"tolerance": 1e-4},
        {"participation": separated(24, 4)},
        {"participation": separated(24, 4, 2)},
        {"workload": momentum_sgd(24, 0.9)},
        {"workload": Workload("prefix_sum", np.tri(24))},
    ]
    for changes in inputs:
        assert steps_of(tmp_path, **changes)[1] > 0
    assert len(files(tmp_path)) == len(inputs)
    assert steps_of(tmp_path, workload=Workload("of another name", np.tri(24)))[1] == 0


def test_a_damaged_file_is_fitted_anew(tmp_path):
    steps_of(tmp_path)
    path = tmp_path / files(tmp_path)[0]
    for damaged_file in (b"", path.read_bytes()[:-200]):
        path.write_bytes(damaged_file)
        assert steps_of(tmp_path)[1] > 0
        assert steps_of(tmp_path)[1] == 0


def test_the_fit_of_another_workload_is_not_read(tmp_path):
    cache = tmp_path / "cache"
    other_cache = tmp_path / "other"
    steps_of(cache)
    steps_of(other_cache, workload=prefix_sum(25), participation=single(25))
    other_fit = (other_cache / files(other_cache)[0]).read_bytes()
    (cache / files(cache)[0]).write_bytes(other_fit)
    mechanism, steps = steps_of(cache)
    assert (mechanism.rounds, steps > 0) == (24, True)


def test_fits_that_stopped_short_are_not_stored(tmp_path):
    with pytest.warns(RuntimeWarning, match="raise max_iterations=2"):
        steps_of(tmp_path, max_iterations=2, tolerance=1e-9)
    assert files(tmp_path) == []


def test_quick_fits_are_not_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(fit_cache, "MIN_SECONDS", 1e9)
    steps_of(tmp_path)
    assert files(tmp_path) == []


def test_the_cache_folder_follows_the_environment(tmp_path, monkeypatch):
    assert fit_cache.resolve_folder(False) is None
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path / "here"))
    assert fit_cache.resolve_folder(True) == tmp_path / "here"


def test_an_unwritable_cache_folder_warns_and_fits(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(
        RuntimeWarning, match="could not be stored in the folder .* FEDMF_CACHE"
    ) as caught_error:
        mechanism, steps = steps_of(tmp_path / "file" / "below")
    assert caught_error[0].filename == __file__
    assert steps > 0
    assert mechanism.rounds == 24


SCRIPT = (
    "import sys, fedmf; from fedmf.mechanisms.fitting import cache; cache.MIN_SECONDS = 0.0\n"
    "p = fedmf.Participation(rounds=24, schema='single')\n"
    "print(fedmf.fit(fedmf.prefix_sum(24), p, bands=4, cache=sys.argv[1]).bands)"
)


@pytest.mark.slow
def test_parallel_processes_store_one_file(tmp_path):
    command = [sys.executable, "-W", "error", "-c", SCRIPT, tmp_path]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=120)[0] for process in processes] == ["4\n"] * 3
    assert len(files(tmp_path)) == 1


@pytest.mark.slow
def test_a_change_of_the_code_of_fits_is_a_cache_miss(tmp_path):
    # Fits are scaled by their sensitivity: one from before a change of it must not be read after.
    package = pathlib.Path(disk_cache.__file__).parent
    copy = tmp_path / "fedmf"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for count, name in enumerate(("mechanisms/sensitivity.py", None), start=1):
        subprocess.run(
            [sys.executable, "-c", SCRIPT, tmp_path / "fits"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            check=True,
        )
        assert len(files(tmp_path / "fits")) == count
        if name:
            (copy / name).write_text((copy / name).read_text() + "# changed\n")
