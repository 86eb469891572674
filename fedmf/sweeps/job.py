"""Process of a sweep that trains run after run, so that TensorFlow starts once.

The parent writes a line of JSON for each run, {"arguments": those of the command, "log": path}, and
reads a line with its exit status.
"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence

# The command that begins a process. It calls `serve` with the command line, which this layer cannot
# import.
PROGRAM = (
    sys.executable,
    "-c",
    # prctl(PR_SET_PDEATHSIG, SIGKILL): Linux ends it with the sweep, also by kill -9.
    "import ctypes; getattr(ctypes.CDLL(None), 'prctl', id)(1, 9); "
    "from fedmf.cli import main; from fedmf.sweeps.job import serve; serve(main)",
)
_STOPPED = 128  # and above: exit status of a run that a signal stopped


class Job:
    """Process that trains one run at a time, as its parent sees it."""

    def __init__(self, program: Sequence[str]) -> None:
        # A session of its own keeps a terminal's Ctrl-C from the run, which gets it once,
        # from the parent.
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
        """Begins a run, whose output goes to the end of the file `log`."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"arguments": arguments, "log": log}).encode() + b"\n")
        self.process.stdin.flush()

    def status(self) -> int | None:
        """Returns the exit status of the run, or None while it trains.

        The status is negative if the process died of that signal.
        """
        assert self.process.stdout is not None
        answer = self.process.stdout.read()
        return int(answer) if answer else self.process.poll()

    def end(self) -> None:
        """Ends the process at once."""
        self.process.kill()
        self.process.communicate()


def serve(main: Callable[[list[str]], None]) -> None:
    """Runs the command for each line of standard input, in the child process.

    It returns after a command that a signal stopped.
    """
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.close(log)
        try:
            main(request["arguments"])
            status = 0
        except SystemExit as stop:
            if isinstance(stop.code, str):
                print(stop.code, file=sys.stderr)
            status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        sys.stdout.flush()
        sys.stderr.flush()
        print(status, file=answers, flush=True)
        if status >= _STOPPED:
            return
        if "tensorflow" in sys.modules:
            sys.modules["tensorflow"].keras.backend.clear_session()
        gc.collect()
