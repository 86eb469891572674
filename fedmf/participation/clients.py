"""The rounds of a participation record, grouped by client. A long record is counted one block of
clients at a time, which saves memory.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ClientRounds:
    """The rounds in which each of several clients of a record took part.

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
        """Returns the clients that took part in any of the cohorts, int64 and increasing, and the
        rounds of each.

        Args:
          cohorts: clients of each round, without duplicates.
        """
        cohort_sizes = [len(cohort) for cohort in cohorts]
        client_of_row = np.concatenate([np.zeros(0, np.int64), *cohorts])
        if client_of_row.max(initial=0) < 2**32:
            # A smaller dtype of the client indices halves the memory of the sort.
            client_of_row = client_of_row.astype(np.uint32)
        # A stable sort keeps the rounds of each client in increasing order.
        order_by_client = np.argsort(client_of_row, kind="stable")
        round_of_row = np.repeat(np.arange(len(cohort_sizes), dtype=np.int32), cohort_sizes)[
            order_by_client
        ]
        client_of_row = client_of_row[order_by_client]
        del order_by_client
        is_first_of_client = np.r_[True, client_of_row[1:] != client_of_row[:-1]][
            : len(round_of_row)
        ]
        client_starts = np.flatnonzero(is_first_of_client)
        return client_of_row[client_starts].astype(np.int64), ClientRounds(
            rounds=round_of_row, starts=client_starts
        )

    def __len__(self) -> int:
        return len(self.starts)

    def of(self, client: int) -> np.ndarray:
        """Returns the increasing rounds of the client with index `client` in this object."""
        return self.rounds[self.starts[client] :][: self.counts[client]]

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """The number of rounds of each client, int64 (clients,)."""
        return np.diff(self.starts, append=len(self.rounds))

    @functools.cached_property
    def spans(self) -> np.ndarray:
        """The difference between each client's last and first round, an integer array of shape
        (clients,).
        """
        return self.rounds[self.starts + self.counts - 1] - self.rounds[self.starts]

    @functools.cached_property
    def gaps(self) -> np.ndarray:
        """The difference between each round and the same client's previous round, an integer array
        of shape (rows,). It is 0 for the first round of a client.
        """
        gaps = np.diff(self.rounds, prepend=self.rounds[:1])
        gaps[self.starts] = 0
        return gaps

    @functools.cached_property
    def is_repeat(self) -> np.ndarray:
        """A mask of all rows except the first one of each client, a bool array of shape (rows,)."""
        is_repeat = np.ones(len(self.rounds), bool)
        is_repeat[self.starts] = False
        return is_repeat

    def smallest_gaps(self, single: int) -> np.ndarray:
        """Returns for each client the smallest difference between two of its rounds, as an integer
        array of shape (clients,).

        Args:
          single: the value for clients with one round.
        """
        return np.minimum.reduceat(np.where(self.is_repeat, self.gaps, single), self.starts)
