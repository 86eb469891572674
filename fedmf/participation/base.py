"""What every participation schema answers: which rounds one client may take part in, and who is
eligible next.
"""

import abc
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np

from fedmf import checks, fields
from fedmf.participation.clients import ClientRounds
from fedmf.participation.history import History, RoundLists
from fedmf.participation.round_sets import RoundSets
from fedmf.participation.sensitivity import sensitivity_to_sets
from fedmf.participation.sharpening import Sensitivity
from fedmf.participation.stats import ParticipationStats

ROUNDS_HINT = "pass 0-based round indices"
Method = TypeVar("Method")

if TYPE_CHECKING:

    def abstract(method: Method) -> Method:
        """Type checkers would refuse `Participation(...)`, which makes a subclass."""
        return method
else:
    from abc import abstractmethod as abstract

_LIMITS_HINT = "let `implied_limits` return numbers in 1..rounds"
# Name in configs and on the command line -> the class.
SCHEMAS: "dict[str, type[Participation]]" = {}


def _check_schema(name: str, value: Any) -> str:
    return checks.one_of(name, value, tuple(SCHEMAS))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Participation(fields.Checked, abc.ABC):
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

    `Participation(rounds=..., schema=...)` makes an object of the schema's own class. A schema of
    your own is a direct subclass: a frozen, keyword-only dataclass of these fields with a default
    of `schema`, its name. Beside its own rule, `allows_sorted`, it keeps to min_sep and
    max_participations, and it allows every subset of the rounds that it allows.

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

    # The fields beside `rounds` that a schema is set by.
    settings: ClassVar[tuple[str, ...]] = ()
    # The argument that sets the separation.
    separation_argument: ClassVar[str] = "min_sep"
    # Which rounds are allowed depends on the encoder: a `fedmf.Budget` counts them.
    needs_encoder: ClassVar[bool] = False
    # The server draws clients in an order that devices have no choice in.
    has_fixed_order: ClassVar[bool] = False
    # The first rounds of a run have a participation of the same schema: see `shortened`.
    has_shorter_form: ClassVar[bool] = False
    # A round of an allowed set may move to any other that is min_sep or more from the rest.
    has_movable_rounds: ClassVar[bool] = False
    # A privacy statement's sentence on the rounds of a client, a Jinja template over `limits()`.
    assumption: ClassVar[str] = (
        "Every client takes part in at most {{ max_participations }} of the {{ rounds }} rounds, "
        "and any two consecutive participations of a client are at least {{ min_sep }} rounds "
        "apart."
    )
    # What a statement's table of the observed rounds has before min_sep.
    separation_kind: ClassVar[str] = "at least"

    rounds: int = fields.validated(checks.rounds)
    schema: str = fields.validated(_check_schema)
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

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__repr__" not in vars(cls):  # before @dataclass makes one
            cls.__repr__ = Participation.__repr__  # type: ignore[method-assign]
        if "schema" in vars(cls):
            _register(cls)

    def __new__(
        cls,
        *,
        rounds: int | None = None,
        schema: str | None = None,
        min_sep: int | None = None,
        max_participations: int | None = None,
        budget: float | None = None,
    ) -> Self:
        """Returns an object of the schema's class, whose fields `__init__` sets."""
        if rounds is None and schema is None:
            # Copies, pickles and msgspec set the fields afterwards, and `_set_class` the class.
            return object.__new__(SCHEMAS["single"] if cls is Participation else cls)  # type: ignore[return-value]
        if schema is None:
            schema = vars(cls).get("schema")
        if schema is None:
            raise TypeError(f"`schema` is missing: choose one of {', '.join(SCHEMAS)}")
        schema_class = SCHEMAS[_check_schema("schema", schema)]
        if issubclass(schema_class, cls):
            return object.__new__(schema_class)
        # Another schema in `dataclasses.replace`.
        return schema_class(  # type: ignore[return-value]
            rounds=rounds,  # type: ignore[arg-type]
            schema=schema,
            min_sep=min_sep,
            max_participations=max_participations,
            budget=budget,
        )

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        super().__setstate__(state)
        self._set_class()

    def _set_class(self) -> None:
        """Makes the object one of its schema's class, where it was made without a call."""
        schema_class = SCHEMAS[_check_schema("schema", self.schema)]
        if type(self) is not schema_class:
            object.__setattr__(self, "__class__", schema_class)

    def __post_init__(self) -> None:
        self._set_class()
        super().__post_init__()
        self._check_budget()
        implied = self.implied_limits()
        min_sep, most = self._chosen_limits() if implied is None else self._checked_limits(*implied)
        checks.integer("min_sep", min_sep, low=1, high=self.rounds, hint=_LIMITS_HINT)
        checks.integer("max_participations", most, low=1, high=self.rounds, hint=_LIMITS_HINT)
        fields.set_fields(self, {"min_sep": min_sep, "max_participations": most})

    def implied_limits(self) -> tuple[int, int] | None:
        """Returns min_sep and max_participations where they follow from the schema; None where they
        are chosen.
        """
        return None if "min_sep" in self.settings else (1, self.rounds)

    def _checked_limits(self, min_sep: int, most: int) -> tuple[int, int]:
        """Returns the limits; refuses others that were chosen."""
        for name, implied in (("min_sep", min_sep), ("max_participations", most)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or value != implied):
                raise ValueError(
                    f"{name}={value!r} contradicts schema={self.schema!r}, which means "
                    f"{name}={implied} with rounds={self.rounds}: "
                    'leave it out, or choose schema="min_sep"'
                )
        return min_sep, most

    def _chosen_limits(self) -> tuple[int, int]:
        """Returns the limits that were chosen, or the most participations that fit."""
        rounds = self.rounds
        hint = f"pass a number in 1..{rounds}"
        if self.min_sep is None:
            raise ValueError(
                f"`min_sep` is required with schema={self.schema!r}: {hint}; clients in full "
                "cohorts allow at most the population divided by the clients a round"
            )
        min_sep = checks.integer("min_sep", self.min_sep, low=1, high=rounds, hint=hint)
        most = -(-rounds // min_sep)
        if self.max_participations is None:
            return min_sep, most
        hint = f"with rounds={rounds} and min_sep={min_sep} one client fits in at most {most} times"
        return min_sep, checks.integer(
            "max_participations", self.max_participations, low=1, high=most, hint=hint
        )

    def _check_budget(self) -> None:
        if self.budget is not None:
            raise ValueError(
                f"budget={self.budget!r} does not suit schema={self.schema!r}: leave it out"
            )

    def __repr__(self) -> str:
        limits = ", ".join(f"{name}={value!r}" for name, value in self.limits().items())
        return f"Participation({limits})"

    def limits(self) -> dict[str, Any]:
        """The fields in plain JSON types, `budget` only where there is one."""
        limits = dataclasses.asdict(self)
        if "budget" not in self.settings:
            del limits["budget"]
        return limits

    @staticmethod
    def of_limits(values: Mapping[str, Any]) -> "Participation":
        """Returns the participation whose `limits()` are among these values."""
        names = [field.name for field in dataclasses.fields(Participation)]
        return Participation(**{name: values[name] for name in names if name in values})

    @classmethod
    def for_fit(
        cls, *, rounds: int, min_sep: int | None, max_participations: int | None
    ) -> "Participation":
        """Returns the participation that mechanisms are fitted for.

        Args:
          rounds, min_sep, max_participations: fields of a `PlanConfig` with this schema.
        """
        return Participation(
            rounds=rounds,
            schema=cls.schema,
            min_sep=min_sep,
            max_participations=max_participations,
        )

    def to_config(self) -> dict[str, Any]:
        """Returns the fields of a `PlanConfig` that make this participation, beside the rounds."""
        settings = {name: getattr(self, name) for name in self.settings}
        return {"schema": self.schema, "budget": self.budget, **settings}

    def shortened(self, rounds: int) -> "Participation":
        """Returns the participation in the first rounds of the run alone.

        Args:
          rounds: in 1..self.rounds.

        Raises:
          ValueError: a schema without `has_shorter_form`, whose rule for fewer rounds may allow
            less than its rule for all does in the first of them.

        >>> Participation(rounds=8, schema="min_sep", min_sep=4).shortened(3)
        Participation(rounds=3, schema='min_sep', min_sep=3, max_participations=1)
        """
        if not self.has_shorter_form:
            raise ValueError(
                f"schema={self.schema} does not say which of the first {rounds} rounds a client "
                "may take part in, so that these have the guarantee of all: state that"
            )
        limits: dict[str, int | None] = {"min_sep": None, "max_participations": None}
        if self.implied_limits() is None:
            min_sep = min(self.min_sep, rounds)
            most = min(self.max_participations, -(-rounds // min_sep))
            limits = {"min_sep": min_sep, "max_participations": most}
        return dataclasses.replace(self, rounds=rounds, **limits)  # type: ignore[arg-type]

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
        taken = checked_rounds(rounds_of_one_client)
        return _keeps_limits(self, taken) and self.allows_sorted(taken)

    @abstract
    def allows_sorted(self, taken: list[int]) -> bool:
        """Whether the schema's own rule allows these rounds of one client.

        Args:
          taken: increasing rounds of the run, which keep to min_sep and max_participations.
        """
        raise NotImplementedError

    def affords(self, spent_squared: Any) -> Any:
        """Returns whether the budget pays for rounds whose |X_st| have this sum.

        Args:
          spent_squared: the sum, a number or an array of them.

        Raises:
          TypeError: no numbers.
          ValueError: of another schema, which has no budget.
        """
        raise ValueError(f"schema={self.schema!r} has no budget: ask `allows`")

    def allows_each(
        self, clients: ClientRounds, spent_squared: np.ndarray | None = None
    ) -> np.ndarray:
        """Whether the rounds of each client are allowed, bool (clients,).

        Args:
          clients: of a record.
          spent_squared: what the rounds of each cost with the encoder, float64 (clients,).

        Raises:
          ValueError: of schema budget without spent_squared, as it depends on the encoder.

        >>> clients = ClientRounds(rounds=np.array([0, 3, 9, 5]), starts=np.array([0, 3]))
        >>> Participation(rounds=10, schema="min_sep", min_sep=4).allows_each(clients)
        array([False,  True])
        """
        return np.array([self.allows(clients.of(i).tolist()) for i in range(len(clients))], bool)

    def new_history(self, num_clients: int) -> History:
        """Returns the history of clients before round 0, as `is_eligible` reads it."""
        return RoundLists(num_clients)

    def is_eligible(
        self,
        t: int,
        history: History,
        clients: np.ndarray | slice,
        *,
        rounds_early: np.ndarray | int = 0,
    ) -> np.ndarray:
        """Whether clients may take part in round t as well: bool (clients,).

        Args:
          t: a round after all those that are recorded.
          history: of `new_history`, with the rounds so far.
          clients: ints (clients,), or a slice of them.
          rounds_early: by which clients come before their timer says so, ints (clients,): a
            simulated deviation, of schemas with a timer.

        >>> once = Participation(rounds=4, schema="single")
        >>> history = once.new_history(2)
        >>> history.record(0, np.array([1]))
        >>> once.is_eligible(1, history, slice(0, 2))
        array([ True, False])
        """
        assert isinstance(history, RoundLists)
        return np.array([self.allows([*rounds, t]) for rounds in history.rounds_of(clients)], bool)

    def violations(self, observed: ParticipationStats, most_spent: float) -> list[str]:
        """Returns a sentence for each limit that a record exceeds, of a record that is known to
        hold rounds which are not allowed.

        Args:
          observed: what the record shows.
          most_spent: what the rounds of a client cost at most, as a sensitivity.
        """
        broken = []
        if observed.max_participations > self.max_participations:
            broken.append(
                f"a client took part {observed.max_participations} times where at most "
                f"{self.max_participations} were planned"
            )
        smallest = observed.min_separation
        if smallest is not None and smallest < self.min_sep:
            broken.append(
                f"two rounds of one client are {smallest} apart where at least {self.min_sep} were "
                "planned"
            )
        return broken + self.other_violations(observed, has_broken_limit=bool(broken))

    def other_violations(
        self, observed: ParticipationStats, *, has_broken_limit: bool
    ) -> list[str]:
        """Returns a sentence for what beside the limits a record exceeds; at least one where it
        exceeds no limit.

        Args:
          observed: of `violations`.
          has_broken_limit: whether min_sep or max_participations is exceeded.
        """
        return [] if has_broken_limit else [f"a client took part in rounds that {self} excludes"]

    def limit_in_words(self) -> str:
        """Returns the limit that a picture's title names.

        >>> Participation(rounds=8, schema="min_sep", min_sep=4).limit_in_words()
        'min separation 4'
        """
        return f"min separation {self.min_sep:,}"

    def planned_in_words(self) -> tuple[str, str]:
        """Returns what was planned, beside the separation and the participations of a record.

        >>> Participation(rounds=8, schema="min_sep", min_sep=4).planned_in_words()
        ('planned 4', 'planned 2')
        """
        return f"planned {self.min_sep:,}", f"planned {self.max_participations:,}"

    def patterns(self) -> Iterator[tuple[int, ...]]:
        """Yields every maximal set of rounds of one client, as a sorted tuple.

        Every allowed set is a subset of one of these. Their number is exponential in rounds for
        "min_sep": this serves brute-force checks of small cases.

        >>> list(Participation(rounds=4, schema="min_sep", min_sep=2).patterns())
        [(0, 2), (0, 3), (1, 3)]
        >>> list(Participation(rounds=5, schema="fixed_epoch", min_sep=2).patterns())
        [(0, 2, 4), (1, 3)]
        """
        yield from self._maximal_sets(())

    def sensitivity(self, strategy: Any) -> Sensitivity:
        """Returns the L2 sensitivity of x -> C x, or an upper bound: by default that of any rounds
        which keep to min_sep and max_participations.

        `fedmf.sensitivity` checks what it takes, and remembers what it computed.

        Args:
          strategy: C, float64 (m, rounds), or a mechanism.
        """
        sets = RoundSets(self.rounds, self.min_sep, self.max_participations, are_windows=False)
        bound = sensitivity_to_sets(strategy, sets)
        method = "any rounds within min_sep and max_participations: upper bound"
        return Sensitivity(value=bound.value, exact=False, method=method)

    def _maximal_sets(self, taken: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yields the maximal sets that begin with the rounds `taken`."""
        additions = [t for t in range(self.rounds) if t not in taken and self.allows((*taken, t))]
        if not additions:
            yield taken
        for t in additions:
            if not taken or t > taken[-1]:
                yield from self._maximal_sets((*taken, t))


def _register(schema_class: type[Participation]) -> None:
    """Registers a class under the name of its schema.

    Raises:
      TypeError: its name is no text, or it is no direct subclass: what an inherited method decides
        may rest on the rule that the subclass changes.
      ValueError: another class has the name.
    """
    name = schema_class.schema
    shown = schema_class.__qualname__
    if not isinstance(name, str):
        raise TypeError(
            f"schema={name!r} of {shown} is no text: give the field a text as its default, and the "
            "dataclass no slots"
        )
    inherited = [base.__qualname__ for base in SCHEMAS.values() if base in schema_class.__mro__[1:]]
    if inherited:
        raise TypeError(
            f"{shown} inherits from the schema {inherited[0]}: derive it from fedmf.Participation"
        )
    known = SCHEMAS.get(name, schema_class)
    # A class that is made again, as by a notebook's cell, takes the place of the one before.
    if (known.__module__, known.__qualname__) != (schema_class.__module__, shown):
        raise ValueError(f"schema={name!r} is that of {known.__qualname__}: use another name")
    SCHEMAS[name] = schema_class


def _keeps_limits(participation: Participation, taken: list[int]) -> bool:
    """Whether sorted rounds are of the run, at least min_sep apart and at most
    max_participations.
    """
    if not taken:
        return True
    if taken[0] < 0 or taken[-1] >= participation.rounds:
        return False
    if len(taken) > participation.max_participations:
        return False
    min_sep = participation.min_sep
    return all(later - earlier >= min_sep for earlier, later in itertools.pairwise(taken))


def checked_rounds(rounds_of_one_client: Iterable[int]) -> list[int]:
    """Returns the rounds as sorted ints.

    Raises:
      TypeError: an entry is not an int.
    """
    name = "rounds_of_one_client"
    return sorted(
        checks.integer(name, t, low=-(2**63), hint=ROUNDS_HINT)
        for t in checks.entries(name, rounds_of_one_client, hint=ROUNDS_HINT)
    )
