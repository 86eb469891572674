"""No TFF worker outlives its parent.

TFF 0.87 starts its C++ runtime as a child process. It inherits standard output, is not reaped when the interpreter shuts down, and
lives on after kill -9: a pipe behind the program then never ends.
"""

import atexit
import contextlib
import gc
import os
import signal
import subprocess
import sys
from typing import Any

_WORKER = "worker_binary"
_guarded: set[int] = set()


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


def end_workers() -> None:
    """Ends this process's workers; called at exit."""
    for pid in worker_processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    # TFF's handle of the dead worker is dropped while its destructor, which reaps it, still finds the modules it needs.
    tff: Any = sys.modules.get("tensorflow_federated")
    if tff is not None:

        class Ended(tff.framework.SyncContext):
            def invoke(self, comp: Any, arg: Any) -> Any:
                raise RuntimeError("TFF's worker has been ended because the process is exiting")

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


atexit.register(end_workers)
