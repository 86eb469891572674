"""Readers of a journal that take no lock, so that another process may commit rounds meanwhile."""

import contextlib
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

JOURNAL = "private/journal"
ROWS = "private/rounds.jsonl"
_MAX_TRIES = 10


def newest_number(path: pathlib.Path) -> int:
    """Returns the number of committed rounds, by the names of a journal's files; -1 if there is no
    file.
    """
    try:
        file_names = os.listdir(path / JOURNAL)
    except (FileNotFoundError, NotADirectoryError):
        return -1
    file_stems = [name.removesuffix(".npz") for name in file_names if name.endswith(".npz")]
    return max((int(stem) for stem in file_stems if stem.isdecimal()), default=-1)


def committed_rounds(path: pathlib.Path) -> int:
    """Returns the number of committed rounds in a folder; 0 if it has no journal."""
    return max(newest_number(path), 0)


def bound_digests(path: pathlib.Path) -> dict[str, str]:
    """Returns the SHA-256 digests that a folder's journal recorded of the files that determine
    noise and sums, by the files' names.

    Raises:
      READ_ERRORS of fedmf.mechanisms.storage: the journal is missing or damaged.
    """
    with _open_newest_file(path) as entries:
        header = json.loads(entries["header"].item())
    return dict(header["files"])


def committed_rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the rows of all committed rounds in a folder's journal.

    Raises:
      READ_ERRORS of fedmf.mechanisms.storage: the journal is missing or damaged.
    """
    with _open_newest_file(path) as entries:
        header = json.loads(entries["header"].item())
    with open(path / ROWS, "rb") as file:
        earlier_rows = file.read(header["end"])
    if hex_digest(earlier_rows) != header["digest"]:
        raise ValueError(f"{ROWS} is not the record that the newest round was committed with")
    decoder = msgspec.json.Decoder(dict[str, Any])
    return decoder.decode_lines(earlier_rows + header["newest_row"].encode())


def newest_of(path: pathlib.Path) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Returns a list with the row of the newest round, and that round's arrays. The list is empty
    before the first round.

    Raises:
      READ_ERRORS of fedmf.mechanisms.storage: the journal is missing or damaged.
    """
    with _open_newest_file(path) as entries:
        header = json.loads(entries["header"].item())
        arrays = arrays_of(entries)
    newest_rows = [json.loads(line) for line in header["newest_row"].splitlines()]
    return newest_rows, arrays


def arrays_of(entries: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the arrays in a file of a journal, without its header."""
    return {name: array for name, array in entries.items() if name != "header"}


def _open_newest_file(path: pathlib.Path) -> Any:
    """Opens the newest file of a journal, even if another process commits rounds meanwhile."""
    for _ in range(_MAX_TRIES):
        newest_path = path / JOURNAL / f"{max(newest_number(path), 0):06d}.npz"
        # Another process may have removed the file since its name was read.
        with contextlib.suppress(FileNotFoundError):
            return np.load(newest_path, allow_pickle=False)
    raise FileNotFoundError(f"{path / JOURNAL} has no file")


def round_of(line: bytes) -> int | None:
    """Returns the round number in a line of JSON or in the first cell of a line of CSV; None if the
    line is not of a round.
    """
    try:
        decoded_row = json.loads(line)
    except (ValueError, RecursionError):
        first_cell, comma, _ = line.partition(b",")
        return int(first_cell) if comma and first_cell.isdigit() else None
    t = decoded_row.get("round") if isinstance(decoded_row, dict) else None
    return t if isinstance(t, int) else None


def hex_digest(content: bytes) -> str:
    """Returns the SHA-256 digest of bytes in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
