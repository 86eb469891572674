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
from fedmf.participation.schema import ROUNDS_HINT, Participation

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
    participation: Participation
    pace: int

    def __post_init__(self) -> None:
        check_mechanism(self.mechanism)
        if (
            not isinstance(self.participation, Participation)
            or self.participation.schema != "budget"
        ):
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
        budget = Participation(rounds=participation.rounds, schema="budget", budget=bound)
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
        n = self.participation.rounds
        if not Participation(rounds=n, schema="every_round").allows(taken):
            return False
        return bool(self.participation.affords(self.costs[np.ix_(taken, taken)].sum()))


def check_pays_for_each_round(budget: Participation, dearest: float) -> None:
    """Refuses a budget below the largest column norm of the encoder: a noise made for it would not
    hide one participation.
    """
    if not budget.affords(dearest**2):
        raise ValueError(
            f"budget={budget.budget} is less than the {dearest:.6g} that one round costs: nobody "
            "could take part in it; raise it"
        )


def most_rounds(mechanism: Mechanism, participation: Participation) -> int:
    """Rounds that no client takes part in more of; of a budget as many as it pays for if two cost
    no more than each alone.
    """
    if participation.schema != "budget":
        return participation.max_participations
    squares = np.sort(np.square(mechanism.encoder()).sum(axis=0))
    return max(1, int(np.count_nonzero(participation.affords(np.cumsum(squares)))))


def block_sums(costs: np.ndarray, rounds: np.ndarray) -> np.ndarray:
    """What the first of the rounds costs, the first two, and so on:
    float64 (len(rounds),), non-decreasing.
    """
    block = costs[np.ix_(rounds, rounds)]
    return np.cumsum(np.diagonal(block) + 2.0 * np.tril(block, -1).sum(axis=1))
