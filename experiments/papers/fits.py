"""The fits of all items: progress on a terminal, and Ctrl-C."""

import sys
from typing import Any

import fedmf
from fedmf.mechanisms.fitting.progress import interruptible_fits, progress_line


def fit(
    workload: fedmf.Workload, participation: fedmf.Participation, family: str, **options: Any
) -> Any:
    """`fedmf.fit`, with progress on a terminal; Ctrl-C ends it without a result."""
    with interruptible_fits(), progress_line(family, enabled=sys.stderr.isatty()) as progress:
        return fedmf.fit(workload, participation, family=family, progress=progress, **options)


def sums_once(rounds: int) -> tuple[fedmf.Workload, fedmf.Participation]:
    """Prefix sums, and one participation of each client."""
    return fedmf.prefix_sum(rounds), one_participation(rounds)


def one_participation(rounds: int) -> fedmf.Participation:
    """One participation of each client."""
    return fedmf.Participation(rounds=rounds, schema="single")


def epochs(rounds: int, number: int) -> fedmf.Participation:
    """So many epochs in a fixed order."""
    return fedmf.Participation(rounds=rounds, schema="fixed_epoch", min_sep=rounds // number)


def say(phrase: str) -> None:
    """Shows progress on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{phrase}", end="", file=sys.stderr, flush=True)
