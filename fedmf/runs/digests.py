"""SHA-256 digests of the files of a finished run: those that its audit rests on, and those that are
released.
"""

import hashlib
import pathlib
from collections.abc import Mapping

# What the audit of a run reads.
AUDITED = (
    "config.json",
    "plan.json",
    "mechanism.npz",
    "metrics.jsonl",
    "participation.csv",
    "selected.csv",
)
# What a run releases beside them.
RELEASED = (
    "statement.md",
    "final_statement.md",
    "final_statement.json",
    "model.npz",
    "initial_model.npz",
    "vocabulary.json",
)


def sha256(content: bytes) -> str:
    """Returns the digest, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def digests(folder: pathlib.Path) -> dict[str, str]:
    """Returns name -> digest of the files of a run that are there."""
    return {
        name: sha256((folder / name).read_bytes())
        for name in (*AUDITED, *RELEASED)
        if (folder / name).exists()
    }


def changed_files(folder: pathlib.Path, recorded: Mapping[str, str]) -> list[str]:
    """Returns the files that are not those whose digests were recorded.

    What is only released may be missing, as from a copy; what is there is what the run left.
    """
    present = digests(folder)
    names = recorded.keys() | present.keys()
    return sorted(
        name
        for name in names
        if recorded.get(name) != present.get(name) and (name in present or name in AUDITED)
    )
