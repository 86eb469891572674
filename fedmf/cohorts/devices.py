"""Simulated devices that drop out, deviate from what they were told, or come a little early."""

import dataclasses

import numpy as np

from fedmf import checks, fields
from fedmf.cohorts import keyed_random

_DROPOUT, _NONCOMPLIANT, _EARLY = 101, 102, 103


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceBehavior(fields.Checked):
    """Departures from what the controller tells devices. All are off by default.

    Pure functions of (seed, client, round), without memory for any client.

    Attributes:
      dropout: probability that a selected client contributes nothing. Its timer starts and its
        participation counts all the same, since a device cannot know whether its report arrived.
        The guarantee never gets worse by that.
      noncompliant_fraction: share of clients that check in whatever their timer
        and their limit say.
      timer_jitter: timers fire early by 0 to so many rounds, drawn anew for every wait of a client.
      seed: of these choices.

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
    def timers_as_asked(self) -> bool:
        """Whether every device keeps its timer and its limit."""
        return self.noncompliant_fraction == 0 and self.timer_jitter == 0

    def dropped(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Which of the clients, int64 (clients,), drop out of round t: bool (clients,)."""
        return (
            keyed_random.uniform(keyed_random.key(self.seed, _DROPOUT, t + 1), clients)
            < self.dropout
        )

    def noncompliant(self, clients: np.ndarray) -> np.ndarray:
        """Which of the clients, int64 (clients,), deviate: bool (clients,)."""
        return (
            keyed_random.uniform(keyed_random.key(self.seed, _NONCOMPLIANT), clients)
            < self.noncompliant_fraction
        )

    def rounds_early(self, clients: np.ndarray, last: np.ndarray) -> np.ndarray:
        """By how much the timers that were started in rounds `last` fire early:
        int64 (clients,) in 0..timer_jitter.
        """
        u = keyed_random.uniform(keyed_random.key(self.seed, _EARLY), clients, last)
        return np.floor(u * (self.timer_jitter + 1)).astype(np.int64)
