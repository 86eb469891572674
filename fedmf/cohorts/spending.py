"""What clients have spent of a participation budget, and who of them may still come: the memory of
the devices.
"""

import numpy as np

from fedmf.mechanisms.budget import Budget, block_sums


class Spending:
    """The rounds of every client and what they cost; see `fedmf.Budget` for the rule.

    A device needs its own rounds and a row of |X| for each. Here they are all in one array, whose
    rows are as long as the busiest client's: 12 bytes a client, and two for each round
    of the busiest.
    """

    def __init__(self, budget: Budget, population: int) -> None:
        n = budget.participation.rounds
        self._budget = budget
        self._none = n
        # Round n stands for none, and costs nothing.
        self._costs = np.concatenate([budget.costs, np.zeros((1, n))])
        self._rounds = np.full((population, 1), n, np.min_scalar_type(n))
        self._count = np.zeros(population, np.int32)
        self._spent = np.zeros(population)
        self._ahead: tuple[int, np.ndarray, np.ndarray] | None = None

    def _costs_ahead(self, t: int) -> tuple[np.ndarray, np.ndarray]:
        """Of round t and the first 0, 1, ... rounds that are kept for: what they cost together, and
        with each earlier round twice.
        """
        if self._ahead is None or self._ahead[0] != t:
            budget = self._budget
            ahead = np.arange(t, self._none, budget.pace)[: budget.kept_for]
            self._ahead = (
                t,
                block_sums(budget.costs, ahead),
                2.0 * np.cumsum(self._costs[:, ahead], axis=1),
            )
        return self._ahead[1:]

    def allows(self, t: int, clients: np.ndarray | slice) -> np.ndarray:
        """Who of the clients may take part in round t: bool (clients,)."""
        together, with_earlier = self._costs_ahead(t)
        kept = np.clip(self._budget.kept_for - 1 - self._count[clients], 0, len(together) - 1)
        total = self._spent[clients] + together[kept]
        for rounds in self._rounds[clients].T:
            total += with_earlier[rounds, kept]
        return self._budget.participation.affords(total)

    def record(self, t: int, clients: np.ndarray) -> None:
        """Counts round t for these different clients, int64 (clients,)."""
        self._spent[clients] += self._costs[t, t] + 2.0 * self._costs[self._rounds[clients], t].sum(
            axis=1
        )
        if self._count[clients].max(initial=0) == self._rounds.shape[1]:
            self._rounds = np.pad(self._rounds, ((0, 0), (0, 1)), constant_values=self._none)
        self._rounds[clients, self._count[clients]] = t
        self._count[clients] += 1
