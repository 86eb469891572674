"""Reading mechanism files: one .npz without Python objects, checked when it is read."""

import os
import pathlib
import tokenize
import zipfile
import zlib

import msgspec
import numpy as np
import scipy.linalg

from fedmf import checks
from fedmf.files import check_archive, checked_path
from fedmf.mechanisms.base import (
    FILE_FORMAT,
    FILE_VERSION,
    Certificate,
    Mechanism,
    check_certificate,
)
from fedmf.mechanisms.family import FAMILIES
from fedmf.memory import available_memory
from fedmf.numpy_errors import with_numpy_defaults

# Rounds of a Toeplitz mechanism that are checked when it is read.
_MAX_PROBED_ROUNDS = 4096
# Archives that are read without asking what memory is free.
_SMALL_BYTES = 2**22
# What numpy and zipfile raise when they read a damaged .npy or .npz file.
READ_ERRORS = (
    OSError,
    EOFError,
    KeyError,
    ValueError,
    TypeError,
    MemoryError,
    NotImplementedError,  # a compression that zipfile does not know
    RuntimeError,  # an archive that seems encrypted
    SyntaxError,  # a header of .npy that is no Python literal
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


@with_numpy_defaults
def load_mechanism(path: str | os.PathLike[str]) -> Mechanism:
    """Reads a mechanism written by `Mechanism.save`, and checks that it is one: its shape, its
    numbers and N C = I.

    Nothing in the file is trusted for privacy: `fedmf.sensitivity` computes from the encoder that
    was read. A certificate is handed on as it was stored.

    Args:
      path: a file that `Mechanism.save` wrote.

    Returns:
      The mechanism, of the class that wrote it.

    Raises:
      TypeError: no path.
      FileNotFoundError: there is no such file.
      ValueError: the file is truncated, damaged, of another kind or of a later version, or holds no
        valid mechanism; or its mechanism does not fit into memory.
    """
    target = checked_path("path", path, hint="name a file that mechanism.save wrote")
    if not target.is_file():
        raise FileNotFoundError(
            f"path={str(target)!r} is not a file: name one that mechanism.save wrote"
        )
    try:
        mechanism = _read(target)
        _check_inverse(mechanism)
    except checks.TooLargeForMemory as error:
        raise checks.TooLargeForMemory(f"path={str(target)!r} cannot be used: {error}") from error
    except READ_ERRORS as error:
        cause = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"path={str(target)!r} does not hold a valid fedmf mechanism ({cause}): fit the "
            "mechanism and save it again"
        ) from error
    return mechanism


def _read(path: pathlib.Path) -> Mechanism:
    if not zipfile.is_zipfile(path):
        raise ValueError("not an .npz archive, or a truncated one")
    check_archive(path)
    _check_size(path)
    with np.load(path, allow_pickle=False) as archive:
        entries = {name: archive[name] for name in archive.files}
    if "format" not in entries or entries["format"].item() != FILE_FORMAT:
        raise ValueError("an .npz archive of something else")
    if entries["version"].item() != FILE_VERSION:
        raise ValueError(
            f"format version {entries['version'].item()}, this fedmf reads version {FILE_VERSION}"
        )
    return mechanism_of(entries)


def _check_size(path: pathlib.Path) -> None:
    """Refuses an archive whose arrays do not fit into memory."""
    with zipfile.ZipFile(path) as archive:
        num_bytes = sum(entry.file_size for entry in archive.infolist())
    if num_bytes <= _SMALL_BYTES:
        return
    free_bytes = available_memory()
    if num_bytes > free_bytes:
        raise checks.TooLargeForMemory(
            f"its arrays take {num_bytes / 2**30:.3g} GiB, where {free_bytes / 2**30:.3g} GiB are "
            "free: free memory, or fit a mechanism of a family that keeps few numbers (toeplitz, "
            "blt, banded with few bands)"
        )


def mechanism_of(entries: dict[str, np.ndarray]) -> Mechanism:
    """The mechanism that `Mechanism.entries` took apart.

    Raises:
      KeyError, TypeError, ValueError: entries are missing, or describe no valid mechanism.
    """
    name = entries["family"].item()
    if name not in FAMILIES:
        raise ValueError(f"family {name!r}, this fedmf knows {', '.join(sorted(FAMILIES))}")
    certificate = None
    reason = entries["certificate_reason"].item()
    if "certificate" in entries:
        certificate = msgspec.json.decode(entries["certificate"].item(), type=Certificate)
    check_certificate(certificate, reason)  # before a constructor fills in a reason of its own
    state = {
        name.removeprefix("state_"): array
        for name, array in entries.items()
        if name.startswith("state_")
    }
    return FAMILIES[name].mechanism.from_state(
        state, {"certificate": certificate, "certificate_reason": reason}
    )


def _check_inverse(mechanism: Mechanism) -> None:
    """Raises unless the stream gives back V from C V: N C = I, seen through the recipe that makes
    the noise.
    """
    c = mechanism.toeplitz_coefficients()
    noise = mechanism.noising_coefficients()
    most = _MAX_PROBED_ROUNDS
    if c is not None and noise is not None and mechanism.rounds > most:
        # Every round of a Toeplitz mechanism is like the first ones: n(x) c(x)
        # = 1 there, without matrices.
        if not np.allclose(
            np.convolve(noise[:most], c[:most])[:most], np.eye(1, most), rtol=0.0, atol=1e-6
        ):
            raise ValueError(
                "its noising coefficients are not an inverse of its encoder's to 6 digits"
            )
        return
    probes = np.random.default_rng(0).choice([-1.0, 1.0], size=(mechanism.rounds, 4))
    gram = mechanism.toeplitz_gram()
    stream = mechanism.stream()
    if gram is not None and stream.contraction is None:
        # Without matrices: the rows x of N z have x^T X x = z^T C^-T X C^-1 z = z^T z.
        x = np.stack(list(stream.rows(lambda i: probes[i])))
        products = x.T @ scipy.linalg.matmul_toeplitz(gram, x)
        if not np.allclose(products, probes.T @ probes, rtol=0.0, atol=1e-6 * len(probes)):
            raise ValueError("its noise is not that of its Gram matrix to 6 digits")
        return
    rows = mechanism.banded_rows()
    encoded = mechanism.encoder() @ probes if rows is None else checks.banded_times(rows, probes)
    with np.errstate(all="ignore"):  # an overflow fails the comparison below
        decoded = np.stack(list(mechanism.stream().rows(lambda i: encoded[i])))
    if not np.allclose(decoded, probes, rtol=0.0, atol=1e-6):
        raise ValueError("its noising matrix is not an inverse of its encoder to 6 digits")
