"""What a record shows of participation, without the clients: all that a guarantee after the fact
needs, however long the record.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedmf import fields
from fedmf.participation.clients import ClientRounds


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ParticipationStats(fields.ShortRepr):
    """Counts over all clients of a run.

    Attributes:
      cohort_sizes: clients of each recorded round, int64, shape (rounds,).
      short_rounds: rounds with fewer clients than they should have.
      histogram: number of participations -> clients with that number; increasing, without 0.
      separations: difference between two consecutive rounds of one client -> how often it occurs.
      longest_span: largest difference between the last and the first round of one client.

    >>> stats = ParticipationStats.of_cohorts(
    ...     [np.array(cohort) for cohort in ([7], [8], [7], [8], [], [], [7])]
    ... )
    >>> stats.separations, stats.histogram, stats.longest_span
    ({2: 2, 4: 1}, {2: 1, 3: 1}, 6)
    """

    cohort_sizes: np.ndarray
    short_rounds: int = 0
    histogram: Mapping[int, int]
    separations: Mapping[int, int]
    longest_span: int

    @staticmethod
    def of_cohorts(cohorts: Sequence[np.ndarray], *, short_rounds: int = 0) -> "ParticipationStats":
        """From the clients of every round, ints, each once in a round."""
        sizes = np.array([len(cohort) for cohort in cohorts], np.int64)
        blocks = [ClientRounds.of_cohorts(cohorts)[1]]
        return ParticipationStats.of_clients(blocks, cohort_sizes=sizes, short_rounds=short_rounds)

    @staticmethod
    def of_clients(
        blocks: Iterable[ClientRounds], *, cohort_sizes: np.ndarray, short_rounds: int = 0
    ) -> "ParticipationStats":
        """From the rounds of all clients, block by block, and the sizes of their
        cohorts, int64 (rounds,).
        """
        histogram: collections.Counter[int] = collections.Counter()
        separations: collections.Counter[int] = collections.Counter()
        longest_span = 0
        for clients in blocks:
            histogram.update(_counts(clients.counts))
            separations.update(_counts(clients.gaps[clients.later]))
            longest_span = max(longest_span, int(clients.spans.max(initial=0)))
        return ParticipationStats(
            cohort_sizes=cohort_sizes,
            short_rounds=short_rounds,
            histogram=dict(sorted(histogram.items())),
            separations=dict(sorted(separations.items())),
            longest_span=longest_span,
        )

    @property
    def rounds(self) -> int:
        """Rounds recorded, the last ones without a participation included where
        the record knows of them.
        """
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
    def empty_rounds(self) -> int:
        """Recorded rounds in which nobody took part."""
        return int((self.cohort_sizes == 0).sum())

    def summary(self) -> dict[str, Any]:
        """The numbers that a run's result holds, in plain JSON types."""
        names = "rounds participations clients max_participations min_separation short_rounds"
        return {name: getattr(self, name) for name in names.split()}


def off_multiples(observed: ParticipationStats, parts: int) -> list[str]:
    """Returns a sentence if two rounds of a client are no multiple of `parts` apart."""
    off = sum(count for gap, count in observed.separations.items() if gap % parts)
    if not off:
        return []
    return [
        f"{off} separations of two rounds of one client are no multiples of {parts}, so that those "
        "clients left their part of the population"
    ]


def _counts(values: np.ndarray) -> dict[int, int]:
    """Value -> how often it occurs, increasing."""
    different, counts = np.unique(values, return_counts=True)
    return dict(zip(different.tolist(), counts.tolist(), strict=True))
