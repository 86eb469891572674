"""Participation budgets, which limit the joint privacy cost of a client's rounds, and the part of a
budget that a device reserves for later rounds.

Rounds s, t, ... of one client together cost the sum of |X_st|, X = C^T C. A budget S allows sets of
rounds that cost at most S^2. Contributions u_t of norm at most 1 then move C x by at most S, since
the sum of X_st <u_s, u_t> is at most that of |X_st| (banded paper, Prop. E.1).
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism, check_mechanism
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.participation.budgeted import Budgeted
from fedmf.participation.history import History
from fedmf.participation.schema import ROUNDS_HINT, EveryRound, Participation

_NUM_BINS = 10


def pair_costs(mechanism: Mechanism) -> np.ndarray:
    """Returns the absolute values of the entries of X = C^T C, where C is the encoder, float64
    (rounds, rounds). Entry [s, t] is the cost of the pair of rounds s and t, and entry [t, t] the
    cost of round t alone.
    """
    pairs_shape = (mechanism.rounds, mechanism.rounds)
    hint = "plan fewer rounds, or schema=min_sep in place of a budget"
    checks.fits_in_memory("the costs of pairs of rounds", pairs_shape, hint=hint)
    encoder = mechanism.encoder()
    return np.abs(encoder.T @ encoder)


def spending_histogram(budget: float, spent_squared: np.ndarray) -> dict[str, int]:
    """Counts clients by the fraction of the squared budget that they have spent, in ten bins of
    10%.

    >>> spending_histogram(2.0, np.array([0.0, 4.0]))["90-100%"]
    1
    """
    bin_positions = np.floor(spent_squared / budget**2 * _NUM_BINS)
    client_bins = np.minimum(bin_positions, _NUM_BINS - 1).astype(np.int64)
    clients_by_bin = np.bincount(client_bins, minlength=_NUM_BINS).tolist()
    return {f"{10 * i}-{10 * (i + 1)}%": count for i, count in enumerate(clients_by_bin)}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Budget:
    """A participation budget, with the mechanism whose encoder prices rounds, and the pace at which
    devices spend the budget.

    A device that checks in takes part if its earlier rounds, this round, and a round every `pace`
    rounds from then on to the end together cost at most the budget. The reserve for those later
    rounds stops a frequent device from spending everything at the start. The budget is met at any
    pace. With pace=rounds there is no reserve.

    Attributes:
      mechanism: the mechanism whose encoder prices rounds.
      participation: a participation of schema "budget", with as many rounds.
      pace: number of rounds from one participation to the next in the reserve, in 1..rounds.

    Raises:
      TypeError, ValueError: an attribute is of the wrong kind or out of range, or some single round
        would exceed the budget.

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
        # `sensitivity` raises an error if mechanism and participation differ in their number of
        # rounds, or if squares of the encoder's entries would underflow or overflow.
        sensitivity(self.mechanism, self.participation)
        pace_hint = (
            "pass the rounds between two participations that a device keeps its budget for; the "
            "number of rounds to keep nothing"
        )
        n = self.participation.rounds
        pace = checks.integer("pace", self.pace, low=1, high=n, hint=pace_hint)
        fields.set_fields(self, {"pace": pace})
        max_norm = float(np.sqrt(np.diagonal(self.costs).max()))
        check_affords_each_round(self.participation, max_norm)

    @staticmethod
    def of(mechanism: Mechanism, participation: Participation) -> "Budget":
        """Returns the budget that equals the sensitivity of the mechanism under `participation`.
        Its pace is min_sep, and noise and guarantee stay the same.

        Where the encoder is non-negative, Toeplitz and non-increasing, or has columns of equal norm
        and at most min_sep bands, a device takes part at least as often as under schema min_sep,
        whenever it checks in.

        Proof, with b = min_sep and k the most participations. The reserve of a device that took
        part in round t is for t + b, t + 2 b, and so on. It pays for any later rounds that are
        at least b apart: with the first kind of encoder |X_st| falls with the distance and
        towards the end, and with the second kind it is 0 from a distance of b on. So a device
        with fewer than k participations can afford any round from t + b on. Suppose that its
        j-th participation is no later than that under schema min_sep. The (j + 1)-th under
        schema min_sep is at least b rounds after that, so that the device can afford that
        round, if it has not taken part before. This is about a device that takes part whenever
        it is eligible. A controller that samples a cohort from more devices than it needs
        chooses among them.

        Args:
          mechanism: the mechanism whose encoder prices rounds.
          participation: the participation whose worst case the budget covers.

        Raises:
          TypeError: mechanism is no mechanism, or participation is no `fedmf.Participation`.
          ValueError: their numbers of rounds differ, or no sensitivity is proven for them.

        >>> import fedmf
        >>> Budget.of(
        ...     fedmf.mechanisms.IdentityMechanism(rounds=4),
        ...     Participation(rounds=4, schema="single")
        ... ).pace
        4
        """
        check_mechanism(mechanism)
        sensitivity_bound = sensitivity(mechanism, participation).value
        budget = Budgeted(rounds=participation.rounds, budget=sensitivity_bound)
        return Budget(mechanism=mechanism, participation=budget, pace=participation.min_sep)

    @functools.cached_property
    def costs(self) -> np.ndarray:
        """The costs of pairs of rounds, float64 (rounds, rounds)."""
        return pair_costs(self.mechanism)

    @functools.cached_property
    def num_reserved_rounds(self) -> int:
        """The largest number of later rounds that a device reserves budget for. A client that
        starts in round 0 and keeps to the pace can afford this many.
        """
        paced_rounds = np.arange(0, self.participation.rounds, self.pace)
        cumulative_costs = block_sums(self.costs, paced_rounds)
        return int(np.count_nonzero(self.participation.affords(cumulative_costs)))

    def allows(self, rounds_of_one_client: Iterable[int]) -> bool:
        """Returns whether the budget affords exactly these distinct rounds, in any order.

        Args:
          rounds_of_one_client: round indices, from 0 on.

        Raises:
          TypeError: an entry is not an int.
        """
        argument_name = "rounds_of_one_client"
        client_rounds = checks.entries(argument_name, rounds_of_one_client, hint=ROUNDS_HINT)
        if not EveryRound(rounds=self.participation.rounds).allows(client_rounds):
            return False
        joint_cost = self.costs[np.ix_(client_rounds, client_rounds)].sum()
        return bool(self.participation.affords(joint_cost))

    def new_history(self, num_clients: int) -> "Spending":
        """Returns the history before round 0, in which no client has spent anything."""
        return Spending(self, num_clients)

    def is_eligible(
        self,
        t: int,
        history: History,
        clients: np.ndarray | slice,
        *,
        rounds_early: np.ndarray | int = 0,
    ) -> np.ndarray:
        """Returns for each of the clients whether the budget affords round t and the later rounds
        that the client keeps in reserve, bool (clients,).

        Args:
          t, history, clients: as in `Participation.is_eligible`.
          rounds_early: ignored, since budgets bind devices without a timer.
        """
        assert isinstance(history, Spending)
        affords_round = history.allows(min(t, self.participation.rounds - 1), clients)
        return affords_round & (t < self.participation.rounds)


