"""One side of a comparison, in a process and an environment of its own.

    python -m benchmarks.compare.worker MODULE FUNCTION DISTRIBUTION ARGUMENTS

FUNCTION of `benchmarks.compare.MODULE` gets ARGUMENTS (JSON) and prepares what is not timed, such
as imports and data. It returns the work, a function of what fedmf's side told (see `sitting`) to
what it found. The process answers with a line of JSON when it is ready, and then to each line of
standard input. Nothing here imports fedmf: an environment of another library may not have it.
"""

import importlib
import importlib.metadata
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

# What fedmf's side told -> value, target, failure, note, and the units of work that were done: each
# where there is one.
Work = Callable[[dict[str, Any]], dict[str, Any]]


def last_words(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:200]


def children_cpu(pid: int) -> float:
    """CPU seconds so far of what a process has started and what that has started (Linux)."""
    total, ticks = 0.0, os.sysconf("SC_CLK_TCK")
    for file in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in file.read_text().split():
                fields = pathlib.Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / ticks + children_cpu(int(child))
        except OSError:  # one that has just ended
            continue
    return total


def cpu_now() -> float:
    """CPU seconds of this process and all that it started."""
    return time.process_time() + children_cpu(os.getpid())


def measured(work: Work, told: dict[str, Any]) -> dict[str, Any]:
    """What the work found, and its seconds and CPU seconds a unit, unless it tells them itself."""
    began, cpu = time.perf_counter(), cpu_now()
    found = work(told)
    seconds, cpu = time.perf_counter() - began, cpu_now() - cpu
    units = found.get("units", 1)
    return {"seconds": seconds / units, "cpu": cpu / units} | found


def main(arguments: Sequence[str]) -> None:
    """Serves one side until standard input ends."""
    module, function, distribution, settings = arguments
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes elsewhere

    def answer(words: dict[str, Any]) -> None:
        print(json.dumps(words), file=out, flush=True)

    try:
        prepare = getattr(importlib.import_module(f"benchmarks.compare.{module}"), function)
        work = prepare(**json.loads(settings))
        answer({"version": importlib.metadata.version(distribution)})
        for line in sys.stdin:
            answer(measured(work, json.loads(line)))
    except Exception as error:
        answer({"error": last_words(error)})
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
