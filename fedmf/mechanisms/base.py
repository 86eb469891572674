"""The base class of all mechanisms, and the certificate that states how far an optimised mechanism
is from the optimum.

Every class that implements it is final: one family of mechanisms is one frozen dataclass.
"""

import abc
import dataclasses
import numbers
import os
import reprlib
import sys
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec
import numpy as np

from fedmf import checks, fields
from fedmf.files import checked_path, write_atomically
from fedmf.noise.stream import NoiseStream
from fedmf.noise.tree import TreeNoise
from fedmf.participation.schema import Participation

_NUMERIC_FIELDS = ("loss", "lower_bound", "iterations", "seconds")


@dataclasses.dataclass(frozen=True)
class Certificate(fields.ShortRepr):
    """The certified optimality gap of a fitted mechanism, which compares its loss with a proven
    lower bound on the loss of every mechanism of its family. Weak duality proves the bound.

    Attributes:
      loss: `fedmf.loss` of the mechanism, for the workload it was fitted to, under `participation`.
      lower_bound: a bound that no encoder of the family falls below under `participation`; at most
        `loss`. For the family "dense" it holds for any encoder (unless a fit option restricts
        them); for "banded", for encoders of at most as many bands, with columns of equal norm
        unless the fit dropped that condition.
      iterations: steps of the optimiser.
      seconds: wall-clock time of the fit.
      participation: the participation that `loss` and `lower_bound` are for; None for a single
        participation. Where all columns have norm 1 and the bands are at most min_sep, k
        participations multiply both by k, so that this certificate holds for every k.

    Raises:
      ValueError: a number is not finite, or the bound is not positive or above the loss.

    >>> Certificate(loss=101.0, lower_bound=100.0, iterations=7, seconds=0.5).gap
    0.01
    """

    _shown_first = ("gap",)
    loss: float
    lower_bound: float
    iterations: int = dataclasses.field(repr=False)
    seconds: float = dataclasses.field(repr=False)
    participation: Participation | None = None

    def __post_init__(self) -> None:
        if self.participation is not None:
            fields.instance(Participation)("participation", self.participation)
        for field_name in _NUMERIC_FIELDS:
            field_value = getattr(self, field_name)
            if isinstance(field_value, bool) or not isinstance(field_value, numbers.Real):
                raise TypeError(
                    f"{field_name}={reprlib.repr(field_value)} is a {type(field_value).__name__}, "
                    "not a number: fit the mechanism again"
                )
        numeric_values = [getattr(self, field_name) for field_name in _NUMERIC_FIELDS]
        is_finite = all(abs(field_value) <= sys.float_info.max for field_value in numeric_values)
        if not is_finite or not 0.0 < self.lower_bound <= self.loss:
            field_values = ", ".join(
                f"{field_name}={field_value}"
                for field_name, field_value in zip(_NUMERIC_FIELDS, numeric_values, strict=True)
            )
            raise ValueError(
                f"{field_values} are no certificate: all are finite, and the bound is positive and "
                "at most the loss, so fit the mechanism again"
            )
        checks.integer("iterations", self.iterations, low=0, hint="it counts the steps of the fit")
        checks.positive("seconds", self.seconds, "it is the time of the fit", allow_zero=True)

    @property
    def gap(self) -> float:
        """The relative optimality gap, (loss - lower_bound) / lower_bound."""
        return (self.loss - self.lower_bound) / self.lower_bound


def certify(
    loss: float,
    lower_bound: float,
    iterations: int,
    seconds: float,
    *,
    participation: Participation | None = None,
) -> Certificate:
    """Returns the certificate of a fit that took `iterations` steps, from its loss and its lower
    bound. If rounding has raised the lower bound above the loss, the bound is set to the loss.

    Raises:
      ArithmeticError: the bound exceeds the loss by more than rounding can explain.
    """
    if lower_bound > loss * (1.0 + 1e-9):
        raise ArithmeticError(
            f"lower bound {lower_bound} exceeds the loss {loss}: the workload is too "
            "ill-conditioned to certify"
        )
    return Certificate(
        loss=float(loss),
        lower_bound=float(min(lower_bound, loss)),
        iterations=iterations,
        seconds=seconds,
        participation=participation,
    )


def check_certificate(certificate: Certificate | None, certificate_reason: str) -> None:
    """Raises ValueError unless a mechanism has either a certificate or a reason for having none,
    but not both.
    """
    if (certificate is None) != bool(certificate_reason):
        raise ValueError(
            f"certificate={certificate} and certificate_reason={certificate_reason!r} do not go "
            "together: pass a certificate, or else the reason why there is none"
        )


def check_mechanism(mechanism: object, name: str = "mechanism") -> None:
    """Raises TypeError unless `mechanism` is a Mechanism; the message calls the argument `name`."""
    if not isinstance(mechanism, Mechanism):
        raise TypeError(
            f"{name} is a {type(mechanism).__name__}: pass a mechanism, as fedmf.fit or "
            "fedmf.load_mechanism makes"
        )


