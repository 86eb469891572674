"""The clients that each round samples: pure functions of (seed, round)."""

import abc
import dataclasses
import functools

import numpy as np

from fedmf.privacy.sampling.randomness import SamplingRandomness


class Draws(abc.ABC):
    """The samples of a run, from which the controller leaves out ineligible and absent clients."""

    @abc.abstractmethod
    def clients(self, t: int) -> np.ndarray:
        """Returns the clients that round t samples, int64, unsorted."""

    def can_draw(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Returns for each client whether round t could have sampled it, bool."""
        return np.isin(clients, self.clients(t))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartitionDraws(Draws):
    """Samples from one partition of the clients per round, the sets D_j of banded Alg. 6.

    Client c is in partition c mod partitions, and round t samples from partition t mod partitions.

    Attributes:
      population: clients 0 .. population - 1.
      partitions: number of partitions.
      seed: of the samples.
      size: clients of a round, a uniform subset (banded paper, Alg. 2); or None.
      probability: of each client of the partition to be sampled, independently (banded paper, Cor.
        F.1), where size is None.

    >>> draws = PartitionDraws(population=7, partitions=3, seed=1, size=3)
    >>> sorted(draws.clients(0).tolist()), draws.can_draw(4, np.array([0, 1]))
    ([0, 3, 6], array([False,  True]))
    """

    population: int
    partitions: int
    seed: int
    size: int | None = None
    probability: float = 0.0

    def clients(self, t: int) -> np.ndarray:
        """Returns the clients that round t samples, int64, unsorted."""
        partition = t % self.partitions
        members = partition_size(self.population, self.partitions, partition)
        randomness = SamplingRandomness(self.seed)
        if self.size is None:
            member_indices = randomness.independent_subset(t, members, self.probability)
        else:
            member_indices = randomness.uniform_subset(t, members, self.size)
        return member_indices * self.partitions + partition

    def can_draw(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Returns for each client whether it is in the partition of round t, bool."""
        return clients % self.partitions == t % self.partitions


def partition_size(population: int, partitions: int, partition: int) -> int:
    """Returns the number of clients c < population with c mod partitions = partition.

    >>> [partition_size(7, 3, partition) for partition in range(3)]
    [3, 2, 2]
    """
    return -(-(population - partition) // partitions)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BinDraws(Draws):
    """Samples of balls in bins: each client has one bin, and round t takes bin t mod `bins`.

    >>> draws = BinDraws(population=5, bins=2, seed=1)
    >>> sorted([*draws.clients(0).tolist(), *draws.clients(3).tolist()])
    [0, 1, 2, 3, 4]
    """

    population: int
    bins: int
    seed: int

    @functools.cached_property
    def _bin_by_client(self) -> np.ndarray:
        return SamplingRandomness(self.seed).bins(self.population, self.bins)

    def clients(self, t: int) -> np.ndarray:
        """Returns the clients of the round's bin, int64, ascending."""
        return np.flatnonzero(self._bin_by_client == t % self.bins)

    def can_draw(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Returns for each client whether it is in the bin of round t, bool."""
        return self._bin_by_client[clients] == t % self.bins


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinSepDraws(Draws):
    """Independent samples of every round, ignored while the client is ineligible.

    The controller knows from its ledger who is ineligible after a participation. Here only those
    clients are left out that the stationary state makes ineligible at the start.

    Attributes:
      population, min_sep, probability: of the scheme.
      seed: of the samples.
    """

    population: int
    min_sep: int
    probability: float
    seed: int

    @functools.cached_property
    def _first_eligible_round(self) -> np.ndarray:
        randomness = SamplingRandomness(self.seed)
        return randomness.stationary_wait(self.population, self.min_sep, self.probability)

    def clients(self, t: int) -> np.ndarray:
        """Returns the clients that round t samples, int64, unsorted."""
        randomness = SamplingRandomness(self.seed)
        sample = randomness.independent_subset(t, self.population, self.probability)
        return sample[self.can_draw(t, sample)]

    def can_draw(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Returns for each client whether the stationary start lets it take part by round t."""
        if t >= self.min_sep:
            return np.ones(len(clients), bool)
        return self._first_eligible_round[clients] <= t


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochOrder(Draws):
    """A random order of the population in batches: round t takes batch t mod `epoch`.

    Takes four bytes a client.

    Args:
      population: clients; those beyond epoch * cohort_size in the order are never sampled.
      cohort_size: clients of a batch.
      epoch: batches of an epoch.
      seed: of the order.
    """

    population: int
    cohort_size: int
    epoch: int
    seed: int

    @functools.cached_property
    def _order(self) -> np.ndarray:
        length = self.epoch * self.cohort_size
        return SamplingRandomness(self.seed).order(self.population, length)

    def clients(self, t: int) -> np.ndarray:
        """Returns the clients of the round's batch, int64 (cohort_size,)."""
        start = t % self.epoch * self.cohort_size
        return self._order[start : start + self.cohort_size].astype(np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochPlaces(Draws):
    """Samples of random allocation: in each epoch every client draws its round anew, independently,
    among those congruent to it modulo `partitions`.

    Takes a byte a client where there are at most 256 such rounds, two for up to 65,536.

    Args:
      population: clients 0 .. population - 1.
      epoch: rounds of an epoch.
      partitions: a divisor of `epoch`.
      seed: of the samples.

    >>> draws = EpochPlaces(population=9, epoch=6, partitions=2, seed=1)
    >>> sorted(client for t in range(6) for client in draws.clients(t).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """

    population: int
    epoch: int
    partitions: int
    seed: int

    @functools.cached_property
    def _latest_positions(self) -> dict[int, tuple[int, np.ndarray]]:
        """Maps each partition to its latest epoch and the positions of its clients in it."""
        return {}

    def clients(self, t: int) -> np.ndarray:
        """Returns the clients that drew round t, int64, ascending."""
        partition = t % self.partitions
        position = t % self.epoch // self.partitions
        positions = self._positions(t // self.epoch, partition)
        return np.flatnonzero(positions == position) * self.partitions + partition

    def _positions(self, epoch: int, partition: int) -> np.ndarray:
        """Returns the positions of a partition's clients in an epoch."""
        latest_epoch, positions = self._latest_positions.get(partition, (-1, np.empty(0)))
        if latest_epoch != epoch:
            members = partition_size(self.population, self.partitions, partition)
            num_positions = self.epoch // self.partitions
            randomness = SamplingRandomness(self.seed)
            positions = randomness.positions(epoch, partition, members, num_positions)
            self._latest_positions[partition] = (epoch, positions)
        return positions
