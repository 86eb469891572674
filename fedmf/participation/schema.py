"""The participation schemas: how often, and how far apart, one client may take part."""

import dataclasses
import itertools
import reprlib
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import numpy as np

from fedmf import checks, fields
from fedmf.participation.base import ROUNDS_HINT, SCHEMAS, Participation
from fedmf.participation.clients import ClientRounds
from fedmf.participation.history import EpochHistory, History, TimerHistory
from fedmf.participation.round_sets import RoundSets
from fedmf.participation.sensitivity import sensitivity_to_sets
from fedmf.participation.sharpening import Sensitivity
from fedmf.participation.stats import ParticipationStats, off_multiples

__all__ = [
    "BUDGET_ROUNDING",
    "ROUNDS_HINT",
    "SCHEMAS",
    "Budgeted",
    "EveryRound",
    "FixedEpoch",
    "MinSep",
    "Participation",
    "Single",
]

# What a client spends is a sum of products, rounded; its budget is that much larger, and so is the
# sensitivity it stands for.
BUDGET_ROUNDING = 1e-12
_LARGEST_BUDGET = 1e150  # whose square float64 holds


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Separated(Participation):
    """Any rounds at least min_sep apart, at most max_participations of them: a timer and a count
    decide who is eligible.
    """

    has_shorter_form: ClassVar[bool] = True

    def other_violations(
        self, observed: ParticipationStats, *, has_broken_limit: bool
    ) -> list[str]:
        """Returns none: timer and count are all."""
        return []

    def allows_sorted(self, taken: list[int]) -> bool:
        """Returns True: the limits are all."""
        return True

    def allows_each(
        self, clients: ClientRounds, spent_squared: np.ndarray | None = None
    ) -> np.ndarray:
        """Whether the rounds of each client are allowed, bool (clients,)."""
        return _each_keeps_limits(self, clients)

    def new_history(self, num_clients: int) -> History:
        """Returns the timers and counts of clients before round 0."""
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
        """Whether the timers and counts of clients allow round t: bool (clients,)."""
        assert isinstance(history, TimerHistory)
        round_after = history.round_after[clients]
        counts = history.counts[clients]
        if t >= self.rounds:
            return np.zeros(len(counts), bool)
        # Limits in the arrays' own types: NumPy takes ten times as long for Python's ints.
        within_limit = counts < counts.dtype.type(self.max_participations)
        if isinstance(rounds_early, int):
            # Never, which is 0, or min_sep rounds ago.
            latest = min(max(t + 1 - self.min_sep + rounds_early, 0), self.rounds)
            return (round_after <= round_after.dtype.type(latest)) & within_limit
        elapsed = t + 1 - round_after.astype(np.int64)
        return ((round_after == 0) | (elapsed >= self.min_sep - rounds_early)) & within_limit

    def patterns(self) -> Iterator[tuple[int, ...]]:
        """Yields every maximal set of rounds of one client, as a sorted tuple."""
        yield from self._patterns_from(())

    def sensitivity(self, strategy: Any) -> Sensitivity:
        """Returns the L2 sensitivity of an encoder, exact or the smallest upper bound known."""
        has_all_rounds = self.max_participations == self.rounds
        sets = RoundSets(
            self.rounds, self.min_sep, self.max_participations, are_windows=has_all_rounds
        )
        return sensitivity_to_sets(strategy, sets)

    def _patterns_from(self, taken: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yields the maximal sets that begin with the rounds `taken`."""
        min_sep = self.min_sep
        is_full = len(taken) == self.max_participations
        earliest = taken[-1] + min_sep if taken else 0
        if is_full or earliest >= self.rounds:
            # Maximal: full, or no gap (before the first round, between two) has room for one more.
            gaps = itertools.pairwise((-min_sep, *taken))
            if is_full or all(later - earlier < 2 * min_sep for earlier, later in gaps):
                yield taken
            return
        for t in range(earliest, self.rounds):
            yield from self._patterns_from((*taken, t))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Single(_Separated):
    """At most one round of each client (Denisov et al. 2022, Sec. 3).

    Attributes:
      rounds, schema, min_sep, max_participations, budget: as of `Participation`.
    """

    separation_argument: ClassVar[str] = "rounds"
    assumption: ClassVar[str] = "Every client takes part in at most one of the {{ rounds }} rounds."

    schema: str = "single"

    def implied_limits(self) -> tuple[int, int]:
        """Returns as many rounds as there are, and one participation."""
        return self.rounds, 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedEpoch(Participation):
    """Rounds exactly min_sep apart, in a window of max_participations of them (multi-epoch paper,
    Sec. 2); a client may miss some.

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

    def other_violations(
        self, observed: ParticipationStats, *, has_broken_limit: bool
    ) -> list[str]:
        """Returns a sentence for separations between epochs, or for too many epochs."""
        broken = off_multiples(observed, self.min_sep)
        if broken or has_broken_limit:
            return broken
        return [
            f"the rounds of a client span {observed.longest_span + 1}, more than the "
            f"{self.max_participations} epochs of {self.min_sep} that were planned"
        ]

    def allows_sorted(self, taken: list[int]) -> bool:
        """Whether the rounds are whole epochs apart, in one window."""
        is_in_step = not any((t - taken[0]) % self.min_sep for t in taken)
        return is_in_step and (
            not taken or (taken[-1] - taken[0]) // self.min_sep < self.max_participations
        )

    def allows_each(
        self, clients: ClientRounds, spent_squared: np.ndarray | None = None
    ) -> np.ndarray:
        """Whether the rounds of each client are allowed, bool (clients,)."""
        within_limits = _each_keeps_limits(self, clients)
        if not len(clients):
            return within_limits
        is_in_step = np.maximum.reduceat(clients.gaps % self.min_sep, clients.starts) == 0
        is_in_window = clients.spans // self.min_sep < self.max_participations
        return within_limits & is_in_step & is_in_window

    def new_history(self, num_clients: int) -> History:
        """Returns the last rounds of clients before round 0, and their epochs where a window can
        end before the run does.
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
        """Whether round t is a whole number of epochs after the last rounds of clients, within
        their windows: bool (clients,).
        """
        assert isinstance(history, TimerHistory)
        round_after = history.round_after[clients]
        if t >= self.rounds:
            return np.zeros(len(round_after), bool)
        # In the array's own type: NumPy takes ten times as long for Python's ints.
        number = round_after.dtype.type
        is_next = round_after % number(self.min_sep) == number((t + 1) % self.min_sep)
        is_next &= round_after <= number(min(t, self.rounds))
        if isinstance(history, EpochHistory):
            num_epochs = (t + 1 - round_after.astype(np.int64)) // self.min_sep
            is_next &= history.counts[clients] + num_epochs <= self.max_participations
        return is_next | (round_after == number(0))

    def patterns(self) -> Iterator[tuple[int, ...]]:
        """Yields every maximal set of rounds of one client, as a sorted tuple."""
        most = self.max_participations
        for start in range(self.min_sep):
            epoch = tuple(range(start, self.rounds, self.min_sep))
            for first in range(max(len(epoch) - most, 0) + 1):
                yield epoch[first : first + most]

    def sensitivity(self, strategy: Any) -> Sensitivity:
        """Returns the L2 sensitivity of an encoder, exact or the smallest upper bound known."""
        sets = RoundSets(self.rounds, self.min_sep, self.max_participations, are_windows=True)
        return sensitivity_to_sets(strategy, sets)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinSep(_Separated):
    """Rounds at least min_sep apart, at most max_participations of them (banded paper, Def. 1).

    Attributes:
      rounds, schema, min_sep, max_participations, budget: as of `Participation`.
    """

    settings: ClassVar[tuple[str, ...]] = ("min_sep", "max_participations")
    has_movable_rounds: ClassVar[bool] = True

    schema: str = "min_sep"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EveryRound(_Separated):
    """Any rounds at all.

    Attributes:
      rounds, schema, min_sep, max_participations, budget: as of `Participation`.
    """

    assumption: ClassVar[str] = "A client may take part in every one of the {{ rounds }} rounds."

    schema: str = "every_round"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budgeted(Participation):
    """Any rounds s, t, ... with a sum of |X_st| of at most budget^2, X = C^T C; a `fedmf.Budget`
    has the encoder C, and says which rounds these are.

    Attributes:
      rounds, schema, min_sep, max_participations, budget: as of `Participation`.
    """

    settings: ClassVar[tuple[str, ...]] = ("budget",)
    needs_encoder: ClassVar[bool] = True
    assumption: ClassVar[str] = (
        "Every client keeps to a participation budget S = {{ budget | up(6) }}: over the rounds s "
        "and t in which it takes part, out of {{ rounds }}, the sum of |X_st| is at most S^2, "
        "where X = C^T C is the Gram matrix of the encoder. When devices check in and who is "
        "drawn does not depend on the data of clients."
    )

    schema: str = "budget"

    def _check_budget(self) -> None:
        if self.budget is None:
            raise ValueError(
                f"budget=None does not suit schema={self.schema!r}: "
                "let fedmf.Budget.of(mechanism, participation) compute it"
            )
        hint = "pass a sensitivity"
        budget = checks.positive("budget", self.budget, hint, below=_LARGEST_BUDGET)
        fields.set_fields(self, {"budget": budget})

    @classmethod
    def for_fit(
        cls, *, rounds: int, min_sep: int | None, max_participations: int | None
    ) -> Participation:
        """Returns the min_sep participation that the budget pays for."""
        return Participation(
            rounds=rounds,
            schema=MinSep.schema,
            min_sep=min_sep,
            max_participations=max_participations,
        )

    def violations(self, observed: ParticipationStats, most_spent: float) -> list[str]:
        """Returns a sentence that compares the dearest client with the budget."""
        return [
            f"a client's rounds cost a sensitivity of {most_spent:.6g} where a budget of "
            f"{self.budget:.6g} was planned"
        ]

    def limit_in_words(self) -> str:
        """Returns the budget that a picture's title names."""
        return f"participation budget {self.budget:.4g}"

    def planned_in_words(self) -> tuple[str, str]:
        """Returns the budget, beside the separation and the participations of a record."""
        budget = f"budget {self.budget:.4g}"
        return budget, budget

    def affords(self, spent_squared: Any) -> Any:
        """Returns whether the budget pays for rounds whose |X_st| have this sum."""
        assert self.budget is not None
        is_number = isinstance(spent_squared, int | float | np.number | np.ndarray)
        if not is_number or np.asarray(spent_squared).dtype.kind not in "iuf":
            raise TypeError(
                f"spent_squared={reprlib.repr(spent_squared)} is no number and no array of them: "
                "pass sums of |X_st|"
            )
        return spent_squared <= self.budget**2 * (1 + 2 * BUDGET_ROUNDING)

    def allows(self, rounds_of_one_client: Iterable[int]) -> bool:
        """Raises ValueError: which rounds are allowed depends on the encoder."""
        raise self._without_encoder()

    def allows_sorted(self, taken: list[int]) -> bool:
        """Raises ValueError: which rounds are allowed depends on the encoder."""
        raise self._without_encoder()

    def allows_each(
        self, clients: ClientRounds, spent_squared: np.ndarray | None = None
    ) -> np.ndarray:
        """Whether the budget pays for what the rounds of each client cost: bool (clients,)."""
        if spent_squared is not None:
            return np.asarray(self.affords(spent_squared))
        raise ValueError(
            f'the rounds that schema="{self.schema}" allows depend on the encoder: let '
            "fedmf.audit_ledger name the clients, which has one"
        )

    def new_history(self, num_clients: int) -> History:
        """Raises ValueError: who is eligible depends on the encoder."""
        raise self._without_encoder()

    def is_eligible(
        self,
        t: int,
        history: History,
        clients: np.ndarray | slice,
        *,
        rounds_early: np.ndarray | int = 0,
    ) -> np.ndarray:
        """Raises ValueError: who is eligible depends on the encoder."""
        raise self._without_encoder()

    def patterns(self) -> Iterator[tuple[int, ...]]:
        """Raises ValueError: which rounds are allowed depends on the encoder."""
        raise self._without_encoder()

    def sensitivity(self, strategy: Any) -> Sensitivity:
        """Returns the budget itself, for any C, or less: sum over s, t of X_st <u_s, u_t> is at
        most that of |X_st|, which the schema bounds.
        """
        assert self.budget is not None
        most = EveryRound(rounds=self.rounds).sensitivity(strategy)
        value = self.budget * (1 + BUDGET_ROUNDING)
        if most.value <= value:
            return most
        method = "participation budget (banded paper, Prop. E.1): upper bound"
        return Sensitivity(value=value, exact=False, method=method)

    def _without_encoder(self) -> ValueError:
        return ValueError(
            f'the rounds that schema="{self.schema}" allows depend on the encoder: ask a '
            "fedmf.Budget, which has one"
        )


def _each_keeps_limits(participation: Participation, clients: ClientRounds) -> np.ndarray:
    """Whether the rounds of each client keep to min_sep and max_participations: bool (clients,)."""
    if not len(clients):
        return np.zeros(0, bool)
    last_rounds = clients.rounds[clients.starts + clients.counts - 1]
    within_limits = clients.counts <= participation.max_participations
    within_limits &= clients.smallest_gaps(participation.rounds) >= participation.min_sep
    return within_limits & (last_rounds < participation.rounds)
