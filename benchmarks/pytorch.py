"""Cost of a round of training with PyTorch models, on processors or a GPU.

    python -m benchmarks.pytorch                          all four models on the processors
    python -m benchmarks.pytorch --device cuda            the same on a GPU, where nothing has been
                                                          measured yet
    python -m benchmarks.pytorch --lstm pytorch           with the LSTM layer of PyTorch (cuDNN on a
                                                          GPU), whose clients are not stacked
    python -m benchmarks.pytorch --small                  a check of this program

Models and a client's examples: cnn, 56,714 parameters (50 images, batch 10); emnist, the CNN of 1.2
million (100, batch 20); lstm, 92,172 (50 sentences of full length, batch 10); full, the published
next-word model (64, batch 16). A client's work is one epoch.

Columns: seconds of client work with clipping and sums, of what noise and the mean take beyond them,
of the commit, and of the whole round, as medians; clients/s of the first and of the last. The first
two rounds are not counted. It needs an environment with PyTorch, such as .venv-torch.
"""

import json
import pathlib
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import click
import torch

import fedmf
from benchmarks.torch_tasks import torch_task
from fedmf import pytorch
from fedmf.pytorch import learner
from fedmf.server.messages import ClippedSum
from fedmf.training.client_work import Broadcast, ClientWork
from fedmf.training.examples import ClientData
from fedmf.training.execution.in_process import FastExecution

NETWORKS = ("cnn", "emnist", "lstm", "full")
_NOT_COUNTED = 2  # rounds
# Name of a part of a round -> its seconds.
Seconds = dict[str, float]


class TimedWork(ClientWork):
    """Client work whose seconds are added to those of the round."""

    def __init__(self, work: ClientWork, seconds: Seconds) -> None:
        self._work = work
        self._seconds = seconds
        self.has_one_group = work.has_one_group

    def explain(self) -> str:
        """Returns the sentence of the client work that trains."""
        return self._work.explain()

    def sums(self, sent: Broadcast, groups: Iterable[Sequence[ClientData]]) -> Iterator[ClippedSum]:
        """Yields the sum of each group, and adds the seconds that it took."""
        start = time.perf_counter()
        for group_sum in self._work.sums(sent, groups):
            self._seconds["clients"] += time.perf_counter() - start
            yield group_sum
            start = time.perf_counter()
        self._seconds["clients"] += time.perf_counter() - start


class Measure(pytorch.Callback):
    """Callback that measures the seconds of each round, and passes them on."""

    def __init__(self, seconds: Seconds, on_seconds: Callable[[Seconds], None]) -> None:
        self._seconds = seconds
        self._on_seconds = on_seconds
        self._start = 0.0

    def on_start(self, training: Any) -> None:
        """Begins to measure commits, and the first round."""
        commit = training.folder.commit

        def timed(committed: Any) -> None:
            start = time.perf_counter()
            commit(committed)
            self._seconds["commit"] += time.perf_counter() - start

        training.folder.commit = timed
        self._begin()

    def on_round(self, training: Any, row: dict[str, Any]) -> None:
        """Passes on the seconds of a round, and begins with the next one."""
        self._seconds["round"] = time.perf_counter() - self._start
        self._seconds["noise"] = self._seconds["release"] - self._seconds["clients"]
        self._on_seconds(dict(self._seconds))
        self._begin()

    def _begin(self) -> None:
        self._seconds.update(dict.fromkeys(("clients", "release", "commit", "round"), 0.0))
        self._start = time.perf_counter()


