"""TFF's worker processes end with the process that started them, however that ends."""

import os
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
if sys.argv[1] == "TFF's own":
    assert add(1) == 2
else:
    worker = TffWorker()
    assert worker.run(lambda: add(1)) == 2
print(*worker_processes(), flush=True)
if sys.argv[2] == "kill -9":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("worker", "end"),
    [("ours", "kill -9"), ("TFF's own", "exit"), ("ours", "exit")],
)
@pytest.mark.slow
def test_no_worker_outlives_its_parent(worker, end):
    if end == "kill -9" and sys.platform != "linux":
        pytest.skip("only Linux ends a process with its parent")
    command = [sys.executable, "-c", PROGRAM, worker, end]
    # The worker holds the output: reading it ends when the worker does.
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=120,
        check=False,
    )
    [pid] = done.stdout.split()
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}/exe") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not pathlib.Path(f"/proc/{pid}/exe").exists()
