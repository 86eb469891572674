"""The proof of optimality that an optimised mechanism carries."""

import dataclasses
import math

from fedmf import checks
from fedmf.participation.schema import Participation

_NUMBERS = ("loss", "lower_bound", "iterations", "seconds")


@dataclasses.dataclass(frozen=True)
class Certificate:
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

    loss: float
    lower_bound: float
    iterations: int
    seconds: float
    participation: Participation | None = None

    def __post_init__(self) -> None:
        finite = all(math.isfinite(getattr(self, name)) for name in _NUMBERS)
        if not finite or not 0.0 < self.lower_bound <= self.loss:
            numbers = ", ".join(f"{name}={getattr(self, name)}" for name in _NUMBERS)
            raise ValueError(
                f"{numbers} are no certificate: all are finite, and the bound is positive and at "
                "most the loss, so fit the mechanism again"
            )
        checks.integer("iterations", self.iterations, low=0, hint="it counts the steps of the fit")

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
        loss=loss,
        lower_bound=min(lower_bound, loss),
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
