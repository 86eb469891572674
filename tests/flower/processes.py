"""Processes that a test starts, and their descendants, which are ended with the test."""

import contextlib
import os
import pathlib
import signal
import subprocess
import time


def children():
    """Returns parent -> children of all processes of this machine."""
    children_by_parent = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children_by_parent.setdefault(parent, set()).add(int(path.parent.name))
    return children_by_parent


def descendants(*roots):
    by_parent = children()
    descendant_ids = set()
    pending_ids = list(roots)
    while pending_ids:
        new_children = by_parent.get(pending_ids.pop(), set()) - descendant_ids
        descendant_ids |= new_children
        pending_ids += new_children
    return descendant_ids


def alive(pid):
    """Returns whether a process runs and is no zombie."""
    with contextlib.suppress(OSError):
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
        return text.rpartition(")")[2].split()[0] != "Z"
    return False


class Programs:
    """Programs of a test, with their output in files. They and their descendants are ended with the
    test.
    """

    def __init__(self, folder, environment):
        self._folder = folder
        self._environment = environment
        self._programs = {}
        self._seen = set()

    def start(self, name, *command):
        with open(self._folder / f"{name}.log", "ab") as log_file:
            self._programs[name] = subprocess.Popen(
                command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
            )
        return self._programs[name]

    def log(self, name):
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def wait_for(self, name, condition, seconds):
        """Waits until the condition of the program's log holds."""
        deadline = time.monotonic() + seconds
        while not condition(self.log(name)):
            self.look()
            assert time.monotonic() < deadline, self.log(name)[-4000:]
            code = self._programs[name].poll()
            assert code is None or condition(self.log(name)), (code, self.log(name)[-4000:])
            time.sleep(0.05)

    def look(self):
        """Records descendants of the programs, which cannot be found without their parents."""
        self._seen |= descendants(*(program.pid for program in self._programs.values()))

    def end(self):
        self.look()
        for pid in [*(program.pid for program in self._programs.values()), *self._seen]:
            with contextlib.suppress(ProcessLookupError):
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)
        for program in self._programs.values():
            program.wait()
        deadline = time.monotonic() + 20
        while running_ids := [pid for pid in self._seen if alive(pid)]:
            assert time.monotonic() < deadline, running_ids
            time.sleep(0.05)
