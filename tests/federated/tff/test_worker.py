"""TFF's worker processes end with the process that started them."""

import pathlib
import subprocess
import sys
import time

import pytest

PROGRAM = """
import numpy as np
import tensorflow_federated as tff
from fedmf.federated.tff.worker import TffWorker, worker_processes

add = tff.tensorflow.computation(lambda x: x + 1, np.int32)
assert add(1) == 2  # in TFF's own
worker = TffWorker(threads=None)
assert worker.run(lambda: add(1)) == 2
print(*worker_processes(), flush=True)
"""


@pytest.mark.slow
def test_no_worker_outlives_a_program_that_ends():
    """The workers are fedmf's and TFF's own; test_loop.py kills a program."""
    # The workers hold the output: reading it ends when they do.
    finished_process = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=120,
        check=False,
    )
    files = [pathlib.Path(f"/proc/{pid}/exe") for pid in finished_process.stdout.split()]
    assert len(files) == 2
    deadline = time.monotonic() + 10
    while any(file.exists() for file in files) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(file.exists() for file in files)
