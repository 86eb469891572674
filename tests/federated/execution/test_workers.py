"""The settings of the C library's allocator, each in a process of its own; what they save is measured by benchmarks.aggregator."""

import os
import platform
import subprocess
import sys

import pytest

from fedmf.federated.execution.client_work import cores

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's"),
]

# workers.py alone, and in place of the module in which TFF starts its worker one that starts what it is told to: TensorFlow is not needed.
PROGRAM = """
import importlib.util, os, subprocess, sys, types
tff_module = types.ModuleType("executor_factory")
tff_module.subprocess = subprocess
spec = importlib.util.spec_from_file_location("workers", "fedmf/federated/execution/workers.py")
workers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(workers)
sys.modules[workers._STARTS_WORKERS] = tff_module
os.cpu_count = lambda: int(sys.argv[1])
first = dict(os.environ)
print(workers.keep_freed_memory(), workers.keep_freed_memory(), first == dict(os.environ))

def names(popen):
    worker = popen(["sh", "-c", "env | grep -o '^MALLOC_[A-Z_]*' | sort"], stdout=subprocess.PIPE)
    return worker.communicate()[0].decode().split()

print(*names(tff_module.subprocess.Popen), "other:", *names(subprocess.Popen))
"""


def keep(cores=2, **environment):
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_", "FEDMF_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(cores)],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = done.stdout.splitlines()
    workers, others = second.split("other:")
    return first.split(), workers.split(), others.split()


def test_the_worker_alone_has_another_environment():
    done, workers, others = keep()
    assert done == ["True", "True", "True"]
    assert workers == ["MALLOC_ARENA_MAX", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_", "MALLOC_TRIM_THRESHOLD_"]
    assert others == []


@pytest.mark.parametrize(
    "environment",
    [{"FEDMF_ALLOCATOR": "system"}, {"MALLOC_ARENA_MAX": "4"}, {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}],
)
def test_the_users_own_settings_stay(environment):
    done, workers, others = keep(**environment)
    assert done == ["False", "False", "True"]
    assert workers == others == [name for name in environment if name.startswith("MALLOC_")]


def test_many_cores_are_left_alone():
    assert keep(cores=64) == (["False", "False", "True"], [], [])


FAULTS = """
import ctypes, os, resource, sys
sys.argv.append("2")
{keep}
def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
size = 16_200_000
for i in range(10):
    if i == 5:
        before = pages()
    block = libc.malloc(size)
    other = libc.malloc(size)
    for part in (block, other):
        ctypes.memset(part, 1, size)
    libc.free(block)
    libc.free(other)
print(pages() - before)
"""


def test_freed_rows_are_not_faulted_in_again():
    # Five times two rows of 4,050,000 float32 are 39,550 pages of 4 KiB.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "FEDMF_ALLOCATOR"))}

    def faults(keep):
        done = subprocess.run(
            [sys.executable, "-c", FAULTS.format(keep=keep)],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        return int(done.stdout.splitlines()[-1])

    assert faults(PROGRAM) < 100
    assert faults("") > 10_000


ROUNDS = """
import os
from benchmarks.simulation import Rounds
from fedmf.federated.execution.workers import worker_processes
rounds = Rounds("tff", "demo", 20, "zipf", None)
rounds.next(20)
[worker] = worker_processes()
def seconds():
    fields = open(f"/proc/{worker}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
before = seconds()
for _ in range(3):
    rounds.next(20)
print(seconds() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(cores() < 2, reason="threads of one core do not wait for each other's memory")
def test_small_clients_in_tff_take_no_longer_for_memory_that_is_kept():
    """CPU time of TFF's worker, as a ratio: 0.95 to 1.06 in six runs, and 2.4 to 2.9 with the single arena of the control."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "FEDMF_ALLOCATOR"))}

    def worker_seconds(**settings):
        done = subprocess.run(
            [sys.executable, "-c", ROUNDS], capture_output=True, text=True, check=True, env=environment | settings
        )
        return float(done.stdout.splitlines()[-1])

    system = worker_seconds(FEDMF_ALLOCATOR="system")
    assert worker_seconds() < 1.6 * system
    assert worker_seconds(MALLOC_ARENA_MAX="1") > 1.6 * system
