"""SHA-256 digests of the files of a finished run that its audit reads, and of the files that it
releases.
"""

import hashlib
import pathlib
from collections.abc import Mapping

# Files of a run that its audit reads.
AUDITED = (
    "config.json",
    "plan.json",
    "mechanism.npz",
    "metrics.jsonl",
    "participation.csv",
    "selected.csv",
)
# Other files of a run that are released.
RELEASED = (
    "statement.md",
    "final_statement.md",
    "final_statement.json",
    "model.npz",
    "initial_model.npz",
    "vocabulary.json",
)


def sha256(content: bytes) -> str:
    """Returns the SHA-256 digest of bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def digests(folder: pathlib.Path) -> dict[str, str]:
    """Returns the digest of each existing file of a run, by the file's name."""
    return {
        name: sha256((folder / name).read_bytes())
        for name in (*AUDITED, *RELEASED)
        if (folder / name).exists()
    }


def changed_files(folder: pathlib.Path, recorded: Mapping[str, str]) -> list[str]:
    """Returns the names of the files whose digests differ from the recorded digests.

    Released files that the audit does not read may be missing, as in a copy of the run.
    """
    digest_by_name = digests(folder)
    changed_names = [
        name
        for name in recorded.keys() | digest_by_name.keys()
        if recorded.get(name) != digest_by_name.get(name)
    ]
    return sorted(name for name in changed_names if name in digest_by_name or name in AUDITED)
