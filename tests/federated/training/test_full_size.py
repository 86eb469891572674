"""A few rounds at the papers' size, n = 2052, min_sep = 342, 4,050,748 parameters, and their
memory.
"""

import json
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest

import fedmf
from fedmf.runs.rounds import newest_round
from fedmf.tasks.stackoverflow.compiled.c_library import compiler
from tests.federated import full_size

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def toeplitz(tmp_path_factory):
    """Returns a mechanism of 32 bands, whose noise takes the most memory of all default choices
    (docs/costs.md).

    The noise of 342 bands takes a quarter of the machine's memory, whatever the client work does.
    """
    return mechanism_file(tmp_path_factory.mktemp("toeplitz"), "toeplitz", 32)


def mechanism_file(folder, family, bands):
    """Returns a mechanism of full shape that is far from optimal: these tests are about cost."""
    rounds = full_size.ROUNDS
    path = folder / "mechanism.npz"
    participation = fedmf.Participation(rounds=rounds, schema="min_sep", min_sep=full_size.MIN_SEP)
    options = {"family": family, "bands": bands, "max_iterations": 1}
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        mechanism = fedmf.fit(fedmf.prefix_sum(rounds), participation, **options)
    assert mechanism.bands == bands
    mechanism.save(path)
    return path


def run(folder, execution, mechanism, *, rounds=2, clients=10, sentences=16, **environment):
    """Runs so many rounds, or the remaining ones.

    Returns the peak memory of all processes in GB, and the weights before the last round.
    """
    arguments = [folder, execution, rounds, mechanism, clients, sentences]
    command = [sys.executable, "-m", "tests.federated.full_size", *map(str, arguments)]
    options = {"env": os.environ | environment, "capture_output": True, "text": True}
    finished_process = subprocess.run(command, timeout=800, **options)
    assert finished_process.returncode == 0, finished_process.stderr[-3000:]
    peaks = json.loads(finished_process.stdout.splitlines()[-1])
    newest_t = newest_round(folder)
    assert newest_t.t == rounds - 1
    return sum(peaks.values()) * 2**30 / 1e9, newest_t.before


def test_two_rounds_of_tff_take_under_10_gb(tmp_path):
    """test_loop.py tests on a small model that resumed runs of TFF are identical."""
    mechanism = mechanism_file(tmp_path, "banded", full_size.MIN_SEP)
    peak_gb, _ = run(tmp_path / "run", "tff", mechanism, clients=3)
    assert peak_gb < 10


def test_two_rounds_and_a_resume_take_under_3_gb(toeplitz, tmp_path):
    """The updates of a hundred clients would take 1.6 GB more if they were kept.

    A few sentences suffice for an update. Without a C compiler the Keras model trains ten clients.
    """
    folder = tmp_path / "run"
    work = {} if compiler() is None else {"clients": 100, "sentences": 4}
    peak_gb, first_weights = run(folder, "fast", toeplitz, rounds=1, **work)
    # That a resumed run is the same is tested on a small model (test_loop.py).
    resumed_peak_gb, second_weights = run(folder, "fast", toeplitz, **work)
    assert max(peak_gb, resumed_peak_gb) < 3
    assert not np.array_equal(second_weights[0], first_weights[0])


@pytest.mark.skipif(compiler() is None, reason="the test above is without one")
def test_two_rounds_without_a_compiler_take_under_3_gb(toeplitz, tmp_path):
    peak_gb, _ = run(tmp_path / "run", "fast", toeplitz, clients=3, FEDMF_CC="")
    assert peak_gb < 3
