"""What devices do with a participation that was planned: drop out, disobey, come a little early. For simulations."""

import dataclasses

import numpy as np

from fedmf import _checks, keyed_random

_DROPOUT, _DISOBEDIENT, _EARLY = 101, 102, 103


@dataclasses.dataclass(frozen=True, kw_only=True)
class Behaviour:
    """Departures from what the controller asks of devices. Every one is off unless it is asked for.

    Pure functions of (seed, client, round): nothing is kept for a client.

    Attributes:
      dropout: probability that a client that was selected contributes nothing. Its timer starts all the same and its
        participation counts, since a device cannot know whether its report arrived; the guarantee never gets worse by that.
      disobedient_share: share of clients that check in whatever their timer and their limit say.
      early_by: timers fire early by 0 to so many rounds, drawn anew for every wait of a client.
      seed: of these choices.

    Raises:
      TypeError, ValueError: an attribute of the wrong kind or out of range.

    >>> behaviour = Behaviour(disobedient_share=0.25, seed=1)
    >>> float(behaviour.disobedient(np.arange(10_000)).mean())
    0.2533
    """

    dropout: float = 0.0
    disobedient_share: float = 0.0
    early_by: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("dropout", "disobedient_share"):
            object.__setattr__(self, name, probability(name, getattr(self, name)))
        early_by = _checks.integer("early_by", self.early_by, low=0, way_out="use a number of rounds, 0 for none")
        object.__setattr__(self, "early_by", early_by)
        seed = _checks.integer("seed", self.seed, low=0, way_out="use a non-negative whole number")
        object.__setattr__(self, "seed", seed)

    @property
    def timers_as_asked(self) -> bool:
        """Whether every device keeps its timer and its limit."""
        return self.disobedient_share == 0 and self.early_by == 0

    def dropped(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Which of the clients, int64 (clients,), drop out of round t: bool (clients,)."""
        return keyed_random.uniform(keyed_random.key(self.seed, _DROPOUT, t + 1), clients) < self.dropout

    def disobedient(self, clients: np.ndarray) -> np.ndarray:
        """Which of the clients, int64 (clients,), disobey: bool (clients,)."""
        return keyed_random.uniform(keyed_random.key(self.seed, _DISOBEDIENT), clients) < self.disobedient_share

    def rounds_early(self, clients: np.ndarray, last: np.ndarray) -> np.ndarray:
        """By how much the timers that were started in rounds `last` fire early: int64 (clients,) in 0..early_by."""
        u = keyed_random.uniform(keyed_random.key(self.seed, _EARLY), clients, last)
        return np.floor(u * (self.early_by + 1)).astype(np.int64)


def probability(name: str, value: object) -> float:
    """Returns `value` as a float in [0, 1]; TypeError or ValueError naming it otherwise."""
    number = _checks.real(name, value, way_out="use a probability from 0 to 1")
    if not 0 <= number <= 1:
        raise ValueError(f"{name}={number:g} is not a probability: use a number from 0 to 1")
    return number
