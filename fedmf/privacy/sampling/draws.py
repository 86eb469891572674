"""Which clients a round draws: some of a part, the next in an order, or whose place it is.

Pure functions of (seed, round).
"""

import abc
import dataclasses
import functools

import numpy as np

# Words that separate the uses of one seed; 2 is taken by the order
# of a client's examples (fedmf/training).
_ORDER, _DRAW = 0, 1


def draw_generator(seed: int, t: int) -> np.random.Generator:
    """The generator of round t's draw."""
    return np.random.default_rng([seed, _DRAW, t])


class Draws(abc.ABC):
    """The draws of a run, before anybody is left out who may not come or is away."""

    @abc.abstractmethod
    def clients(self, t: int) -> np.ndarray:
        """The clients that round t draws, int64, unsorted."""

    def can_draw(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Which of the clients round t could have drawn, bool."""
        return np.isin(clients, self.clients(t))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartitionDraws(Draws):
    """Draws from a partition of the clients, the sets D_j of banded Alg. 6.

    Client c is in part c mod partitions, and round t has part t mod partitions.

    Attributes:
      population: clients 0 .. population - 1.
      partitions: number of parts.
      seed: of the draws.
      size: clients of a round, a uniform subset (banded paper, Alg. 2); or None.
      probability: with which each client of the part comes, independently (banded paper, Cor. F.1),
        where size is None.

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
        """The clients that round t draws, int64, unsorted."""
        rng = draw_generator(self.seed, t)
        part = t % self.partitions
        members = -(-(self.population - part) // self.partitions)
        # The number of clients that come independently is binomial, and given it every subset of
        # that size is equally likely.
        size = int(rng.binomial(members, self.probability)) if self.size is None else self.size
        return (
            rng.choice(members, size, replace=False, shuffle=False).astype(np.int64)
            * self.partitions
            + part
        )

    def can_draw(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Which of the clients belong to the part of round t, bool."""
        return clients % self.partitions == t % self.partitions


@dataclasses.dataclass(frozen=True, kw_only=True)
class BinDraws(Draws):
    """Every client is in one bin, drawn once; round t has bin t mod `bins`.

    >>> draws = BinDraws(population=5, bins=2, seed=1)
    >>> sorted([*draws.clients(0).tolist(), *draws.clients(3).tolist()])
    [0, 1, 2, 3, 4]
    """

    population: int
    bins: int
    seed: int

    @functools.cached_property
    def _bin(self) -> np.ndarray:
        rng = np.random.default_rng([self.seed, _ORDER])
        return rng.integers(
            self.bins, size=self.population, dtype=np.min_scalar_type(self.bins - 1)
        )

    def clients(self, t: int) -> np.ndarray:
        """The clients of the round's bin, int64."""
        return np.flatnonzero(self._bin == t % self.bins)

    def can_draw(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Which of the clients are in the bin of round t, bool."""
        return self._bin[clients] == t % self.bins


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinSepDraws(Draws):
    """Every client's coin of every round; it counts for clients that rest no more, which the
    controller knows from the ledger.

    Attributes:
      population, min_sep, probability: of the scheme.
      seed: of the draws.
    """

    population: int
    min_sep: int
    probability: float
    seed: int

    @functools.cached_property
    def _rest(self) -> np.ndarray:
        """Rounds before a client may come for the first time: s >= 1 with probability p / (1 + (b -
        1) p) each, else 0.
        """
        b = self.min_sep
        p = self.probability
        rng = np.random.default_rng([self.seed, _ORDER])
        place = rng.random(self.population) * (1 + (b - 1) * p)
        rest = np.minimum(np.floor(np.maximum(place - 1, 0) / p) + 1, b - 1)
        return np.where(place < 1, 0, rest).astype(np.min_scalar_type(b))

    def clients(self, t: int) -> np.ndarray:
        """The clients whose coin says so in round t, int64, unsorted."""
        rng = draw_generator(self.seed, t)
        # The number of coins is binomial, and given it every subset of that size is equally likely.
        size = int(rng.binomial(self.population, self.probability))
        drawn = rng.choice(self.population, size, replace=False, shuffle=False).astype(np.int64)
        return drawn[self.can_draw(t, drawn)]

    def can_draw(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Which of the clients do not rest at the start of the run, bool."""
        if t >= self.min_sep:
            return np.ones(len(clients), bool)
        return self._rest[clients] <= t


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochOrder(Draws):
    """A random order of the population dealt out in batches: round t takes batch t mod `epoch`.

    Takes four bytes a client.

    Args:
      population: clients; those beyond epoch * cohort_size in the order are never drawn.
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
        rng = np.random.default_rng([self.seed, _ORDER])
        return _random_places(rng, self.population, self.epoch * self.cohort_size)

    def clients(self, t: int) -> np.ndarray:
        """The clients whose turn it is in round t, int64 (cohort_size,)."""
        start = t % self.epoch * self.cohort_size
        return self._order[start : start + self.cohort_size].astype(np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochPlaces(Draws):
    """Each epoch every client draws its round anew, independently: one of those congruent to it
    modulo `partitions`.

    Takes a byte a client where there are at most 256 such rounds, two for up to 65,536.

    Args:
      population: clients 0 .. population - 1.
      epoch: rounds of an epoch.
      partitions: a divisor of `epoch`.
      seed: of the draws.

    >>> draws = EpochPlaces(population=9, epoch=6, partitions=2, seed=1)
    >>> sorted(client for t in range(6) for client in draws.clients(t).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """

    population: int
    epoch: int
    partitions: int
    seed: int

    @functools.cached_property
    def _drawn(self) -> dict[int, tuple[int, np.ndarray]]:
        """Part -> the last epoch that was asked for, and the places in it."""
        return {}

    def clients(self, t: int) -> np.ndarray:
        """The clients that drew round t, int64, ascending."""
        part = t % self.partitions
        place = t % self.epoch // self.partitions
        return np.flatnonzero(self._places(t // self.epoch, part) == place) * self.partitions + part

    def _places(self, number: int, part: int) -> np.ndarray:
        """Of the clients of the part in that epoch."""
        if self._drawn.get(part, (-1,))[0] != number:
            rng = np.random.default_rng([self.seed, _ORDER, number, part, 1])
            positions = self.epoch // self.partitions
            members = -(-(self.population - part) // self.partitions)
            kind = np.min_scalar_type(positions - 1)
            self._drawn[part] = number, rng.integers(positions, size=members, dtype=kind)
        return self._drawn[part][1]


def _random_places(rng: np.random.Generator, population: int, places: int) -> np.ndarray:
    """A uniform sequence of `places` different clients, in the smallest unsigned integers
    that hold them.
    """
    kind = np.min_scalar_type(population - 1)
    if places <= population // 50:
        return rng.choice(population, places, replace=False).astype(kind)
    order = np.arange(population, dtype=kind)
    rng.shuffle(order)
    return order[:places].copy() if places < population else order
