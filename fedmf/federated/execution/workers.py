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
import threading
import time
import types
from typing import Any

from fedmf.federated.tff import executor_factory, tff

_WORKER = "worker_binary"
_ENDED = "TFF's worker has been ended because the process is exiting"
_watched: set[int] = set()
# A process that is gone exists as long as its parent has not asked for its status, and that one may be reading the output which the worker
# holds open. Where there is no /proc, it is waited for.
_WATCHER = """
alive() {
    kill -0 $1 || return 1
    read -r stat < /proc/$1/stat || return 0
    case $stat in *") Z "*) return 1 ;; esac
}
while alive $1; do
    alive $2 || exit 0
    sleep 1
done
kill -9 $2
"""
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
_MAX_CORES = 8
ALLOCATOR_VARIABLE = "FEDMF_ALLOCATOR"
_kept = False
_ending = False


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


class _AsAnyPopen(type):
    def __instancecheck__(cls, instance: object) -> bool:
        # TFF asks so whether it has a process to end; one that it started before is one too.
        return isinstance(instance, subprocess.Popen)


class _Worker(subprocess.Popen[bytes], metaclass=_AsAnyPopen):
    """A worker as TFF starts it, with a watcher, and with an environment of its own where freed memory is kept."""

    def __init__(self, args: Any, **how: Any) -> None:
        if _ending:
            raise RuntimeError(_ENDED)
        super().__init__(args, env=os.environ | _ITS_ENVIRONMENT if _kept else None, **how)
        _watch(self.pid)


def _start_as_ours() -> None:
    """Has TFF start its workers as `_Worker` from now on: it does so in any round whose worker is not there."""
    executor_factory.subprocess = types.SimpleNamespace(Popen=_Worker)


def _watch(pid: int) -> None:
    """Starts a process that ends the worker once this process is gone, however it went."""
    _watched.add(pid)
    subprocess.Popen(
        ["sh", "-c", _WATCHER, "sh", str(os.getpid()), str(pid)],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def guard_workers() -> None:
    """Sees to it that none of this process's workers outlives it by kill -9: those that run, and those that TFF starts from now on."""
    _start_as_ours()
    for pid in worker_processes():
        if pid not in _watched:
            _watch(pid)


def end_workers() -> None:
    """Ends this process's workers, and starts none any more; called at exit."""
    global _ending
    _ending = True
    # A second Ctrl-C would end this halfway, with a traceback. The process is exiting: nothing is left that it could stop.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    # After Ctrl-C a thread of TFF's may still be in its round: it would take the end of the worker for a failure and start the next one.
    _start_as_ours()
    for _ in range(2):  # one that was about to start
        for pid in worker_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    # TFF's handle of the dead worker is dropped while its destructor, which reaps it, still finds the modules it needs.
    tff.framework.set_default_context(_Ended())
    gc.collect()


class _Ended(tff.framework.SyncContext):
    def invoke(self, comp: Any, arg: Any) -> Any:
        raise RuntimeError(_ENDED)


def keep_freed_memory() -> bool:
    """Makes this process, and TFF workers that it starts from now on, reuse freed memory in place of giving it back to the system.

    Call it before the first TFF computation. Memory use does not grow from round to round, but stays at its peak. Our own TFF execution
    calls it; importing fedmf does not. A second call does nothing. The environment of this process stays as it is.

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
    if (os.cpu_count() or 1) > _MAX_CORES or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    for parameter, value in _THIS_PROCESS.items():
        mallopt(parameter, value)  # 0 where it is not taken, which does no harm
    _start_as_ours()
    _kept = True
    return True


atexit.register(end_workers)