class _ReserveCosts(NamedTuple):
    """The joint costs of a round and of the later rounds that are reserved after it. Set i has
    round t and the next i rounds of the reserve. joint[i] is the cost of set i alone.
    with_earlier[s, i] is what it costs in addition if the client took part in an earlier round s,
    that is, twice the costs of the pairs of s and a round of set i.
    """

    t: int
    joint: np.ndarray
    with_earlier: np.ndarray


class Spending(History):
    """The rounds of every client so far and their joint cost, from which `Budget` decides which
    clients are eligible.

    A device needs its own rounds and a row of |X| for each. Here they are in one array, whose rows
    are as long as those of the client with most rounds: 12 bytes a client, and two for each round
    of that client.

    Args:
      budget: the budget of every client.
      num_clients: number of clients, with ids from 0 on; `grow` adds more.
    """

    def __init__(self, budget: Budget, num_clients: int) -> None:
        n = budget.participation.rounds
        self._budget = budget
        # `_rounds` has a row for each client. Its unused entries hold n, the number of an
        # artificial round that costs nothing.
        self._empty_entry = n
        self._costs = np.concatenate([budget.costs, np.zeros((1, n))])
        self._rounds = np.full((num_clients, 1), n, np.min_scalar_type(n))
        self._count = np.zeros(num_clients, np.int32)
        self._spent = np.zeros(num_clients)
        self._cached_reserve: _ReserveCosts | None = None

    def _reserve_costs(self, t: int) -> _ReserveCosts:
        """Returns the costs of round t together with the later rounds for which budget is reserved.
        They are computed once for each t.
        """
        if self._cached_reserve is None or self._cached_reserve.t != t:
            participation_budget = self._budget
            paced_rounds = np.arange(t, self._empty_entry, participation_budget.pace)
            reserved_rounds = paced_rounds[: participation_budget.num_reserved_rounds]
            self._cached_reserve = _ReserveCosts(
                t=t,
                joint=block_sums(participation_budget.costs, reserved_rounds),
                with_earlier=2.0 * np.cumsum(self._costs[:, reserved_rounds], axis=1),
            )
        return self._cached_reserve

    def allows(self, t: int, clients: np.ndarray | slice) -> np.ndarray:
        """Returns for each of the clients whether the budget affords round t and the client's
        reserve, bool (clients,).
        """
        reserve_costs = self._reserve_costs(t)
        num_unused = self._budget.num_reserved_rounds - 1 - self._count[clients]
        num_reserved = np.clip(num_unused, 0, len(reserve_costs.joint) - 1)
        total_costs = self._spent[clients] + reserve_costs.joint[num_reserved]
        for earlier_rounds in self._rounds[clients].T:
            total_costs += reserve_costs.with_earlier[earlier_rounds, num_reserved]
        return self._budget.participation.affords(total_costs)

    def record(self, t: int, clients: np.ndarray) -> None:
        """Records that these distinct clients, int64 (clients,), took part in round t."""
        costs_with_earlier = self._costs[self._rounds[clients], t].sum(axis=1)
        self._spent[clients] += self._costs[t, t] + 2.0 * costs_with_earlier
        if self._count[clients].max(initial=0) == self._rounds.shape[1]:
            column_padding = ((0, 0), (0, 1))
            self._rounds = np.pad(self._rounds, column_padding, constant_values=self._empty_entry)
        self._rounds[clients, self._count[clients]] = t
        self._count[clients] += 1

    def grow(self, num_clients: int) -> None:
        """Adds clients that have spent nothing, until there are at least `num_clients` clients."""
        num_new = num_clients - len(self._count)
        if num_new > 0:
            # The array at least doubles in length each time it grows. If it grew by one client at a
            # time, it would be copied for each client.
            client_padding = (0, max(num_new, len(self._count)))
            self._rounds = np.pad(
                self._rounds, (client_padding, (0, 0)), constant_values=self._empty_entry
            )
            self._count = np.pad(self._count, client_padding)
            self._spent = np.pad(self._spent, client_padding)


