"""What a round of training costs on this machine, part by part, beside TFF's stock process on the same clients in the same run.

    make bench-simulation                                      10, 100 and 1000 clients a round; the better part of an hour
    python -m benchmarks.simulation --clients 10 --passes 3    one cohort; minutes
    python -m benchmarks.simulation --model demo               the demo's small model, whose cost is dispatch and not arithmetic
    python -m benchmarks.simulation --small                    a check of this program, measures nothing

Kinds of rounds, each in a process of its own, all on the same cohorts:
  compiled        --execution fast: client work in compiled C, clients side by side; the default where there is a C compiler
  differentiated  --execution fast without a compiler: a tf.function for each client, one after the other
  tff             --execution tff: build_unweighted_fed_avg with our aggregator, in TFF's C++ runtime
  stock           the same as TFF and Keras come: with Keras's own LSTM layer in place of ours, and without our settings of the C
                  library's allocator

The processes take turns, one round each and in the opposite order the next time, so that slow drifts of the machine cancel in the
ratios; while one works the others wait. The first round (tracing, compiling) has at most 10 clients and is counted apart, and the next
one, of all clients, is not counted, because TFF's memory still grows in it. CPU seconds are of the process and, for tff, of its worker:
on a machine that others use as well they say more than seconds. Memory is the peak of both together, everything included. Clients hold
64 sentences of full length; batch 16, one local epoch.

The compiled epoch computes once what sentences have in common, so what the words are matters: by default all begin with the mark that the
task puts in front, and words are as frequent as in English (Zipf's law with Mandelbrot's shift). `--words uniform` draws every word of the
vocabulary equally often and has no mark.

How near that is to what the machine can do: between the rounds of a turn numpy multiplies large matrices for a second, and the table
gives the products of matrices that a client needs, in the same unit: of every position, and of what is computed once.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import click
import numpy as np

from benchmarks.next_word_clients import (
    BATCH,
    LAWS,
    LENGTH,
    MODELS,
    distinct_positions,
    every_position,
    operations,
    random_sentences,
    sentences,
)

KINDS = ("compiled", "differentiated", "tff", "stock")
IN_TFF = ("tff", "stock")
PARTS = ("data", "noise", "clients", "of which clip and sum", "server", "metrics", "checkpoint")
_FIRST = 10  # clients of the first round
# Memory of TFF's process and worker with the published model, measured with 10 and 100 clients a round.
_TFF_BYTES, _TFF_BYTES_A_CLIENT = 5.3e9, 45e6
_SQUARE, _SQUARES = 2048, 8  # numpy's products: so large, so many a turn


def numpy_products() -> float:
    """Operations a second of large float32 products by numpy's library, on as many threads as it takes."""
    x, y = np.random.default_rng(0).standard_normal((2, _SQUARE, _SQUARE), np.float32)
    out = x @ y
    began = time.perf_counter()
    for _ in range(_SQUARES):
        np.matmul(x, y, out=out)
    return 2.0 * _SQUARE**3 * _SQUARES / (time.perf_counter() - began)


class Rounds:
    """One kind of execution, a round at a time, with the time that its parts took."""

    def __init__(self, kind: str, model: str, clients: int, law: str, threads: int | None) -> None:
        import fedmf
        from fedmf.federated.execution.choice import build_execution
        from fedmf.federated.training.evaluation import Evaluator
        from fedmf.federated.training.loop import client_examples
        from fedmf.runs.checkpoint import Checkpoint
        from fedmf.runs.folder import RunFolder

        self.task = random_sentences(model, clients, law, keras_lstm=kind == "stock")
        self.config = fedmf.TrainConfig(
            rounds=2048,
            cohort_size=clients,
            family="blt",
            schema="min_sep",
            min_sep=342,
            max_participations=6,
            noise_multiplier=1e-6,
            clip_norm=1.0,
            client_learning_rate=1.0,
            sequence_length=LENGTH,
            batch_size=BATCH,
            execution="tff" if kind in IN_TFF else "fast",
            seed=0,
        )
        client_work = {"compiled": "hand_written", "differentiated": "differentiated"}.get(kind)
        plan = self.config.plan()
        self.execution = build_execution(self.task, plan, self.config, 1, client_work=client_work, threads=threads)
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._client_examples = client_examples
        self._evaluator = Evaluator(self.task, self.config)
        self._kept = (
            tempfile.TemporaryDirectory()
        )  # as long as these rounds: two checkpoints of the published model are 100 MB
        self._folder = RunFolder.create(pathlib.Path(self._kept.name) / "run")
        self._checkpoint = Checkpoint
        for part, owner, name in self._seams():
            setattr(owner, name, self._timed(part, getattr(owner, name)))
        self.state = self.execution.init()
        self.t = 0

    def _seams(self) -> list[tuple[str, Any, str]]:
        execution: Any = self.execution
        seams = [("noise", execution.noise, "hand_in")]
        if hasattr(execution, "_clients"):
            seams += [("clients", execution._clients, "add"), ("server", execution, "_server")]
            if hasattr(execution._clients, "_sum"):
                seams.append(("of which clip and sum", execution._clients, "_sum"))
        return seams

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self.seconds[part] += time.perf_counter() - began

        return timed

    def next(self, clients: int) -> dict[str, Any]:
        """Runs a round of so many clients and says what it cost; metrics and checkpoint, which not every round has, are apart."""
        self.seconds = dict.fromkeys(PARTS, 0.0)
        cpu, began = _cpu_seconds(), time.perf_counter()
        examples = self._timed(
            "data",
            lambda: [self._client_examples(self.task, self.config, self.t, client) for client in range(clients)],
        )()
        self.state, row = self.execution.next(self.state, examples)
        seconds, cpu = time.perf_counter() - began, _cpu_seconds() - cpu
        self.t += 1
        weights = self.execution.weights(self.state)
        self._timed("metrics", lambda: self._evaluator(weights, "0"))()
        self._timed("checkpoint", self._save)()
        return {"seconds": seconds, "cpu": cpu, "parts": self.seconds, "loss": row["train_loss"], "peak": _peak_bytes()}

    def _save(self) -> None:
        from fedmf.participation.ledger import ParticipationLedger

        leaves, ledger = self.execution.leaves(self.state), ParticipationLedger(cohort_size=self.config.cohort_size)
        self._folder.save_checkpoint(
            self._checkpoint(rounds_done=self.t, config_digest="", state=leaves, ledger=ledger)
        )


