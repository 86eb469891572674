"""Sampling of exactly uniform cohorts from the eligible and available clients, usually without a
test of every client.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

# In populations of at most this many clients, all clients are tested for eligibility, because that
# is fast enough.
SMALL = 1 << 14
# Cost of testing one client that was picked at random, in units of the cost of one client in a scan
# of all. It affects the speed of sampling, and not the distribution of cohorts.
_SCANS_PER_PICK = 20
# Largest numbers of clients that are picked at random in one step, and that are scanned in one
# step. They limit the memory.
_BATCH_CLIENTS = 1 << 16
_SCAN_CLIENTS = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pool:
    """The clients from which a round's cohort is sampled. Two functions test whether a client is
    one of them.

    Attributes:
      population: number of clients, with indices 0 .. population - 1.
      eligible: clients, int64 or a slice of them -> whether each is eligible, bool.
      available: clients, int64 -> whether each is available, bool.
    """

    population: int
    eligible: Callable[[np.ndarray | slice], np.ndarray]
    available: Callable[[np.ndarray], np.ndarray]

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draws a uniform sample of `size` eligible and available clients, int64, unsorted.

        If there are fewer such clients, all of them are returned. Clients are picked at random
        until `size` distinct ones are eligible and available: the first `size` distinct elements of
        an independent uniform sequence are a uniform subset. If few of the picked clients are
        eligible and available, all clients are scanned instead and the sample is drawn anew. This
        decision depends on numbers of clients and not on which clients they are, so that the sample
        stays uniform.
        """
        if self.population <= SMALL:
            return self._scan(rng, size)
        sampled_clients = np.zeros(0, np.int64)
        num_picked = 0
        acceptance_rate = 1.0
        while len(sampled_clients) < size:
            expected_draws = (size - len(sampled_clients)) / acceptance_rate
            if (num_picked + expected_draws) * _SCANS_PER_PICK > self.population:
                return self._scan(rng, size)
            batch_size = min(int(1.1 * expected_draws) + 64, _BATCH_CLIENTS)
            candidates = rng.integers(0, self.population, batch_size)
            eligible_candidates = candidates[self.eligible(candidates)]
            accepted_clients = np.concatenate(
                [sampled_clients, eligible_candidates[self.available(eligible_candidates)]]
            )
            # If a client was picked twice, its second pick is dropped. The order of the picks must
            # stay, because the sample consists of the first `size` accepted clients.
            first_positions = np.unique(accepted_clients, return_index=True)[1]
            first_positions.sort()
            num_new = len(first_positions) - len(sampled_clients)
            acceptance_rate = (num_new + 1) / (batch_size + 2)
            sampled_clients = accepted_clients[first_positions]
            num_picked += batch_size
        return sampled_clients[:size]

    def _scan(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Tests every client, and draws a uniform sample of the eligible and available ones."""
        candidate_blocks = []
        for start in range(0, self.population, _SCAN_CLIENTS):
            end_client = min(start + _SCAN_CLIENTS, self.population)
            eligible_block = np.flatnonzero(self.eligible(slice(start, end_client))) + start
            candidate_blocks.append(eligible_block[self.available(eligible_block)])
        candidates = np.concatenate(candidate_blocks)
        if len(candidates) <= size:
            return candidates
        return rng.choice(candidates, size, replace=False)


class PoolRanDryWarning(UserWarning):
    """Warning that fewer clients than the cohort size were eligible and available."""
