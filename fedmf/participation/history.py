"""The rounds of clients so far, as much of them as decides who is eligible next."""

import abc

import numpy as np


class History(abc.ABC):
    """The rounds of clients 0, 1, ..., recorded in order."""

    @abc.abstractmethod
    def record(self, t: int, clients: np.ndarray) -> None:
        """Counts round t for these different clients, int64 (clients,)."""

    @abc.abstractmethod
    def grow(self, num_clients: int) -> None:
        """Makes room for at least so many clients, of whom the new ones never took part."""


class TimerHistory(History):
    """The last round of each client and the number of its participations.

    Memory is two to eight bytes a client.

    Args:
      num_clients: clients 0 .. num_clients - 1; `grow` adds more.
      rounds: of the run.
      max_participations: a count ends there.

    Attributes:
      round_after: the round after a client's last one, 0 where it never took part, ints
        (num_clients,).
      counts: participations, ints (num_clients,).

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
        """Counts round t for these different clients, int64 (clients,)."""
        counts = self.counts[clients]
        self.counts[clients] = np.where(counts < self._max_participations, counts + 1, counts)
        self.round_after[clients] = t + 1

    def grow(self, num_clients: int) -> None:
        """Makes room for at least so many clients, of whom the new ones never took part."""
        num_more = num_clients - len(self.counts)
        if num_more > 0:
            # A client at a time would copy all of them each time.
            padding = (0, max(num_more, len(self.counts)))
            self.round_after = np.pad(self.round_after, padding)
            self.counts = np.pad(self.counts, padding)


class EpochHistory(TimerHistory):
    """A history whose counts are epochs since a client's first round, those that it missed
    included.

    Args:
      num_clients, rounds, max_participations: as of `TimerHistory`.
      epoch: rounds of an epoch.

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
        """Counts the epochs up to round t for these different clients, int64 (clients,)."""
        round_after = self.round_after[clients].astype(np.int64)
        num_epochs = np.where(round_after == 0, 1, (t + 1 - round_after) // self._epoch)
        counts = self.counts[clients] + num_epochs
        self.counts[clients] = np.minimum(counts, self._max_participations)
        self.round_after[clients] = t + 1


class RoundLists(History):
    """A history with all rounds of each client, for schemas that need them.

    Args:
      num_clients: clients 0 .. num_clients - 1; `grow` adds more.

    >>> history = RoundLists(2)
    >>> history.record(3, np.array([1]))
    >>> history.rounds_of(slice(0, 2))
    [[], [3]]
    """

    def __init__(self, num_clients: int) -> None:
        self._num_clients = num_clients
        self._rounds_by_client: dict[int, list[int]] = {}

    def record(self, t: int, clients: np.ndarray) -> None:
        """Adds round t to the rounds of these different clients, int64 (clients,)."""
        for client in clients.tolist():
            self._rounds_by_client.setdefault(client, []).append(t)

    def grow(self, num_clients: int) -> None:
        """Makes room for at least so many clients, of whom the new ones never took part."""
        self._num_clients = max(self._num_clients, num_clients)

    def rounds_of(self, clients: np.ndarray | slice) -> list[list[int]]:
        """Returns the rounds of each of these clients, increasing."""
        numbers = np.arange(self._num_clients)[clients].tolist()
        return [self._rounds_by_client.get(number, []) for number in numbers]
