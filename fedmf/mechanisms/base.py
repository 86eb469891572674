"""What every mechanism offers, and the proof of optimality that an optimised one carries.

The classes that implement it are final: one family, one frozen dataclass.
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
from fedmf.participation.schema import Participation

_NUMBERS = ("loss", "lower_bound", "iterations", "seconds")


@dataclasses.dataclass(frozen=True)
class Certificate(fields.ShortRepr):
    """How far a fitted mechanism can be from the best of its kind, by weak duality.

    Attributes:
      loss: `fedmf.loss` of the mechanism, for the workload it was fitted to, under `participation`.
      lower_bound: no encoder of the family (dense: any, unless its options say otherwise; banded:
        at most as many bands, and columns of equal norm unless fitted without) has a smaller loss
        under `participation`; at most `loss`.
      iterations: steps of the optimiser.
      seconds: wall-clock time of the fit.
      participation: the one that `loss` and `lower_bound` are for; None for a single participation.
        Columns of norm 1 whose bands keep k participations apart have k times that loss: one
        certificate serves them all.

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
        for name in _NUMBERS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Real):
                raise TypeError(
                    f"{name}={reprlib.repr(value)} is a {type(value).__name__}, not a number: "
                    "fit the mechanism again"
                )
        finite = all(abs(getattr(self, name)) <= sys.float_info.max for name in _NUMBERS)
        if not finite or not 0.0 < self.lower_bound <= self.loss:
            shown = ", ".join(f"{name}={getattr(self, name)}" for name in _NUMBERS)
            raise ValueError(
                f"{shown} are no certificate: all are finite, and the bound is positive and at "
                "most the loss, so fit the mechanism again"
            )
        checks.integer("iterations", self.iterations, low=0, hint="it counts the steps of the fit")
        checks.positive("seconds", self.seconds, "it is the time of the fit", allow_zero=True)

    @property
    def gap(self) -> float:
        """(loss - lower_bound) / lower_bound."""
        return (self.loss - self.lower_bound) / self.lower_bound


