"""What a sampling scheme answers for itself: which clients it draws, what that guarantees, and how
a statement describes it.

A scheme is one class. Calibration, controller, audits, statements, configs and the command line ask
it and know no scheme by name.
"""

import abc
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Self, TypeVar

import numpy as np

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism, check_mechanism
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.participation.schema import Participation
from fedmf.participation.stats import ParticipationStats
from fedmf.privacy.amplification import MIN_COMPOSED_DELTA, rdp_epsilon
from fedmf.privacy.gaussian import check_delta
from fedmf.privacy.sampling.draws import Draws

if TYPE_CHECKING:
    import dp_accounting

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

# The largest chance that a run that was sampled as planned is said to contradict its sampling.
FALSE_POSITIVE_RATE = 1e-6

# Name on the command line and in configs -> the class.
SCHEMES: "dict[str, type[Sampling]]" = {}
# Names before the current release, which are read for one release more.
_NAMES_BY_FORMER_NAME = {"reshuffle": "random-allocation"}
# Of a curve, where a scheme has epsilon for a delta and not the reverse.
_DELTAS = tuple(float(d) for d in 10.0 ** np.arange(-10, 0.01, 0.1)[:-1])
# The fields of a `PlanConfig` that schemes are made from.
SETTINGS = ("population", "cohort_size", "partitions", "min_sep")


# Checks of the fields that schemes share.
check_population = functools.partial(
    checks.integer, low=1, high=fields.MAX_COUNT, hint="use the number of clients"
)
check_cohort_size = functools.partial(
    checks.integer, low=1, hint="use the number of clients a round"
)
check_bands = functools.partial(
    checks.integer, low=1, hint="use the number of bands, or leave it out"
)


# Methods whose sums lose terms to underflow, in every scheme.
_COMPUTED = {"contradictions", "curve", "epsilon", "evidence", "expected_epsilon", "rdp_epsilon"}


def _check_mechanism(name: str, value: Any) -> Any:
    check_mechanism(value)
    return value


# The checks of what the methods of every scheme take, by argument.
_ARGUMENTS: dict[str, Callable[[str, Any], Any]] = {
    "mechanism": _check_mechanism,
    "noise": functools.partial(
        checks.positive, hint="pass a standard deviation, or 0 for no noise", allow_zero=True
    ),
    "delta": lambda name, value: check_delta(value),
    "rounds": checks.rounds,
    "seed": functools.partial(checks.integer, low=0, hint="use a non-negative whole number"),
    "search": checks.boolean,
}


