"""The participation budget: what the rounds of one client cost together, and how a device keeps
enough of it for later.

Rounds s, t, ... of one client cost the sum of |X_st|, X = C^T C. A budget S allows those that cost
at most S^2. Contributions u_t of norm at most 1 then move C x by at most S, since the sum of X_st
<u_s, u_t> is at most that of |X_st| (banded paper, Prop. E.1).
"""

import dataclasses
import functools
from collections.abc import Iterable

import numpy as np

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism, check_mechanism
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.participation.history import History
from fedmf.participation.schema import ROUNDS_HINT, Budgeted, EveryRound, Participation

_BINS = 10


def costs(mechanism: Mechanism) -> np.ndarray:
    """|X|, X = C^T C, float64 (rounds, rounds): what pairs of rounds of one client cost, and each
    by itself.
    """
    checks.fits_in_memory("what pairs of rounds cost", (mechanism.rounds, mechanism.rounds))
    C = mechanism.encoder()
    return np.abs(C.T @ C)


def spending_histogram(budget: float, spent_squared: np.ndarray) -> dict[str, int]:
    """Share of the squared budget spent -> clients, in steps of a tenth."""
    tenths = np.minimum(np.floor(spent_squared / budget**2 * _BINS), _BINS - 1).astype(np.int64)
    counts = np.bincount(tenths, minlength=_BINS).tolist()
    return {f"{10 * i}-{10 * (i + 1)}%": count for i, count in enumerate(counts)}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Budget:
    """A participation budget with the encoder that rounds are counted with, and the pace at which
    devices spend it.

    A device that checks in takes part if what it took part in, this round, and a round every `pace`
    rounds from then on to the end cost no more than the budget. What is kept for those later rounds
    makes that a frequent device does not spend all at the start. Any pace keeps to the budget. With
    pace=rounds nothing is kept.

    Attributes:
      mechanism: whose encoder counts.
      participation: of schema budget, with as many rounds.
      pace: in 1..rounds.

    Raises:
      TypeError, ValueError: an attribute of the wrong kind, or out of range; a budget that some
        round alone would exceed.

    >>> import fedmf
    >>> twice = Participation(rounds=8, schema="min_sep", min_sep=4)
    >>> mechanism = fedmf.fit(fedmf.prefix_sum(8), twice, family="identity")
    >>> budget = Budget.of(mechanism, twice)
    >>> budget.participation.budget**2, budget.allows([6, 7]), budget.allows([0, 1, 7])
    (2.0000000000000004, True, False)
    """

    mechanism: Mechanism
    participation: Budgeted
    pace: int

    def __post_init__(self) -> None:
        check_mechanism(self.mechanism)
        if not isinstance(self.participation, Budgeted):
            raise TypeError(
                f"participation={self.participation!r} must be a fedmf.Participation of "
                'schema="budget"'
            )
        # Refuses other rounds, and entries whose squares lose digits
        sensitivity(self.mechanism, self.participation)
        hint = (
            "pass the rounds between two participations that a device keeps its budget for; the "
            "number of rounds to keep nothing"
        )
        n = self.participation.rounds
        pace = checks.integer("pace", self.pace, low=1, high=n, hint=hint)
        fields.set_fields(self, {"pace": pace})
        check_pays_for_each_round(self.participation, float(np.sqrt(np.diagonal(self.costs).max())))

    @staticmethod
    def of(mechanism: Mechanism, participation: Participation) -> "Budget":
        """What `participation` costs with this mechanism, at its pace:
        for the same noise and guarantee.

        Where the encoder is non-negative, Toeplitz and non-increasing, or has columns of equal norm
        and at most min_sep bands, a device takes part at least as often as under schema min_sep,
        whenever it checks in (docs/budget.md).

        Args:
          mechanism: whose encoder decides what rounds cost.
          participation: whose worst case the budget pays for.

        Raises:
          TypeError, ValueError: as `fedmf.sensitivity`.

        >>> import fedmf
        >>> Budget.of(
        ...     fedmf.mechanisms.IdentityMechanism(rounds=4),
        ...     Participation(rounds=4, schema="single")
        ... ).pace
        4
        """
        check_mechanism(mechanism)
        bound = sensitivity(mechanism, participation).value
        budget = Budgeted(rounds=participation.rounds, budget=bound)
        return Budget(mechanism=mechanism, participation=budget, pace=participation.min_sep)

    @functools.cached_property
    def costs(self) -> np.ndarray:
        """What pairs of rounds cost, float64 (rounds, rounds)."""
        return costs(self.mechanism)

    @functools.cached_property
    def kept_for(self) -> int:
        """The most rounds that are kept for: so many at this pace, from round 0 on,
        the budget pays for.
        """
        at_pace = np.arange(0, self.participation.rounds, self.pace)
        return int(np.count_nonzero(self.participation.affords(block_sums(self.costs, at_pace))))

    def allows(self, rounds_of_one_client: Iterable[int]) -> bool:
        """Whether the budget pays for exactly these different rounds, in any order.

        Args:
          rounds_of_one_client: from 0 on.

        Raises:
          TypeError: an entry is not an int.
        """
        name = "rounds_of_one_client"
        taken = checks.entries(name, rounds_of_one_client, hint=ROUNDS_HINT)
        if not EveryRound(rounds=self.participation.rounds).allows(taken):
            return False
        return bool(self.participation.affords(self.costs[np.ix_(taken, taken)].sum()))

    def new_history(self, num_clients: int) -> "Spending":
        """Returns what clients have spent before round 0: nothing."""
        return Spending(self, num_clients)

    def is_eligible(
        self,
        t: int,
        history: History,
        clients: np.ndarray | slice,
        *,
        rounds_early: np.ndarray | int = 0,
    ) -> np.ndarray:
        """Whether the budget pays for round t of clients, and for the rounds that they keep it for:
        bool (clients,).

        Args:
          t, history, clients: as of `Participation.is_eligible`.
          rounds_early: ignored, as devices without a timer come no earlier.
        """
        assert isinstance(history, Spending)
        allowed = history.allows(min(t, self.participation.rounds - 1), clients)
        return allowed & (t < self.participation.rounds)


