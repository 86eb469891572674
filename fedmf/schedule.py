"""Learning-rate schedules that do not look at data; the workload and the server
optimiser share them.
"""

import dataclasses

import numpy as np

from fedmf import checks


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmupCooldown:
    """Linear warm-up, plateau, linear cool-down (banded paper, App. I, "Learning rate warmup and
    cooldown").

    Attributes:
      rounds: length of the run.
      peak: learning rate on the plateau.
      warmup: share of rounds over which the rate rises from floor * peak; 0 for none.
        The paper: 0.15.
      cooldown: share of rounds over which it falls back to floor * peak, reached in the last round;
        0 for none. The paper: 0.25.
      floor: the paper: 0.05.

    >>> schedule = WarmupCooldown(rounds=8, peak=1.0, warmup=0.25, cooldown=0.5)
    >>> [round(float(rate), 3) for rate in schedule.learning_rates()]
    [0.05, 0.525, 1.0, 1.0, 0.762, 0.525, 0.288, 0.05]
    """

    rounds: int
    peak: float
    warmup: float = 0.15
    cooldown: float = 0.25
    floor: float = 0.05

    def __post_init__(self) -> None:
        checks.rounds("rounds", self.rounds)
        checks.positive("peak", self.peak, "pass a learning rate such as 1.0")
        if checks.positive("floor", self.floor, "pass a share such as 0.05") > 1:
            raise ValueError(f"floor={self.floor} is above 1: pass a share such as 0.05")
        for name in ("warmup", "cooldown"):
            checks.positive(
                name,
                getattr(self, name),
                "pass a share of the run such as 0.25, or 0 for none",
                zero=True,
            )
        if self.warmup + self.cooldown > 1:
            raise ValueError(
                f"warmup={self.warmup} and cooldown={self.cooldown} add up to more than 1: "
                "pass shares of the run"
            )

    def learning_rates(self) -> np.ndarray:
        """The rate of every round, float64 (rounds,)."""
        rises, falls = round(self.warmup * self.rounds), round(self.cooldown * self.rounds)
        rates = np.ones(self.rounds)
        if rises:
            rates[:rises] = self.floor + (1 - self.floor) * np.arange(rises) / rises
        if falls:
            rates[-falls:] = 1 - (1 - self.floor) * np.arange(1, falls + 1) / falls
        return self.peak * rates
