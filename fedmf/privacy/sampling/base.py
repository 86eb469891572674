"""What a sampling scheme answers for itself: which clients it draws, what that guarantees, and how
a statement describes it.

A scheme is one class. Calibration, controller, audits, statements, configs and the command line ask
it and know no scheme by name.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from fedmf import checks
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.participation.schema import Participation
from fedmf.participation.stats import ParticipationStats
from fedmf.privacy.amplification import MIN_COMPOSED_DELTA, rdp_epsilon
from fedmf.privacy.sampling.draws import Draws

if TYPE_CHECKING:
    import dp_accounting

# The largest chance that a run that was sampled as planned is said to contradict its sampling.
FALSE_POSITIVE_RATE = 1e-6

# Name on the command line and in configs -> the class, and the fields that the name fixes.
SCHEMES: "dict[str, tuple[type[Sampling], Mapping[str, Any]]]" = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling(abc.ABC):
    """How a server draws the clients of each round, where that amplifies the guarantee.

    A scheme is a frozen, keyword-only dataclass. `class Mine(Sampling, names={"mine": {}})`
    registers it as `--sampling mine`; a second name may fix fields. Configs and command lines give
    it population, cohort_size and partitions, where they have them: a scheme whose fields are
    others overrides `configured`, `command_options` and `resized`.

    `noise` is everywhere the standard deviation of Z for unit clip norm.

    Attributes:
      population: clients that can be drawn.
      cohort_size: clients of a round, on average; the divisor of the mean.
      independent: clients are drawn independently of each other, so that cohorts vary in size and
        clients that are away are not replaced.
      min_delta: the least delta at which `epsilon` is finite.
      simulated: `epsilon` is simulated, which takes minutes and fails with a stated probability;
        `expected_epsilon` takes seconds.
    """

    independent: ClassVar[bool] = False
    min_delta: ClassVar[float] = MIN_COMPOSED_DELTA
    simulated: ClassVar[bool] = False

    if TYPE_CHECKING:  # at run time fields or properties

        @property
        def population(self) -> int: ...  # noqa: D102

        @property
        def cohort_size(self) -> int: ...  # noqa: D102

    def __init_subclass__(
        cls, *, names: Mapping[str, Mapping[str, Any]] | None = None, **options: Any
    ) -> None:
        super().__init_subclass__(**options)
        SCHEMES.update({name: (cls, fixed) for name, fixed in (names or {}).items()})

    @classmethod
    def configured(cls, name: str, settings: Mapping[str, Any]) -> Self:
        """The scheme of these settings, of which None is none.

        Raises:
          ValueError: a setting that the scheme has no field for, or a field without a setting.
        """
        fields = {
            field.name: field.default is dataclasses.MISSING for field in dataclasses.fields(cls)
        }
        chosen = {field: value for field, value in settings.items() if value is not None}
        for field, value in chosen.items():
            if field not in fields:
                raise ValueError(
                    f"{field}={value} does not belong to sampling={name}: leave it out"
                )
        missing = [field for field, required in fields.items() if required and field not in chosen]
        if missing:
            raise ValueError(
                f"sampling={name} needs "
                f"{' and '.join(f'{field}=None' for field in missing)} to be given"
            )
        return cls(**chosen)

    @property
    def command_options(self) -> dict[str, Any]:
        """Command-line options, without dashes, that `scheme_from` turns into this scheme."""
        for name, (kind, fixed) in SCHEMES.items():
            if kind is type(self) and all(
                getattr(self, field) == value for field, value in fixed.items()
            ):
                others = {
                    field: value
                    for field, value in dataclasses.asdict(self).items()
                    if field not in fixed
                }
                return {"sampling": name} | {
                    f.replace("_", "-"): v for f, v in others.items() if v is not None
                }
        raise LookupError(
            f"{type(self).__name__} has no name: pass names= where the class is defined"
        )

    def resized(self, **sizes: int) -> Self:
        """The scheme with another population or cohort_size."""
        return dataclasses.replace(self, **sizes)

    def facts(self, rounds: int) -> dict[str, Any]:
        """What the scheme is, for a summary, in plain JSON types: its class and fields, and what
        follows from them.
        """
        return {"scheme": type(self).__name__, **dataclasses.asdict(self)}

    @abc.abstractmethod
    def for_mechanism(self, mechanism: Mechanism) -> Self:
        """The scheme with all that it takes from the mechanism.

        Raises:
          ValueError: a mechanism for which no amplification is proven.
        """

    @abc.abstractmethod
    def participation(self, rounds: int) -> Participation:
        """What every client keeps to, whatever is drawn."""

    @abc.abstractmethod
    def epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """An upper bound on epsilon for the zero-out relation;
        infinite where no amplification is proven.
        """

    def expected_epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """What a search for the noise asks in place of `epsilon`, where that takes long; the
        outcome is held against `epsilon`.
        """
        return self.epsilon(mechanism, noise, delta)

    def evidence(self, mechanism: Mechanism, noise: float, delta: float) -> str:
        """Sentences for the privacy statement on what `epsilon` rests on at this delta; empty where
        `statement` says all.
        """
        return ""

    def event(self, mechanism: Mechanism, noise: float) -> "dp_accounting.DpEvent | None":
        """The run as an event of dp_accounting, where that has one."""
        return None

    def rdp_epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """Epsilon by Renyi accounting of `event`; infinite where there is none."""
        event = self.event(mechanism, noise)
        return math.inf if event is None else rdp_epsilon(event, delta)

    @abc.abstractmethod
    def draws(self, seed: int) -> Draws:
        """Which clients each round draws: a pure function of (seed, round)."""

    def contradictions(self, observed: ParticipationStats, rounds: int) -> list[str]:
        """What in a record of participation is not as drawn, one sentence each; at most
        `FALSE_POSITIVE_RATE` of true records have any.

        Too few participations contradict nothing: clients that were drawn may drop out.
        """
        if observed.clients > self.population:
            return [
                f"{observed.clients} clients took part where the population is {self.population}"
            ]
        return []

    @abc.abstractmethod
    def statement(self, mechanism: Mechanism, noise: float) -> dict[str, str]:
        """Sentences for the privacy statement, in which numbers are rounded to the safe side.

        - adjacency: why the accountant's relation covers zero-out.
        - accounting: how epsilon was computed, without the full stop.
        - drawing: how clients are drawn.
        - secret: what must stay secret beside who is drawn, beginning with a comma; or empty.
        """


def scheme_from(name: str, **settings: Any) -> Sampling:
    """The scheme of a name of `SCHEMES`, with these settings, of which None is none.

    Raises:
      TypeError, ValueError: an unknown name, a setting of another scheme, or one that is missing.

    >>> scheme_from("reshuffle", population=100, cohort_size=5, partitions=None)
    CyclicShuffle(population=100, cohort_size=5, partitions=None, reshuffle=True)
    """
    kind, fixed = SCHEMES[checks.one_of("sampling", name, tuple(SCHEMES))]
    return kind.configured(name, settings | dict(fixed))


def takes(name: str, setting: str) -> bool:
    """Whether the scheme of a name has a field of this name.

    >>> takes("poisson", "min_sep")
    False
    """
    return any(field.name == setting for field in dataclasses.fields(SCHEMES[name][0]))


def scheme_from_facts(facts: Mapping[str, Any]) -> Sampling:
    """The scheme that gave `Sampling.facts`.

    Raises:
      KeyError: no scheme of that class, or a fact is missing.
    """
    kind = {kind.__name__: kind for kind, _ in SCHEMES.values()}[facts["scheme"]]
    return kind(**{field.name: facts[field.name] for field in dataclasses.fields(kind)})


@functools.lru_cache(maxsize=4)
def column_norm(mechanism: Mechanism) -> float:
    """Largest column norm of the encoder: the sensitivity of a single participation, exact."""
    return sensitivity(mechanism, Participation(rounds=mechanism.rounds, schema="single")).value
