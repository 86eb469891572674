"""The proof of optimality that an optimised mechanism carries."""

import dataclasses
import math

from fedmf.participation.schema import Participation


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
        finite = all(math.isfinite(value) for value in (self.loss, self.lower_bound, self.seconds))
        if not finite or not 0.0 < self.lower_bound <= self.loss:
            raise ValueError(
                f"loss={self.loss} and lower_bound={self.lower_bound} are no certificate: the bound must be "
                "positive and at most the loss, so fit the mechanism again"
            )
        object.__setattr__(self, "gap", (self.loss - self.lower_bound) / self.lower_bound)
