"""Functions that fit mechanisms for the papers' items, and show progress on a terminal."""

import sys
from typing import Any

import numpy as np

import fedmf
from fedmf.mechanisms.fitting.progress import interruptible_fits, progress_line


def fit(
    workload: fedmf.Workload, participation: fedmf.Participation, family: str, **options: Any
) -> Any:
    """Calls `fedmf.fit` with progress on a terminal. Ctrl-C ends the fit without a result."""
    with interruptible_fits(), progress_line(family, enabled=sys.stderr.isatty()) as progress:
        return fedmf.fit(workload, participation, family=family, progress=progress, **options)


def sums_once(rounds: int) -> tuple[fedmf.Workload, fedmf.Participation]:
    """Returns the prefix-sum workload, and the schema in which each client takes part once."""
    return fedmf.prefix_sum(rounds), one_participation(rounds)


def one_participation(rounds: int) -> fedmf.Participation:
    """Returns the participation schema in which each client takes part once."""
    return fedmf.Participation(rounds=rounds, schema="single")


def epochs(rounds: int, number: int) -> fedmf.Participation:
    """Returns the participation schema of `number` epochs in a fixed order."""
    return fedmf.Participation(rounds=rounds, schema="fixed_epoch", min_sep=rounds // number)


def say(phrase: str) -> None:
    """Shows a phrase about the progress on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{phrase}", end="", file=sys.stderr, flush=True)


def span(values: np.ndarray) -> str:
    """Returns text with the smallest and the largest of some values."""
    return f"{values.min():.2f} to {values.max():.2f}"
