"""Detection of changes in objects whose state cannot be read, by digests of their pickles."""

import hashlib
import pickle
from collections.abc import Mapping
from typing import Any

from fedmf.flower.state import AttributePath


class Watch:
    """Detector of changes in objects whose state cannot be read, which compares digests of their
    pickles.

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
    """A writable file that stores only a digest of its content, because objects may be as large as
    a data set.
    """

    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def write(self, content: Any) -> None:
        """Adds content to the digest of the file."""
        self.digest.update(content)


def _pickle_digest(value: Any) -> bytes | None:
    """Returns the digest of an object's pickle, or None if the object cannot be pickled."""
    digest_file = _DigestFile()
    try:
        pickle.Pickler(digest_file).dump(value)
        return digest_file.digest.digest()
    # The pickle fails for objects such as locks, files and connections.
    except Exception:
        return None
