"""Reading of mechanism files, which are .npz archives without Python objects. What is read is
checked.
"""

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

# A Toeplitz mechanism of more rounds than this is checked in its first rounds only.
_MAX_PROBED_ROUNDS = 4096
# Archives up to this size are read without comparing them with the available memory.
_SMALL_BYTES = 2**22
# The exceptions that numpy and zipfile raise when they read a damaged .npy or .npz file.
READ_ERRORS = (
    OSError,
    EOFError,
    KeyError,
    ValueError,
    TypeError,
    MemoryError,
    # zipfile raises this error if the compression of the archive is unknown to it.
    NotImplementedError,
    # zipfile raises this error if the archive seems to be encrypted.
    RuntimeError,
    # numpy raises this error if the header of an .npy file is not a Python literal.
    SyntaxError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


@with_numpy_defaults
def load_mechanism(path: str | os.PathLike[str]) -> Mechanism:
    """Reads a mechanism that `Mechanism.save` wrote. It checks the shapes and the numbers, and that
    N C = I for the encoder C and the noise matrix N.

    Nothing in the file is trusted for privacy: `fedmf.sensitivity` computes from the encoder that
    was read. A certificate is returned as it was stored.

    Args:
      path: path of a file that `Mechanism.save` wrote.

    Returns:
      The mechanism, an instance of the class that wrote it.

    Raises:
      TypeError: path is not a path.
      FileNotFoundError: there is no such file.
      ValueError: the file is truncated, damaged, of another format or of a later version, or holds
        no valid mechanism; or its mechanism does not fit into memory.
    """
    file_path = checked_path("path", path, hint="name a file that mechanism.save wrote")
    if not file_path.is_file():
        raise FileNotFoundError(
            f"path={str(file_path)!r} is not a file: name one that mechanism.save wrote"
        )
    try:
        mechanism = _read_archive(file_path)
        _check_inverse(mechanism)
    except checks.TooLargeForMemory as error:
        raise checks.TooLargeForMemory(
            f"path={str(file_path)!r} cannot be used: {error}"
        ) from error
    except READ_ERRORS as error:
        error_text = f"{type(error).__name__}: {error}"
        if isinstance(error, ValueError):
            error_text = str(error)
        raise ValueError(
            f"path={str(file_path)!r} does not hold a valid fedmf mechanism ({error_text}): fit "
            "the mechanism and save it again"
        ) from error
    return mechanism


def _read_archive(path: pathlib.Path) -> Mechanism:
    """Reads the mechanism in an .npz archive. Raises one of READ_ERRORS if the archive is
    damaged.
    """
    if not zipfile.is_zipfile(path):
        raise ValueError("not an .npz archive, or a truncated one")
    check_archive(path)
    _check_size(path)
    with np.load(path, allow_pickle=False) as archive:
        array_by_name = {name: archive[name] for name in archive.files}
    if "format" not in array_by_name or array_by_name["format"].item() != FILE_FORMAT:
        raise ValueError("an .npz archive of something else")
    if array_by_name["version"].item() != FILE_VERSION:
        raise ValueError(
            f"format version {array_by_name['version'].item()}, this fedmf reads version "
            f"{FILE_VERSION}"
        )
    return mechanism_of(array_by_name)


def _check_size(path: pathlib.Path) -> None:
    """Raises TooLargeForMemory if the arrays of the archive do not fit into memory."""
    with zipfile.ZipFile(path) as archive:
        num_bytes = sum(entry.file_size for entry in archive.infolist())
    if num_bytes <= _SMALL_BYTES:
        return
    free_bytes = available_memory()
    if num_bytes > free_bytes:
        raise checks.TooLargeForMemory(
            f"its arrays take {num_bytes / 2**30:.3g} GiB, where {free_bytes / 2**30:.3g} GiB are "
            "free: free memory, or fit a mechanism of a family that stores few numbers (toeplitz, "
            "blt, banded with few bands)"
        )


def mechanism_of(entries: dict[str, np.ndarray]) -> Mechanism:
    """Builds a mechanism from the arrays of a mechanism file, which `Mechanism.entries` returned.

    Raises:
      KeyError, TypeError, ValueError: entries are missing, or describe no valid mechanism.
    """
    family_name = entries["family"].item()
    if family_name not in FAMILIES:
        raise ValueError(f"family {family_name!r}, this fedmf knows {', '.join(sorted(FAMILIES))}")
    certificate = None
    certificate_reason = entries["certificate_reason"].item()
    if "certificate" in entries:
        certificate = msgspec.json.decode(entries["certificate"].item(), type=Certificate)
    # The certificate is checked before the mechanism's constructor is called, because the
    # constructor would fill in a default for a missing reason.
    check_certificate(certificate, certificate_reason)
    state_arrays = {
        name.removeprefix("state_"): array
        for name, array in entries.items()
        if name.startswith("state_")
    }
    return FAMILIES[family_name].mechanism.from_state(
        state_arrays, {"certificate": certificate, "certificate_reason": certificate_reason}
    )


def _check_inverse(mechanism: Mechanism) -> None:
    """Raises ValueError unless N C = I to 6 digits for the encoder C and the noise matrix N. For
    random vectors V, the recipe of the noise must turn C V into V.

    A long Toeplitz mechanism is like its first rounds in every round, so that n(x) c(x) = 1 is
    checked there, without matrices. A tree stores no numbers that could be wrong.
    """
    if mechanism.binary_trees() is not None:
        return
    encoder_column = mechanism.toeplitz_coefficients()
    noising_column = mechanism.noising_coefficients()
    if (
        encoder_column is not None
        and noising_column is not None
        and mechanism.rounds > _MAX_PROBED_ROUNDS
    ):
        num_rounds = _MAX_PROBED_ROUNDS
        product_column = np.convolve(noising_column[:num_rounds], encoder_column[:num_rounds])[
            :num_rounds
        ]
        if not np.allclose(product_column, np.eye(1, num_rounds), rtol=0.0, atol=1e-6):
            raise ValueError(
                "its noising coefficients are not an inverse of its encoder's to 6 digits"
            )
        return
    probes = np.random.default_rng(0).choice([-1.0, 1.0], size=(mechanism.rounds, 4))
    gram_column = mechanism.toeplitz_gram()
    stream = mechanism.stream()
    if gram_column is not None and stream.contraction is None:
        # The noise can be checked without storing matrices. If x = N z for a random vector z, where
        # N = C^-1 and X = C^T C, then x^T X x = z^T z.
        noise_vectors = np.stack(list(stream.rows(lambda i: probes[i])))
        probe_products = noise_vectors.T @ scipy.linalg.matmul_toeplitz(gram_column, noise_vectors)
        if not np.allclose(probe_products, probes.T @ probes, rtol=0.0, atol=1e-6 * len(probes)):
            raise ValueError("its noise is not that of its Gram matrix to 6 digits")
        return
    banded_rows = mechanism.banded_rows()
    if banded_rows is None:
        encoded_probes = mechanism.encoder() @ probes
    else:
        encoded_probes = checks.banded_times(banded_rows, probes)
    # Entries that overflow are not an error here, because they fail the check below.
    with np.errstate(all="ignore"):
        decoded_probes = np.stack(list(mechanism.stream().rows(lambda i: encoded_probes[i])))
    if not np.allclose(decoded_probes, probes, rtol=0.0, atol=1e-6):
        raise ValueError("its noising matrix is not an inverse of its encoder to 6 digits")
