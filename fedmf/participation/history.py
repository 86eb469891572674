"""Participation histories of clients, which decide who is eligible for the next round."""

import abc

import numpy as np


class History(abc.ABC):
    """The base class of participation histories. A history holds what a schema needs to know of the
    past rounds of clients 0, 1, ...
    """

    @abc.abstractmethod
    def record(self, t: int, clients: np.ndarray) -> None:
        """Records that these distinct clients, given by an int64 array, took part in round t."""

    @abc.abstractmethod
    def grow(self, num_clients: int) -> None:
        """Adds clients that have not taken part yet, until there are at least `num_clients`
        clients.
        """


class TimerHistory(History):
    """A history that holds the last round of each client and the number of its participations.

    It takes two to eight bytes of memory per client.

    Args:
      num_clients: the clients are 0 .. num_clients - 1; `grow` adds others.
      rounds: length of the run.
      max_participations: largest count that is recorded.

    Attributes:
      round_after: the round after a client's last one, ints (num_clients,); 0 if the client never
        took part.
      counts: number of participations of each client, ints (num_clients,).

    >>> history = TimerHistory(3, rounds=10, max_participations=2)
    >>> history.record(4, np.array([0, 2]))
    >>> history.round_after.tolist(), history.counts.tolist()
    ([5, 0, 5], [1, 0, 1])
    """

    def __init__(self, num_clients: int, *, rounds: int, max_participations: int) -> None:
        self.round_after = np.zeros(num_clients, np.min_scalar_type(rounds))
        self.counts = np.zeros(num_clients, np.min_scalar_type(max_participations))
        self._max_participations = max_participations

    def record(self, t: int, clients: np.ndarray) -> None:
        """Records that these distinct clients, given by an int64 array, took part in round t."""
        new_counts = self.counts[clients]
        self.counts[clients] = np.where(
            new_counts < self._max_participations, new_counts + 1, new_counts
        )
        self.round_after[clients] = t + 1

    def grow(self, num_clients: int) -> None:
        """Adds clients that have not taken part yet, until there are at least `num_clients`
        clients.
        """
        num_missing = num_clients - len(self.counts)
        if num_missing > 0:
            # The arrays at least double in length when they grow. If they grew by one client at a
            # time, they would be copied for each client.
            padding_widths = (0, max(num_missing, len(self.counts)))
            self.round_after = np.pad(self.round_after, padding_widths)
            self.counts = np.pad(self.counts, padding_widths)


class EpochHistory(TimerHistory):
    """A history that holds the last round of each client, and the number of epochs from its first
    round to its last one.

    Epochs that the client missed count as well.

    Args:
      num_clients, rounds, max_participations: see `TimerHistory`.
      epoch: number of rounds of an epoch.

    >>> history = EpochHistory(1, rounds=10, max_participations=5, epoch=2)
    >>> for t in (0, 6):
    ...     history.record(t, np.array([0]))
    >>> history.counts.tolist()
    [4]
    """

    def __init__(
        self, num_clients: int, *, rounds: int, max_participations: int, epoch: int
    ) -> None:
        super().__init__(num_clients, rounds=rounds, max_participations=max_participations)
        self._epoch = epoch

    def record(self, t: int, clients: np.ndarray) -> None:
        """Records that these distinct clients took part in round t, and counts epochs up to it."""
        round_after = self.round_after[clients].astype(np.int64)
        num_epochs = np.where(round_after == 0, 1, (t + 1 - round_after) // self._epoch)
        new_counts = self.counts[clients] + num_epochs
        self.counts[clients] = np.minimum(new_counts, self._max_participations)
        self.round_after[clients] = t + 1


class RoundLists(History):
    """A history that holds all rounds of each client, for schemas that need them.

    Args:
      num_clients: the clients are 0 .. num_clients - 1; `grow` adds others.

    >>> history = RoundLists(2)
    >>> history.record(3, np.array([1]))
    >>> history.rounds_of(slice(0, 2))
    [[], [3]]
    """

    def __init__(self, num_clients: int) -> None:
        self._num_clients = num_clients
        self._rounds_by_client: dict[int, list[int]] = {}

    def record(self, t: int, clients: np.ndarray) -> None:
        """Records that these distinct clients, given by an int64 array, took part in round t."""
        for client in clients.tolist():
            self._rounds_by_client.setdefault(client, []).append(t)

    def grow(self, num_clients: int) -> None:
        """Adds clients that have not taken part yet, until there are at least `num_clients`
        clients.
        """
        self._num_clients = max(self._num_clients, num_clients)

    def rounds_of(self, clients: np.ndarray | slice) -> list[list[int]]:
        """Returns for each of the clients the list of its rounds, in increasing order."""
        client_indices = np.arange(self._num_clients)[clients].tolist()
        return [self._rounds_by_client.get(client, []) for client in client_indices]
