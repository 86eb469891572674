"""Canaries of a run, by which its epsilon is audited. They are synthetic clients with known random
directions, and a secret coin decides whether each is included.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmf.privacy.plan import Plan
from fedmf.server.clipping import UpdateSum
from fedmf.server.messages import ClientParams
from fedmf.server.source import derived_seed

# Number of nonzero entries in a canary's direction (a canary is a test client of an audit). The
# inner product of two directions has variance 1 / d for a model of d parameters, as if all entries
# were nonzero.
_NUM_ENTRIES = 4096
# Norm of a canary's update, in units of the clip norm. It is above 1, so that the audit includes
# clipping.
_CLIP_NORM_FACTOR = 10.0


def largest_entry(clip_norm: float, size: int) -> float:
    """Returns the absolute value of the nonzero entries of a canary's update, for a model of `size`
    parameters.
    """
    return _CLIP_NORM_FACTOR * clip_norm / min(_NUM_ENTRIES, size) ** 0.5


class Canaries:
    """The update direction of each canary of a run, and the random choice of the canaries that are
    included, derived from the secret noise seed. Directions are stored sparsely, never as arrays of
    the model's size.

    A direction has the value +-1/sqrt(s) in s random entries. The update of an included canary is
    ten times the clip norm along its direction, and that of any other canary is zero; both are
    clipped like a client's. If updates are scaled, the scaled update is along the direction.

    Args:
      count: number of canaries.
      plan: plan of the run.
      size: number of parameters of the model, d.
      noise_seed: noise seed of the run; coins and directions are independent of its noise.

    Attributes:
      included: bool (count,), the coins.
    """

    def __init__(self, count: int, plan: Plan, size: int, noise_seed: int) -> None:
        secret_seed = derived_seed(f"fedmf canaries {noise_seed}", 16)
        self._plan = plan
        self._size = size
        num_entries = min(_NUM_ENTRIES, size)
        self.included = np.random.default_rng([secret_seed, 0]).random(count) < 0.5
        self._positions = np.empty((count, num_entries), np.int64)
        self._signs = np.empty((count, num_entries), np.float32)
        for canary in range(count):
            canary_rng = np.random.default_rng([secret_seed, 1, canary])
            self._positions[canary] = np.sort(canary_rng.choice(size, num_entries, replace=False))
            self._signs[canary] = np.where(canary_rng.random(num_entries) < 0.5, -1, 1)
        self._signs /= np.sqrt(num_entries)

    def add(self, total: UpdateSum, canaries: Sequence[int], sent: ClientParams) -> None:
        """Adds the clipped updates of a cohort's canaries to the sum of a round. The update of a
        canary that is not included is zero.

        Args:
          total: sum of the round.
          canaries: indices of the canaries in the cohort.
          sent: parameters of the round.
        """
        scales = [sent.scales] if len(sent.scales) else []
        for canary in canaries:
            if self._plan.quantile_clipping is not None and not self.included[canary]:
                # An excluded canary counts as a client that does not take part, so it sends no
                # clipping bit either.
                continue
            update_length = _CLIP_NORM_FACTOR * sent.clip_norm * self.included[canary]
            entry_positions = self._positions[canary]
            canary_update = np.zeros(self._size, np.float32)
            canary_update[entry_positions] = np.float32(update_length) * self._signs[canary]
            if scales:
                canary_update[entry_positions] /= sent.scales[entry_positions]
            total.add(
                [canary_update],
                clip_norm=sent.clip_norm,
                zeroing_norm=sent.zeroing_norm,
                scales=scales,
            )

    def released(self, mean: np.ndarray, sent: ClientParams) -> np.ndarray:
        """Returns the inner products of a round's released mean with each canary's direction, as a
        float64 array of shape (count,).

        Args:
          mean: released mean, float32 (d,), without scales.
          sent: parameters of the round. Products are of the scaled mean, in units of
            plan.clip_norm.
        """
        norm_ratio = self._plan.clip_norm / sent.clip_norm
        if len(sent.scales):
            mean = mean * sent.scales
        return norm_ratio * self.projections([mean])

    def projections(self, arrays: Sequence[Any]) -> np.ndarray:
        """Returns the inner products of a model's arrays with each canary's direction, as a float64
        array of shape (count,).
        """
        flat_array = np.concatenate([np.ravel(array) for array in arrays])
        inner_products = [
            np.dot(flat_array[positions].astype(np.float64), signs)
            for positions, signs in zip(self._positions, self._signs, strict=True)
        ]
        return np.array(inner_products)