def certify(
    loss: float,
    lower_bound: float,
    iterations: int,
    seconds: float,
    *,
    participation: Participation | None = None,
) -> Certificate:
    """A Certificate; a bound that exceeds the loss by rounding is set to the loss.

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
    """Raises unless there is either a certificate or a reason for having none."""
    if (certificate is None) != bool(certificate_reason):
        raise ValueError(
            f"certificate={certificate} and certificate_reason={certificate_reason!r} do not go "
            "together: pass a certificate, or else the reason why there is none"
        )


def check_mechanism(mechanism: object, name: str = "mechanism") -> None:
    """Refuses what is no mechanism, naming the argument: TypeError."""
    if not isinstance(mechanism, Mechanism):
        raise TypeError(
            f"{name} is a {type(mechanism).__name__}: pass a mechanism, as fedmf.fit or "
            "fedmf.load_mechanism makes"
        )


# What a mechanism file says of itself.
FILE_FORMAT, FILE_VERSION = "fedmf mechanism", 2


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Mechanism(fields.Checked, fields.ShortRepr, abc.ABC):
    """A matrix-factorization mechanism: an encoder C (m, n) and a noising matrix N (n, m) with N C
    = I.

    Round t releases x[t] + (N Z)[t] with Z ~ Normal(0, stddev^2), (m, d). N (C x + Z) = x + N Z is
    post-processing of the Gaussian mechanism C x + Z, so privacy depends on C alone, also for
    inputs chosen adaptively and for N that is not causal (Denisov et al. 2022, Thm. 2.1;
    multi-epoch paper, Thm. 2.2).

    Mechanisms compare by identity. They claim no sensitivity:
    `fedmf.sensitivity` computes it from `encoder()`.

    Attributes:
      family: what `fedmf.fit` calls the kind of mechanism.
      uncertified: why a mechanism of this family has no certificate, where its maker
        gives no reason.
      rounds: n, the number of rounds.
      certificate: how far from the best of its family it can be, or None.
      certificate_reason: why there is no certificate; empty if there is one.

    Raises:
      TypeError, ValueError: fields of the wrong kind or shape, or of no mechanism.
    """

    _shown_first = ("rounds",)
    family: ClassVar[str]
    uncertified: ClassVar[str] = "built from given numbers, not optimised"
    certificate: Certificate | None = fields.validated(fields.instance(Certificate), None)
    certificate_reason: str = fields.validated(fields.plain_text, "", repr=False)

    if TYPE_CHECKING:  # at run time a field of some families and a property of others

        @property
        def rounds(self) -> int: ...  # noqa: D102

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.certificate is None and not self.certificate_reason:
            fields.set_fields(self, {"certificate_reason": self.uncertified})
        check_certificate(self.certificate, self.certificate_reason)

    @property
    def bands(self) -> int:
        """Non-zero diagonals of C, the main one included: 1 for a diagonal C, `rounds` for one
        without band structure.
        """
        return self.rounds

    @abc.abstractmethod
    def encoder(self) -> np.ndarray:
        """C, float64 (m, rounds), a new array."""

    @abc.abstractmethod
    def noising(self) -> np.ndarray:
        """N, float64 (rounds, m), with N C = I, a new array."""

    def stream(self) -> NoiseStream:
        """The recipe that makes rows of N Z from independent draws.

        By default the rows of a banded C as a recurrence (banded paper, App. J, Alg. 9), otherwise
        the rows of N.
        """
        rows = self.banded_rows()
        if rows is not None:
            return NoiseStream(rounds=self.rounds, sources=self.rounds, recurrence=rows)
        N = self.noising()
        return NoiseStream(rounds=self.rounds, sources=N.shape[1], contraction=N)

    def banded_rows(self) -> np.ndarray | None:
        """C by rows, float64 (rounds, bands), [t, j] = C[t, t - j], where C is square and banded;
        otherwise None.

        What is computed from it (sensitivity, errors) costs O(rounds bands^2) where `encoder()`
        would cost O(rounds^2).
        """
        return None

    def toeplitz_coefficients(self) -> np.ndarray | None:
        """The first column of C up to its last non-zero, float64 (bands,), where C is
        lower-triangular Toeplitz; or None.
        """
        return None

    def noising_coefficients(self) -> np.ndarray | None:
        """The first column of N, float64 (rounds,), where C is lower-triangular Toeplitz, and N
        therefore too; or None.
        """
        return None

    def toeplitz_gram(self) -> np.ndarray | None:
        """The first column of X = C^T C, float64 (rounds,), where X is known to be Toeplitz, as of
        stationary noise; or None.
        """
        return None

    def state(self) -> dict[str, np.ndarray]:
        """The fields that make the mechanism again, as arrays; none of them of Python objects."""
        own = [
            field.name
            for field in dataclasses.fields(self)
            if not field.name.startswith("certificate")
        ]
        return {
            name: np.asarray(getattr(self, name)) for name in own if getattr(self, name) is not None
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], certificate: dict[str, Any]) -> Self:
        """Builds and validates a mechanism.

        Args:
          state: as `state()` gave it.
          certificate: the fields certificate and certificate_reason.

        Raises:
          TypeError, ValueError: the class refuses these fields.
        """
        own = {name: array if array.ndim else array.item() for name, array in state.items()}
        return cls(**own, **certificate)

    def entries(self) -> dict[str, np.ndarray]:
        """Everything that a mechanism file holds, by name; `fedmf.mechanisms.storage.mechanism_of`
        reads it.
        """
        entries = {
            "family": np.array(self.family),
            "certificate_reason": np.array(self.certificate_reason),
        }
        if self.certificate is not None:
            entries["certificate"] = np.array(msgspec.json.encode(self.certificate).decode())
        return entries | {f"state_{name}": array for name, array in self.state().items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the mechanism to exactly `path`, whole or not at all;
        `fedmf.load_mechanism` reads it.

        Args:
          path: of the file; its folder exists.

        Raises:
          TypeError: no path.
          ValueError: the folder of path does not exist.
          OSError: the file cannot be written.
        """
        target = checked_path("path", path)
        if not target.parent.is_dir():
            raise ValueError(
                f"path={str(target)!r} is in a folder that does not exist: create it, "
                "or choose another path"
            )
        entries = {
            "format": np.array(FILE_FORMAT),
            "version": np.array(FILE_VERSION),
            **self.entries(),
        }
        write_atomically(target, lambda file: np.savez(file, **entries))
