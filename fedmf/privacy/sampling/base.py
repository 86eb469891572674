"""The interface of sampling schemes. A scheme defines the clients that each round samples, the
epsilon that follows, and a short description for the privacy statement.

Each scheme is one class. Calibration, controller, audits, statements, configs and the command line
use only the methods of this interface, so a new scheme needs no change in them.
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
from fedmf.privacy.amplification import MIN_COMPOSED_DELTA
from fedmf.privacy.gaussian import check_delta
from fedmf.privacy.renyi import event_rdp_epsilon
from fedmf.privacy.sampling.description import Description
from fedmf.privacy.sampling.draws import Draws

if TYPE_CHECKING:
    import dp_accounting

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

# The largest probability with which an audit may report contradictions for a run that was sampled
# as planned.
FALSE_POSITIVE_RATE = 1e-6

# The classes of all schemes by their names on the command line and in configs.
SCHEMES: "dict[str, type[Sampling]]" = {}
# Names of schemes that an earlier release used; they are accepted for one more release.
_NAME_BY_FORMER_NAME = {"reshuffle": "random-allocation"}
# The deltas at which `Sampling.curve` computes epsilon, for schemes that cannot compute delta from
# epsilon.
_DELTAS = tuple(float(d) for d in 10.0 ** np.arange(-10, 0.01, 0.1)[:-1])
# Fields of a `PlanConfig` that `Sampling.configured` takes to make a scheme.
SETTINGS = ("population", "cohort_size", "partitions", "min_sep")

# Checks of the fields that several sampling schemes have in common.
check_population = functools.partial(
    checks.integer, low=1, high=fields.MAX_COUNT, hint="use the number of clients"
)
check_cohort_size = functools.partial(
    checks.integer, low=1, hint="use the number of clients a round"
)
check_bands = functools.partial(
    checks.integer, low=1, hint="use the number of bands, or leave it out"
)

# Names of methods whose sums contain small terms that underflow to 0. These methods run with
# numpy's default error handling, because a caller may have set numpy to raise on underflow.
_NUMERICAL_METHODS = {
    "contradictions",
    "curve",
    "epsilon",
    "evidence",
    "expected_epsilon",
    "rdp_epsilon",
}


def _check_mechanism(name: str, value: Mechanism) -> Mechanism:
    """Checks that the argument is a Mechanism, and returns it."""
    check_mechanism(value)
    return value


# The check of each argument that methods of schemes have in common, by the argument's name.
_CHECK_BY_ARGUMENT: dict[str, Callable[[str, Any], Any]] = {
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
    """Wraps a method so that it checks every argument that `_CHECK_BY_ARGUMENT` names."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(*args: _Parameters.args, **options: _Parameters.kwargs) -> _Result:
        bound_arguments = signature.bind(*args, **options)
        for name in _CHECK_BY_ARGUMENT.keys() & bound_arguments.arguments.keys():
            bound_arguments.arguments[name] = _CHECK_BY_ARGUMENT[name](
                name, bound_arguments.arguments[name]
            )
        return method(*bound_arguments.args, **bound_arguments.kwargs)

    return call


