"""Samples of clients for each round of a run, as pure functions of the seed and the round."""

import abc
import dataclasses
import functools

import numpy as np

from fedmf.privacy.sampling.randomness import SamplingRandomness


class Draws(abc.ABC):
    """Base of the samplers of all rounds of a run. The controller then leaves out sampled clients
    that are ineligible or unavailable.
    """

    @abc.abstractmethod
    def clients(self, t: int) -> np.ndarray:
        """Returns the indices of the clients that round t samples, int64, unsorted."""

    def can_draw(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Returns whether round t could have sampled each client, as a bool array of the shape of
        `clients`.
        """
        return np.isin(clients, self.clients(t))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartitionDraws(Draws):
    """Samples in which round t takes clients of partition t mod `partitions` only. Client c is in
    partition c mod `partitions` (the sets D_j of banded Alg. 6).

    Attributes:
      population: clients 0 .. population - 1.
      partitions: number of partitions.
      seed: of the samples.
      size: number of clients of a round, which are a uniform subset of the partition (banded paper,
        Alg. 2); None to sample clients independently.
      probability: with size=None, the probability with which each client of the partition is
        sampled, independently (banded paper, Cor. F.1).

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
        """Returns the indices of the clients that round t samples, int64, unsorted."""
        partition = t % self.partitions
        num_members = partition_size(self.population, self.partitions, partition)
        randomness = SamplingRandomness(self.seed)
        if self.size is None:
            member_indices = randomness.independent_subset(t, num_members, self.probability)
        else:
            member_indices = randomness.uniform_subset(t, num_members, self.size)
        return member_indices * self.partitions + partition

    def can_draw(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Returns whether each client is in the partition of round t, as a bool array of the shape
        of `clients`.
        """
        return clients % self.partitions == t % self.partitions


def partition_size(population: int, partitions: int, partition: int) -> int:
    """Returns the number of clients in a partition, which has the clients c < population with c mod
    partitions = partition.

    >>> [partition_size(7, 3, partition) for partition in range(3)]
    [3, 2, 2]
    """
    return -(-(population - partition) // partitions)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BinDraws(Draws):
    """Samples of balls in bins, where each client draws one bin for the whole run, and round t
    samples the clients of bin t mod `bins`.

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
        """Returns the indices of the clients in the bin of round t, int64, ascending."""
        return np.flatnonzero(self._bin_by_client == t % self.bins)

    def can_draw(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Returns whether each client is in the bin of round t, as a bool array of the shape of
        `clients`.
        """
        return self._bin_by_client[clients] == t % self.bins


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinSepDraws(Draws):
    """Samples of b-min-sep sampling, where every round samples each client independently, and the
    controller ignores sampled clients that are ineligible.

    The controller knows from its ledger which clients are ineligible after a participation. This
    class leaves out only the clients that begin the run as ineligible: in the stationary state some
    clients still wait after an imagined participation before round 0.

    Attributes:
      population, min_sep, probability: fields of the scheme `MinSepPoisson`.
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
        """Returns the indices of the clients that round t samples, int64, unsorted."""
        randomness = SamplingRandomness(self.seed)
        sampled_clients = randomness.independent_subset(t, self.population, self.probability)
        return sampled_clients[self.can_draw(t, sampled_clients)]

    def can_draw(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Returns for each client whether its ineligible rounds at the start of the run are over by
        round t, as a bool array of the shape of `clients`.
        """
        if t >= self.min_sep:
            return np.ones(len(clients), bool)
        return self._first_eligible_round[clients] <= t


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochOrder(Draws):
    """Samples by one random order of the population, which is split into batches of the same size.
    Round t takes batch t mod `epoch`.

    The order takes at most four bytes of memory per client for up to 4 billion clients.

    Args:
      population: number of clients; the ones beyond epoch * cohort_size in the order are never
        sampled.
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
        num_sampled = self.epoch * self.cohort_size
        return SamplingRandomness(self.seed).order(self.population, num_sampled)

    def clients(self, t: int) -> np.ndarray:
        """Returns the indices of the clients in the batch of round t, int64 of shape
        (cohort_size,).
        """
        batch_start = t % self.epoch * self.cohort_size
        return self._order[batch_start : batch_start + self.cohort_size].astype(np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochPlaces(Draws):
    """Samples of random allocation, where in each epoch every client draws its round anew,
    independently, among the rounds that are congruent to the client's index modulo `partitions`.

    The draws of an epoch take one byte of memory per client if a client has at most 256 possible
    rounds, and two bytes for up to 65,536.

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
        """Cache that maps each partition to its latest epoch and the positions that its clients
        drew in it.
        """
        return {}

    def clients(self, t: int) -> np.ndarray:
        """Returns the indices of the clients that drew round t as an ascending int64 array."""
        partition = t % self.partitions
        position = t % self.epoch // self.partitions
        drawn_positions = self._positions(t // self.epoch, partition)
        return np.flatnonzero(drawn_positions == position) * self.partitions + partition

    def _positions(self, epoch: int, partition: int) -> np.ndarray:
        """Returns the position that each client of a partition draws in an epoch, which is 0 for
        its first possible round, 1 for the next one, and so on.
        """
        latest_epoch, drawn_positions = self._latest_positions.get(partition, (-1, np.empty(0)))
        if latest_epoch != epoch:
            num_members = partition_size(self.population, self.partitions, partition)
            num_positions = self.epoch // self.partitions
            randomness = SamplingRandomness(self.seed)
            drawn_positions = randomness.positions(epoch, partition, num_members, num_positions)
            self._latest_positions[partition] = (epoch, drawn_positions)
        return drawn_positions
