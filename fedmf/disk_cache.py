"""Functions for a disk cache of computed results. Each result is stored under a hash of everything
that it depends on.
"""

import functools
import hashlib
import pathlib
import warnings
from collections.abc import Callable

from fedmf.files import make_folder


@functools.cache
def code_digest(*patterns: str) -> str:
    """Computes a digest of all source files in fedmf/ whose paths match one of the glob patterns.

    Cached results have the digest in their key. So a version of fedmf with other sources never
    reads them.
    """
    package_folder = pathlib.Path(__file__).parent
    sources: list[pathlib.Path] = []
    for pattern in patterns:
        sources.extend(package_folder.glob(pattern))
    digest = hashlib.sha256()
    for source in sorted(sources):
        file_name = str(source.relative_to(package_folder)).encode()
        digest.update(file_name + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


def store(path: pathlib.Path, write: Callable[[pathlib.Path], None], what: str) -> None:
    """Writes a result to the cache. If the file cannot be written, it warns that the result, which
    `what` names, could not be stored.

    `write` must replace the file in one step. If two processes compute the same result, the file of
    the later one remains, and it is as good as the other.
    """
    try:
        make_folder(path.parent)
        write(path)
    except OSError as error:
        warnings.warn(
            f"{what} could not be stored in the folder {str(path.parent)!r} ({error}): set "
            "FEDMF_CACHE to another",
            RuntimeWarning,
            stacklevel=4,
        )
