"""Mechanism files: one .npz without Python objects, written whole or not at all, and checked when read."""

import dataclasses
import os
import pathlib
import zipfile

import numpy as np

from fedmf.files import write_atomically
from fedmf.mechanisms.banded.mechanism import BandedMechanism
from fedmf.mechanisms.base import Mechanism, check_certificate
from fedmf.mechanisms.blt.mechanism import BLTMechanism
from fedmf.mechanisms.certificate import Certificate
from fedmf.mechanisms.dense.mechanism import DenseMechanism
from fedmf.mechanisms.explicit import ExplicitMechanism
from fedmf.mechanisms.fft import FFTMechanism
from fedmf.mechanisms.identity import IdentityMechanism
from fedmf.mechanisms.low_rank.mechanism import LowRankMechanism
from fedmf.mechanisms.read_errors import READ_ERRORS
from fedmf.mechanisms.stamped import StampedMechanism
from fedmf.mechanisms.toeplitz.mechanism import ToeplitzMechanism
from fedmf.mechanisms.tree import TreeMechanism
from fedmf.participation.schema import Participation

_FORMAT = "fedmf mechanism"
_VERSION = 1
_FAMILIES: dict[str, type[Mechanism]] = {
    cls.family: cls
    for cls in (
        BLTMechanism,
        BandedMechanism,
        DenseMechanism,
        FFTMechanism,
        IdentityMechanism,
        LowRankMechanism,
        ExplicitMechanism,
        StampedMechanism,
        ToeplitzMechanism,
        TreeMechanism,
    )
}
# Rounds of a Toeplitz mechanism that are checked when it is read.
_PROBED = 4096
_CERTIFICATE_FIELDS = ("loss", "lower_bound", "iterations", "seconds")


def save_mechanism(mechanism: Mechanism, path: str | os.PathLike[str]) -> None:
    """Writes `mechanism` to exactly `path`; a crash leaves the old file or the new one, never a part.

    Raises:
      ValueError: the folder of path does not exist.
      OSError: the file cannot be written.
    """
    target = pathlib.Path(path)
    if not target.parent.is_dir():
        raise ValueError(f"path={str(target)!r} is in a folder that does not exist: create it, or choose another path")
    entries = {"format": np.array(_FORMAT), "version": np.array(_VERSION), **entries_of(mechanism)}
    write_atomically(target, lambda file: np.savez(file, **entries))


def entries_of(mechanism: Mechanism) -> dict[str, np.ndarray]:
    """All that makes `mechanism` again, by `mechanism_of`."""
    entries = {
        "family": np.array(mechanism.family),
        "certificate_reason": np.array(mechanism.certificate_reason),
    }
    if mechanism.certificate is not None:
        fields = [float(getattr(mechanism.certificate, name)) for name in _CERTIFICATE_FIELDS]
        entries["certificate"] = np.array(fields)
        if mechanism.certificate.participation is not None:
            under = dataclasses.asdict(mechanism.certificate.participation)
            entries |= {f"certificate_{name}": np.array(value) for name, value in under.items()}
    return entries | {f"state_{name}": array for name, array in mechanism.state().items()}


def load_mechanism(path: str | os.PathLike[str]) -> Mechanism:
    """Reads a mechanism written by `Mechanism.save`, and checks that it is one: its shape, its numbers and N C = I.

    Nothing in the file is trusted for privacy: `fedmf.sensitivity` computes from the encoder that was read. A
    certificate is handed on as it was stored.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is truncated, damaged, of another kind or of a later version, or holds no valid mechanism.
    """
    target = pathlib.Path(path)
    if not target.is_file():
        raise FileNotFoundError(f"path={str(target)!r} is not a file: name one that mechanism.save wrote")
    try:
        mechanism = _read(target)
        _check_inverse(mechanism)
    except READ_ERRORS as error:
        cause = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"path={str(target)!r} does not hold a valid fedmf mechanism ({cause}): fit the mechanism and save it again"
        ) from error
    return mechanism


def _read(path: pathlib.Path) -> Mechanism:
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError("not an .npz archive, or a truncated one")
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            entries = {name: archive[name] for name in archive.files}
    if "format" not in entries or entries["format"].item() != _FORMAT:
        raise ValueError("an .npz archive of something else")
    if entries["version"].item() != _VERSION:
        raise ValueError(f"format version {entries['version'].item()}, this fedmf reads version {_VERSION}")
    return mechanism_of(entries)


def mechanism_of(entries: dict[str, np.ndarray]) -> Mechanism:
    """The mechanism that `entries_of` took apart.

    Raises:
      KeyError, TypeError, ValueError: entries are missing, or describe no valid mechanism.
    """
    family = entries["family"].item()
    if family not in _FAMILIES:
        raise ValueError(f"family {family!r}, this fedmf knows {', '.join(sorted(_FAMILIES))}")
    certificate = None
    if "certificate" in entries:
        stored = dict(zip(_CERTIFICATE_FIELDS, entries["certificate"].tolist(), strict=True))
        under = None
        if "certificate_schema" in entries:
            fields = {field.name for field in dataclasses.fields(Participation)}
            under = Participation(**{name: entries[f"certificate_{name}"].item() for name in fields})
        certificate = Certificate(**{**stored, "iterations": int(stored["iterations"])}, participation=under)
    state = {name.removeprefix("state_"): array for name, array in entries.items() if name.startswith("state_")}
    reason = entries["certificate_reason"].item()
    check_certificate(certificate, reason)  # before a constructor fills in a reason of its own
    return _FAMILIES[family].from_state(state, certificate=certificate, certificate_reason=reason)


def _check_inverse(mechanism: Mechanism) -> None:
    """Raises unless the stream gives back V from C V: N C = I, seen through the recipe that makes the noise."""
    c, noise = mechanism.toeplitz_coefficients(), mechanism.noising_coefficients()
    if c is not None and noise is not None and mechanism.rounds > _PROBED:
        # Every round of a Toeplitz mechanism is like the first ones: n(x) c(x) = 1 there, without matrices.
        product = np.convolve(noise[:_PROBED], c[:_PROBED])[:_PROBED]
        if not np.allclose(product, np.eye(1, _PROBED), rtol=0.0, atol=1e-6):
            raise ValueError("its noising coefficients are not an inverse of its encoder's to 6 digits")
        return
    probes = np.random.default_rng(0).choice([-1.0, 1.0], size=(mechanism.rounds, 4))
    encoded = _encoded(mechanism, probes)
    with np.errstate(all="ignore"):  # an overflow fails the comparison below
        decoded = np.stack(list(mechanism.stream().rows(lambda i: encoded[i])))
    if not np.allclose(decoded, probes, rtol=0.0, atol=1e-6):
        raise ValueError("its noising matrix is not an inverse of its encoder to 6 digits")


def _encoded(mechanism: Mechanism, probes: np.ndarray) -> np.ndarray:
    """C probes; of a banded C without making it."""
    rows = mechanism.banded_rows()
    if rows is None:
        return mechanism.encoder() @ probes
    encoded = rows[:, :1] * probes
    for j in range(1, rows.shape[1]):
        encoded[j:] += rows[j:, j, None] * probes[:-j]
    return encoded