def _family() -> list[int]:
    from fedmf.federated.execution.workers import worker_processes

    return [os.getpid(), *worker_processes()]


def _cpu_seconds() -> float:
    ticks = 0
    for pid in _family():
        with contextlib.suppress(OSError):
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _peak_bytes() -> int:
    peak = 0
    for pid in _family():
        with contextlib.suppress(OSError):
            lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
            peak += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return peak


def missing_memory(clients: int, processes: int = 1) -> str | None:
    """Why this machine cannot run so many TFFs with the published model and so many clients; None if it can, or if nobody knows."""
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
        available = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
        needed = processes * (_TFF_BYTES + _TFF_BYTES_A_CLIENT * clients)
        if available < needed:
            return f"TFF is left out: {clients} clients would take some {needed / 1e9:.0f} GB and {available / 1e9:.0f} are free"
    return None


def serve(kind: str, model: str, clients: int, law: str, threads: int | None) -> None:
    """The child: a line of JSON when it is ready, and one for each line that it reads, until there are no more."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes elsewhere
    from fedmf.federated.tensorflow_import import import_tensorflow

    import_tensorflow()
    from fedmf.federated.execution.workers import ALLOCATOR_VARIABLE

    if kind == "stock":
        os.environ[ALLOCATOR_VARIABLE] = "system"
    began = time.perf_counter()
    rounds = Rounds(kind, model, clients, law, threads)
    print(json.dumps({"ready": time.perf_counter() - began}), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(rounds.next(int(line))), file=out, flush=True)


@contextlib.contextmanager
def children(
    kinds: tuple[str, ...], model: str, clients: int, law: str, threads: int | None
) -> Iterator[dict[str, Any]]:
    """Kind -> a process that serves it."""
    started: dict[str, Any] = {}
    try:
        for kind in kinds:
            command = [
                sys.executable,
                "-m",
                "benchmarks.simulation",
                "--serve",
                kind,
                "--model",
                model,
                "--clients",
                str(clients),
                "--words",
                law,
            ]
            command += [] if threads is None else ["--threads", str(threads)]
            started[kind] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            if not started[kind].stdout.readline():
                raise click.ClickException(f"{kind} did not start: {started[kind].stderr.read()[-2000:]}")
        yield started
    finally:
        for child in started.values():
            child.stdin.close()
        for child in started.values():
            child.wait()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one kind at one number of clients: means over the passes, and the first round's seconds."""

    first: float
    seconds: list[float]
    cpu: list[float]
    parts: dict[str, float]
    peak: int
    loss: list[float]


def measure(
    kinds: tuple[str, ...], model: str, clients: int, law: str, passes: int, threads: int | None
) -> tuple[dict[str, Cost], list[float]]:
    """Rounds in turns, and numpy's operations a second in each turn; see the head of this file."""
    rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    products: list[float] = []
    with children(kinds, model, clients, law, threads) as started:
        # The first round, and one of all clients that is not counted either: in it memory grows to what the rounds need.
        counts = [min(clients, _FIRST), clients, *[clients] * passes]
        for turn, count in enumerate(counts):
            for kind in kinds if turn % 2 else kinds[::-1]:
                child = started[kind]
                print(count, file=child.stdin, flush=True)
                line = child.stdout.readline()
                if not line:
                    raise click.ClickException(f"{kind} ended: {child.stderr.read()[-2000:]}")
                rows[kind].append(json.loads(line))
                if turn > 1:
                    products.append(numpy_products())
    costs = {
        kind: Cost(
            first=found[0]["seconds"],
            seconds=[row["seconds"] for row in found[2:]],
            cpu=[row["cpu"] for row in found[2:]],
            parts={part: statistics.mean(row["parts"][part] for row in found[2:]) for part in PARTS},
            peak=found[-1]["peak"],
            loss=[row["loss"] for row in found],
        )
        for kind, found in rows.items()
    }
    return costs, products


