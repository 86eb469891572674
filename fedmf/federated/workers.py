"""TFF's worker process: no worker outlives its parent, and what both do with memory they have freed.

TFF 0.87 starts its C++ runtime as a child process. It inherits standard output, is not reaped when the interpreter shuts down, and
lives on after kill -9: a pipe behind the program then never ends.

Values of model size pass between the two by copies. The C library gives each freed copy back to the system, and the system hands out
the next one page by page, zeroed: that takes longer than copying it. `keep_freed_memory` changes that; see docs/noise_cost.md.
"""

import atexit
import contextlib
import ctypes
import gc
import os
import platform
import signal
import subprocess
import sys
import time
import types
from typing import Any

_WORKER = "worker_binary"
_STARTS_WORKERS = "tensorflow_federated.python.core.impl.executor_stacks.executor_factory"
_guarded: set[int] = set()
# glibc's M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD and M_ARENA_MAX (malloc.h). 32 MiB is the largest threshold it takes: larger
# blocks of this process stay with the system, so that it does not hold on to them.
_THIS_PROCESS = {-1: 2_000_000_000, -2: 2**26, -3: 2**25, -8: 1}
# The worker starts afresh, holds its clients' memory anyway, and may keep all of it. A freed block is used again only within its arena: the
# fewer, the better for memory. But with one, threads wait for each other, and clients of a small model take three times as long; with four,
# it still happens in one worker of ten. Sixteen are what the C library itself allows two cores.
_ITS_ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "16",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TOP_PAD_": str(2**28),
    "MALLOC_TRIM_THRESHOLD_": "16000000000",
}
# With more, so few arenas may be a queue; it was not measured.
_MOST_CORES = 8
ALLOCATOR_VARIABLE = "FEDMF_ALLOCATOR"
_kept = False


def worker_processes() -> list[int]:
    """Process ids of the TFF workers that this process has started."""
    try:
        listing = subprocess.run(
            ["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=False
        )
    except OSError:  # no `ps`: nothing can be said
        return []
    rows = (line.split(None, 1) for line in listing.stdout.splitlines())
    return [int(row[0]) for row in rows if len(row) == 2 and row[1].startswith(_WORKER)]


def _refuse() -> int:
    raise RuntimeError("TFF's worker has been ended because the process is exiting")


def end_workers() -> None:
    """Ends this process's workers, and starts none any more; called at exit."""
    # After Ctrl-C a thread of TFF's may still be in its round: it would take the end of the worker for a failure and start the next one.
    starting: Any = sys.modules.get(_STARTS_WORKERS)
    if starting is not None:
        starting.portpicker = types.SimpleNamespace(pick_unused_port=_refuse)
    for _ in range(2):  # one that was about to start
        for pid in worker_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05 if starting is not None else 0)
    # TFF's handle of the dead worker is dropped while its destructor, which reaps it, still finds the modules it needs.
    tff: Any = sys.modules.get("tensorflow_federated")
    if tff is not None:

        class Ended(tff.framework.SyncContext):
            def invoke(self, comp: Any, arg: Any) -> Any:
                _refuse()

        tff.framework.set_default_context(Ended())
        gc.collect()


def guard_workers() -> None:
    """Starts a watcher beside each worker that has none: it ends the worker once this process is gone, however it went."""
    parent = os.getpid()
    for pid in worker_processes():
        if pid in _guarded:
            continue
        _guarded.add(pid)
        alive = f"kill -0 {parent} 2>/dev/null && kill -0 {pid} 2>/dev/null"
        subprocess.Popen(
            ["sh", "-c", f"while {alive}; do sleep 1; done; kill -9 {pid} 2>/dev/null"],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def keep_freed_memory() -> bool:
    """Makes this process, and TFF workers that it starts from now on, reuse freed memory in place of giving it back to the system.

    Call it before the first TFF computation. Memory use does not grow from round to round, but stays at its peak. Our own TFF execution
    calls it; importing fedmf does not. A second call does nothing. The worker's part goes through os.environ, and so to other processes
    that are started later.

    Returns:
      Whether it is done. It is not with FEDMF_ALLOCATOR=system in the environment; where the environment holds settings of the C
      library's allocator already (MALLOC_..., or glibc.malloc in GLIBC_TUNABLES); on more than 8 cores; with another C library than
      glibc.
    """
    global _kept
    if _kept:
        return True
    chosen = [name for name in os.environ if name.startswith("MALLOC_")]
    if (
        os.environ.get(ALLOCATOR_VARIABLE) == "system"
        or chosen
        or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    ):
        return False
    if (os.cpu_count() or 1) > _MOST_CORES or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    for parameter, value in _THIS_PROCESS.items():
        mallopt(parameter, value)  # 0 where it is not taken, which does no harm
    os.environ.update(_ITS_ENVIRONMENT)
    _kept = True
    return True


atexit.register(end_workers)
