"""Participation statistics of a recorded run, from which the guarantee that the run achieved
follows.
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
    """Statistics of how often, and how far apart, the clients of a run took part.

    Attributes:
      cohort_sizes: number of clients of each recorded round, int64, shape (rounds,).
      short_rounds: number of rounds with fewer clients than planned.
      histogram: number of participations -> number of such clients; increasing, without 0.
      separations: difference between two consecutive rounds of one client -> number of occurrences.
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
        """Computes the statistics of a run from the cohort of each round.

        Args:
          cohorts: clients of each round, ints, without duplicates.
          short_rounds: number of rounds with fewer clients than planned.
        """
        cohort_sizes = np.array([len(cohort) for cohort in cohorts], np.int64)
        client_blocks = [ClientRounds.of_cohorts(cohorts)[1]]
        return ParticipationStats.of_clients(
            client_blocks, cohort_sizes=cohort_sizes, short_rounds=short_rounds
        )

    @staticmethod
    def of_clients(
        blocks: Iterable[ClientRounds], *, cohort_sizes: np.ndarray, short_rounds: int = 0
    ) -> "ParticipationStats":
        """Computes the statistics of a run from the rounds of its clients, which are passed as an
        iterable of blocks of clients.

        Args:
          blocks: all rounds of some clients each, and of all clients together.
          cohort_sizes: number of clients of each round, int64 (rounds,).
          short_rounds: number of rounds with fewer clients than planned.
        """
        histogram: collections.Counter[int] = collections.Counter()
        separations: collections.Counter[int] = collections.Counter()
        longest_span = 0
        for clients in blocks:
            histogram.update(_count_values(clients.counts))
            separations.update(_count_values(clients.gaps[clients.is_repeat]))
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
        """The number of recorded rounds. If the last rounds are recorded, they count even if nobody
        took part.
        """
        return len(self.cohort_sizes)

    @property
    def participations(self) -> int:
        """The number of (client, round) pairs."""
        return int(self.cohort_sizes.sum())

    @property
    def clients(self) -> int:
        """The number of distinct clients that took part."""
        return sum(self.histogram.values())

    @property
    def max_participations(self) -> int:
        """The largest number of participations of one client, or 0 if nobody took part."""
        return max(self.histogram, default=0)

    @property
    def min_separation(self) -> int | None:
        """The smallest difference between two rounds of one client, or None if no client took part
        twice.
        """
        return min(self.separations, default=None)

    @property
    def empty_rounds(self) -> int:
        """The number of recorded rounds in which nobody took part."""
        return int((self.cohort_sizes == 0).sum())

    def summary(self) -> dict[str, Any]:
        """Returns the statistics that the result of a run contains, as plain JSON types."""
        return {
            "rounds": self.rounds,
            "participations": self.participations,
            "clients": self.clients,
            "max_participations": self.max_participations,
            "min_separation": self.min_separation,
            "short_rounds": self.short_rounds,
        }


def off_multiples(observed: ParticipationStats, num_partitions: int) -> list[str]:
    """Returns a list with one sentence if two consecutive rounds of any client are not a
    multiple of `num_partitions` apart; otherwise an empty list.

    Args:
      observed: statistics of a record.
      num_partitions: the number, of partitions of the clients, one for each round of an epoch.
    """
    num_off_multiples = sum(
        count for gap, count in observed.separations.items() if gap % num_partitions
    )
    if not num_off_multiples:
        return []
    return [
        f"{num_off_multiples} separations of two rounds of one client are no multiples of "
        f"{num_partitions}, so that those clients left their partition of the population"
    ]


def _count_values(values: np.ndarray) -> dict[int, int]:
    """Returns a mapping from each distinct value, in increasing order, to the number of its
    occurrences.
    """
    unique_values, counts = np.unique(values, return_counts=True)
    return dict(zip(unique_values.tolist(), counts.tolist(), strict=True))
