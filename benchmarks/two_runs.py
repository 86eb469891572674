"""Two runs on one machine: at once with half of its threads each, at once without a limit, and one after the other.

    python -m benchmarks.two_runs                               the papers' model, --execution fast
    python -m benchmarks.two_runs --execution tff --model demo

Four processes are started once: two with the limit, two without. Then the three ways take turns, a round of each process at a time, so
that slow drifts of the machine cancel in the ratios. Given are seconds until both runs have made their rounds, and CPU seconds of the
processes and their TFF workers, each as a ratio to one after the other: the median over the passes.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

import click

WAYS = ("one after the other", "at once, no limit", "at once, limited")


def serve(execution: str, model: str, clients: int, threads: int | None) -> None:
    """A run in this process: a round for each line of standard input, answered with the CPU seconds it took."""
    import fedmf
    from benchmarks.next_word_clients import random_sentences
    from fedmf.federated.execution.choice import build_execution
    from fedmf.federated.execution.threads import limited_threads
    from fedmf.federated.execution.workers import worker_processes
    from fedmf.federated.training.loop import client_examples

    def cpu() -> float:
        ticks = 0
        for pid in (os.getpid(), *worker_processes()):
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    with limited_threads(threads):
        task: Any = random_sentences(model, clients, "zipf")
        config = fedmf.TrainConfig(
            rounds=2048, cohort_size=clients, family="identity", schema="every_round", noise_multiplier=1e-6,
            client_learning_rate=0.1, execution=execution,
        )  # fmt: skip
        one_round = build_execution(task, config.plan(), config, 1, threads=threads)
        state = one_round.init()
        for t, _ in enumerate(sys.stdin):
            began = cpu()
            state, _ = one_round.next(state, [client_examples(task, config, t, i) for i in range(clients)])
            print("cpu", cpu() - began, flush=True)


class Served:
    """A process that makes rounds when it is told to."""

    def __init__(self, *arguments: Any) -> None:
        command = [sys.executable, "-m", "benchmarks.two_runs", "--serve", *map(str, arguments)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def start(self) -> None:
        """Starts a round."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> float:
        """CPU seconds of the round, once it is done."""
        assert self._process.stdout is not None
        for line in self._process.stdout:  # TFF's worker writes there as well
            if line.startswith("cpu "):
                return float(line.split()[1])
        raise RuntimeError("a run ended early: python -m benchmarks.two_runs --serve shows why")

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measured(runs: list[Served], *, at_once: bool) -> tuple[float, float]:
    """Seconds until all have made a round, and CPU seconds of all."""
    began, cpu = time.perf_counter(), 0.0
    if at_once:
        for run in runs:
            run.start()
        cpu = sum(run.end() for run in runs)
    else:
        for run in runs:
            run.start()
            cpu += run.end()
    return time.perf_counter() - began, cpu


@click.command()
@click.option("--execution", default="fast", show_default=True, type=click.Choice(["fast", "tff"]))
@click.option("--model", default="full", show_default=True, type=click.Choice(["full", "demo"]))
@click.option("--clients", type=click.IntRange(min=1), default=4, show_default=True, help="Clients of a round.")
@click.option(
    "--passes", type=click.IntRange(min=1), default=5, show_default=True, help="Times that each way is measured."
)
@click.option("--threads", type=click.IntRange(min=1), help="The limit.  [default: half of the processors]")
@click.option("--serve", "served", is_flag=True, hidden=True)
def main(execution: str, model: str, clients: int, passes: int, threads: int | None, served: bool) -> None:
    """Compares the three ways on this machine."""
    if served:
        serve(execution, model, clients, threads)
        return
    limit = threads or max(1, (os.cpu_count() or 1) // 2)
    options = ("--execution", execution, "--model", model, "--clients", clients)
    free = [Served(*options) for _ in range(2)]
    limited = [Served(*options, "--threads", limit) for _ in range(2)]
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    cpu: dict[str, list[float]] = {way: [] for way in WAYS}
    try:
        measured([*free, *limited], at_once=False)  # tracing and compiling
        for _ in range(passes):
            for way, runs in zip(WAYS, (free, free, limited), strict=True):
                taken, used = measured(runs, at_once=way != WAYS[0])
                seconds[way].append(taken)
                cpu[way].append(used)
    finally:
        for run in (*free, *limited):
            run.close()
    click.echo(f"two runs, {execution}, {model} model, {clients} clients a round each, limit {limit}; {passes} passes")
    for way in WAYS:
        ratios = [
            statistics.median(a / b for a, b in zip(values[way], values[WAYS[0]], strict=True))
            for values in (seconds, cpu)
        ]
        click.echo(
            f"{way:<20} {statistics.median(seconds[way]):8.2f} s  x {ratios[0]:.2f}   "
            f"CPU {statistics.median(cpu[way]):8.2f} s  x {ratios[1]:.2f}"
        )


if __name__ == "__main__":
    main()
