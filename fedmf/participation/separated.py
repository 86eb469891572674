"""Participation schemas that limit how many rounds a client takes part in, and how close
together.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from fedmf.participation.base import Participation
from fedmf.participation.clients import ClientRounds
from fedmf.participation.history import EpochHistory, History, TimerHistory
from fedmf.participation.round_sets import RoundSets
from fedmf.participation.sensitivity import sensitivity_to_sets
from fedmf.participation.sharpening import Sensitivity
from fedmf.participation.stats import ParticipationStats, off_multiples


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Separated(Participation):
    """The base class of schemas whose only constraints are min_sep and max_participations.

    A timer and a count of participations decide whether a client is eligible.
    """

    has_shorter_form: ClassVar[bool] = True

    def rule_violations(self, observed: ParticipationStats, *, exceeds_limit: bool) -> list[str]:
        """Returns an empty list, since this schema has no rule besides `min_sep` and
        `max_participations`.
        """
        return []

    def allows_sorted(self, sorted_rounds: list[int]) -> bool:
        """Returns True, since the schema has no rule besides `min_sep` and `max_participations`."""
        return True

    def allows_each(
        self, clients: ClientRounds, spent_squared: np.ndarray | None = None
    ) -> np.ndarray:
        """Returns for each client whether its rounds are allowed, bool (clients,)."""
        return _are_within_limits(self, clients)

    def new_history(self, num_clients: int) -> History:
        """Returns the history before round 0, which holds the last round of each client and the
        number of its participations.
        """
        return TimerHistory(
            num_clients, rounds=self.rounds, max_participations=self.max_participations
        )

    def is_eligible(
        self,
        t: int,
        history: History,
        clients: np.ndarray | slice,
        *,
        rounds_early: np.ndarray | int = 0,
    ) -> np.ndarray:
        """Returns for each of the clients whether min_sep and max_participations let it take part
        in round t, as a bool array of shape (clients,).
        """
        assert isinstance(history, TimerHistory)
        round_after = history.round_after[clients]
        participation_counts = history.counts[clients]
        if t >= self.rounds:
            return np.zeros(len(participation_counts), bool)
        # The limits are converted to the dtype of the arrays, since numpy is ten times slower if
        # arrays are compared with Python ints.
        is_within_limit = participation_counts < participation_counts.dtype.type(
            self.max_participations
        )
        if isinstance(rounds_early, int):
            # `round_after` is the round after a client's last one, or 0 for a client that never
            # took part. So a client that never took part is eligible.
            last_allowed = min(max(t + 1 - self.min_sep + rounds_early, 0), self.rounds)
            has_timer_fired = round_after <= round_after.dtype.type(last_allowed)
            return has_timer_fired & is_within_limit
        elapsed_rounds = t + 1 - round_after.astype(np.int64)
        has_timer_fired = (round_after == 0) | (elapsed_rounds >= self.min_sep - rounds_early)
        return has_timer_fired & is_within_limit

    def patterns(self) -> Iterator[tuple[int, ...]]:
        """Yields every maximal set of allowed rounds of one client, as a sorted tuple."""
        yield from self._patterns_from(())

    def sensitivity(self, encoder_or_mechanism: Any) -> Sensitivity:
        """Returns the L2 sensitivity of an encoder to one client: exact, or the smallest upper
        bound known.
        """
        has_all_rounds = self.max_participations == self.rounds
        round_sets = RoundSets(
            self.rounds, self.min_sep, self.max_participations, are_windows=has_all_rounds
        )
        return sensitivity_to_sets(encoder_or_mechanism, round_sets)

    def _patterns_from(self, first_rounds: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yields the maximal sets of allowed rounds whose first rounds are `first_rounds`."""
        min_sep = self.min_sep
        is_full = len(first_rounds) == self.max_participations
        next_round = first_rounds[-1] + min_sep if first_rounds else 0
        if is_full or next_round >= self.rounds:
            # A set is maximal if it has max_participations rounds, or if no gap before one of its
            # rounds has room for another round.
            round_gaps = itertools.pairwise((-min_sep, *first_rounds))
            if is_full or all(later - earlier < 2 * min_sep for earlier, later in round_gaps):
                yield first_rounds
            return
        for t in range(next_round, self.rounds):
            yield from self._patterns_from((*first_rounds, t))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Single(_Separated):
    """The schema in which each client takes part in at most one round. It is that of
    Denisov et al. 2022, Sec. 3.

    Attributes:
      rounds, schema, min_sep, max_participations, budget: as of `Participation`.
    """

    separation_argument: ClassVar[str] = "rounds"
    assumption: ClassVar[str] = "Every client takes part in at most one of the {{ rounds }} rounds."

    schema: str = "single"

    def implied_limits(self) -> tuple[int, int]:
        """Returns a min_sep of all rounds, and one participation."""
        return self.rounds, 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedEpoch(Participation):
    """The schema in which the rounds of a client are exactly min_sep apart. It is that of the
    multi-epoch paper, Sec. 2.

    The rounds of a client lie in a window of max_participations epochs, of which it may miss some.

    Attributes:
      rounds, schema, min_sep, max_participations, budget: as of `Participation`.
    """

    settings: ClassVar[tuple[str, ...]] = ("min_sep", "max_participations")
    has_fixed_order: ClassVar[bool] = True
    has_shorter_form: ClassVar[bool] = True
    assumption: ClassVar[str] = (
        "Every client takes part in at most {{ max_participations }} of the {{ rounds }} rounds, "
        "and any two consecutive participations of a client are exactly {{ min_sep }} rounds "
        "apart, or a multiple of it where the client misses some."
    )
    separation_kind: ClassVar[str] = "multiples of"

    schema: str = "fixed_epoch"

    def rule_violations(self, observed: ParticipationStats, *, exceeds_limit: bool) -> list[str]:
        """Returns a sentence for records in which the rounds of a client are not whole epochs
        apart, and one for records in which they span too many epochs.
        """
        sentences = off_multiples(observed, self.min_sep)
        if sentences or exceeds_limit:
            return sentences
        return [
            f"the rounds of a client span {observed.longest_span + 1}, more than the "
            f"{self.max_participations} epochs of {self.min_sep} that were planned"
        ]

    def allows_sorted(self, sorted_rounds: list[int]) -> bool:
        """Returns whether the rounds are whole epochs apart and span at most max_participations
        epochs.
        """
        if not sorted_rounds:
            return True
        first_round = sorted_rounds[0]
        is_in_step = not any((t - first_round) % self.min_sep for t in sorted_rounds)
        num_epochs = (sorted_rounds[-1] - first_round) // self.min_sep
        return is_in_step and num_epochs < self.max_participations

    def allows_each(
        self, clients: ClientRounds, spent_squared: np.ndarray | None = None
    ) -> np.ndarray:
        """Returns for each client whether its rounds are allowed, bool (clients,)."""
        is_within_limits = _are_within_limits(self, clients)
        if not len(clients):
            return is_within_limits
        is_in_step = np.maximum.reduceat(clients.gaps % self.min_sep, clients.starts) == 0
        is_in_window = clients.spans // self.min_sep < self.max_participations
        return is_within_limits & is_in_step & is_in_window

    def new_history(self, num_clients: int) -> History:
        """Returns the history before round 0, which holds the last round of each client.

        Epochs are counted too if a client's window can end before the run does.
        """
        if self.max_participations * self.min_sep >= self.rounds:
            return TimerHistory(
                num_clients, rounds=self.rounds, max_participations=self.max_participations
            )
        return EpochHistory(
            num_clients,
            rounds=self.rounds,
            max_participations=self.max_participations,
            epoch=self.min_sep,
        )

    def is_eligible(
        self,
        t: int,
        history: History,
        clients: np.ndarray | slice,
        *,
        rounds_early: np.ndarray | int = 0,
    ) -> np.ndarray:
        """Returns for each of the clients whether it may take part in round t. This round must be
        whole epochs after its last one, and at most max_participations epochs are spanned from its
        first round on. The result is bool (clients,).
        """
        assert isinstance(history, TimerHistory)
        round_after = history.round_after[clients]
        if t >= self.rounds:
            return np.zeros(len(round_after), bool)
        # The Python ints are converted to the dtype of the array, since numpy is ten times slower
        # with Python ints.
        to_dtype = round_after.dtype.type
        is_in_step = round_after % to_dtype(self.min_sep) == to_dtype((t + 1) % self.min_sep)
        is_in_step &= round_after <= to_dtype(min(t, self.rounds))
        if isinstance(history, EpochHistory):
            num_epochs = (t + 1 - round_after.astype(np.int64)) // self.min_sep
            is_in_step &= history.counts[clients] + num_epochs <= self.max_participations
        has_never_taken_part = round_after == to_dtype(0)
        return is_in_step | has_never_taken_part

    def patterns(self) -> Iterator[tuple[int, ...]]:
        """Yields every maximal set of allowed rounds of one client, as a sorted tuple."""
        window_length = self.max_participations
        for start in range(self.min_sep):
            rounds_in_step = tuple(range(start, self.rounds, self.min_sep))
            for first in range(max(len(rounds_in_step) - window_length, 0) + 1):
                yield rounds_in_step[first : first + window_length]

    def sensitivity(self, encoder_or_mechanism: Any) -> Sensitivity:
        """Returns the L2 sensitivity of an encoder to one client: exact, or the smallest upper
        bound known.
        """
        round_sets = RoundSets(self.rounds, self.min_sep, self.max_participations, are_windows=True)
        return sensitivity_to_sets(encoder_or_mechanism, round_sets)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinSep(_Separated):
    """The schema in which a client takes part in at most max_participations rounds, any two of them
    at least min_sep apart. It is that of the banded paper, Def. 1.

    Attributes:
      rounds, schema, min_sep, max_participations, budget: as of `Participation`.
    """

    settings: ClassVar[tuple[str, ...]] = ("min_sep", "max_participations")
    has_movable_rounds: ClassVar[bool] = True

    schema: str = "min_sep"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EveryRound(_Separated):
    """The schema without a constraint, in which a client may take part in every round.

    Attributes:
      rounds, schema, min_sep, max_participations, budget: as of `Participation`.
    """

    assumption: ClassVar[str] = "A client may take part in every one of the {{ rounds }} rounds."

    schema: str = "every_round"


def _are_within_limits(participation: Participation, clients: ClientRounds) -> np.ndarray:
    """Returns for each client whether its rounds lie in the run and satisfy min_sep and
    max_participations.
    """
    if not len(clients):
        return np.zeros(0, bool)
    last_rounds = clients.rounds[clients.starts + clients.counts - 1]
    is_within_limits = clients.counts <= participation.max_participations
    is_within_limits &= clients.smallest_gaps(participation.rounds) >= participation.min_sep
    is_within_limits &= last_rounds < participation.rounds
    return is_within_limits
