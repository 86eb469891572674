"""What a record shows of participation, without the clients: all that a guarantee after the fact needs, however long the record."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedmf.participation.schema import Participation


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ParticipationStats:
    """Counts over all clients of a run.

    Attributes:
      cohort_sizes: clients of each recorded round, int64, shape (rounds,).
      short_rounds: rounds with fewer clients than they should have.
      histogram: number of participations -> clients with that number; increasing, without 0.
      separations: difference between two consecutive rounds of one client -> how often it occurs.
      longest_span: largest difference between the last and the first round of one client.
      spent_squared: what each client has spent of a participation budget, the sum of |X_st| over its rounds, float64 (clients,); None where
        nobody counted.

    >>> stats = ParticipationStats.of_cohorts([np.array(cohort) for cohort in ([7], [8], [7], [8], [], [], [7])])
    >>> stats.separations, stats.histogram, stats.longest_span
    ({2: 2, 4: 1}, {2: 1, 3: 1}, 6)
    >>> stats.keeps_to(Participation(rounds=8, schema="fixed_epoch", min_sep=2))
    True
    >>> stats.keeps_to(Participation(rounds=8, schema="fixed_epoch", min_sep=2, max_participations=3))
    False
    """

    cohort_sizes: np.ndarray
    short_rounds: int = 0
    histogram: Mapping[int, int]
    separations: Mapping[int, int]
    longest_span: int
    spent_squared: np.ndarray | None = None

    @staticmethod
    def of_cohorts(cohorts: Sequence[np.ndarray], *, short_rounds: int = 0) -> "ParticipationStats":
        """From the clients of every round, ints, each once in a round."""
        sizes = np.array([len(cohort) for cohort in cohorts], np.int64)
        client = np.concatenate([np.zeros(0, np.int64), *cohorts])
        if client.max(initial=0) < 2**32:
            client = client.astype(np.uint32)  # half the memory of what follows
        # Stable: the rounds of a client stay in order.
        order = np.argsort(client, kind="stable")
        t, client = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)[order], client[order]
        del order
        same = client[1:] == client[:-1]
        first = np.flatnonzero(np.r_[True, ~same][: len(t)])
        times = np.diff(np.r_[first, len(t)])
        return ParticipationStats(
            cohort_sizes=sizes,
            short_rounds=short_rounds,
            histogram=_counts(times),
            separations=_counts(np.diff(t)[same]),
            longest_span=int((t[first + times - 1] - t[first]).max(initial=0)),
        )

    @property
    def rounds(self) -> int:
        """Rounds recorded, the last ones without a participation included where the record knows of them."""
        return len(self.cohort_sizes)

    @property
    def participations(self) -> int:
        """(client, round) pairs."""
        return int(self.cohort_sizes.sum())

    @property
    def clients(self) -> int:
        """Different clients."""
        return sum(self.histogram.values())

    @property
    def max_participations(self) -> int:
        """Largest number of participations of one client; 0 where nobody took part."""
        return max(self.histogram, default=0)

    @property
    def min_separation(self) -> int | None:
        """Smallest difference between two rounds of one client; None if no client came twice."""
        return min(self.separations, default=None)

    @property
    def most_spent(self) -> float:
        """Square root of the largest of `spent_squared`; 0 where nobody took part.

        Raises:
          ValueError: nobody counted it.
        """
        if self.spent_squared is None:
            raise ValueError(
                "what clients spent of their budget does not follow from counts: audit a ParticipationLedger, which has their rounds"
            )
        return float(np.sqrt(self.spent_squared.max(initial=0.0)))

    @property
    def empty_rounds(self) -> int:
        """Recorded rounds in which nobody took part."""
        return int((self.cohort_sizes == 0).sum())

    def summary(self) -> dict[str, Any]:
        """The numbers that a run's result holds, in plain JSON types."""
        names = "rounds participations clients max_participations min_separation short_rounds"
        return {name: getattr(self, name) for name in names.split()}

    def keeps_to(self, participation: Participation) -> bool:
        """Whether `participation` allows the rounds of every client."""
        p = participation
        if p.schema == "budget":
            return self.rounds <= p.rounds and bool(p.affords(self.most_spent**2))
        if self.rounds > p.rounds or self.max_participations > p.max_participations:
            return False
        if p.schema == "fixed_epoch":
            # Participation.allows: a window of max_participations rounds exactly min_sep apart, some of them missed.
            in_step = all(gap % p.min_sep == 0 for gap in self.separations)
            return in_step and self.longest_span // p.min_sep < p.max_participations
        return self.min_separation is None or self.min_separation >= p.min_sep

    def within(self, planned: Participation) -> Participation:
        """The least Participation of the planned kind, or else of schema min_sep, that allows the rounds of every client.

        Its rounds are those of the plan. Somebody must have taken part.
        """
        if planned.schema == "budget":
            return dataclasses.replace(planned, budget=self.most_spent)
        if self.min_separation is None:
            return Participation(rounds=planned.rounds, schema="single")
        if planned.schema == "fixed_epoch" and self.keeps_to(planned):
            # A client may have missed epochs in between: the span counts, not the number of participations.
            epochs = self.longest_span // planned.min_sep + 1
            return dataclasses.replace(planned, max_participations=epochs)
        return Participation(
            rounds=planned.rounds,
            schema="min_sep",
            min_sep=self.min_separation,
            max_participations=self.max_participations,
        )


def _counts(values: np.ndarray) -> dict[int, int]:
    """Value -> how often it occurs, increasing."""
    different, counts = np.unique(values, return_counts=True)
    return dict(zip(different.tolist(), counts.tolist(), strict=True))