def train_rounds(
    task: pytorch.Task,
    clients: int,
    rounds: int,
    on_seconds: Callable[[Seconds], None],
    **options: Any,
) -> str:
    """Trains rounds of a task, and returns the sentence that says how clients trained.

    Args:
      task: the task, with at least `clients` clients.
      clients: clients of a round.
      rounds: number of rounds. The last one is followed by an evaluation.
      on_seconds: called with the seconds of each round, which ends when it returns.
      options: `device` and `threads` of `fedmf.train`.
    """
    seconds: Seconds = {}
    sentences: list[str] = []
    choose = learner.client_setup.choose_client_work
    collect = FastExecution.collect_release

    def timed_choice(*arguments: Any) -> ClientWork:
        work = choose(*arguments)
        sentences.append(work.explain())
        return TimedWork(work, seconds)

    def timed_release(execution: Any, *arguments: Any) -> Any:
        start = time.perf_counter()
        release = collect(execution, *arguments)
        seconds["release"] += time.perf_counter() - start
        return release

    config = fedmf.TrainConfig(
        rounds=rounds, cohort_size=clients, family="blt", schema="every_round",
        noise_multiplier=1e-6, clip_norm=1.0, client_learning_rate=1.0, seed=0,
        evaluate_every=rounds,
    )  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as temporary,
        mock.patch.object(learner.client_setup, "choose_client_work", timed_choice),
        mock.patch.object(FastExecution, "collect_release", timed_release),
    ):
        fedmf.train(
            task, config, folder=pathlib.Path(temporary) / "run", noise_seed=1, progress=False,
            callbacks=[Measure(seconds, on_seconds)], **options,
        )  # fmt: skip
    return sentences[0]


def measure(model: str, clients: int, passes: int, device: str, lstm: str) -> dict[str, Any]:
    """Returns the seconds of each counted round, and how its clients trained."""
    rounds: list[Seconds] = []
    task = torch_task(model, clients, pytorch_lstm=lstm == "pytorch")
    num_rounds = passes + _NOT_COUNTED + 1
    kind = train_rounds(task, clients, num_rounds, rounds.append, device=device)
    return {"rounds": rounds[_NOT_COUNTED:-1], "kind": kind}


def text(model: str, clients: int, measured: dict[str, Any]) -> str:
    """Returns a row of the table."""
    medians = {
        name: statistics.median(row[name] for row in measured["rounds"])
        for name in ("clients", "noise", "commit", "round")
    }
    return (
        f"| {model} | {clients} | {medians['clients']:.3f} | {medians['noise']:.3f} | "
        f"{medians['commit']:.3f} | {medians['round']:.3f} | {clients / medians['clients']:.1f} | "
        f"{clients / medians['round']:.1f} | {measured['kind']} |"
    )


def machine(device: str) -> str:
    """Returns the name of the device, and the version of PyTorch."""
    name = platform.processor() or platform.machine()
    if device == "cuda":
        name = torch.cuda.get_device_name()
    return f"{name}, PyTorch {torch.__version__}"


@click.command()
@click.option("--device", type=click.Choice(("cpu", "cuda")), default="cpu", show_default=True)
@click.option(
    "--model", "models", multiple=True, type=click.Choice(NETWORKS), default=NETWORKS,
    show_default=True, help="Repeatable.",
)  # fmt: skip
@click.option("--clients", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--passes", type=click.IntRange(min=1), default=5, show_default=True)
@click.option(
    "--lstm", type=click.Choice(("stacked", "pytorch")), default="stacked", show_default=True,
    help="LSTM layer: that of the task, whose clients can be stacked, or PyTorch's.",
)  # fmt: skip
@click.option("--small", is_flag=True, help="Two clients, one model, one pass.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(
    device: str, models: tuple[str, ...], clients: int, passes: int, lstm: str, small: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Print the cost of a round of each model."""
    if device == "cuda" and not torch.cuda.is_available():
        raise click.UsageError(
            "--device cuda needs a GPU and a build of PyTorch for it, and torch.cuda finds none "
            "here: use --device cpu"
        )
    if small:
        models, clients, passes = ("lstm",), 2, 1
    costs: dict[str, Any] = {}
    if not as_json:
        print(f"{machine(device)}\n")
        print("| model | clients | work and sums, s | noise, s | commit, s | round, s | clients/s "
              "of work | clients/s of rounds | clients train |")  # fmt: skip
        print("|---|---|---|---|---|---|---|---|---|")
    for model in models:
        costs[model] = measure(model, clients, passes, device, lstm)
        if not as_json:
            print(text(model, clients, costs[model]), flush=True)
    if as_json:
        print(json.dumps(costs))


if __name__ == "__main__":
    main()
