"""Fits on disk: a fit whose inputs were fitted before is read from a file named by their hash."""

import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any

from fedmf import disk_cache
from fedmf.files import cache_folder, checked_path
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.storage import load_mechanism
from fedmf.participation.schema import Participation
from fedmf.workloads import Workload

# The sources that decide what a fit gives, below fedmf/
SOURCES = (
    *("checks.py", "fields.py", "workloads.py"),
    *("participation/*.py", "noise/*.py", "mechanisms/**/*.py"),
)
# Fits that take less are not stored.
MIN_SECONDS = 0.1


def folder(choice: bool | str | os.PathLike[str]) -> pathlib.Path | None:
    """The folder of `fit(..., cache=choice)`: for True $FEDMF_CACHE, or else fedmf in the user's
    cache folder.

    None for False, and for True where $FEDMF_CACHE is set to nothing.
    """
    if isinstance(choice, str | os.PathLike):
        return checked_path("cache", choice, hint="pass True, False or the path of a folder")
    if not isinstance(choice, bool):
        raise TypeError(
            f"cache={choice!r} is a {type(choice).__name__}: pass True, False "
            "or the path of a folder"
        )
    return cache_folder() if choice else None


def cached_path(
    cache: pathlib.Path,
    workload: Workload,
    participation: Participation,
    family: str,
    options: dict[str, Any],
) -> pathlib.Path:
    """The file of one fit: its name is a hash of everything that decides the outcome,
    this code included.

    The workload counts by its numbers, not by its name.
    """
    content = workload.matrix if workload.inverse_diagonals is None else workload.inverse_diagonals
    inputs = {
        "code": disk_cache.code_digest(*SOURCES),
        "family": family,
        "options": options,
        "participation": dataclasses.asdict(participation),
        "workload": [
            workload.inverse_diagonals is None,
            list(content.shape),
            hashlib.sha256(content.tobytes()).hexdigest(),
        ],
    }
    text = json.dumps(inputs, sort_keys=True, default=repr)
    return cache / f"{family}-{hashlib.sha256(text.encode()).hexdigest()[:32]}.npz"


def read(path: pathlib.Path, *, family: str, rounds: int) -> Mechanism | None:
    """The mechanism in `path`; None where there is none, or the file is damaged, or holds another
    family or number of rounds.
    """
    try:
        mechanism = load_mechanism(path)
    except (OSError, ValueError):
        return None
    return mechanism if (mechanism.family, mechanism.rounds) == (family, rounds) else None
