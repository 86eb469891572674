"""Functions that read rows, JSON objects and weights from the files of a run."""

import json
import math
import pathlib
from typing import Any

import numpy as np

from fedmf.files import check_archive
from fedmf.mechanisms.storage import READ_ERRORS

# Names of measured numbers, which may be NaN or infinite. JSON has neither value, so files have
# null in their place.
_MEASURED = ("train_loss", "clip_fraction", "validation", "test", "metrics", "mean", "deciles")


def _with_nan(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the content with NaN in place of null for measured numbers."""
    return {
        name: _nan_for_none(value) if name in _MEASURED else value
        for name, value in content.items()
    }


def _nan_for_none(value: Any) -> Any:
    """Returns a JSON value with every null replaced by NaN."""
    if isinstance(value, dict):
        return {name: _nan_for_none(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_nan_for_none(entry) for entry in value]
    return math.nan if value is None else value


def read_weights(path: pathlib.Path) -> list[np.ndarray]:
    """Returns the arrays that `RunFolder.write_weights` wrote.

    Raises:
      ValueError: the file is damaged or missing.
    """
    try:
        check_archive(path)
        with np.load(path, allow_pickle=False) as arrays:
            return [arrays[f"weight_{i}"] for i in range(len(arrays.files))]
    except READ_ERRORS as error:
        raise ValueError(
            f"{path} is damaged or missing ({error}): put back the run's own file"
        ) from error


def read_object(path: pathlib.Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
      ValueError: the file holds no JSON object.
    """
    try:
        json_content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path.name} is not JSON: {error}") from error
    if not isinstance(json_content, dict):
        raise ValueError(f"{path.name} holds a {type(json_content).__name__}, not an object")
    return _with_nan(json_content)


def read_rows(path: pathlib.Path, *, skips_damaged: bool = False) -> list[dict[str, Any]]:
    """Reads rows of JSON from a file. A missing file has no rows.

    A last line without a line break is ignored, because the run was killed while it was written.

    Args:
      path: path of the file.
      skips_damaged: whether damaged lines are ignored, for files that are not essential.

    Raises:
      ValueError: a line is no row.
    """
    if not path.exists():
        return []
    row_lines = path.read_bytes().split(b"\n")
    parsed_rows = []
    for number, line in enumerate(row_lines, start=1):
        try:
            decoded_row = json.loads(line)
            is_whole = isinstance(decoded_row, dict) and isinstance(decoded_row.get("round"), int)
        except ValueError:
            is_whole = False
        if is_whole:
            # Rows without null are not copied, which saves time in runs of 100,000 rounds.
            if b"null" in line:
                decoded_row = _with_nan(decoded_row)
            parsed_rows.append(decoded_row)
        elif number < len(row_lines) and not skips_damaged:
            raise ValueError(
                f"line {number} of {path} is damaged: it must be a JSON object with a round"
            )
    return parsed_rows
