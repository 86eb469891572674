"""How a cohort is drawn: uniformly from a pool, from one part of the population, or in an order; exactly, and without listing everybody."""

import dataclasses
from collections.abc import Callable

import numpy as np

# Words that separate the uses of one seed; 2 is taken by the order of a client's examples (federated/training.py).
_ORDER, _DRAW = 0, 1

# Up to so many clients a scan is as quick as anything.
SMALL = 1 << 14
# Asking one client picked at random costs as much as scanning so many. Decides how a cohort is found, never which cohorts are likely.
_SCANS_PER_PICK = 20
# Clients picked and scanned at a time: bounds on the memory.
_BATCH_CLIENTS, _SCAN_CLIENTS = 1 << 16, 1 << 20


def draw_generator(seed: int, t: int) -> np.random.Generator:
    """The generator of round t's draw."""
    return np.random.default_rng(np.random.SeedSequence([seed, _DRAW, t]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pool:
    """The clients that a round may draw from, as questions: nobody has to be listed.

    Attributes:
      population: clients 0 .. population - 1.
      eligible: clients, int64 -> bool: timer and limit allow them to come.
      eligible_between: (start, stop) -> those of the clients start .. stop - 1 that are eligible, int64, increasing.
      available: clients, int64 -> bool.
    """

    population: int
    eligible: Callable[[np.ndarray], np.ndarray]
    eligible_between: Callable[[int, int], np.ndarray]
    available: Callable[[np.ndarray], np.ndarray]

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """A uniform subset of `size` of the clients that are eligible and available; all of them where they are fewer. int64, unsorted.

        Picks clients at random, until `size` different ones may come: the first `size` different elements of an independent uniform
        sequence are a uniform subset. Where few of the picked may come, asks everybody instead and draws anew. That choice looks at
        numbers of clients and not at which they are: the draw stays uniform.
        """
        if self.population <= SMALL:
            return self._scan(rng, size)
        chosen = np.zeros(0, np.int64)
        picked, new_share = 0, 1.0
        while len(chosen) < size:
            expected = (size - len(chosen)) / new_share
            if (picked + expected) * _SCANS_PER_PICK > self.population:
                return self._scan(rng, size)
            batch = min(int(1.1 * expected) + 64, _BATCH_CLIENTS)
            candidates = rng.integers(0, self.population, batch)
            eligible = candidates[self.eligible(candidates)]
            pool = np.concatenate([chosen, eligible[self.available(eligible)]])
            # The first appearance of each, in the order in which they were picked.
            first = np.unique(pool, return_index=True)[1]
            first.sort()
            new_share = (len(first) - len(chosen) + 1) / (batch + 2)
            chosen = pool[first]
            picked += batch
        return chosen[:size]

    def _scan(self, rng: np.random.Generator, size: int) -> np.ndarray:
        blocks = []
        for start in range(0, self.population, _SCAN_CLIENTS):
            eligible = self.eligible_between(start, min(start + _SCAN_CLIENTS, self.population))
            blocks.append(eligible[self.available(eligible)])
        everybody = np.concatenate(blocks)
        return everybody if len(everybody) <= size else rng.choice(everybody, size, replace=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """The partition D_0 .. D_(groups - 1) of banded Alg. 6, where any partition will do: client c belongs to part c mod groups.

    >>> parts = Parts(population=7, groups=3)
    >>> parts.size(0), parts.members(0, np.array([0, 1, 2])), parts.holds(4, np.array([0, 1]))
    (3, array([0, 3, 6]), array([False,  True]))
    """

    population: int
    groups: int

    def size(self, t: int) -> int:
        """Clients of the part of round t."""
        return -(-(self.population - t % self.groups) // self.groups)

    def members(self, t: int, positions: np.ndarray) -> np.ndarray:
        """The clients at these positions of the part of round t, int64."""
        return positions.astype(np.int64) * self.groups + t % self.groups

    def holds(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Which of the clients belong to the part of round t, bool."""
        return clients % self.groups == t % self.groups

    def poisson(self, rng: np.random.Generator, t: int, probability: float) -> np.ndarray:
        """Every client of the part of round t with `probability`, independently: banded paper, Cor. F.1.

        The number of clients that come is binomial, and given the number every subset of that size is equally likely.
        """
        return self.subset(rng, t, int(rng.binomial(self.size(t), probability)))

    def subset(self, rng: np.random.Generator, t: int, size: int) -> np.ndarray:
        """A uniform subset of `size` clients of the part of round t: banded paper, Alg. 2."""
        return self.members(t, rng.choice(self.size(t), size, replace=False, shuffle=False))


class EpochOrder:
    """A random order of the population dealt out in batches: round t takes batch t mod `epoch`.

    With `reshuffle`, every epoch deals each of `groups` parts anew: batch i of an epoch is drawn from the clients of the batches
    i mod groups of the first order. Takes four bytes a client, and eight with `reshuffle`.

    Args:
      population: clients; those beyond epoch * cohort_size in the first order are never drawn.
      cohort_size: clients of a batch.
      epoch: batches of an epoch.
      seed: of the order.
      reshuffle: a new order each epoch.
      groups: parts that keep their rounds; a divisor of `epoch`.
    """

    def __init__(
        self, *, population: int, cohort_size: int, epoch: int, seed: int, reshuffle: bool = False, groups: int = 1
    ) -> None:
        self.population, self.cohort_size, self.epoch = population, cohort_size, epoch
        self.seed, self.reshuffle, self.groups = seed, reshuffle, groups
        self._first: np.ndarray | None = None
        self._parts: dict[int, tuple[int, np.ndarray]] = {}

    def batch(self, t: int) -> np.ndarray:
        """The clients whose turn it is in round t, int64 (cohort_size,)."""
        number, place = divmod(t, self.epoch)
        if not self.reshuffle or number == 0:
            start = place * self.cohort_size
            return self._order()[start : start + self.cohort_size].astype(np.int64)
        part, place = place % self.groups, place // self.groups
        if self._parts.get(part, (0,))[0] != number:
            self._parts[part] = (number, self._dealt_anew(number, part))
        start = place * self.cohort_size
        return self._parts[part][1][start : start + self.cohort_size].astype(np.int64)

    def _order(self) -> np.ndarray:
        if self._first is None:
            rng = np.random.default_rng(np.random.SeedSequence([self.seed, _ORDER]))
            self._first = _random_places(rng, self.population, self.epoch * self.cohort_size)
        return self._first

    def _dealt_anew(self, number: int, part: int) -> np.ndarray:
        # number >= 1, so that these words are not those of the first order with zeros behind, which would give the same generator.
        rng = np.random.default_rng(np.random.SeedSequence([self.seed, _ORDER, number, part]))
        members = self._order().reshape(self.epoch, self.cohort_size)[part :: self.groups].flatten()
        rng.shuffle(members)
        return members


def _random_places(rng: np.random.Generator, population: int, places: int) -> np.ndarray:
    """A uniform sequence of `places` different clients, in the smallest unsigned integers that hold them."""
    kind = np.min_scalar_type(population - 1)
    if places <= population // 50:
        return rng.choice(population, places, replace=False).astype(kind)
    order = np.arange(population, dtype=kind)
    rng.shuffle(order)
    return order[:places].copy() if places < population else order
