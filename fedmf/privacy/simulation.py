"""Simulation of a larger cohort by a smaller one, with the two numbers of clients."""

import dataclasses

from fedmf import checks, fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class Simulation:
    """The number of clients a round that a run really trains, and the larger number a round for
    which it estimates the model's quality.

    Attributes:
      simulated: clients a round that the run trains.
      claimed: clients a round of the run whose utility is estimated; above `simulated`.

    Raises:
      TypeError: a number of clients is not an integer.
      ValueError: a number of clients is not positive, or simulated is not below claimed.
    """

    simulated: int
    claimed: int

    def __post_init__(self) -> None:
        hint = "use a number of clients a round, with plan.simulating(simulated=..., claimed=...)"
        for name in ("simulated", "claimed"):
            cohort_size = checks.integer(name, getattr(self, name), low=1, hint=hint)
            fields.set_fields(self, {name: cohort_size})
        if self.simulated >= self.claimed:
            raise ValueError(
                f"simulated={self.simulated} must be below claimed={self.claimed}, because a run "
                "simulates a larger cohort: to train the claimed cohort itself leave both out"
            )