class Spending(History):
    """The rounds of every client and what they cost; see `Budget` for the rule.

    A device needs its own rounds and a row of |X| for each. Here they are all in one array, whose
    rows are as long as the busiest client's: 12 bytes a client, and two for each round
    of the busiest.

    Args:
      budget: that each client keeps to.
      num_clients: clients 0 .. num_clients - 1; `grow` adds more.
    """

    def __init__(self, budget: Budget, num_clients: int) -> None:
        n = budget.participation.rounds
        self._budget = budget
        self._none = n
        # Round n stands for none, and costs nothing.
        self._costs = np.concatenate([budget.costs, np.zeros((1, n))])
        self._rounds = np.full((num_clients, 1), n, np.min_scalar_type(n))
        self._count = np.zeros(num_clients, np.int32)
        self._spent = np.zeros(num_clients)
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

    def grow(self, num_clients: int) -> None:
        """Makes room for at least so many clients, of whom the new ones spent nothing."""
        num_more = num_clients - len(self._count)
        if num_more > 0:
            # A client at a time would copy all of them each time.
            padding = (0, max(num_more, len(self._count)))
            self._rounds = np.pad(self._rounds, (padding, (0, 0)), constant_values=self._none)
            self._count = np.pad(self._count, padding)
            self._spent = np.pad(self._spent, padding)


def check_pays_for_each_round(budget: Budgeted, dearest: float) -> None:
    """Refuses a budget below the largest column norm of the encoder: a noise made for it would not
    hide one participation.
    """
    if not budget.affords(dearest**2):
        raise ValueError(
            f"budget={budget.budget} is less than the {dearest:.6g} that one round costs: nobody "
            "could take part in it; raise it"
        )


def most_rounds(mechanism: Mechanism, participation: Participation) -> int:
    """Returns a number of rounds that no client takes part in more of; of a budget as many as it
    pays for if two cost no more than each alone.
    """
    if not isinstance(participation, Budgeted):
        return participation.max_participations
    squares = np.sort(np.square(mechanism.encoder()).sum(axis=0))
    return max(1, int(np.count_nonzero(participation.affords(np.cumsum(squares)))))


def participation_rule(
    mechanism: Mechanism, participation: Participation
) -> Participation | Budget:
    """Returns what decides which clients are eligible: of a budget one that counts with the
    mechanism, and keeps nothing for later rounds.
    """
    if not isinstance(participation, Budgeted):
        return participation
    return Budget(mechanism=mechanism, participation=participation, pace=participation.rounds)


def block_sums(costs: np.ndarray, rounds: np.ndarray) -> np.ndarray:
    """What the first of the rounds costs, the first two, and so on:
    float64 (len(rounds),), non-decreasing.
    """
    block = costs[np.ix_(rounds, rounds)]
    return np.cumsum(np.diagonal(block) + 2.0 * np.tril(block, -1).sum(axis=1))
