"""Updates that an audit sends to an aggregator, with the movement of the release that the claim
allows.

A `Scenario` is one row of the table in `fedmf.audits.aggregator_scenarios`.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedmf.audits.aggregator_claim import AggregatorClaim

# Norm of a huge update, in units of the clip norm. Clipping must shorten such an update.
HUGE_NORM = 1e4
# Norm of an update that clipping must not change, in units of the clip norm.
INSIDE_NORM = 0.999


@dataclasses.dataclass(frozen=True, kw_only=True)
class Direction:
    """One or several unit vectors with disjoint entries, on which releases are projected.

    Attributes:
      vector: (entries,), the sum of the unit vectors.
      owner: (entries,), index of the unit vector that an entry belongs to; -1 for none.
    """

    vector: np.ndarray
    owner: np.ndarray

    @property
    def count(self) -> int:
        """Number of unit vectors of the direction."""
        return int(self.owner.max()) + 1


Updates = Callable[[], list[np.ndarray]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenario:
    """Updates that clients send in a round of a test, with the movement of the release that the
    claim allows.

    Attributes:
      test: name of the test that the scenario belongs to.
      description: the updates in words.
      updates: returns one vector for each client.
      direction: the unit vectors along which the movement is measured.
      allowed_movement: largest movement under the claim: 1 for each client that sends along one
        unit vector.
      detectable_excess: relative excess over the allowed movement for which the number of calls
        is computed.
      baseline: a scenario whose release is subtracted.
      by_period: whether the first and the last rounds of a run are tested by themselves as well.
      earlier_updates: returns the updates of the rounds at the start of a run, before the measured
        ones.
      num_earlier_rounds: number of these rounds.
      num_measured_rounds: rounds that are measured after the earlier ones.
      examples: number of examples of each client; None for the same number for all.
      max_calls: largest number of calls of the function.
      mistakes: movement that a mistake causes -> the mistake in words.
      mistake: explanation of an excess that none of `mistakes` predicts.
    """

    test: str
    description: str
    updates: Updates
    direction: Direction
    allowed_movement: float = 1.0
    detectable_excess: float = 0.5
    baseline: "Scenario | None" = None
    by_period: bool = False
    earlier_updates: Updates | None = None
    num_earlier_rounds: int = 0
    num_measured_rounds: int = 1
    examples: Sequence[int] | None = None
    max_calls: int = 1000
    mistakes: Mapping[float, str] = dataclasses.field(default_factory=dict)
    mistake: str = (
        "A clip at a larger norm, by the largest entry, or one that leaves out an array or a kind "
        "of array does this: clip all arrays as one vector."
    )


class Inputs:
    """Factory of client updates whose arrays have the shapes that a claim states.

    Attributes:
      zero_update: an update of zeros, or a small one if the function raises an error on zeros.
      signs: (entries,), 1 or -1 at random.
      array_of: (entries,), index of the array that an entry belongs to.
      starts: (arrays,), index of the first entry of each array.
      all_entries, even_entries, odd_entries: directions along these entries, with random signs.
    """

    def __init__(self, claim: AggregatorClaim, zero_update: np.ndarray) -> None:
        self.claim = claim
        self.zero_update = zero_update
        self.num_clients = claim.clients
        array_sizes = np.array(claim.sizes)
        self.num_entries = int(array_sizes.sum())
        self.num_arrays = len(array_sizes)
        rng = np.random.default_rng(claim.seed)
        self.signs = rng.choice([-1.0, 1.0], self.num_entries)
        self.array_of = np.repeat(np.arange(len(array_sizes)), array_sizes)
        self.starts = np.cumsum([0, *array_sizes[:-1]])
        self._single_owner = np.zeros(self.num_entries, int)
        self.all_entries = self.direction(self.signs)
        is_even = np.arange(self.num_entries) % 2 == 0
        self.even_entries = self.direction(self.signs * is_even)
        self.odd_entries = self.direction(self.signs * ~is_even)

    def direction(self, vector: np.ndarray) -> Direction:
        """Returns the direction along a single vector, which is scaled to norm 1."""
        float_vector = np.asarray(vector, np.float64)
        unit_vector = float_vector / np.linalg.norm(float_vector)
        return Direction(vector=unit_vector, owner=self._single_owner)

    def update(self, norm: float, direction: Direction, dtype: type = np.float32) -> np.ndarray:
        """Returns an update along a direction that has a single vector, where `norm` is in units of
        the clip norm.
        """
        return (norm * self.claim.clip_norm * direction.vector).astype(dtype)

    def from_all(self, update: np.ndarray) -> Updates:
        """Returns the updates of a round in which all clients send the same update."""
        return lambda: [update] * self.num_clients

    def from_one(
        self, update: np.ndarray, other_update: np.ndarray, client_index: int = 0
    ) -> Updates:
        """Returns the updates of a round in which one client differs from all others."""

        def updates() -> list[np.ndarray]:
            """Builds the list of updates, one for each client."""
            client_updates = [other_update] * self.num_clients
            client_updates[client_index] = update
            return client_updates

        return updates

    def from_several(
        self, num_senders: int, update: np.ndarray, other_update: np.ndarray
    ) -> Updates:
        """Returns the updates of a round in which the first clients differ from the others."""
        num_others = self.num_clients - num_senders
        return lambda: [update] * num_senders + [other_update] * num_others

    def clip_mistakes(self, norm: float) -> dict[float, str]:
        """Returns likely mistakes in clipping, by the movement that each causes.

        The movement is that of an update with this norm.
        """
        num_arrays = self.num_arrays
        root_of_arrays = math.sqrt(num_arrays)
        return {
            norm: "No clip, one that begins above a threshold, or a clip of each array by itself, "
            "does this.",
            root_of_arrays: f"Clipping each of the {num_arrays} arrays by itself does this: the "
            f"sensitivity is sqrt({num_arrays}).",
        }
