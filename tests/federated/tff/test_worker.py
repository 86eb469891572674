"""TFF's worker processes end with the process that started them, however that ends."""

import pathlib
import subprocess
import sys
import time

import pytest

PROGRAM = """
import os, signal, sys
import numpy as np
import tensorflow_federated as tff
from fedmf.federated.tff.worker import TffWorker, worker_processes

add = tff.tensorflow.computation(lambda x: x + 1, np.int32)
if sys.argv[1] == "exit":
    assert add(1) == 2  # in TFF's own
worker = TffWorker(threads=None)
assert worker.run(lambda: add(1)) == 2
print(*worker_processes(), flush=True)
if sys.argv[1] == "kill -9":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("end", "workers"), [("kill -9", 1), ("exit", 2)])
@pytest.mark.slow
def test_no_worker_outlives_its_parent(end, workers):
    """Ours, and after an exit TFF's own too."""
    if end == "kill -9" and sys.platform != "linux":
        pytest.skip("only Linux ends a process with its parent")
    command = [sys.executable, "-c", PROGRAM, end]
    # The workers hold the output: reading it ends when they do.
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=120,
        check=False,
    )
    files = [pathlib.Path(f"/proc/{pid}/exe") for pid in done.stdout.split()]
    assert len(files) == workers
    deadline = time.monotonic() + 10
    while (left := [*filter(pathlib.Path.exists, files)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
