"""The base class of participation schemas, which define the rounds that one client may take part
in.
"""

import abc
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np

from fedmf import checks, fields
from fedmf.participation.clients import ClientRounds
from fedmf.participation.history import History, RoundLists
from fedmf.participation.limits import (
    Limits,
    are_within_limits,
    check_implied_limits,
    chosen_limits,
    sorted_client_rounds,
)
from fedmf.participation.registry import SchemaRegistry
from fedmf.participation.round_sets import RoundSets
from fedmf.participation.sensitivity import sensitivity_to_sets
from fedmf.participation.sharpening import Sensitivity
from fedmf.participation.stats import ParticipationStats

Method = TypeVar("Method")

if TYPE_CHECKING:

    def must_override(method: Method) -> Method:
        """Returns the method unchanged, for type checkers only; at run time `must_override` is
        `abc.abstractmethod`. With abstract methods, type checkers would refuse
        `Participation(...)`.

        The call returns an object of a subclass, which no type checker knows.
        """
        return method
else:
    from abc import abstractmethod as must_override

# The registered schema classes, by the names that configs and the command line use for them.
SCHEMAS: "SchemaRegistry[Participation]" = SchemaRegistry()
_LIMITS_HINT = "let `implied_limits` return numbers in 1..rounds"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Participation(fields.Checked, abc.ABC):
    """A participation schema, which is a constraint on the rounds in which one client takes part,
    in a run of `rounds` rounds.

    - "single": at most one round (Denisov et al. 2022, Sec. 3).
    - "fixed_epoch": at most `max_participations` rounds, in which the client keeps its place in
      every epoch of `min_sep` rounds: any two are a multiple of `min_sep` rounds apart, and the
      last is less than `max_participations` epochs after the first. This is the
      (k, b)-participation of the multi-epoch paper (Choquette-Choo et al. 2022, Sec. 2); a client
      may miss an epoch, since a missed round is a contribution of zero, which the sensitivity
      covers.
    - "min_sep": at most `max_participations` rounds, any two at least `min_sep` apart: the
      b-min-sep-participation of the banded paper, Def. 1 (Choquette-Choo et al. 2023, Sec. 3).
    - "every_round": any rounds at all.
    - "budget": any rounds s, t, ... with a sum of |X_st| of at most `budget`^2, where X = C^T C is
      the Gram matrix of the encoder that the client's rounds are counted with
      (docs/participation.md).
      `fedmf.Budget` makes one, and says which rounds it pays for.

    `Participation(rounds=..., schema=...)` returns an object of the schema's own class. To add a
    schema, derive a frozen, keyword-only dataclass directly from this class, with the schema's name
    as the default of `schema` and its rule as `allows_sorted`. The limits `min_sep` and
    `max_participations` apply as well, and every subset of allowed rounds must be allowed.

    After construction `min_sep` and `max_participations` are ints for every schema (single: rounds
    and 1; every_round and budget: 1 and rounds). By default `max_participations` is ceil(rounds /
    min_sep), the largest number that fits.

    Attributes:
      rounds: n, a positive int.
      schema: name of a schema above, or of a registered one.
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

    # Names of the fields, other than `rounds`, that a user of the schema sets.
    settings: ClassVar[tuple[str, ...]] = ()
    # Name of the argument that determines the separation, the smallest distance between two rounds
    # of a client.
    separation_argument: ClassVar[str] = "min_sep"
    # Whether the allowed rounds depend on the encoder. If they do, a `fedmf.Budget`, which has the
    # encoder, decides which rounds are allowed.
    needs_encoder: ClassVar[bool] = False
    # Whether the server selects clients in a fixed order, so that devices cannot choose their
    # rounds.
    has_fixed_order: ClassVar[bool] = False
    # Whether `shortened` can state the participation schema for the first rounds of a run alone.
    has_shorter_form: ClassVar[bool] = False
    # Whether a set of rounds that is allowed for a client stays allowed if one round is replaced by
    # any other round that is min_sep or more away from the remaining ones.
    has_movable_rounds: ClassVar[bool] = False
    # The sentence of a privacy statement that states which rounds a client takes part in. It is a
    # Jinja template that is filled in with `limits()`.
    assumption: ClassVar[str] = (
        "Every client takes part in at most {{ max_participations }} of the {{ rounds }} rounds, "
        "and any two consecutive participations of a client are at least {{ min_sep }} rounds "
        "apart."
    )
    # Words in front of min_sep in the privacy statement's table of observed rounds.
    separation_kind: ClassVar[str] = "at least"

    rounds: int = fields.validated(checks.rounds)
    schema: str = fields.validated(SCHEMAS.check_name)
    # The fields have the type int, since __post_init__ replaces None by an int.
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
        # Without this assignment @dataclass would generate another __repr__.
        if "__repr__" not in vars(cls):
            cls.__repr__ = Participation.__repr__  # type: ignore[method-assign]
        if "schema" in vars(cls):
            SCHEMAS.register(cls)

    def __new__(
        cls,
        *,
        rounds: int | None = None,
        schema: str | None = None,
        min_sep: int | None = None,
        max_participations: int | None = None,
        budget: float | None = None,
    ) -> Self:
        """Creates an object of the class that `schema` names. `__init__` sets its fields."""
        if rounds is None and schema is None:
            # If an object is copied, unpickled or read by msgspec, its fields are set later, and
            # `_set_class` then sets its class.
            instance_class = SCHEMAS["single"] if cls is Participation else cls
            return object.__new__(instance_class)  # type: ignore[return-value]
        if schema is None:
            schema = vars(cls).get("schema")
        if schema is None:
            raise TypeError(f"`schema` is missing: choose one of {', '.join(SCHEMAS)}")
        schema_class = SCHEMAS[SCHEMAS.check_name("schema", schema)]
        if issubclass(schema_class, cls):
            return object.__new__(schema_class)
        # If `dataclasses.replace` changes the schema, `schema` names a class that is no subclass of
        # this one.
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
        """Sets the class of this object to that of its schema, because a copied or unpickled object
        may begin as another class.
        """
        schema_class = SCHEMAS[SCHEMAS.check_name("schema", self.schema)]
        if type(self) is not schema_class:
            object.__setattr__(self, "__class__", schema_class)

    def __post_init__(self) -> None:
        self._set_class()
        super().__post_init__()
        self._check_budget()
        limit_by_name = self._resolved_limits()._asdict()
        for name, limit in limit_by_name.items():
            checks.integer(name, limit, low=1, high=self.rounds, hint=_LIMITS_HINT)
        fields.set_fields(self, limit_by_name)

    def implied_limits(self) -> tuple[int, int] | None:
        """Returns (min_sep, max_participations) if the schema determines both, or None if its user
        chooses them.
        """
        return None if "min_sep" in self.settings else (1, self.rounds)

    def _resolved_limits(self) -> Limits:
        """Returns the limits that the schema implies, or else the limits that its user chose."""
        limits_by_user = {"min_sep": self.min_sep, "max_participations": self.max_participations}
        implied_limits = self.implied_limits()
        if implied_limits is None:
            return chosen_limits(self.schema, self.rounds, **limits_by_user)
        limits_by_schema = Limits(*implied_limits)
        check_implied_limits(self.schema, self.rounds, **limits_by_user, implied=limits_by_schema)
        return limits_by_schema

    def _check_budget(self) -> None:
        """Raises ValueError if a budget was passed, which only the schema "budget" takes. Schemas
        that have a budget override this method.
        """
        if self.budget is not None:
            raise ValueError(
                f"budget={self.budget!r} does not suit schema={self.schema!r}: leave it out"
            )

    def __repr__(self) -> str:
        limits_text = ", ".join(f"{name}={value!r}" for name, value in self.limits().items())
        return f"Participation({limits_text})"

    def limits(self) -> dict[str, Any]:
        """Returns the fields as plain JSON types. The field `budget` is included only if the schema
        has one.
        """
        limit_by_name = dataclasses.asdict(self)
        if "budget" not in self.settings:
            del limit_by_name["budget"]
        return limit_by_name

    @staticmethod
    def from_limits(values: Mapping[str, Any]) -> "Participation":
        """Builds a participation from a mapping that contains its `limits()` and perhaps other
        entries.
        """
        field_names = [field.name for field in dataclasses.fields(Participation)]
        return Participation(**{name: values[name] for name in field_names if name in values})

    @classmethod
    def for_fit(
        cls, *, rounds: int, min_sep: int | None, max_participations: int | None
    ) -> "Participation":
        """Returns the participation that mechanisms are fitted for in a plan with this schema.

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
        """Returns the fields of a `PlanConfig`, except `rounds`, that describe this
        participation.
        """
        value_by_setting = {name: getattr(self, name) for name in self.settings}
        return {"schema": self.schema, "budget": self.budget, **value_by_setting}

    def shortened(self, rounds: int) -> "Participation":
        """Returns the same schema for the first `rounds` rounds of the run alone.

        Args:
          rounds: in 1..self.rounds.

        Raises:
          ValueError: a schema without `has_shorter_form`. With fewer rounds it may exclude sets of
            rounds that it allows at the beginning of the whole run.

        >>> Participation(rounds=8, schema="min_sep", min_sep=4).shortened(3)
        Participation(rounds=3, schema='min_sep', min_sep=3, max_participations=1)
        """
        if not self.has_shorter_form:
            raise ValueError(
                f"schema={self.schema} has no form for the first {rounds} rounds alone: state the "
                "guarantee of all rounds, which holds for these too"
            )
        limit_by_name: dict[str, int | None] = {"min_sep": None, "max_participations": None}
        if self.implied_limits() is None:
            min_sep = min(self.min_sep, rounds)
            max_participations = min(self.max_participations, -(-rounds // min_sep))
            limit_by_name = {"min_sep": min_sep, "max_participations": max_participations}
        return dataclasses.replace(self, rounds=rounds, **limit_by_name)  # type: ignore[arg-type]

    def allows(self, rounds_of_one_client: Iterable[int]) -> bool:
        """Returns whether one client may take part in exactly these rounds. A round that occurs
        twice is not allowed.

        Args:
          rounds_of_one_client: from 0 on, in any order.

        Raises:
          TypeError: an entry is not an int.
          ValueError: the schema is "budget", whose allowed rounds depend on the encoder.

        >>> participation = Participation(rounds=6, schema="min_sep", min_sep=3)
        >>> participation.allows([0, 4]), participation.allows([0, 2]), participation.allows([0, 6])
        (True, False, False)
        """
        sorted_rounds = sorted_client_rounds(rounds_of_one_client)
        limits = Limits(self.min_sep, self.max_participations)
        is_within_limits = are_within_limits(sorted_rounds, self.rounds, limits)
        return is_within_limits and self.allows_sorted(sorted_rounds)

    @must_override
    def allows_sorted(self, sorted_rounds: list[int]) -> bool:
        """Returns whether the schema's own rule allows these rounds of one client. `min_sep` and
        `max_participations` are checked elsewhere.

        Args:
          sorted_rounds: increasing rounds of the run, within min_sep and max_participations.
        """
        raise NotImplementedError

    def affords(self, spent_squared: Any) -> Any:
        """Returns whether the budget pays for a client's rounds, given the sum of |X_st| over all
        pairs (s, t) of these rounds, where X = C^T C for the encoder C.

        Args:
          spent_squared: the sum, a number or an array of numbers.

        Raises:
          TypeError: spent_squared is not a number or an array of numbers.
          ValueError: the schema has no budget.
        """
        raise ValueError(f"schema={self.schema!r} has no budget: ask `allows`")

    def allows_each(
        self, clients: ClientRounds, spent_squared: np.ndarray | None = None
    ) -> np.ndarray:
        """Returns for each client of a record whether its rounds are allowed, as a bool array of
        shape (clients,).

        Args:
          clients: rounds of each client of a record.
          spent_squared: sum of |X_st| over each client's rounds, float64 (clients,); needed by
            schema "budget" only.

        Raises:
          ValueError: the schema is "budget", and spent_squared is missing.

        >>> clients = ClientRounds(rounds=np.array([0, 3, 9, 5]), starts=np.array([0, 3]))
        >>> Participation(rounds=10, schema="min_sep", min_sep=4).allows_each(clients)
        array([False,  True])
        """
        is_allowed = [self.allows(clients.of(i).tolist()) for i in range(len(clients))]
        return np.array(is_allowed, bool)

    def new_history(self, num_clients: int) -> History:
        """Returns an empty participation history of `num_clients` clients, which `is_eligible`
        reads.
        """
        return RoundLists(num_clients)

    def is_eligible(
        self,
        t: int,
        history: History,
        clients: np.ndarray | slice,
        *,
        rounds_early: np.ndarray | int = 0,
    ) -> np.ndarray:
        """Returns for each of the clients whether it is eligible for round t, as a bool array of
        shape (clients,).

        Args:
          t: a round after all recorded ones.
          history: result of `new_history`, with the rounds so far.
          clients: ints (clients,), or a slice of the clients.
          rounds_early: number of rounds by which each client's timer fires early, ints (clients,);
            a simulated deviation, for schemas with a timer.

        >>> once = Participation(rounds=4, schema="single")
        >>> history = once.new_history(2)
        >>> history.record(0, np.array([1]))
        >>> once.is_eligible(1, history, slice(0, 2))
        array([ True, False])
        """
        assert isinstance(history, RoundLists)
        is_eligible = [self.allows([*rounds, t]) for rounds in history.rounds_of(clients)]
        return np.array(is_eligible, bool)

    def violations(self, observed: ParticipationStats, most_spent: float) -> list[str]:
        """Returns a sentence for each limit that a record exceeds. It is called for records in
        which a client has disallowed rounds.

        Args:
          observed: statistics of the record.
          most_spent: the largest sensitivity to the rounds of one client.
        """
        sentences = []
        if observed.max_participations > self.max_participations:
            sentences.append(
                f"a client took part {observed.max_participations} times where at most "
                f"{self.max_participations} were planned"
            )
        min_separation = observed.min_separation
        if min_separation is not None and min_separation < self.min_sep:
            sentences.append(
                f"two rounds of one client are {min_separation} apart where at least "
                f"{self.min_sep} were planned"
            )
        return sentences + self.rule_violations(observed, exceeds_limit=bool(sentences))

    def rule_violations(self, observed: ParticipationStats, *, exceeds_limit: bool) -> list[str]:
        """Returns a sentence for each way in which a record violates the schema's own rule.
        Violations of `min_sep` and `max_participations` are reported elsewhere.

        There is at least one if the record exceeds neither limit.

        Args:
          observed: statistics of the record.
          exceeds_limit: whether the record exceeds min_sep or max_participations.
        """
        return [] if exceeds_limit else [f"a client took part in rounds that {self} excludes"]

    def describe_limit(self) -> str:
        """Returns the schema's main limit in words, for the title of a figure.

        >>> Participation(rounds=8, schema="min_sep", min_sep=4).describe_limit()
        'min separation 4'
        """
        return f"min separation {self.min_sep:,}"

    def describe_planned_limits(self) -> tuple[str, str]:
        """Returns the planned separation and the planned number of participations in words, for a
        table that also has the observed values.

        >>> Participation(rounds=8, schema="min_sep", min_sep=4).describe_planned_limits()
        ('planned 4', 'planned 2')
        """
        return f"planned {self.min_sep:,}", f"planned {self.max_participations:,}"

    def patterns(self) -> Iterator[tuple[int, ...]]:
        """Yields every maximal set of allowed rounds of one client, as a sorted tuple. A set is
        maximal if no round can be added.

        Every allowed set is a subset of a maximal one. With "min_sep" their number grows
        exponentially with the rounds, so that the method serves brute-force checks of small cases.

        >>> list(Participation(rounds=4, schema="min_sep", min_sep=2).patterns())
        [(0, 2), (0, 3), (1, 3)]
        >>> list(Participation(rounds=5, schema="fixed_epoch", min_sep=2).patterns())
        [(0, 2, 4), (1, 3)]
        """
        yield from self._maximal_sets(())

    def sensitivity(self, encoder_or_mechanism: Any) -> Sensitivity:
        """Returns the L2 sensitivity of x -> C x to one client, or an upper bound on it. C is the
        encoder.

        By default it is the bound for all sets of rounds within min_sep and max_participations.
        `fedmf.sensitivity` checks its arguments, calls this method and caches the result.

        Args:
          encoder_or_mechanism: C, float64 (m, rounds), or a mechanism.
        """
        round_sets = RoundSets(
            self.rounds, self.min_sep, self.max_participations, are_windows=False
        )
        sensitivity_bound = sensitivity_to_sets(encoder_or_mechanism, round_sets)
        method = "any rounds within min_sep and max_participations: upper bound"
        return Sensitivity(value=sensitivity_bound.value, exact=False, method=method)

    def _maximal_sets(self, first_rounds: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yields the maximal sets of allowed rounds whose first rounds are `first_rounds`."""
        unused_rounds = [t for t in range(self.rounds) if t not in first_rounds]
        additions = [t for t in unused_rounds if self.allows((*first_rounds, t))]
        if not additions:
            yield first_rounds
        for t in additions:
            if not first_rounds or t > first_rounds[-1]:
                yield from self._maximal_sets((*first_rounds, t))
