"""Estimates of how far client updates move an aggregator's release along a direction, and estimates
for baseline scenarios.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from fedmf.audits.aggregator_inputs import Direction, Scenario


class NotFiniteReleaseError(ArithmeticError):
    """An error for a release that contains NaN or an infinity."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """Estimated movement of a release along each unit vector of a direction.

    It is in standard deviations of the noise, and an owner is the index of a unit vector.

    Attributes:
      movement: (owners,), in standard deviations of the noise.
      std: standard deviation of each entry of `movement`.
      relative_error: (owners,), relative standard error of the estimated scale of the noise.
      gains: (owners,), value of `movement` for a release that moves by 1.
      by_period: (periods, owners), movement in some rounds of a run alone, if it was measured.
      period_stds: (periods,), standard deviation of each.
      period_names: (periods,), the rounds in words.
      residual_squares, residual_degrees: sum of squares of the noise beside the movement, scaled to
        variance 1, and its degrees of freedom; 0 if they were not measured.
      along_squares, along_degrees: the same for the noise along the movement, for a direction of
        one unit vector.
    """

    movement: np.ndarray
    std: float
    relative_error: np.ndarray
    gains: np.ndarray
    by_period: np.ndarray
    period_stds: np.ndarray
    period_names: tuple[str, ...]
    residual_squares: float = 0.0
    residual_degrees: int = 0
    along_squares: float = 0.0
    along_degrees: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Movement:
    """How far a client moves a release, relative to the movement that the claim allows.

    Attributes:
      scenario: the updates that were sent.
      size: the movement relative to the allowed one.
      std_at_claim: standard deviation of `size` if the true value is 1.
      std: standard deviation of `size`.
      p_value: under the claim, which allows a size of at most 1.
    """

    scenario: Scenario
    size: float
    std_at_claim: float
    std: float
    p_value: float


class BaselineEstimates:
    """Cache of the estimates of baseline scenarios, so that each is measured once."""

    def __init__(self) -> None:
        # The estimates are in a list of pairs, because scenarios contain arrays and cannot be keys
        # of a dict. Scenarios are compared by identity.
        self._measured: list[tuple[Scenario, Estimate]] = []

    def get(self, scenario: Scenario, measure: Callable[[Scenario], Estimate]) -> Estimate:
        """Returns the estimate of a scenario, which is measured on the first call."""
        for measured_scenario, new_estimate in self._measured:
            if measured_scenario is scenario:
                return new_estimate
        new_estimate = measure(scenario)
        self._measured.append((scenario, new_estimate))
        return new_estimate


class Projection:
    """Projection of releases onto the unit vectors of a direction, weighted by the noise.

    Attributes:
      is_owned: (entries,), whether an entry belongs to a unit vector.
      owner: (owned entries,), the index of that vector.
      num_owners: number of unit vectors.
      white_vector: (entries,), the direction in standard deviations of the noise.
      gains: (owners,), norm of each unit vector in standard deviations of the noise.
    """

    def __init__(self, direction: Direction, entry_std: np.ndarray) -> None:
        self.is_owned = direction.owner >= 0
        self.owner = direction.owner[self.is_owned]
        self.num_owners = direction.count
        self.white_vector = direction.vector / entry_std
        self._entry_weights = self.white_vector / entry_std
        self.gains = np.sqrt(self._sum_by_owner(self.white_vector**2))

    def __call__(self, release: np.ndarray) -> np.ndarray:
        """Projects a release onto the weighted vectors, and returns one number for each unit
        vector.
        """
        return self._sum_by_owner(release * self._entry_weights)

    def _sum_by_owner(self, entries: np.ndarray) -> np.ndarray:
        """Sums the entries that belong to each unit vector, and returns one sum per unit vector."""
        return np.bincount(self.owner, entries[self.is_owned], minlength=self.num_owners)
