"""The proof of optimality that an optimised mechanism carries."""

import dataclasses
import math
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.participation.schema import Participation

_NUMBERS = ("loss", "lower_bound", "iterations", "seconds")


@dataclasses.dataclass(frozen=True)
class Certificate:
    """How far a fitted mechanism can be from the best of its kind, by weak duality.

    Attributes:
      loss: `fedmf.loss` of the mechanism, for the workload it was fitted to, under `participation`.
      lower_bound: no encoder of the family (dense: any, unless its options say otherwise; banded: at most as many bands,
        and columns of equal norm unless fitted without) has a smaller loss under `participation`; at most `loss`.
      gap: (loss - lower_bound) / lower_bound.
      iterations: steps of the optimiser.
      seconds: wall-clock time of the fit.
      participation: the one that `loss` and `lower_bound` are for; None for a single participation. An encoder with
        columns of norm 1 whose bands keep k participations apart has k times its single-participation loss, so there
        one certificate serves them all.

    >>> Certificate(loss=101.0, lower_bound=100.0, iterations=7, seconds=0.5).gap
    0.01
    """

    loss: float
    lower_bound: float
    gap: float = dataclasses.field(init=False)
    iterations: int
    seconds: float
    participation: Participation | None = None

    def __post_init__(self) -> None:
        finite = all(math.isfinite(getattr(self, name)) for name in _NUMBERS)
        if not finite or not 0.0 < self.lower_bound <= self.loss:
            numbers = ", ".join(f"{name}={getattr(self, name)}" for name in _NUMBERS)
            raise ValueError(
                f"{numbers} are no certificate: all are finite, and the bound is positive and at most the loss, so fit "
                "the mechanism again"
            )
        checks.integer("iterations", self.iterations, low=0, hint="it counts the steps of the fit")
        object.__setattr__(self, "gap", (self.loss - self.lower_bound) / self.lower_bound)

    def entries(self) -> dict[str, np.ndarray]:
        """The certificate as arrays of numbers and text, by the name they have in a mechanism file."""
        numbers = {"certificate": np.array([float(getattr(self, name)) for name in _NUMBERS])}
        if self.participation is None:
            return numbers
        fields = dataclasses.asdict(self.participation)
        return numbers | {f"certificate_{name}": np.array(value) for name, value in fields.items()}

    @classmethod
    def from_entries(cls, entries: dict[str, np.ndarray]) -> "Certificate | None":
        """The inverse of `entries`; None where they hold no certificate."""
        if "certificate" not in entries:
            return None
        participation = None
        if "certificate_schema" in entries:
            names = [field.name for field in dataclasses.fields(Participation)]
            participation = Participation(**{name: entries[f"certificate_{name}"].item() for name in names})
        numbers = dict(zip(_NUMBERS, entries["certificate"].tolist(), strict=True))
        if float(numbers["iterations"]).is_integer():  # infinity and fractions are refused by the constructor
            numbers["iterations"] = int(numbers["iterations"])
        return cls(**numbers, participation=participation)


def certify(
    loss: float, lower_bound: float, iterations: int, seconds: float, *, participation: Participation | None = None
) -> Certificate:
    """A Certificate; a bound that exceeds the loss by rounding is set to the loss.

    Raises:
      ArithmeticError: the bound exceeds the loss by more than rounding can explain.
    """
    if lower_bound > loss * (1.0 + 1e-9):
        raise ArithmeticError(
            f"lower bound {lower_bound} exceeds the loss {loss}: the workload is too ill-conditioned to certify"
        )
    return Certificate(
        loss=loss,
        lower_bound=min(lower_bound, loss),
        iterations=iterations,
        seconds=seconds,
        participation=participation,
    )


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
