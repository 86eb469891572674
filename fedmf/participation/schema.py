"""Participation: how often, and how far apart, one client may take part."""

import dataclasses
import functools
import itertools
import reprlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmf import checks, fields

SCHEMAS = ("single", "fixed_epoch", "min_sep", "every_round", "budget")
# What a client spends is a sum of products, rounded; its budget is that much larger, and so is the
# sensitivity it stands for.
BUDGET_ROUNDING = 1e-12
ROUNDS_HINT = "pass 0-based round indices"
_LARGEST_BUDGET = 1e150  # whose square float64 holds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Participation(fields.Checked):
    """What one client may do during a run of `rounds` rounds.

    - "single": at most one round (Denisov et al. 2022, Sec. 3).
    - "fixed_epoch": at most `max_participations` rounds out of a window of that many rounds exactly
      `min_sep` apart. This is the (k, b)-participation of the multi-epoch paper (Choquette-Choo et
      al. 2022, Sec. 2); a client may miss an epoch, since a missed round is a contribution of zero,
      which the sensitivity covers.
    - "min_sep": at most `max_participations` rounds, any two at least `min_sep` apart: the
      b-min-sep-participation of the banded paper, Def. 1 (Choquette-Choo et al. 2023, Sec. 3).
    - "every_round": any rounds at all.
    - "budget": any rounds s, t, ... with a sum of |X_st| of at most `budget`^2, where X = C^T C is
      the Gram matrix of the encoder that the client's rounds are counted with (docs/budget.md).
      `fedmf.Budget` makes one, and says which rounds it pays for.

    After construction `min_sep` and `max_participations` are ints for every schema (single: rounds
    and 1; every_round and budget: 1 and rounds), and `max_participations` defaults to ceil(rounds /
    min_sep), the most that fit.

    Attributes:
      rounds: n, a positive int.
      schema: one of those above.
      min_sep: b, in 1..rounds; rounds i and j of one client satisfy abs(i - j) >= b.
      max_participations: k, in 1..ceil(rounds / min_sep).
      budget: S, positive, of schema budget; None for every other. An encoder twice as large needs
        one twice as large.

    Raises:
      TypeError: an argument of the wrong kind.
      ValueError: an argument out of range, or one that contradicts the schema.

    >>> Participation(rounds=2052, schema="min_sep", min_sep=342).max_participations
    6
    """

    rounds: int = fields.checked(checks.rounds)
    schema: str = fields.checked(functools.partial(checks.one_of, choices=SCHEMAS))
    # Given as None, both become ints in __post_init__; readers only ever see ints, which __init__'s
    # signature cannot say.
    min_sep: int = None  # type: ignore[assignment]
    max_participations: int = None  # type: ignore[assignment]
    budget: float | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            rounds: int,
            schema: str,
            min_sep: int | None = None,
            max_participations: int | None = None,
            budget: float | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        super().__post_init__()
        rounds, schema = self.rounds, self.schema
        self._check_budget()
        hint = f"pass a number in 1..{rounds}"
        if schema in ("single", "every_round", "budget"):
            min_sep, most = (rounds, 1) if schema == "single" else (1, rounds)
            for name, implied in (("min_sep", min_sep), ("max_participations", most)):
                value = getattr(self, name)
                if value is not None and (isinstance(value, bool) or value != implied):
                    raise ValueError(
                        f"{name}={value!r} contradicts schema={schema!r}, which means "
                        f"{name}={implied} with rounds={rounds}: "
                        'leave it out, or choose schema="min_sep"'
                    )
        elif self.min_sep is None:
            raise ValueError(
                f"`min_sep` is required with schema={schema!r}: {hint}; clients in full cohorts "
                "allow at most the population divided by the clients a round"
            )
        else:
            min_sep = checks.integer("min_sep", self.min_sep, low=1, high=rounds, hint=hint)
            most = -(-rounds // min_sep)
            if self.max_participations is not None:
                hint = (
                    f"with rounds={rounds} and min_sep={min_sep} one client fits "
                    f"in at most {most} times"
                )
                most = checks.integer(
                    "max_participations", self.max_participations, low=1, high=most, hint=hint
                )
        fields.set_fields(self, {"min_sep": min_sep, "max_participations": most})

    def _check_budget(self) -> None:
        if (self.budget is not None) != (self.schema == "budget"):
            what = (
                "leave it out"
                if self.budget is not None
                else "let fedmf.Budget.of(mechanism, participation) compute it"
            )
            raise ValueError(f"budget={self.budget!r} does not suit schema={self.schema!r}: {what}")
        if self.budget is not None:
            budget = checks.positive(
                "budget", self.budget, "pass a sensitivity", below=_LARGEST_BUDGET
            )
            fields.set_fields(self, {"budget": budget})

    def __repr__(self) -> str:
        limits = ", ".join(f"{name}={value!r}" for name, value in self.limits().items())
        return f"Participation({limits})"

    def limits(self) -> dict[str, Any]:
        """The fields in plain JSON types, `budget` only where there is one."""
        fields = dataclasses.asdict(self)
        return (
            fields
            if self.schema == "budget"
            else {name: fields[name] for name in fields if name != "budget"}
        )

    def affords(self, spent_squared: Any) -> Any:
        """Returns whether the budget pays for rounds whose |X_st| have this sum.

        Args:
          spent_squared: the sum, a number or an array of them.

        Raises:
          TypeError: no numbers.
          ValueError: of another schema, which has no budget.
        """
        if self.budget is None:
            raise ValueError(f"schema={self.schema!r} has no budget: ask `allows`")
        is_number = isinstance(spent_squared, int | float | np.number | np.ndarray)
        if not is_number or np.asarray(spent_squared).dtype.kind not in "iuf":
            raise TypeError(
                f"spent_squared={reprlib.repr(spent_squared)} is no number and no array of them: "
                "pass sums of |X_st|"
            )
        return spent_squared <= self.budget**2 * (1 + 2 * BUDGET_ROUNDING)

    def _refuse_budget(self) -> None:
        if self.schema == "budget":
            raise ValueError(
                'the rounds that schema="budget" allows depend on the encoder: ask a fedmf.Budget, '
                "which has one"
            )

    def allows(self, rounds_of_one_client: Iterable[int]) -> bool:
        """Whether one client may take part in exactly these rounds, never twice in one.

        Args:
          rounds_of_one_client: from 0 on, in any order.

        Raises:
          TypeError: an entry is not an int.
          ValueError: of schema budget, where it depends on the encoder.

        >>> participation = Participation(rounds=6, schema="min_sep", min_sep=3)
        >>> participation.allows([0, 4]), participation.allows([0, 2]), participation.allows([0, 6])
        (True, False, False)
        """
        self._refuse_budget()
        name = "rounds_of_one_client"
        taken = sorted(
            checks.integer(name, t, low=-(2**63), hint=ROUNDS_HINT)
            for t in checks.entries(name, rounds_of_one_client, hint=ROUNDS_HINT)
        )
        if not taken:
            return True
        min_sep, most = self.min_sep, self.max_participations
        if taken[0] < 0 or taken[-1] >= self.rounds or len(taken) > most:
            return False
        if any(later - earlier < min_sep for earlier, later in itertools.pairwise(taken)):
            return False
        if self.schema == "fixed_epoch":
            steps, rests = zip(*(divmod(t - taken[0], min_sep) for t in taken), strict=True)
            return not any(rests) and steps[-1] < most
        return True

    def patterns(self) -> Iterator[tuple[int, ...]]:
        """Yields every maximal set of rounds of one client, as a sorted tuple.

        Every allowed set is a subset of one of these. Their number is exponential in rounds for
        "min_sep": this serves brute-force checks of small cases.

        >>> list(Participation(rounds=4, schema="min_sep", min_sep=2).patterns())
        [(0, 2), (0, 3), (1, 3)]
        >>> list(Participation(rounds=5, schema="fixed_epoch", min_sep=2).patterns())
        [(0, 2, 4), (1, 3)]
        """
        self._refuse_budget()
        min_sep, most = self.min_sep, self.max_participations
        if self.schema == "fixed_epoch":
            for start in range(min_sep):
                epoch = tuple(range(start, self.rounds, min_sep))
                for first in range(max(len(epoch) - most, 0) + 1):
                    yield epoch[first : first + most]
        else:
            yield from self._separated((), min_sep, most)

    def _separated(
        self, taken: tuple[int, ...], min_sep: int, most: int
    ) -> Iterator[tuple[int, ...]]:
        earliest = taken[-1] + min_sep if taken else 0
        if len(taken) == most or earliest >= self.rounds:
            # Maximal: full, or no gap (before the first round, between two) has room for one more.
            gaps = itertools.pairwise((-min_sep, *taken))
            if len(taken) == most or all(later - earlier < 2 * min_sep for earlier, later in gaps):
                yield taken
            return
        for t in range(earliest, self.rounds):
            yield from self._separated((*taken, t), min_sep, most)
