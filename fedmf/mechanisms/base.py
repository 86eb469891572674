"""What every mechanism offers. The classes that implement it are final: one family, one file, one frozen dataclass."""

import abc
import os
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedmf.mechanisms.certificate import Certificate
from fedmf.noise.stream import NoiseStream


class Mechanism(abc.ABC):
    """A matrix-factorization mechanism: an encoder C (m, n) and a noising matrix N (n, m) with N C = I.

    Round t releases x[t] + (N Z)[t] with Z ~ Normal(0, stddev^2), (m, d). N (C x + Z) = x + N Z is post-processing of
    the Gaussian mechanism C x + Z, so privacy depends on C alone, also for inputs chosen adaptively and for N that is
    not causal (Denisov et al. 2022, Thm. 2.1; multi-epoch paper, Thm. 2.2).

    Mechanisms compare by identity. They claim no sensitivity: `fedmf.sensitivity` computes it from `encoder()`.

    Attributes:
      family: what `fedmf.fit` calls the kind of mechanism.
      rounds: n, the number of rounds.
      bands: non-zero diagonals of C, the main one included: 1 for a diagonal C, `rounds` for one without band
        structure.
      certificate: how far from the best of its family it can be, or None.
      certificate_reason: why there is no certificate; empty if there is one.
    """

    family: ClassVar[str]
    certificate: Certificate | None
    certificate_reason: str

    if TYPE_CHECKING:  # at run time a field of some families and a property of others

        @property
        def rounds(self) -> int: ...  # noqa: D102

        @property
        def bands(self) -> int: ...  # noqa: D102

    @abc.abstractmethod
    def encoder(self) -> np.ndarray:
        """C, float64 (m, rounds), a new array."""

    @abc.abstractmethod
    def noising(self) -> np.ndarray:
        """N, float64 (rounds, m), with N C = I, a new array."""

    @abc.abstractmethod
    def stream(self) -> NoiseStream:
        """The recipe that makes rows of N Z from independent draws."""

    def banded_rows(self) -> np.ndarray | None:
        """C by rows, float64 (rounds, bands), [t, j] = C[t, t - j], where C is square and banded; otherwise None.

        What is computed from it (sensitivity, errors) costs O(rounds bands^2) where `encoder()` would cost O(rounds^2).
        """
        return None

    def toeplitz_coefficients(self) -> np.ndarray | None:
        """The first column of C up to its last non-zero, float64 (bands,), where C is lower-triangular Toeplitz; or None."""
        return None

    def noising_coefficients(self) -> np.ndarray | None:
        """The first column of N, float64 (rounds,), where C is lower-triangular Toeplitz, and N therefore too; or None."""
        return None

    @abc.abstractmethod
    def state(self) -> dict[str, np.ndarray]:
        """The arrays that `from_state` needs to build the mechanism again; none of them of Python objects."""

    @classmethod
    @abc.abstractmethod
    def from_state(cls, state: dict[str, np.ndarray], **certificate: Any) -> "Mechanism":
        """Builds and validates a mechanism from `state` and the fields certificate and certificate_reason."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the mechanism to exactly `path`, whole or not at all; `fedmf.load_mechanism` reads it.

        Raises:
          ValueError: the folder of path does not exist.
          OSError: the file cannot be written.
        """
        from fedmf.mechanisms import storage  # it knows all families, which import this module

        storage.save_mechanism(self, path)


def check_certificate(certificate: Any, certificate_reason: Any) -> None:
    """Raises unless there is either a certificate or a reason for having none."""
    if certificate is not None and not isinstance(certificate, Certificate):
        kind = type(certificate).__name__
        raise TypeError(
            f"certificate={certificate!r} is a {kind}: pass a Certificate, or None and a certificate_reason"
        )
    if not isinstance(certificate_reason, str):
        kind = type(certificate_reason).__name__
        raise TypeError(
            f"certificate_reason={certificate_reason!r} is a {kind}, not a str: say why there is no certificate"
        )
    if (certificate is None) != bool(certificate_reason):
        raise ValueError(
            f"certificate={certificate} and certificate_reason={certificate_reason!r} do not go together: pass a "
            "certificate, or else the reason why there is none"
        )
