"""Detection of changes in objects whose state cannot be read, by digests of their pickles."""

import hashlib
import pickle
from collections.abc import Mapping
from typing import Any

from fedmf.flower.state import AttributePath


class Watch:
    """A watch of objects whose state cannot be read. It compares digests of their pickles.

    Args:
      objects: objects by their addresses.
    """

    def __init__(self, objects: Mapping[AttributePath, Any]) -> None:
        self._objects = objects
        self._digests = {path: _pickle_digest(value) for path, value in objects.items()}

    def changed(self) -> dict[AttributePath, str]:
        """Returns the types of the objects whose pickles have changed, by the path that leads to
        each.

        An object without a pickle counts as unchanged.
        """
        return {
            path: type(value).__name__
            for path, value in self._objects.items()
            if self._digests[path] != _pickle_digest(value)
        }


class _DigestFile:
    """A file that keeps only a digest of what is written to it, because objects may be as large as
    a data set.
    """

    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def write(self, content: Any) -> None:
        """Adds content to the digest."""
        self.digest.update(content)


def _pickle_digest(value: Any) -> bytes | None:
    """Returns the digest of an object's pickle; None if the object cannot be pickled."""
    file = _DigestFile()
    try:
        pickle.Pickler(file).dump(value)
        return file.digest.digest()
    # The pickle fails for objects such as locks, files and connections.
    except Exception:
        return None
