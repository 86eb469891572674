"""The proof of optimality that an optimised mechanism carries."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Certificate:
    """How far a fitted mechanism can be from the best of its kind, by weak duality.

    Attributes:
      loss: ||A N||_F^2 of the mechanism for the workload A it was fitted to. Its encoder has columns of norm 1, so
        this is its `fedmf.loss` under a single participation; under k participations that the bands keep apart, the
        loss is k times it.
      lower_bound: no encoder of the family (dense: any; banded: at most as many bands, columns of equal norm) has a
        smaller loss under a single participation; at most `loss`.
      gap: (loss - lower_bound) / lower_bound.
      iterations: steps of the optimiser.
      seconds: wall-clock time of the fit.

    >>> Certificate(loss=101.0, lower_bound=100.0, iterations=7, seconds=0.5).gap
    0.01
    """

    loss: float
    lower_bound: float
    gap: float = dataclasses.field(init=False)
    iterations: int
    seconds: float

    def __post_init__(self) -> None:
        finite = all(math.isfinite(value) for value in (self.loss, self.lower_bound, self.seconds))
        if not finite or not 0.0 < self.lower_bound <= self.loss:
            raise ValueError(
                f"loss={self.loss} and lower_bound={self.lower_bound} are no certificate: the bound must be "
                "positive and at most the loss, so fit the mechanism again"
            )
        object.__setattr__(self, "gap", (self.loss - self.lower_bound) / self.lower_bound)
