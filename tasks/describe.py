"""Description of the data file of any shipped task. The file's content decides which task it is
for.

It needs no TensorFlow.
"""

import os
from typing import Any

from fedmf.files import expanded
from fedmf.tasks import cifar10, classification, emnist, stackoverflow
from fedmf.tasks.data_file import is_labelled

_GZIP = b"\x1f\x8b"
_SQLITE = b"SQLite format 3\0"


def describe_file(path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Describes a data file by its task, origin, sizes and the content of a sample, as values for
    JSON.

    Args:
      path: the file; None for the StackOverflow file in TFF's own cache.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: a damaged file, or one of no task that ships.
    """
    first_bytes = b""
    path = None if path is None else expanded(path)
    if path is not None and path.is_file():
        try:
            with open(path, "rb") as file:
                first_bytes = file.read(len(_SQLITE))
        except OSError as error:
            raise ValueError(
                f"{path} cannot be read: {error.strerror or error}; check its permissions"
            ) from None
        if first_bytes and not first_bytes.startswith((_GZIP, _SQLITE)):
            raise ValueError(
                f"{path} is no data file of a task that ships: those are SQLite "
                "(stackoverflow_nwp, emnist, classification) or .tar.gz (cifar10); rows of "
                "your own become one by `fedmf data import`"
            )
    if path is not None and first_bytes.startswith(_GZIP):
        return {"task": "cifar10", **cifar10.describe(path)}
    if path is not None and is_labelled(path):
        return {"task": "classification", **classification.describe(path)}
    if path is not None and first_bytes == _SQLITE and emnist.is_emnist(path):
        return {"task": "emnist", **emnist.describe(path)}
    return {"task": "stackoverflow_nwp", **stackoverflow.describe_file(path)}