def table(model: str, clients: int, law: str, costs: dict[str, Cost], products: list[float]) -> str:
    """The costs of one cohort as text."""
    lines = [f"{clients} clients a round, load of the machine {os.getloadavg()[0]:.1f}"]
    lines.append(
        f"{'':<16}{'clients/s':>10}{'single rounds':>16}{'CPU s/client':>14}{'first round s':>15}{'peak GB':>9}"
    )
    for kind, cost in costs.items():
        seconds, cpu = statistics.mean(cost.seconds), statistics.mean(cost.cpu)
        slowest, fastest = clients / max(cost.seconds), clients / min(cost.seconds)
        lines.append(
            f"{kind:<16}{clients / seconds:>10.2f}{slowest:>9.2f} to {fastest:.2f}{cpu / clients:>14.4f}{cost.first:>15.1f}"
            f"{cost.peak / 1e9:>9.2f}"
        )
    for base in filter(costs.__contains__, IN_TFF):
        for kind in (kind for kind in costs if kind not in ("stock", base)):
            ratios = [b / a for a, b in zip(costs[kind].seconds, costs[base].seconds, strict=True)]
            cpu = statistics.mean(costs[base].cpu) / statistics.mean(costs[kind].cpu)
            times = f"{statistics.mean(ratios):.2f} times {base} (from {min(ratios):.1f} to {max(ratios):.1f})"
            lines.append(f"{kind}: {times}, by CPU seconds {cpu:.1f}")
    numpys, every = statistics.mean(products), operations(model, every_position(model))
    once = operations(model, distinct_positions(sentences(model, law, 0)[:, :-1]))
    lines.append(
        f"billions of operations in products: {every / 1e9:.3g} a client, {once / 1e9:.3g} where what sentences share is computed once "
        f"(words: {law}); numpy {numpys / 1e9:.0f} a second (from {min(products) / 1e9:.0f} to {max(products) / 1e9:.0f})"
    )
    for kind, cost in costs.items():
        rate = clients / statistics.mean(cost.seconds)
        done = every if kind != "compiled" else once
        lines.append(f"{kind}: {done * rate / 1e9:.0f} a second, {done * rate / numpys:.2f} of numpy's")
    for kind, cost in costs.items():
        if cost.parts["clients"]:
            lines.append(
                f"{kind}, seconds a round: " + ", ".join(f"{part} {taken:.4f}" for part, taken in cost.parts.items())
            )
    return "\n".join(lines)


@click.command()
@click.option(
    "--clients",
    multiple=True,
    type=click.IntRange(min=1),
    default=(10, 100, 1000),
    show_default=True,
    help="Clients a round; repeatable.",
)
@click.option("--passes", type=click.IntRange(min=1), default=3, show_default=True, help="Counted rounds of each kind.")
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(KINDS), default=KINDS, show_default=True, help="Repeatable."
)
@click.option("--model", type=click.Choice(tuple(MODELS)), default="full", show_default=True)
@click.option(
    "--words", "law", type=click.Choice(LAWS), default="zipf", show_default=True, help="How often each comes."
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Compiled clients that train side by side; one on each processor by default.",
)
@click.option("--small", is_flag=True, help="Two clients, the demo's model, one pass: checks this program.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--serve", "served", type=click.Choice(KINDS), hidden=True)
def main(
    clients: tuple[int, ...],
    passes: int,
    kinds: tuple[str, ...],
    model: str,
    law: str,
    threads: int | None,
    small: bool,
    as_json: bool,
    served: str | None,
) -> None:
    """Print the cost of a round, one table for each number of clients."""
    if served is not None:
        serve(served, model, clients[0], law, threads)
        return
    if small:
        clients, passes, model = (2,), 1, "demo"
    found: dict[str, Any] = {"model": model, "words": law, "clients": {}, "numpy": {}}
    for count in clients:
        in_tff = len(set(kinds) & set(IN_TFF))
        missing = missing_memory(count, in_tff) if model == "full" and in_tff > 0 and len(kinds) > 1 else None
        if missing:
            click.echo(missing, err=True)
        left = tuple(kind for kind in kinds if kind not in IN_TFF or not missing)
        costs, products = measure(left, model, count, law, passes, threads)
        found["clients"][str(count)] = {kind: dataclasses.asdict(cost) for kind, cost in costs.items()}
        found["numpy"][str(count)] = products
        if not as_json:
            print(table(model, count, law, costs, products) + "\n", flush=True)
    if as_json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
