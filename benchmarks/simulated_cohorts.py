"""Compares runs in which few clients simulate a cohort of 1000 with runs that train all 1000.

The banded paper (App. I) trains 100 clients a round in place of 1000, scales the noise, and says
that the effect on accuracy is negligible. Small runs of this package let 12 clients simulate a
cohort. Here a small next-word model trains for 12 rounds, which are six epochs of 2000 synthetic
clients, with cohorts of 1000, of 100 for 1000 and of 12 for 1000, and three seeds each.

`python -m benchmarks.simulated_cohorts FOLDER` prints the test results, and takes about five
minutes of processor time. The settings were fixed before the first run.
"""

import dataclasses
import pathlib
import sys
import time
from typing import Any

import numpy as np

from fedmf import federated
from fedmf.runs.config import TrainConfig
from fedmf.tasks.stackoverflow import StackOverflowOptions, write_synthetic_corpus
from fedmf.tasks.stackoverflow.task import build_task

CLAIMED_COHORT = 1000
SIMULATED_COHORTS = (1000, 100, 12)
SEEDS = (2001, 2002, 2003)
CORPUS_SEED = 2000
OPTIONS: dict[str, Any] = {
    "vocabulary_size": 300,
    "embedding_size": 16,
    "lstm_size": 32,
    "max_sentences": 16,
    "loss": "masked",
    "validation_sentences": 500,
    "test_sentences": 2000,
}
CONFIG = TrainConfig(
    family="banded",
    bands=2,
    rounds=12,
    schema="min_sep",
    min_sep=2,
    cohort_size=CLAIMED_COHORT,
    epsilon=8.0,
    delta=1e-6,
    server_momentum=0.9,
    server_learning_rate=1.0,
    client_learning_rate=4.0,
    warmup=0.0,
    cooldown=0.25,
    evaluate_every=12,
)
METRICS = ("loss", "accuracy_no_pad")


def main(folder: pathlib.Path) -> None:
    """Trains all runs in a new folder, and prints each result and the differences by seed."""
    corpus = folder / "corpus.sqlite"
    write_synthetic_corpus(
        corpus,
        clients=2000,
        seed=CORPUS_SEED,
        sentences_per_client=12.0,
        vocabulary_size=300,
        progress=False,
    )
    task = build_task(StackOverflowOptions(data=str(corpus), **OPTIONS), progress=False)
    results: dict[int, list[list[float]]] = {}
    for cohort_size in SIMULATED_COHORTS:
        for seed in SEEDS:
            claimed_cohort = None if cohort_size == CLAIMED_COHORT else CLAIMED_COHORT
            config = dataclasses.replace(
                CONFIG, cohort_size=cohort_size, claimed_cohort=claimed_cohort, seed=seed
            )
            run_folder = folder / f"{cohort_size}-{seed}"
            run = federated.train(task, config, folder=run_folder, noise_seed=seed, progress=False)
            test = (run.result or {})["test"]
            results.setdefault(cohort_size, []).append([test[metric] for metric in METRICS])
            print(cohort_size, seed, {metric: round(test[metric], 4) for metric in METRICS})
    full = np.array(results[CLAIMED_COHORT])
    for cohort_size in SIMULATED_COHORTS[1:]:
        difference = np.array(results[cohort_size]) - full
        for metric, values in zip(METRICS, difference.T, strict=True):
            error = values.std(ddof=1) / np.sqrt(len(values))
            print(
                f"{cohort_size} for {CLAIMED_COHORT}, {metric}: {values.mean():+.4f} "
                f"(standard error {error:.4f})"
            )
    print(f"{time.process_time():.0f} s of processor time")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
