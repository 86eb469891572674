"""Worker process of a sweep, which trains run after run so that TensorFlow starts only once.

For each run the parent process writes a line of JSON, {"arguments": arguments of `fedmf train`,
"log": path}, and reads a line with the run's exit status.
"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence

# The command that starts a worker process. It passes `fedmf.cli.main` to `serve`, since this layer
# of the package must not import the command line.
PROGRAM = (
    sys.executable,
    "-c",
    # prctl(PR_SET_PDEATHSIG, SIGKILL) asks Linux to end the worker when the sweep ends, even by
    # kill -9.
    "import ctypes; getattr(ctypes.CDLL(None), 'prctl', id)(1, 9); "
    "from fedmf.cli import main; from fedmf.sweeps.job import serve; serve(main)",
)
# A run that a signal stopped has this exit status or a larger one.
_STOPPED = 128


class Job:
    """Handle of the parent process for a worker process, which trains one run at a time."""

    def __init__(self, program: Sequence[str]) -> None:
        # The process has its own session, so that Ctrl-C in a terminal does not reach the run
        # directly. The run gets the signal once, from its parent.
        self.process = subprocess.Popen(
            program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)

    def begin(self, arguments: Sequence[str], log: str) -> None:
        """Begins a run, and appends its output to the file `log`."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"arguments": arguments, "log": log}).encode() + b"\n")
        self.process.stdin.flush()

    def status(self) -> int | None:
        """Returns the exit status of the run, or None while it trains.

        The status is negative if the process died of that signal.
        """
        assert self.process.stdout is not None
        status_bytes = self.process.stdout.read()
        return int(status_bytes) if status_bytes else self.process.poll()

    def end(self) -> None:
        """Kills the worker process."""
        self.process.kill()
        self.process.communicate()


def serve(main: Callable[[list[str]], None]) -> None:
    """Runs a command for each line of standard input. The worker process calls this.

    It returns after a command that a signal stopped.
    """
    answer_file = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        run_request = json.loads(line)
        log_descriptor = os.open(run_request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for descriptor in (1, 2):
            os.dup2(log_descriptor, descriptor)
        os.close(log_descriptor)
        try:
            main(run_request["arguments"])
            exit_status = 0
        except SystemExit as stop:
            if isinstance(stop.code, str):
                print(stop.code, file=sys.stderr)
            exit_status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        sys.stdout.flush()
        sys.stderr.flush()
        print(exit_status, file=answer_file, flush=True)
        if exit_status >= _STOPPED:
            return
        if "tensorflow" in sys.modules:
            sys.modules["tensorflow"].keras.backend.clear_session()
        gc.collect()