def _with_checked_arguments(
    method: Callable[_Parameters, _Result],
) -> Callable[_Parameters, _Result]:
    """Makes a method of a scheme check those of its arguments that `_ARGUMENTS` names."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(*args: _Parameters.args, **options: _Parameters.kwargs) -> _Result:
        bound = signature.bind(*args, **options)
        for name in _ARGUMENTS.keys() & bound.arguments.keys():
            bound.arguments[name] = _ARGUMENTS[name](name, bound.arguments[name])
        return method(*bound.args, **bound.kwargs)

    return call


def _check_arguments_of(scheme: type) -> None:
    """Makes all methods that a class defines check their arguments."""
    for name, method in list(vars(scheme).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(scheme, name, _with_checked_arguments(method))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling(fields.Checked, abc.ABC):
    """How a server draws the clients of each round, where that amplifies the guarantee.

    A scheme is a frozen, keyword-only dataclass. With `name = "mine"` it is `--sampling mine`.
    Configs and command lines give it what it has of population, cohort_size, partitions and
    min_sep: a scheme whose fields are others overrides `configured`, `settings` and `resized`.

    `noise` is everywhere the standard deviation of Z for unit clip norm.

    Attributes:
      name: on the command line and in configs; a class without one is no scheme yet.
      population: clients that can be drawn.
      cohort_size: clients of a round, on average; the divisor of the mean.
      independent: clients are drawn independently of each other, so that cohorts vary in size and
        clients that are away are not replaced.
      needs_bands: clients rest for as many rounds as the mechanism has bands.
      probability: the largest of any client that can be drawn in a round to be drawn in it.
      min_delta: the least delta at which `epsilon` is finite.
      simulated: `epsilon` is simulated, which takes minutes and fails with a stated probability;
        `expected_epsilon` takes seconds.
    """

    name: ClassVar[str] = ""
    independent: ClassVar[bool] = False
    needs_bands: ClassVar[bool] = True
    min_delta: ClassVar[float] = MIN_COMPOSED_DELTA
    simulated: ClassVar[bool] = False

    if TYPE_CHECKING:  # at run time fields or properties

        @property
        def population(self) -> int: ...  # noqa: D102

        @property
        def cohort_size(self) -> int: ...  # noqa: D102

        @property
        def probability(self) -> float: ...  # noqa: D102

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in _COMPUTED.intersection(vars(cls)):
            setattr(cls, name, with_numpy_defaults(vars(cls)[name]))
        _check_arguments_of(cls)
        if cls.name:
            SCHEMES[cls.name] = cls

    @classmethod
    def configured(
        cls,
        *,
        population: int | None,
        cohort_size: int | None,
        partitions: int | None = None,
        min_sep: int | None = None,
    ) -> Self:
        """The scheme of these settings, of which None is none.

        Raises:
          ValueError: a setting that the scheme has no field for, or a field without a setting.
        """
        given = (population, cohort_size, partitions, min_sep)
        settings = {n: value for n, value in zip(SETTINGS, given, strict=True) if value is not None}
        known = {field.name: field for field in dataclasses.fields(cls)}
        for name, value in settings.items():
            if name not in known:
                raise ValueError(
                    f"{name}={value} does not belong to sampling={cls.name}: leave it out"
                )
        for name, field in known.items():
            if field.default is dataclasses.MISSING and name not in settings:
                raise ValueError(f"sampling={cls.name} needs {name}=None to be given")
        return cls(**settings)

    def settings(self) -> dict[str, Any]:
        """The fields of a `PlanConfig` that `configured` makes this scheme from."""
        values = {name: getattr(self, name) for name in SETTINGS if hasattr(self, name)}
        return {"sampling": self.name, **values}

    def resized(self, *, population: int, cohort_size: int) -> Self:
        """The scheme of another population and cohort size."""
        sizes: dict[str, int] = {"population": population, "cohort_size": cohort_size}
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

    def curve(
        self, mechanism: Mechanism, noise: float, *, search: bool = False
    ) -> tuple[tuple[float, float], ...]:
        """Pairs (epsilon, delta) that hold all at once, but for a chance of `curve_failure`.

        Args:
          mechanism, noise: as of `epsilon`.
          search: of a simulated scheme, by random numbers that those of the proof have not seen.
        """
        pairs = ((self.epsilon(mechanism, noise, d), d) for d in _DELTAS if d >= self.min_delta)
        return tuple(pair for pair in pairs if math.isfinite(pair[0]))

    def curve_failure(self, mechanism: Mechanism) -> float:
        """The chance, over our own coins, that a pair of `curve` is too small."""
        return 0.0

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

    def unlikely(self, words: str, at_least: int, *, draws: int, times: int) -> list[str]:
        """A sentence if one of `times` counts of `draws` draws each hardly reaches `at_least`.

        A scheme asks for at most three.
        """
        from scipy import stats

        chance = times * float(stats.binom.sf(at_least - 1, draws, self.probability))
        if chance >= FALSE_POSITIVE_RATE / 3:
            return []
        return [
            f"{words}, which sampling with probability {self.probability:.6g} gives with "
            f"probability at most {max(chance, 1e-300):.2g}"
        ]

    def unlikely_cohort(self, observed: ParticipationStats, draws: int) -> list[str]:
        """A sentence if the largest round has more clients than `draws` draws hardly give."""
        largest = int(observed.cohort_sizes.max())
        words = f"a round has {largest} clients"
        return self.unlikely(words, largest, draws=draws, times=observed.rounds)

    @abc.abstractmethod
    def statement(self, mechanism: Mechanism, noise: float) -> dict[str, str]:
        """Sentences for the privacy statement, in which numbers are rounded to the safe side.

        - adjacency: why the accountant's relation covers zero-out.
        - accounting: how epsilon was computed, without the full stop.
        - drawing: how clients are drawn.
        """


_check_arguments_of(Sampling)


def scheme_name(argument: str, value: Any) -> str:
    """Returns the name of a registered scheme, of which `value` is the name or a former name.

    Args:
      argument: names the value in errors.
      value: as configs, plan.json and command lines have it.

    Raises:
      TypeError, ValueError: no name of a scheme.

    >>> scheme_name("sampling", "reshuffle")
    'random-allocation'
    """
    current = _NAMES_BY_FORMER_NAME.get(value, value) if isinstance(value, str) else value
    return checks.one_of(argument, current, tuple(SCHEMES))


def scheme_class(name: str) -> type[Sampling]:
    """Returns the scheme of this name or former name."""
    return SCHEMES[scheme_name("sampling", name)]


def takes(name: str, setting: str) -> bool:
    """Returns whether the scheme of this name has a field named `setting`.

    >>> takes("poisson", "min_sep")
    False
    """
    return any(field.name == setting for field in dataclasses.fields(scheme_class(name)))
