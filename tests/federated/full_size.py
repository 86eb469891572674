"""One process of the full-size tests: n = 2052, min_sep = 342, 4,050,748 parameters.

    python -m tests.federated.full_size FOLDER EXECUTION ROUNDS MECHANISM CLIENTS SENTENCES

Runs up to ROUNDS rounds after the newest one in FOLDER, then stops as if killed; prints
JSON: peak memory of this process and of TFF's worker in GiB.
"""

import json
import pathlib
import sys

import numpy as np

import fedmf
from fedmf import federated
from fedmf.tasks.stackoverflow.compiled import compiled_epoch
from fedmf.tasks.stackoverflow.model import build_model, make_loss, make_metrics
from fedmf.tasks.stackoverflow.preprocessing import SpecialIds
from tests.federated.run_small import worker_processes
from tests.federated.small_runs import broken_off

ROUNDS = 2052
MIN_SEP = 342


def make_task(cohort_size: int, sentences: int) -> federated.Task:
    """Returns a task with the papers' model on random sentences.

    Its client work is the compiled epoch where there is a compiler.
    """

    def examples(name: str) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(sum(name.encode()))
        x = rng.integers(1, 10_000, (sentences, 20), dtype=np.int32)
        return x, x

    return federated.Task(
        name="full size",
        description="random sentences",
        client_ids=[f"client {i}" for i in range(cohort_size * MIN_SEP)],
        client_examples=examples,
        evaluation_examples=examples,
        build_model=lambda seed: build_model(seed),
        loss=make_loss("published"),
        metrics=lambda: make_metrics("published", SpecialIds(10_000)),
        batch_size=16,
        compiled_epoch=compiled_epoch(
            vocabulary_size=10_000,
            embedding_size=96,
            lstm_size=670,
            loss="published",
            batch_size=16,
        ),
    )


def config(execution: str, cohort_size: int) -> fedmf.TrainConfig:
    """Returns the config of the banded paper's StackOverflow run, with a small cohort."""
    return fedmf.TrainConfig(
        rounds=ROUNDS, min_sep=MIN_SEP, family="banded", noise_multiplier=0.65,
        cohort_size=cohort_size, execution=execution, evaluate_every=2000,
    )  # fmt: skip


def peak_gib(pid: int | str) -> float:
    """Returns the high-water mark of a process's resident memory."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 2**20


def main(
    folder: str, execution: str, rounds: str, mechanism: str, clients: str, sentences: str
) -> None:
    """See the module."""
    settings = config(execution, int(clients))
    broken_off(
        folder, int(rounds), settings, make_task(int(clients), int(sentences)),
        plan=settings.plan(fedmf.load_mechanism(mechanism)), resume=pathlib.Path(folder).exists(),
    )  # fmt: skip
    workers = sum(peak_gib(pid) for pid in worker_processes())
    print(json.dumps({"python": peak_gib("self"), "workers": workers}))


if __name__ == "__main__":
    main(*sys.argv[1:])