def _add_argument_checks(scheme: type) -> None:
    """Wraps all public methods that a class defines so that they check their arguments."""
    for name, method in list(vars(scheme).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(scheme, name, _with_checked_arguments(method))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling(fields.Checked, abc.ABC):
    """A sampling scheme, that is a random selection of the clients of each round, which amplifies
    privacy.

    A scheme is a frozen, keyword-only dataclass. A class with `name = "mine"` is selected on the
    command line by `--sampling mine`. Its fields may be any of population, cohort_size, partitions
    and min_sep, which configs and command lines set. A scheme with other fields overrides
    `configured`, `settings` and `resized`.

    In all methods, `noise` is the standard deviation of the entries of Z for clip norm 1. N Z is
    the noise of all rounds, where N is the mechanism's noise matrix.

    Attributes:
      name: name on the command line and in configs; a class without a name is abstract.
      population: clients that can be sampled.
      cohort_size: average number of clients of a round, by which sums of updates are divided.
      independent: whether clients are sampled independently of each other, so that cohorts vary in
        size and unavailable clients are not replaced.
      needs_bands: whether clients are ineligible for as many rounds as the mechanism has bands.
      probability: largest probability, over clients and rounds, that a client is sampled in a round
        in which it can be.
      min_delta: the least delta at which `epsilon` is finite.
      simulated: whether `epsilon` is simulated, which takes minutes and fails with a stated
        probability; `expected_epsilon` takes seconds.
    """

    name: ClassVar[str] = ""
    independent: ClassVar[bool] = False
    needs_bands: ClassVar[bool] = True
    min_delta: ClassVar[float] = MIN_COMPOSED_DELTA
    simulated: ClassVar[bool] = False

    # Every subclass of `Sampling` has fields or properties with the following names.
    if TYPE_CHECKING:

        @property
        def population(self) -> int: ...  # noqa: D102

        @property
        def cohort_size(self) -> int: ...  # noqa: D102

        @property
        def probability(self) -> float: ...  # noqa: D102

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in _NUMERICAL_METHODS.intersection(vars(cls)):
            setattr(cls, name, with_numpy_defaults(vars(cls)[name]))
        _add_argument_checks(cls)
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
        """Returns the scheme with the given settings, of which None means not set.

        Raises:
          ValueError: a setting for which the scheme has no field, or a required field that is not
            set.
        """
        value_by_name = {
            "population": population,
            "cohort_size": cohort_size,
            "partitions": partitions,
            "min_sep": min_sep,
        }
        value_by_setting = {
            name: value for name, value in value_by_name.items() if value is not None
        }
        field_by_name = {field.name: field for field in dataclasses.fields(cls)}
        for name, value in value_by_setting.items():
            if name not in field_by_name:
                raise ValueError(
                    f"{name}={value} does not belong to sampling={cls.name}: leave it out"
                )
        for name, field in field_by_name.items():
            if field.default is dataclasses.MISSING and name not in value_by_setting:
                raise ValueError(f"sampling={cls.name} needs {name}=None to be given")
        return cls(**value_by_setting)

    def settings(self) -> dict[str, Any]:
        """Returns the values of the `PlanConfig` fields that describe this scheme, by field name.

        `configured` makes the same scheme from them.
        """
        value_by_setting = {name: getattr(self, name) for name in SETTINGS if hasattr(self, name)}
        return {"sampling": self.name, **value_by_setting}

    def resized(self, *, population: int, cohort_size: int) -> Self:
        """Returns a copy of the scheme with another population and cohort size."""
        sizes: dict[str, int] = {"population": population, "cohort_size": cohort_size}
        return dataclasses.replace(self, **sizes)

    def facts(self, rounds: int) -> dict[str, Any]:
        """Returns the name of the scheme's class, its fields, and numbers computed from them for a
        run of `rounds` rounds, in plain JSON types.
        """
        return {"scheme": type(self).__name__, **dataclasses.asdict(self)}

    @abc.abstractmethod
    def for_mechanism(self, mechanism: Mechanism) -> Self:
        """Returns a copy of the scheme in which fields that follow from the mechanism are set, such
        as a number of partitions equal to its bands.

        Raises:
          ValueError: no amplification is proven for the mechanism.
        """

    @abc.abstractmethod
    def participation(self, rounds: int) -> Participation:
        """Returns the participation limits that every client satisfies in every possible sample."""

    @abc.abstractmethod
    def epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """Returns an upper bound on epsilon for the zero-out relation (one client's updates become
        zeros). It is infinite where no amplification is proven.
        """

    def curve(
        self, mechanism: Mechanism, noise: float, *, search: bool = False
    ) -> tuple[tuple[float, float], ...]:
        """Returns the privacy curve of a run as pairs (epsilon, delta).

        All pairs hold simultaneously, except with probability `curve_failure`.

        Args:
          mechanism, noise: as in `epsilon`.
          search: True for the search for the noise, in which a simulated scheme uses other random
            numbers than in the final proof.
        """
        deltas = [delta for delta in _DELTAS if delta >= self.min_delta]
        curve_points = [(self.epsilon(mechanism, noise, delta), delta) for delta in deltas]
        return tuple((epsilon, delta) for epsilon, delta in curve_points if math.isfinite(epsilon))

    def curve_failure(self, mechanism: Mechanism) -> float:
        """Returns the probability that `curve` has a pair that is too small because of the random
        numbers of a simulation; 0 for schemes that simulate nothing.
        """
        return 0.0

    def expected_epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """Estimates epsilon quickly, for the search for the least noise. `epsilon` then verifies
        the noise that the search found.
        """
        return self.epsilon(mechanism, noise, delta)

    def evidence(self, mechanism: Mechanism, noise: float, delta: float) -> str:
        """Returns sentences for the privacy statement about the simulation that `epsilon` rests on;
        an empty text if `epsilon` is not simulated.
        """
        return ""

    def event(self, mechanism: Mechanism, noise: float) -> "dp_accounting.DpEvent | None":
        """Returns the run as a `DpEvent` of dp_accounting, or None if dp_accounting cannot express
        this scheme.
        """
        return None

    def rdp_epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """Computes epsilon by Renyi accounting of `event`; infinite if that is None."""
        event = self.event(mechanism, noise)
        return math.inf if event is None else event_rdp_epsilon(event, delta)

    @abc.abstractmethod
    def draws(self, seed: int) -> Draws:
        """Returns an object that samples the clients of any round, as a pure function of the seed
        and the round.
        """

    def contradictions(self, observed: ParticipationStats, rounds: int) -> list[str]:
        """Returns sentences with evidence that a record of participation was not sampled by this
        scheme; an empty list if there is no evidence.

        For a record that was sampled by this scheme, the list is not empty with probability at most
        `FALSE_POSITIVE_RATE`. Too few participations are no evidence, because sampled clients may
        drop out.
        """
        if observed.clients > self.population:
            return [
                f"{observed.clients} clients took part where the population is {self.population}"
            ]
        return []

    def unlikely(self, words: str, at_least: int, *, draws: int, times: int) -> list[str]:
        """Returns a list with one sentence of evidence, which begins with `words`, if a count of at
        least `at_least` is too unlikely under this scheme. Otherwise the list is empty.

        The count is the largest of `times` binomial counts, each of `draws` independent draws with
        probability `self.probability`. A scheme may call this method three times; each call has a
        third of `FALSE_POSITIVE_RATE`.
        """
        from scipy import stats

        union_bound = times * float(stats.binom.sf(at_least - 1, draws, self.probability))
        if union_bound >= FALSE_POSITIVE_RATE / 3:
            return []
        return [
            f"{words}, which sampling with probability {self.probability:.6g} gives with "
            f"probability at most {max(union_bound, 1e-300):.2g}"
        ]

    def unlikely_cohort(self, observed: ParticipationStats, draws: int) -> list[str]:
        """Returns a list with one sentence of evidence if the largest round has more clients than
        sampling from `draws` clients makes likely. Otherwise the list is empty.
        """
        largest_cohort = int(observed.cohort_sizes.max())
        words = f"a round has {largest_cohort} clients"
        return self.unlikely(words, largest_cohort, draws=draws, times=observed.rounds)

    @abc.abstractmethod
    def description(self, mechanism: Mechanism, noise: float) -> Description:
        """Returns clauses that describe the scheme in the privacy statement, with numbers rounded
        to the safe side.

        The template of the privacy statement makes whole sentences from them.
        """


_add_argument_checks(Sampling)


def scheme_name(argument: str, value: object) -> str:
    """Returns the current name of a sampling scheme, given its current or its former name.

    Args:
      argument: the name of the argument in errors.
      value: the scheme's name in a config, a plan.json or a command line.

    Raises:
      TypeError, ValueError: `value` is not the name of a scheme.

    >>> scheme_name("sampling", "reshuffle")
    'random-allocation'
    """
    current_name = _NAME_BY_FORMER_NAME.get(value, value) if isinstance(value, str) else value
    return checks.one_of(argument, current_name, tuple(SCHEMES))


def scheme_class(name: str) -> type[Sampling]:
    """Returns the class of a sampling scheme, given its current or its former name."""
    return SCHEMES[scheme_name("sampling", name)]


def takes(name: str, setting: str) -> bool:
    """Returns whether a sampling scheme, given by its name, has a field named `setting`.

    >>> takes("poisson", "min_sep")
    False
    """
    return any(field.name == setting for field in dataclasses.fields(scheme_class(name)))
