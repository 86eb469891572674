"""Simulation of devices that drop out, ignore their participation limits, or check in early."""

import dataclasses

import numpy as np

from fedmf import checks, fields
from fedmf.cohorts import keyed_random

_DROPOUT, _NONCOMPLIANT, _EARLY = 101, 102, 103


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceBehavior(fields.Checked):
    """Settings that say how often and how far simulated devices deviate from the controller's
    instructions. By default they do not deviate.

    Deviations are pure functions of (seed, client, round), so that no client needs a state.

    Attributes:
      dropout: probability that a selected client contributes nothing. Its timer starts and its
        participation counts as usual, since a device cannot know whether its update arrived. The
        guarantee does not get worse.
      noncompliant_fraction: share of clients that ignore their timer and their limit.
      timer_jitter: largest number of rounds by which a timer fires early; it is drawn from 0 to
        timer_jitter for every ineligible period.
      seed: seed of these simulations.

    Raises:
      TypeError, ValueError: an attribute of the wrong kind or out of range.

    >>> behavior = DeviceBehavior(noncompliant_fraction=0.25, seed=1)
    >>> float(behavior.noncompliant(np.arange(10_000)).mean())
    0.2533
    """

    dropout: float = fields.validated(checks.probability, 0.0)
    noncompliant_fraction: float = fields.validated(checks.probability, 0.0)
    timer_jitter: int = fields.whole_number(0, "", low=0)
    seed: int = fields.seed(0, "")

    @property
    def is_compliant(self) -> bool:
        """Whether every device complies with its timer and its limit."""
        return self.noncompliant_fraction == 0 and self.timer_jitter == 0

    def dropped(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Returns whether each client drops out of round t, as a bool array of shape (clients,)."""
        round_key = keyed_random.key(self.seed, _DROPOUT, t + 1)
        return keyed_random.uniform(round_key, clients) < self.dropout

    def noncompliant(self, clients: np.ndarray) -> np.ndarray:
        """Returns whether each client ignores its timer and limit, as a bool array of shape
        (clients,).
        """
        noncompliant_key = keyed_random.key(self.seed, _NONCOMPLIANT)
        return keyed_random.uniform(noncompliant_key, clients) < self.noncompliant_fraction

    def rounds_early(self, clients: np.ndarray, start_rounds: np.ndarray) -> np.ndarray:
        """Returns the number of rounds by which each client's timer fires early.

        Args:
          clients: client indices, int64.
          start_rounds: numbers of the rounds in which the timers started.

        Returns:
          Numbers in 0..timer_jitter, int64 of shape (clients,).
        """
        uniform_draws = keyed_random.uniform(
            keyed_random.key(self.seed, _EARLY), clients, start_rounds
        )
        return np.floor(uniform_draws * (self.timer_jitter + 1)).astype(np.int64)
