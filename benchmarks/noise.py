"""What a row of correlated noise costs, side by side with one iid Gaussian vector from the same generator.

    make bench-noise                                   all rows at full size; takes about an hour
    python -m benchmarks.noise --row dense             some rows; may be repeated
    python -m benchmarks.noise --engine host           one engine; may be repeated
    python -m benchmarks.noise --rounds 24 --size 1000 a check of this program, measures nothing

Engines
  host   rows made ahead by the host, `fedmf.federated.HostNoise`: what our own training loops use.
  graph  rows made in the graph with the state by value, `NoiseRows`: what a TFF pipeline of one's own uses by default.
  tfp    TensorFlow Privacy's tree aggregation (TreeResidualSumQuery) with its own generator.

Each row of the table runs in a process of its own, one after the other. "ms" is per round, the median of repetitions, of the whole
block of rounds that is made together and holds the round named: a round that makes a block pays for the others of it. "x iid" is
that over the median time of one iid vector by the row's own generator, drawn in the same process before and after each repetition.
Memory is the peak of resident memory, set-up included, over what the process needs with TensorFlow, the mechanism and one vector
drawn. "state" is what passes through the graph by value.
"""

import contextlib
import ctypes
import gc
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from benchmarks.noise_cases import CASES, ROUNDS, TFP_CASES, timed_rounds
from benchmarks.noise_engines import ENGINES, Engine
from fedmf.noise.strategies import GRAPH_STRATEGIES, HOST_STRATEGIES

MIB = 2**20
SIZE = 4_050_000
# A measurement is repeated until it has lasted so long, or so many times.
_SECONDS, _REPETITIONS, _DRAWS = 2.0, 7, 5


def resident() -> tuple[int, int]:
    """This process's resident memory and its peak, in bytes."""
    try:
        status = pathlib.Path("/proc/self/status").read_text()
    except OSError:  # not Linux: the peak since the beginning
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak, peak
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024, int(fields["VmHWM"].split()[0]) * 1024


def forget_peak() -> int:
    """Starts the peak anew, where the system can; returns the resident bytes, without what only the allocator still holds."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return resident()[1]
    return resident()[0]


def timed(run: Callable[[], Any]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def measure(engine: Engine, rounds: int) -> dict[str, Any]:
    """Times `engine` here, at three rounds of `rounds`."""
    engine.draw()
    draws = [timed(engine.draw) for _ in range(_DRAWS)]
    before = forget_peak()
    setup = timed(engine.set_up)
    milliseconds: list[float] = []
    blocks: list[tuple[int, int]] = []
    for t in timed_rounds(rounds):
        first, length = engine.block(t)
        if (first, length) in blocks:  # the whole run, which takes minutes
            milliseconds.append(milliseconds[blocks.index((first, length))])
            continue
        times: list[float] = []
        while len(times) < 1 or (len(times) < _REPETITIONS and sum(times) < _SECONDS):
            draws += [timed(engine.draw) for _ in range(_DRAWS)]
            engine.jump(first)
            times.append(timed(lambda first=first, length=length: engine.run(first, length)))  # type: ignore[misc]
        draws += [timed(engine.draw) for _ in range(_DRAWS)]
        milliseconds.append(1000 * statistics.median(times) / length)
        blocks.append((first, length))
    return {
        "strategy": engine.strategy,
        "block": max(length for _, length in blocks),
        "milliseconds": milliseconds,
        "iid_milliseconds": 1000 * statistics.median(draws),
        "iid_spread": statistics.quantiles(draws, n=10)[8] / statistics.median(draws),
        "memory": resident()[1] - before,
        "disk": engine.disk(),
        "state": engine.state_bytes(),
        "setup_seconds": setup,
    }


def line(*cells: str) -> str:
    """One row of the table."""
    widths = (30, 7, 20, 9, 9, 9, 8, 8, 8, 8, 10, 10, 11, 10, 6)
    return "".join(f"{c:<{w}}" if i < 3 else f"{c:>{w}}" for i, (c, w) in enumerate(zip(cells, widths, strict=True)))


def header(rounds: int) -> str:
    """The table's first line."""
    at = [str(t) for t in timed_rounds(rounds)]
    return line(
        "mechanism", "engine", "strategy (block)", *(f"ms@{t}" for t in at), "iid ms", *(f"x@{t}" for t in at),
        "peak MiB", "disk MiB", "state MiB", "set-up s", "goal",
    )  # fmt: skip


def row(name: str, engine: str, goal: float | None, found: dict[str, Any]) -> str:
    """One measured row."""
    iid = found["iid_milliseconds"]
    return line(
        name, engine, f"{found['strategy']} ({found['block']})", *(f"{ms:.1f}" for ms in found["milliseconds"]), f"{iid:.1f}",
        *(f"{ms / iid:.2f}" for ms in found["milliseconds"]), f"{found['memory'] / MIB:.0f}", f"{found['disk'] / MIB:.0f}",
        f"{found['state'] / MIB:.0f}", f"{found['setup_seconds']:.1f}", "" if goal is None else f"{goal:g}",
    )  # fmt: skip


@click.command()
@click.option("--row", "names", multiple=True, help="A mechanism of the table; may be repeated.")
@click.option("--engine", "engines", multiple=True, type=click.Choice(list(ENGINES)), help="May be repeated.")
@click.option(
    "--strategy",
    type=click.Choice(sorted({*HOST_STRATEGIES, *GRAPH_STRATEGIES})),
    help="A noise strategy in place of the chosen one; of one engine.",
)
@click.option("--rounds", default=ROUNDS, show_default=True, help="n.")
@click.option("--size", type=click.IntRange(min=1), default=SIZE, show_default=True, help="d, coordinates of a row.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each row in place of the table.")
@click.option("--here", is_flag=True, hidden=True, help="Measure in this process: what the table's child processes do.")
def main(
    names: tuple[str, ...],
    engines: tuple[str, ...],
    strategy: str | None,
    rounds: int,
    size: int,
    as_json: bool,
    here: bool,
) -> None:
    """Print the table."""
    known = [case.name for case in (*CASES, *TFP_CASES)]
    for name in names:
        if name not in known:
            raise click.UsageError(f"row={name!r} is unknown: choose one of {'; '.join(known)}")
    if rounds < 24:
        raise click.UsageError(f"rounds={rounds} is too few for six epochs: use at least 24")
    jobs = [
        (case, engine)
        for engine in engines or ENGINES
        for case in (TFP_CASES if engine == "tfp" else CASES)
        if not names or case.name in names
    ]
    if here:
        case, engine = jobs[0]
        print(json.dumps(measure(ENGINES[engine](case, rounds, size, strategy), rounds)))
        return
    if not as_json:
        print(header(rounds), flush=True)
    for case, engine in jobs:
        command = [sys.executable, "-m", "benchmarks.noise", "--here", "--row", case.name, "--engine", engine]
        command += ["--rounds", str(rounds), "--size", str(size)]
        command += ["--strategy", strategy] if strategy else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"{case.name}, {engine} failed: {(done.stderr.strip().splitlines() or ['killed'])[-1]}", flush=True)
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        told = json.dumps({"row": case.name, "engine": engine} | found)
        print(told if as_json else row(case.name, engine, case.goal, found), flush=True)


if __name__ == "__main__":
    main()
