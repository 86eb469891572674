"""How a cohort is drawn from the pool of clients that may come: uniformly, exactly, and without
listing everybody.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

# Up to so many clients a scan is as quick as anything.
SMALL = 1 << 14
# Asking one client picked at random costs as much as scanning so many. Decides how a cohort is
# found, never which cohorts are likely.
_SCANS_PER_PICK = 20
# Clients picked and scanned at a time: bounds on the memory.
_BATCH_CLIENTS = 1 << 16
_SCAN_CLIENTS = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pool:
    """The clients that a round may draw from, as questions: nobody has to be listed.

    Attributes:
      population: clients 0 .. population - 1.
      eligible: clients, int64 or a slice of them -> bool: timer and limit allow them to come.
      available: clients, int64 -> bool.
    """

    population: int
    eligible: Callable[[np.ndarray | slice], np.ndarray]
    available: Callable[[np.ndarray], np.ndarray]

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """A uniform subset of `size` of the clients that are eligible and available; all of them
        where they are fewer. int64, unsorted.

        Picks clients at random, until `size` different ones may come: the first `size` different
        elements of an independent uniform sequence are a uniform subset. Where few of the picked
        may come, asks everybody instead and draws anew. That choice looks at numbers of clients and
        not at which they are: the draw stays uniform.
        """
        if self.population <= SMALL:
            return self._scan(rng, size)
        chosen = np.zeros(0, np.int64)
        picked = 0
        new_share = 1.0
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
            stop = min(start + _SCAN_CLIENTS, self.population)
            eligible = np.flatnonzero(self.eligible(slice(start, stop))) + start
            blocks.append(eligible[self.available(eligible)])
        everybody = np.concatenate(blocks)
        return everybody if len(everybody) <= size else rng.choice(everybody, size, replace=False)
