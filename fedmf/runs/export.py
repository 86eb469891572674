"""Check of the path to which a trained model is exported."""

import os
import pathlib

from fedmf.files import checked_path


def check_export_path(path: str | os.PathLike[str]) -> pathlib.Path:
    """Checks that `TrainedRun.export` can write a model to a path, and returns the path.

    Raises:
      ValueError: it cannot.
    """
    hint = "name a FILE.keras, a folder without a suffix for a SavedModel, or a FILE.pt for PyTorch"
    path = checked_path("path", path, hint=hint)
    if path.suffix not in ("", ".keras", ".pt"):
        raise ValueError(f"out={str(path)!r} ends in {path.suffix}: {hint}")
    if path.suffix and path.is_dir():
        raise ValueError(f"out={str(path)!r} is a folder: name another file")
    if not path.suffix and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"out={str(path)!r} exists already: name a new or an empty folder")
    return path
