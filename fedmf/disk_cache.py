"""Results that are kept on disk, under a hash of everything that decides them."""

import functools
import hashlib
import pathlib
import warnings
from collections.abc import Callable

from fedmf.files import make_folder


@functools.cache
def code_digest(*patterns: str) -> str:
    """A digest of the sources below fedmf/ that a result depends on: another version of fedmf never
    reads this version's.
    """
    package = pathlib.Path(__file__).parent
    digest = hashlib.sha256()
    for source in sorted(path for pattern in patterns for path in package.glob(pattern)):
        name = str(source.relative_to(package)).encode()
        digest.update(name + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


def keep(path: pathlib.Path, write: Callable[[pathlib.Path], None], what: str) -> None:
    """Writes a result, whole or not at all; warns where it cannot be written.

    Of two processes that compute the same, one file remains, and either is right.
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
