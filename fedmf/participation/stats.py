"""What a ledger or a log shows of participation, without the clients: enough to account for a run, however long its log."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from fedmf.participation.ledger import Observed
from fedmf.participation.schema import Participation


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParticipationPattern:
    """Counts over all clients of a run.

    Attributes:
      cohort_sizes: clients of each recorded round, int64, shape (rounds,).
      clients: different clients.
      max_participations: of one client; 0 where nobody took part.
      separations: difference between two consecutive rounds of one client -> how often it occurs; none is 0.
      longest_span: largest difference between the last and the first round of one client.

    >>> pattern = ParticipationPattern.of_pairs(np.array([[0, 7], [1, 8], [2, 7], [3, 8], [6, 7]]), rounds=7)
    >>> dict(pattern.separations), pattern.max_participations, pattern.longest_span
    ({2: 2, 4: 1}, 3, 6)
    >>> pattern.keeps_to(Participation(rounds=8, schema="fixed_epoch", min_sep=2))
    True
    >>> pattern.keeps_to(Participation(rounds=8, schema="fixed_epoch", min_sep=2, max_participations=3))
    False
    """

    cohort_sizes: np.ndarray
    clients: int
    max_participations: int
    separations: Mapping[int, int]
    longest_span: int

    @staticmethod
    def of_pairs(pairs: np.ndarray, *, rounds: int) -> "ParticipationPattern":
        """From (round, client) pairs, ints, shape (participations, 2), each once.

        Args:
          pairs: all rounds below `rounds`.
          rounds: rounds recorded.
        """
        order = np.lexsort((pairs[:, 0], pairs[:, 1]))
        t, client = pairs[order, 0], pairs[order, 1]
        begins = np.flatnonzero(np.r_[True, client[1:] != client[:-1]][: len(t)])
        ends = np.r_[begins[1:], len(t)] - 1 if len(t) else begins
        within = np.ones(max(len(t) - 1, 0), bool)
        within[begins[1:] - 1] = False
        gaps, counts = np.unique(np.diff(t)[within], return_counts=True)
        return ParticipationPattern(
            cohort_sizes=np.bincount(pairs[:, 0], minlength=rounds).astype(np.int64),
            clients=len(begins),
            max_participations=int((ends - begins).max(initial=-1)) + 1,
            separations=dict(zip(gaps.tolist(), counts.tolist(), strict=True)),
            longest_span=int((t[ends] - t[begins]).max(initial=0)),
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
    def min_separation(self) -> int | None:
        """Smallest difference between two rounds of one client; None if no client came twice."""
        return min(self.separations, default=None)

    @property
    def empty_rounds(self) -> int:
        """Recorded rounds in which nobody took part."""
        return int((self.cohort_sizes == 0).sum())

    def observed(self, cohort_size: int) -> Observed:
        """The summary that a ledger gives; rounds are short that have fewer clients than cohort_size."""
        return Observed(
            rounds=self.rounds,
            participations=self.participations,
            clients=self.clients,
            max_participations=self.max_participations,
            min_separation=self.min_separation,
            short_rounds=int((self.cohort_sizes < cohort_size).sum()),
        )

    def keeps_to(self, participation: Participation) -> bool:
        """Whether `participation` allows the rounds of every client: no client need be looked at again to tell."""
        p = participation
        if self.rounds > p.rounds or self.max_participations > p.max_participations:
            return False
        if p.schema == "fixed_epoch":
            # Participation.allows: a window of max_participations rounds exactly min_sep apart, some of them missed.
            in_step = all(gap % p.min_sep == 0 for gap in self.separations)
            return in_step and self.longest_span // p.min_sep < p.max_participations
        return self.min_separation is None or self.min_separation >= p.min_sep

    def within(self, planned: Participation) -> Participation:
        """The least Participation of the planned kind, or else of schema min_sep, that allows the rounds of every client.

        Its rounds are those of the plan. Nobody must have taken part zero times only: there is nothing to account for then.
        """
        if self.min_separation is None:
            return Participation(rounds=planned.rounds, schema="single")
        if planned.schema == "fixed_epoch" and self.keeps_to(planned):
            # A client may have missed epochs in between, so that the span counts and not the number of participations.
            epochs = self.longest_span // planned.min_sep + 1
            return dataclasses.replace(planned, max_participations=epochs)
        return Participation(
            rounds=planned.rounds,
            schema="min_sep",
            min_sep=self.min_separation,
            max_participations=self.max_participations,
        )
