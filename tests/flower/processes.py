"""Processes that a test starts, and their descendants, which end with it whatever happens."""

import contextlib
import ctypes
import os
import pathlib
import signal
import subprocess
import time

PR_SET_CHILD_SUBREAPER = 36


def descendants(root):
    by_parent = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            by_parent.setdefault(parent, []).append(int(path.parent.name))
    found = [root]
    for pid in found:
        found += by_parent.get(pid, [])
    return found[1:]


class Programs:
    """Starts programs, with their output in files, and ends them with all that they started."""

    def __init__(self, folder, environment):
        self._folder, self._environment, self._programs = folder, environment, {}
        # Whoever loses its parent becomes a child of this process.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)

    def start(self, name, *command):
        with open(self._folder / f"{name}.log", "ab") as log:
            self._programs[name] = subprocess.Popen(
                command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def log(self, name):
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def wait_for(self, name, condition, seconds):
        """Until the condition of the program's log holds."""
        end = time.monotonic() + seconds
        while not condition(self.log(name)):
            assert time.monotonic() < end, self.log(name)[-4000:]
            code = self._programs[name].poll()
            assert code is None or condition(self.log(name)), (code, self.log(name)[-4000:])
            time.sleep(0.05)

    def end(self):
        end = time.monotonic() + 20
        while left := descendants(os.getpid()):
            assert time.monotonic() < end, left
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)
