"""Rounds of a record grouped by client, so that long records are counted block by block."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ClientRounds:
    """All rounds of some clients of a record.

    Attributes:
      rounds: the rounds of one client after those of another, increasing for each, ints (rows,).
      starts: index of each client's first round in `rounds`, int64 (clients,).

    >>> clients = ClientRounds(rounds=np.array([0, 3, 9, 5]), starts=np.array([0, 3]))
    >>> clients.counts, clients.spans
    (array([3, 1]), array([9, 0]))
    """

    rounds: np.ndarray
    starts: np.ndarray

    @staticmethod
    def of_cohorts(cohorts: Sequence[np.ndarray]) -> "tuple[np.ndarray, ClientRounds]":
        """Returns the clients that took part, int64 and increasing, and their rounds.

        Args:
          cohorts: clients of each round, without duplicates.
        """
        sizes = [len(cohort) for cohort in cohorts]
        clients = np.concatenate([np.zeros(0, np.int64), *cohorts])
        if clients.max(initial=0) < 2**32:
            clients = clients.astype(np.uint32)  # Halves the memory of the steps below.
        # A stable sort leaves the rounds of each client in order.
        order = np.argsort(clients, kind="stable")
        rounds = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)[order]
        clients = clients[order]
        del order
        is_first = np.r_[True, clients[1:] != clients[:-1]][: len(rounds)]
        starts = np.flatnonzero(is_first)
        return clients[starts].astype(np.int64), ClientRounds(rounds=rounds, starts=starts)

    def __len__(self) -> int:
        return len(self.starts)

    def of(self, client: int) -> np.ndarray:
        """Returns the rounds of the client with this index, increasing."""
        return self.rounds[self.starts[client] :][: self.counts[client]]

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """Number of rounds of each client, int64 (clients,)."""
        return np.diff(self.starts, append=len(self.rounds))

    @functools.cached_property
    def spans(self) -> np.ndarray:
        """Difference between each client's last and first round, (clients,)."""
        return self.rounds[self.starts + self.counts - 1] - self.rounds[self.starts]

    @functools.cached_property
    def gaps(self) -> np.ndarray:
        """Difference between each round and the client's previous one, (rows,); 0 for the first."""
        gaps = np.diff(self.rounds, prepend=self.rounds[:1])
        gaps[self.starts] = 0
        return gaps

    @functools.cached_property
    def is_repeat(self) -> np.ndarray:
        """Mask of the rows that are not the first of their client, bool (rows,)."""
        is_repeat = np.ones(len(self.rounds), bool)
        is_repeat[self.starts] = False
        return is_repeat

    def smallest_gaps(self, single: int) -> np.ndarray:
        """Returns the smallest difference between two rounds of each client, (clients,).

        Args:
          single: the value for clients with one round.
        """
        return np.minimum.reduceat(np.where(self.is_repeat, self.gaps, single), self.starts)
