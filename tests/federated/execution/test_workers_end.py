"""TFF's worker at the end of the process that started it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.tensorflow

PROGRAM = """
import os
import numpy as np
from fedmf.federated.execution import workers
import tensorflow_federated as tff

add = tff.tensorflow.computation(lambda x: x + 1, np.int32)
context = tff.backends.native.create_sync_local_cpp_execution_context()
tff.framework.set_default_context(context)
assert add(1) == 2
first = workers.worker_processes()
workers.end_workers()
# A thread that is still in a round has the context, and has TFF start another worker.
tff.framework.set_default_context(context)
try:
    add(2)
except Exception as error:
    print(type(error).__name__, error)
running = [pid for pid in workers.worker_processes() if open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"]
print(len(first), len(running))
os._exit(0)
"""


def test_no_worker_is_started_once_they_were_ended():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    assert "has been ended because the process is exiting" in done.stdout
    assert done.stdout.split()[-2:] == ["1", "0"]


RESTARTED = """
import os, signal
import numpy as np
from fedmf.federated.execution import workers
import tensorflow_federated as tff

workers.guard_workers()
add = tff.tensorflow.computation(lambda x: x + 1, np.int32)
assert add(1) == 2
[first] = workers.worker_processes()
os.kill(first, signal.SIGKILL)
for _ in range(3):
    try:
        assert add(2) == 3
        break
    except Exception:  # the round in which it is missed
        pass
[second] = [pid for pid in workers.worker_processes() if pid != first]
print(second, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_that_tff_starts_again_does_not_outlive_a_kill_either():
    done = subprocess.run(
        [sys.executable, "-c", RESTARTED], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=120
    )
    worker = Path("/proc") / done.stdout.split()[-1]
    waited = 0
    while worker.exists() and waited < 100:  # ten seconds; the watcher looks every second
        time.sleep(0.1)
        waited += 1
    assert not worker.exists()


PRESSED_AGAIN = """
import signal
from fedmf.federated.execution import workers

workers.time.sleep = lambda seconds: signal.raise_signal(signal.SIGINT)
"""


def test_a_second_ctrl_c_does_not_end_it_halfway():
    done = subprocess.run(
        [sys.executable, "-c", PRESSED_AGAIN], capture_output=True, text=True, timeout=120, check=True
    )
    assert "KeyboardInterrupt" not in done.stderr