def check_affords_each_round(budget: Budgeted, max_norm: float) -> None:
    """Raises ValueError if the budget is below `max_norm`, the largest column norm of the encoder.
    Noise for a smaller budget would not hide even a single participation.
    """
    if not budget.affords(max_norm**2):
        raise ValueError(
            f"budget={budget.budget} is less than the {max_norm:.6g} that one round costs: nobody "
            "could take part in it; raise it"
        )


def max_rounds_per_client(mechanism: Mechanism, participation: Participation) -> int:
    """Returns the largest number of rounds that any client can take part in. For a budget it is an
    upper bound, the number that a client could afford if pairs of rounds cost nothing extra.
    """
    if not isinstance(participation, Budgeted):
        return participation.max_participations
    round_costs = np.sort(np.square(mechanism.encoder()).sum(axis=0))
    return max(1, int(np.count_nonzero(participation.affords(np.cumsum(round_costs)))))


def participation_rule(
    mechanism: Mechanism, participation: Participation
) -> Participation | Budget:
    """Returns the participation rule that decides which clients are eligible in a round. It is the
    participation itself, or for schema "budget" a `Budget` without reserve whose prices come from
    the mechanism.
    """
    if not isinstance(participation, Budgeted):
        return participation
    return Budget(mechanism=mechanism, participation=participation, pace=participation.rounds)


def block_sums(costs: np.ndarray, rounds: np.ndarray) -> np.ndarray:
    """Returns the joint cost of each prefix of `rounds`, float64 (len(rounds),), where entry i is
    for the first i + 1 rounds. The costs never decrease.
    """
    block_costs = costs[np.ix_(rounds, rounds)]
    return np.cumsum(np.diagonal(block_costs) + 2.0 * np.tril(block_costs, -1).sum(axis=1))
