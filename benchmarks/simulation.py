"""What a round of training costs on this machine, beside TFF's stock process on the same clients in
the same run.

    make bench-simulation                                      all models, 10 and 100 clients a
                                                               round; about half an hour
    python -m benchmarks.simulation --clients 10 --passes 3    one cohort
    python -m benchmarks.simulation --model demo               one model
    python -m benchmarks.simulation --small                    a check of this program

Models and a client's examples: full and demo, the LSTMs of the papers (64 sentences of full length,
batch 16) and of `make demo` (16); lstm, 92,172 parameters (50, batch 10); emnist, the CNN of 1.2
million (100 images, batch 20); cnn, 56,714 (50, batch 10); logistic regression, 62 (50, batch 10);
cifar10, 550,570 (1: privacy of single examples). Small models cost dispatch and not arithmetic.

Kinds of rounds, each a `federated.train` in a process of its own, all on the same cohorts:
  compiled  --execution fast: client work in compiled C, clients side by side; the default where
            there is a C compiler
  autodiff  --execution fast without a compiler: a tf.function for a group of clients
  cluster   the same client work on a Ray cluster of this machine, a worker for each of --threads,
            each on a core of its own after the first round (make bench-cluster)
  tff       --execution tff: build_unweighted_fed_avg with our aggregator, in TFF's C++ runtime
  stock     the same with Keras's own LSTM layer in place of ours; none without an LSTM

The processes take turns, one round each and in the opposite order the next time: slow drifts of the
machine cancel in the ratios. The commit of a round, medians, is in columns of its own. While one
works the others wait. The first round (tracing, compiling) is counted apart, and the second is not
counted, because TFF's memory still grows in it. CPU seconds and the peak of memory are of the
process and its TFF worker. On a machine that others use as well, CPU seconds say more than seconds.
With the published model TFF takes 5.3 GB and 45 MB a client. A client's work is one epoch.
"""

import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import click

from benchmarks.clients import EXAMPLES, MODELS, random_examples, random_sentences
from benchmarks.core import cpu_seconds, memory_bytes

KINDS = ("compiled", "autodiff", "cluster", "tff", "stock")
IN_TFF = ("tff", "stock")
_NOT_COUNTED = 2  # rounds
# Round -> seconds, CPU seconds, peak bytes, training loss, seconds of the commit, of each kind.
Rounds = dict[str, list[dict[str, float]]]


def _family(pid: int | None = None) -> list[int]:
    """A process, by default this one, and all that it and its children have started."""
    pid, found = os.getpid() if pid is None else pid, []
    for file in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # one that has just ended
            found += [each for child in file.read_text().split() for each in _family(int(child))]
    return [pid, *found]


def _pin_workers(count: int) -> None:
    """Gives each of the cluster's workers, those that computed most, a core of its own."""
    names = {pid: pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() for pid in _family()}
    workers = sorted(
        (pid for pid in names if names[pid].startswith(b"ray::")),
        key=lambda pid: -cpu_seconds([pid]),
    )
    for pid, core in zip(workers[:count], sorted(os.sched_getaffinity(0)), strict=False):
        for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {core})


def serve(kind: str, model: str, clients: int, rounds: int, threads: int | None) -> None:
    """The child: trains, and before each round waits for a line of standard input and answers with
    a line of JSON.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes elsewhere
    import fedmf
    from fedmf import federated

    def answer(values: dict[str, float]) -> None:
        print(json.dumps(values), file=out, flush=True)
        sys.stdin.readline()
        began[:] = time.perf_counter(), cpu_seconds(_family()), cpu_seconds([os.getpid()])

    class Measure(federated.Callback):
        def on_start(self, training: Any) -> None:
            commit = training.folder.commit

            def timed(committed: Any) -> None:
                start = time.perf_counter()
                commit(committed)
                self._commit = time.perf_counter() - start

            training.folder.commit = timed

        def on_round(self, training: Any, row: dict[str, Any]) -> None:
            seconds, cpu = time.perf_counter() - began[0], cpu_seconds(_family()) - began[1]
            own = cpu_seconds([os.getpid()]) - began[2]
            if kind == "cluster":
                _pin_workers(threads or os.cpu_count() or 1)
            answer(
                {
                    "seconds": seconds,
                    "cpu": cpu,
                    "own": own,
                    "peak": memory_bytes(_family()),
                    "loss": row["train_loss"],
                    "commit": self._commit,
                }
            )

    config = fedmf.TrainConfig(
        rounds=rounds, cohort_size=clients, family="blt", schema="every_round",
        noise_multiplier=1e-6, clip_norm=1.0,
        client_learning_rate=1.0, execution="tff" if kind in IN_TFF else "fast", seed=0,
        evaluate_every=rounds,
    )  # fmt: skip
    task = (
        random_examples(model, clients)
        if model in EXAMPLES
        else random_sentences(model, clients, keras_lstm=kind == "stock")
    )
    began = [0.0, 0.0, 0.0]
    with tempfile.TemporaryDirectory() as temporary:
        answer({})
        federated.train(
            task, config, folder=pathlib.Path(temporary) / "run", noise_seed=1, progress=False,
            callbacks=[Measure()], threads=threads, cluster="local" if kind == "cluster" else None,
        )  # fmt: skip


@contextlib.contextmanager
def children(kinds: tuple[str, ...], *arguments: object) -> Iterator[dict[str, Any]]:
    """Kind -> a process that serves it, ready for its first round."""
    started: dict[str, Any] = {}
    try:
        for kind in kinds:
            command = [
                sys.executable,
                "-m",
                "benchmarks.simulation",
                "--serve",
                kind,
                *map(str, arguments),
            ]
            # Ray gives its workers a lower priority than other programs have.
            environment = (
                os.environ
                | {"RAY_worker_niceness": "0"}
                | ({"FEDMF_CC": ""} if kind == "autodiff" else {})
            )
            pipes: dict[str, Any] = {
                "stdin": subprocess.PIPE,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
            }
            started[kind] = subprocess.Popen(command, text=True, env=environment, **pipes)
        for kind in kinds:
            read(kind, started[kind])
        yield started
    finally:
        for child in started.values():
            child.kill()
            child.communicate()


def read(kind: str, child: Any) -> dict[str, float]:
    """A child's next answer."""
    line = child.stdout.readline()
    if not line:
        raise click.ClickException(f"{kind} ended: {child.stderr.read()[-2000:]}")
    return json.loads(line)


