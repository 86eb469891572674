"""The cache of fits on disk, in which the name of each file is a hash of everything that determines
the fit.
"""

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

# The source files below fedmf/ whose code determines the result of a fit.
SOURCES = (
    *("checks.py", "fields.py", "workloads.py"),
    *("participation/*.py", "noise/*.py", "mechanisms/**/*.py"),
)
# Fits that take less time than this are not stored.
MIN_SECONDS = 0.1


def resolve_folder(choice: bool | str | os.PathLike[str]) -> pathlib.Path | None:
    """Returns the folder in which `fedmf.fit` stores its results if it is called with cache=choice,
    or None if it stores none.

    True means $FEDMF_CACHE, or else fedmf in the user's cache folder; with an empty FEDMF_CACHE,
    and for False, nothing is stored.
    """
    if isinstance(choice, str | os.PathLike):
        return checked_path("cache", choice, hint="pass True, False or the path of a folder")
    if not isinstance(choice, bool):
        raise TypeError(
            f"cache={choice!r} is a {type(choice).__name__}: pass True, False "
            "or the path of a folder"
        )
    if not choice:
        return None
    return cache_folder()


def cached_path(
    cache: pathlib.Path,
    workload: Workload,
    participation: Participation,
    family: str,
    options: dict[str, Any],
) -> pathlib.Path:
    """Returns the path of a fit in the cache. The name is a hash of everything that determines the
    result, including the code of this package.

    A workload is identified by its numbers, not by its name.
    """
    is_dense = workload.inverse_diagonals is None
    workload_content = (
        workload.matrix if workload.inverse_diagonals is None else workload.inverse_diagonals
    )
    hashed_inputs = {
        "code": disk_cache.code_digest(*SOURCES),
        "family": family,
        "options": options,
        "participation": dataclasses.asdict(participation),
        "workload": [
            is_dense,
            list(workload_content.shape),
            hashlib.sha256(workload_content.tobytes()).hexdigest(),
        ],
    }
    serialized_inputs = json.dumps(hashed_inputs, sort_keys=True, default=repr)
    input_digest = hashlib.sha256(serialized_inputs.encode()).hexdigest()[:32]
    return cache / f"{family}-{input_digest}.npz"


def load_fit(path: pathlib.Path, *, family: str, rounds: int) -> Mechanism | None:
    """Loads the mechanism in the file `path`. Returns None if the file is missing or damaged, or
    holds another family or number of rounds.
    """
    try:
        mechanism = load_mechanism(path)
    except (OSError, ValueError):
        return None
    if mechanism.family != family or mechanism.rounds != rounds:
        return None
    return mechanism
