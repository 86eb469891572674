"""TFF's C++ workers as child processes, which end with this one.

TFF 0.87 leaves its worker alive when the interpreter ends. The worker holds standard output, so that a pipe behind the program never ends.
"""

import atexit
import contextlib
import gc
import os
import pathlib
import signal
import socket
import subprocess
import sys
from typing import Any

from fedmf.federated.tff import tff

_WORKER = pathlib.Path(tff.__file__).parent / "data" / "worker_binary"
# prctl(PR_SET_PDEATHSIG, SIGKILL): Linux ends the worker when this process is gone, also by kill -9. It survives the exec.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; getattr(ctypes.CDLL(None), 'prctl', id)(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
)


def start_worker(threads: int | None = None) -> tuple[subprocess.Popen[bytes], str]:
    """Starts a worker on a free port of this machine.

    Args:
      threads: clients that train side by side; None for no limit.

    Returns:
      The process, which may not listen yet, and its address.
    """
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    limit = [] if threads is None else [f"--max_concurrent_computation_calls={threads}"]
    die_with_parent = [sys.executable, "-S", "-c", _DIE_WITH_PARENT] if sys.platform == "linux" else []
    # In a session of its own: a Ctrl-C is for the run, which ends the worker when it has saved.
    process = subprocess.Popen([*die_with_parent, str(_WORKER), f"--port={port}", *limit], start_new_session=True)
    return process, f"localhost:{port}"


def worker_processes() -> list[int]:
    """Process ids of the TFF workers that this process has started, also by TFF itself."""
    try:
        command = ["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())]
        listing = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # no `ps`
        return []
    rows = (line.split(None, 1) for line in listing.stdout.splitlines())
    return [int(row[0]) for row in rows if len(row) == 2 and row[1].startswith(_WORKER.name)]


class _Ended(tff.framework.SyncContext):
    def invoke(self, comp: Any, arg: Any) -> Any:
        raise RuntimeError("TFF's worker has ended because the process is exiting")


@atexit.register
def end_workers() -> None:
    """Ends this process's workers; called at exit."""
    for pid in worker_processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    # TFF's handle of its worker is dropped while its destructor still finds the modules that it needs.
    tff.framework.set_default_context(_Ended())
    gc.collect()
