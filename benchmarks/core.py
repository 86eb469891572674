"""What the benchmarks share: timing, the memory and CPU time of processes, and tables with a
process for each row.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

MIB = 2**20


def timed(run: Callable[[], Any]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def paired(seconds: Sequence[float], base: Sequence[float]) -> tuple[float, float]:
    """Mean of the differences, pass by pass, and its standard error (NaN for one pass)."""
    differences = [a - b for a, b in zip(seconds, base, strict=True)]
    error = (
        statistics.stdev(differences) / len(differences) ** 0.5
        if len(differences) > 1
        else float("nan")
    )
    return statistics.mean(differences), error


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time of processes so far (Linux)."""
    stats = [
        pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids
    ]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pids: Iterable[int] = (), field: str = "VmHWM") -> int:
    """Peak resident memory of processes, by default of this one (Linux); `field` VmRSS is the
    memory now.
    """
    statuses = [pathlib.Path(f"/proc/{pid}/status").read_text() for pid in pids or (os.getpid(),)]
    return sum(1024 * int(status.split(f"{field}:")[1].split()[0]) for status in statuses)


def table(
    module: str,
    cases: Mapping[str, Any],
    measure: Callable[[Any, bool], dict[str, Any]],
    columns: Mapping[str, str],
    doc: str,
) -> click.Command:
    """The command of a benchmark that prints a row for each case.

    Each case is measured in a process of its own, one after the other; toy sizes are measured in
    this process. The exit status is 1 if a case failed.

    Args:
      module: name in `benchmarks`.
      cases: by name.
      measure: (case, toy size or not) -> what the columns show.
      columns: heading -> format of a cell, such as "{seconds:.1f}".
      doc: help text.
    """
    first = max(map(len, cases)) + 2
    widths = [max(len(heading) + 2, 10) for heading in columns]

    def line(name: str, cells: Iterable[str]) -> str:
        return f"{name:<{first}}" + "".join(
            f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)
        )

    @click.command(help=doc)
    @click.option("--case", "text", default="", help="Only the cases whose name contains this.")
    @click.option("--small", is_flag=True, help="Toy sizes: checks this program, measures nothing.")
    @click.option("--child", type=click.Choice(list(cases)), hidden=True)
    def main(text: str, small: bool, child: str | None) -> None:
        if child is not None:
            print(json.dumps(measure(cases[child], small)))
            return
        chosen = [name for name in cases if text in name]
        if not chosen:
            raise click.UsageError(f"--case {text!r} is in the name of no case: {'; '.join(cases)}")
        print(line("", columns), flush=True)
        failed = False
        for name in chosen:
            if small:
                row = measure(cases[name], small)
            else:
                command = [sys.executable, "-m", f"benchmarks.{module}", "--child", name]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    failed = True
                    print(
                        f"{name:<{first}}failed: "
                        f"{(done.stderr.strip().splitlines() or ['killed'])[-1]}",
                        flush=True,
                    )
                    continue
                row = json.loads(done.stdout.splitlines()[-1])
            print(line(name, (cell.format(**row) for cell in columns.values())), flush=True)
        sys.exit(int(failed))

    return main