# A mechanism file contains this format and version, so that readers can refuse any other file.
FILE_FORMAT = "fedmf mechanism"
FILE_VERSION = 2


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Mechanism(fields.Checked, fields.ShortRepr, abc.ABC):
    """A matrix-factorization mechanism, which consists of an encoder C, float64 (m, n), and a noise
    matrix N, float64 (n, m), with N C = I. The two determine the noise of n rounds.

    Round t releases x[t] + (N Z)[t] with Z ~ Normal(0, stddev^2), (m, d). N (C x + Z) = x + N Z is
    post-processing of the Gaussian mechanism C x + Z, so privacy depends on C alone, also for
    inputs chosen adaptively and for N that is not causal (Denisov et al. 2022, Thm. 2.1;
    multi-epoch paper, Thm. 2.2).

    Mechanisms compare by identity. They state no sensitivity: `fedmf.sensitivity` computes it
    from `encoder()`.

    Attributes:
      family: name of the family in `fedmf.fit`.
      uncertified: default of `certificate_reason` for this family.
      rounds: n, the number of rounds.
      certificate: optimality gap within the family, or None.
      certificate_reason: why there is no certificate; empty if there is one.

    Raises:
      TypeError, ValueError: a field is of the wrong kind or shape, or the fields form no mechanism.
    """

    _shown_first = ("rounds",)
    family: ClassVar[str]
    uncertified: ClassVar[str] = "built from given numbers, not optimised"
    certificate: Certificate | None = fields.validated(fields.instance(Certificate), None)
    certificate_reason: str = fields.validated(fields.plain_text, "", repr=False)

    # This declaration is for type checkers: some families store `rounds` as a field, and others
    # compute it as a property.
    if TYPE_CHECKING:

        @property
        def rounds(self) -> int: ...  # noqa: D102

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.certificate is None and not self.certificate_reason:
            fields.set_fields(self, {"certificate_reason": self.uncertified})
        check_certificate(self.certificate, self.certificate_reason)

    @property
    def bands(self) -> int:
        """The number of diagonals of the encoder C from the main diagonal down to the last non-zero
        one. It is 1 for a diagonal C, and `rounds` for a C without band structure.
        """
        return self.rounds

    @abc.abstractmethod
    def encoder(self) -> np.ndarray:
        """Returns a new array with the encoder C, float64 (m, rounds)."""

    @abc.abstractmethod
    def noising(self) -> np.ndarray:
        """Returns a new array with the noise matrix N, float64 (rounds, m), for which N C = I."""

    def stream(self) -> NoiseStream:
        """Returns the recipe that computes the noise vectors of the rounds. They are the rows of N
        Z, where N is the noise matrix and Z has an independent Gaussian draw in each row.

        By default that is the recurrence over the rows of C where C is banded (banded paper, App.
        J, Alg. 9), and otherwise the product with the rows of N.
        """
        banded_rows = self.banded_rows()
        if banded_rows is not None:
            return NoiseStream(rounds=self.rounds, sources=self.rounds, recurrence=banded_rows)
        N = self.noising()
        return NoiseStream(rounds=self.rounds, sources=N.shape[1], contraction=N)

    def banded_rows(self) -> np.ndarray | None:
        """Returns the rows of a square banded encoder C, float64 (rounds, bands), whose entry
        [t, j] is C[t, t - j]; or None if C is not banded.

        Sensitivity and errors computed from them cost O(rounds bands^2) instead of the
        O(rounds^2) that `encoder()` alone would cost.
        """
        return None

    def toeplitz_coefficients(self) -> np.ndarray | None:
        """Returns the first column of a lower-triangular Toeplitz encoder C up to its last non-zero
        entry, float64 (bands,); or None if C is not Toeplitz.
        """
        return None

    def noising_coefficients(self) -> np.ndarray | None:
        """Returns the first column of the noise matrix N, float64 (rounds,), if the encoder C is
        lower-triangular Toeplitz, which makes N Toeplitz too; otherwise None.
        """
        return None

    def toeplitz_gram(self) -> np.ndarray | None:
        """Returns the first column of X = C^T C, float64 (rounds,), if X is known to be Toeplitz,
        so that the noise is stationary; otherwise None.
        """
        return None

    def binary_trees(self) -> TreeNoise | None:
        """Returns the binary trees whose nodes are the rows of the encoder C, in the order of
        `TreeNoise`; or None if C is not that of trees.
        """
        return None

    def state(self) -> dict[str, np.ndarray]:
        """Returns the fields of the mechanism as numeric or string arrays, from which `from_state`
        rebuilds it.
        """
        state_values = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if not field.name.startswith("certificate")
        }
        return {
            name: np.asarray(value) for name, value in state_values.items() if value is not None
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], certificate: dict[str, Any]) -> Self:
        """Builds a mechanism from the fields that a file stored, and validates them.

        Args:
          state: the arrays of `state()`.
          certificate: the fields certificate and certificate_reason.

        Raises:
          TypeError, ValueError: the class refuses these fields.
        """
        scalar_fields = {name: array.item() for name, array in state.items() if not array.ndim}
        return cls(**(state | scalar_fields), **certificate)

    def entries(self) -> dict[str, np.ndarray]:
        """Returns the arrays of a mechanism file by their names, as
        `fedmf.mechanisms.storage.mechanism_of` reads them.
        """
        file_entries = {
            "family": np.array(self.family),
            "certificate_reason": np.array(self.certificate_reason),
        }
        if self.certificate is not None:
            file_entries["certificate"] = np.array(msgspec.json.encode(self.certificate).decode())
        return file_entries | {f"state_{name}": array for name, array in self.state().items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the mechanism to the file `path`, without adding a suffix. The write is atomic,
        and `fedmf.load_mechanism` reads the file.

        Args:
          path: path of the file, in a folder that exists.
        Raises:
          TypeError: path is not a path.
          ValueError: the folder of path does not exist.
          OSError: the file cannot be written.
        """
        target_path = checked_path("path", path)
        if not target_path.parent.is_dir():
            raise ValueError(
                f"path={str(target_path)!r} is in a folder that does not exist: create it, "
                "or choose another path"
            )
        file_entries = {
            "format": np.array(FILE_FORMAT),
            "version": np.array(FILE_VERSION),
            **self.entries(),
        }
        write_atomically(target_path, lambda file: np.savez(file, **file_entries))
