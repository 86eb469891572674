"""Rounds client by client: the form in which records of any length are counted, block by block."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ClientRounds:
    """All rounds of some clients of a record.

    Attributes:
      rounds: client after client and increasing for each, ints (rows,).
      starts: place of each client's first round in `rounds`, int64 (clients,).

    >>> clients = ClientRounds(rounds=np.array([0, 3, 9, 5]), starts=np.array([0, 3]))
    >>> clients.counts, clients.spans
    (array([3, 1]), array([9, 0]))
    """

    rounds: np.ndarray
    starts: np.ndarray

    @staticmethod
    def of_cohorts(cohorts: Sequence[np.ndarray]) -> "tuple[np.ndarray, ClientRounds]":
        """The clients, int64 and increasing, and their rounds; from the clients of every round,
        each once in a round.
        """
        sizes = [len(cohort) for cohort in cohorts]
        client = np.concatenate([np.zeros(0, np.int64), *cohorts])
        if client.max(initial=0) < 2**32:
            client = client.astype(np.uint32)  # half the memory of what follows
        # Stable: the rounds of a client stay in order.
        order = np.argsort(client, kind="stable")
        t, client = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)[order], client[order]
        del order
        starts = np.flatnonzero(np.r_[True, client[1:] != client[:-1]][: len(t)])
        return client[starts].astype(np.int64), ClientRounds(rounds=t, starts=starts)

    def __len__(self) -> int:
        return len(self.starts)

    def of(self, client: int) -> np.ndarray:
        """The rounds of the client at this place."""
        return self.rounds[self.starts[client] :][: self.counts[client]]

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """Rounds of each client, int64 (clients,)."""
        return np.diff(self.starts, append=len(self.rounds))

    @functools.cached_property
    def spans(self) -> np.ndarray:
        """Each client's last round less its first one, (clients,)."""
        return self.rounds[self.starts + self.counts - 1] - self.rounds[self.starts]

    @functools.cached_property
    def gaps(self) -> np.ndarray:
        """Each round less the client's round before, (rows,); 0 at a client's first round."""
        gaps = np.diff(self.rounds, prepend=self.rounds[:1])
        gaps[self.starts] = 0
        return gaps

    @functools.cached_property
    def later(self) -> np.ndarray:
        """Whether a row is not its client's first, bool (rows,)."""
        later = np.ones(len(self.rounds), bool)
        later[self.starts] = False
        return later

    def smallest_gaps(self, single: int) -> np.ndarray:
        """The smallest difference between two rounds of each client, (clients,); `single` of those
        with one round.
        """
        return np.minimum.reduceat(np.where(self.later, self.gaps, single), self.starts)