def measure(
    kinds: tuple[str, ...], model: str, clients: int, passes: int, threads: int | None
) -> Rounds:
    """Rounds in turns; see the head of this file."""
    rows: Rounds = {kind: [] for kind in kinds}
    count = passes + _NOT_COUNTED
    # One more round is planned than made: the last of a run is followed by evaluation.
    options = ["--model", model, "--clients", clients, "--passes", count + 1]
    with children(kinds, *options, *([] if threads is None else ["--threads", threads])) as started:
        for turn in range(count):
            for kind in kinds if turn % 2 else kinds[::-1]:
                print(file=started[kind].stdin, flush=True)
                rows[kind].append(read(kind, started[kind]))
    return rows


def kinds_of(model: str) -> tuple[str, ...]:
    """The kinds of rounds that differ for a model."""
    return (
        ("autodiff", "stock")
        if model in EXAMPLES
        else tuple(kind for kind in KINDS if kind != "cluster")
    )


def text(model: str, clients: int, rounds: Rounds) -> str:
    """The costs of one cohort, and the ratios of rounds that were made in the same turn."""
    lines = [f"{model}, {clients} clients a round, load of the machine {os.getloadavg()[0]:.1f}"]
    lines.append(
        f"{'':<12}{'clients/s':>10}{'single rounds':>18}{'CPU s/client':>14}"
        f"{'driver CPU s':>14}{'first round s':>15}{'peak GB':>9}{'commit ms':>11}{'of round':>10}"
    )
    counted = {kind: rows[_NOT_COUNTED:] for kind, rows in rounds.items()}
    for kind, rows in counted.items():
        seconds = [row["seconds"] for row in rows]
        mean, cpu, own = (
            statistics.mean(seconds),
            *(statistics.mean(row[k] for row in rows) for k in ("cpu", "own")),
        )
        span = f"{clients / max(seconds):.2f} to {clients / min(seconds):.2f}"
        first, peak = rounds[kind][0]["seconds"], rows[-1]["peak"] / 1e9
        commit = statistics.median(row["commit"] for row in rows)
        share = commit / statistics.median(seconds)
        lines.append(
            f"{kind:<12}{clients / mean:>10.2f}{span:>18}{cpu / clients:>14.4f}"
            f"{own:>14.2f}{first:>15.1f}{peak:>9.2f}{commit * 1e3:>11.1f}{share:>10.1%}"
        )
    for base in (base for base in (*IN_TFF, "compiled") if base in rounds):
        others = ("cluster",) if base == "compiled" else ("compiled", "autodiff", "cluster", "tff")
        for kind in (kind for kind in others if kind in rounds and kind != base):
            pairs = list(zip(counted[base], counted[kind], strict=True))
            ratios = [a["seconds"] / b["seconds"] for a, b in pairs]
            cpu = sum(a["cpu"] for a, _ in pairs) / sum(b["cpu"] for _, b in pairs)
            span = f"from {min(ratios):.1f} to {max(ratios):.1f}"
            lines.append(
                f"{kind}: {statistics.mean(ratios):.2f} times {base} ({span}), by "
                f"CPU seconds {cpu:.1f}"
            )
    return "\n".join(lines)


@click.command()
@click.option(
    "--clients",
    multiple=True,
    type=click.IntRange(min=1),
    default=(10, 100),
    show_default=True,
    help="Clients a round; repeatable.",
)
@click.option(
    "--passes",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Counted rounds of each kind.",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(KINDS),
    help="Repeatable.  [default: all but cluster]",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice((*MODELS, *EXAMPLES)),
    default=(*MODELS, *EXAMPLES),
    show_default=True,
    help="Repeatable.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Clients that train side by side.  [default: the processors]",
)
@click.option(
    "--small", is_flag=True, help="Two clients, one model, one pass: checks this program."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--serve", "served", type=click.Choice(KINDS), hidden=True)
def main(
    clients: tuple[int, ...],
    models: tuple[str, ...],
    kinds: tuple[str, ...],
    small: bool,
    as_json: bool,
    served: str | None,
    **options: Any,
) -> None:
    """Print the cost of a round, one table for each model and number of clients."""
    if served is not None:
        serve(served, models[0], clients[0], rounds=options.pop("passes"), **options)
        return
    if small:
        clients, models, options = (2,), ("demo",), options | {"passes": 1}
    costs: dict[str, dict[int, Rounds]] = {}
    for model in models:
        chosen = tuple(
            kind for kind in kinds or kinds_of(model) if kind in (*kinds_of(model), "cluster")
        )
        costs[model] = {}
        for count in clients:
            costs[model][count] = measure(chosen, model, count, **options)
            if not as_json:
                print(text(model, count, costs[model][count]) + "\n", flush=True)
    if as_json:
        print(json.dumps(costs))


if __name__ == "__main__":
    main()
