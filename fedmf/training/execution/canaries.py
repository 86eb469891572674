"""Canaries of a run: clients with known random directions, each in or out
by a secret coin (`fedmf.audits.canaries`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmf.privacy.plan import Plan
from fedmf.server.clipping import UpdateSum
from fedmf.server.messages import ClientParams
from fedmf.server.source import derived_seed

# Entries of a direction that are not 0. Two directions of d entries then meet as rarely as dense
# ones: <c_i, c_j> has variance 1 / d.
_ENTRIES = 4096
# A canary sends so much more than it may: clipping is part of the audit.
_TIMES_THE_CLIP_NORM = 10.0


def largest_entry(clip_norm: float, size: int) -> float:
    """The absolute value of a canary's entries in a model of `size` parameters."""
    return _TIMES_THE_CLIP_NORM * clip_norm / min(_ENTRIES, size) ** 0.5


class Canaries:
    """Directions and coins, made from the secret noise seed: neither is ever stored with the
    model's size.

    A direction has the value +-1/sqrt(s) in s random entries. An in-canary's update is ten times
    the clip norm along it, an out-canary's is zero; both are clipped like any client's. Where
    updates are scaled, the canary's is along its direction once it is scaled.

    Args:
      count: of the canaries.
      plan: of the run.
      size: parameters of the model, d.
      noise_seed: of the run; coins and directions are independent of its noise.

    Attributes:
      included: bool (count,), the coins.
    """

    def __init__(self, count: int, plan: Plan, size: int, noise_seed: int) -> None:
        secret = derived_seed(f"fedmf canaries {noise_seed}", 16)
        self._plan, self._size = plan, size
        entries, coins = min(_ENTRIES, size), np.random.default_rng([secret, 0])
        self.included = coins.random(count) < 0.5
        self._places = np.empty((count, entries), np.int64)
        self._signs = np.empty((count, entries), np.float32)
        for canary, (places, signs) in enumerate(zip(self._places, self._signs, strict=True)):
            rng = np.random.default_rng([secret, 1, canary])
            places[:] = np.sort(rng.choice(size, entries, replace=False))
            signs[:] = np.where(rng.random(entries) < 0.5, -1, 1)
        self._signs /= np.sqrt(entries)

    def add(self, total: UpdateSum, canaries: Sequence[int], sent: ClientParams) -> None:
        """Adds the clipped updates of these canaries, in or out, to the round's sum; `sent` is the
        round's.
        """
        for canary in canaries:
            if self._plan.quantile_clipping is not None and not self.included[canary]:
                continue  # a client that is out has no bit either
            length = _TIMES_THE_CLIP_NORM * sent.clip_norm * self.included[canary]
            places = self._places[canary]
            update = np.zeros(self._size, np.float32)
            update[places] = np.float32(length) * self._signs[canary]
            if scaled := len(sent.scales) > 0:
                update[places] /= sent.scales[places]
            total.add(
                [update],
                clip_norm=sent.clip_norm,
                zeroing_norm=sent.zeroing_norm,
                scales=[sent.scales] if scaled else (),
            )

    def released(self, mean: np.ndarray, sent: ClientParams) -> np.ndarray:
        """Products of each direction with a round's mean as it was released, float32 (d,), scaled
        and in units of plan.clip_norm; float64 (count,).
        """
        factor = self._plan.clip_norm / sent.clip_norm
        return factor * self.projections([mean * sent.scales if len(sent.scales) else mean])

    def projections(self, arrays: Sequence[Any]) -> np.ndarray:
        """Products of each direction with the model-sized arrays, float64 (count,)."""
        flat = np.concatenate([np.ravel(array) for array in arrays])
        return np.array(
            [
                np.dot(flat[places].astype(np.float64), signs)
                for places, signs in zip(self._places, self._signs, strict=True)
            ]
        )
