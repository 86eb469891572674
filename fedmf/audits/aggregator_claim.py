"""The claim about an aggregator that an audit tests, and the types of the audit's results.

Releases are measured in units of the sensitivity: clip_norm for a sum, clip_norm / clients for a
mean. In these units one client moves the release by at most 1, and the claimed noise has standard
deviation noise_multiplier.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

from fedmf import checks, fields
from fedmf.audits.noise import FALSE_POSITIVE_RATE
from fedmf.privacy.gaussian import exact_gaussian_epsilon, gaussian_noise_multiplier
from fedmf.privacy.rounding import finite_or_none

# Names of the tests that examine the noise. They call the aggregation function with updates that
# are all zero.
NOISE_TESTS = ("zeros", "noise", "rounds", "tails", "dependence", "start")
# Names of the tests that examine movements, which are the distances by which clients' updates move
# a release.
MOVEMENT_TESTS = tuple(
    "norms patterns types one order cohort weights sums not-finite dropout releases "
    "noise-with-data".split()
)
TEST_NAMES = NOISE_TESTS + MOVEMENT_TESTS
# Largest probability that a test misses a deviation from the claimed value as large as
# `Outcome.sees`.
MISS_RATE = 1e-6
_MIN_ENTRIES = 256
_MAX_CLIENTS = 1_000_000


def _is_shape(text: str) -> bool:
    """Returns whether a text is a shape such as "784x10", of positive sizes joined by x."""
    return all(size.isdecimal() and int(size) for size in text.split("x"))


def _checked_shapes(name: str, value: Any) -> str:
    """Checks a text that lists the shapes of an update's arrays, such as "784x10,10"."""
    array_shapes = fields.text(None, "").metadata["check"](name, value).split(",")
    if not all(map(_is_shape, array_shapes)):
        raise ValueError(f'{name}={value!r} are no shapes of arrays: write them as "784x10,10"')
    return ",".join(array_shapes)


def _checked_clients(name: str, value: Any) -> int:
    """Checks the number of clients in a round, and returns it."""
    return checks.integer(name, value, low=2, high=_MAX_CLIENTS, hint="one of two may drop out")


def _checked_test_names(name: str, value: Any) -> str:
    """Checks a text that lists names of movement tests, joined by commas."""
    for test_name in str(value).split(","):
        checks.one_of(name, test_name, MOVEMENT_TESTS)
    return str(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AggregatorClaim(fields.Checked):
    """Claim about the clipping and the noise of an aggregator, and settings of its tests.

    Attributes:
      noise_multiplier: standard deviation of a round's noise divided by the sensitivity of one
        round; with correlated noise, that of the whole run. None computes it from epsilon.
    """

    rounds: int = fields.whole_number(8, "Rounds of a run; then the function starts again.")
    clients: int = fields.option(
        10, "Updates of a round; a mean is divided by this number.", _checked_clients
    )
    releases: str = fields.choice(
        "mean", "Aggregate that the function returns.", lambda: ("mean", "sum")
    )
    clip_norm: float = fields.positive_float(1.0, "L2 bound on a client's update.")
    epsilon: float | None = fields.positive_float(
        None, "Claimed for all rounds, with every client in each; or give noise_multiplier."
    )
    noise_multiplier: float | None = fields.positive_float(
        None, "Claimed standard deviation of the noise of a sum, in clip norms. Replaces epsilon."
    )
    delta: float = fields.positive_float(1e-6, "Failure probability.", below=1)
    noise: str = fields.choice(
        "independent",
        "Correlated: between rounds, as in matrix factorization; epsilon and the noise multiplier "
        "are then those of a run.",
        lambda: ("independent", "correlated"),
    )
    min_sep: int | None = fields.whole_number(
        None, "With correlated noise: rounds from one participation of a client to its next."
    )
    shapes: str = fields.option(
        "100x100,100x100,1000,1", "Shapes of an update's arrays.", _checked_shapes
    )
    leave_out: str | None = fields.option(
        None, "Movement tests that are skipped, as one,weights.", _checked_test_names
    )
    seed: int = fields.seed(1, "Seed of the updates.")
    false_positive_rate: float = fields.positive_float(
        FALSE_POSITIVE_RATE,
        "Largest chance that a function that satisfies the claim fails any test.",
        below=1,
    )
    confidence: float = fields.positive_float(
        0.99, "Confidence of the bound on the noise multiplier.", below=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError(
                f"epsilon={self.epsilon} and noise_multiplier={self.noise_multiplier}: give one of "
                "the two, as the claim to test"
            )
        fields.require(self, "min_sep", needs="correlated noise", present=self.correlated)
        if sum(self.sizes) < _MIN_ENTRIES:
            raise ValueError(
                f"shapes={self.shapes!r} have {sum(self.sizes)} entries, each a sample of the "
                f"noise: give at least {_MIN_ENTRIES}"
            )

    @property
    def correlated(self) -> bool:
        """Whether the claim allows noise that is correlated between rounds."""
        return self.noise == "correlated"

    @functools.cached_property
    def arrays(self) -> list[tuple[int, ...]]:
        """Shapes of an update's arrays."""
        return [tuple(map(int, shape.split("x"))) for shape in self.shapes.split(",")]

    @functools.cached_property
    def sizes(self) -> list[int]:
        """Number of entries of each array in an update."""
        return [math.prod(shape) for shape in self.arrays]

    @property
    def unit(self) -> float:
        """Sensitivity of a release, which is how far one client within the clip norm can move it at
        most.
        """
        if self.releases == "mean":
            return self.clip_norm / self.clients
        return self.clip_norm

    def multiplier(self) -> float:
        """Returns the claimed noise multiplier."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        num_releases = 1 if self.correlated else self.rounds
        return _noise_multiplier(self.epsilon or 0, self.delta) * math.sqrt(num_releases)

    def epsilons(self, multiplier: float) -> tuple[float, float]:
        """Computes the epsilon of one round, and of a run in which every client is in all rounds.

        With correlated noise both are the epsilon of a run.
        """
        num_releases = 1 if self.correlated else self.rounds
        return self._epsilon(multiplier, 1), self._epsilon(multiplier, num_releases)

    def _epsilon(self, multiplier: float, num_releases: int) -> float:
        """Returns the epsilon of several releases; it is infinite if there is almost no noise."""
        if multiplier <= 1e-9:
            return math.inf
        return exact_gaussian_epsilon(multiplier / math.sqrt(num_releases), self.delta)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of one test of an aggregator, in numbers and in words.

    Attributes:
      name: one of `TEST_NAMES`.
      passed: whether the result agrees with the claim; None if the test was skipped.
      verdict: the updates, the result and the claim in words; if the test failed, the likely
        mistake, and if it passed, a remark on a loss of utility.
      p_value: under the claim; None if the test was skipped.
      sees: the smallest factor between the true noise or movement and the claimed one that the
        test's most powerful input misses with chance `MISS_RATE` at most; None if the result does
        not depend on chance.
    """

    name: str
    passed: bool | None
    verdict: str
    p_value: float | None = None
    sees: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AggregatorAudit:
    """Result of an aggregator's audit, with the outcomes of all tests and bounds on the privacy
    guarantee.

    Attributes:
      tests: one outcome for each of `TEST_NAMES`, in that order.
      noise_multiplier: the claimed one.
      noise_multiplier_most: upper bound on the noise multiplier, at the claim's confidence; 0 if
        the function guarantees nothing.
      epsilon_round, epsilon_run: lower bounds on epsilon that follow from noise_multiplier_most;
        infinite if it is 0.
      rounds_seen: number of sampled rounds, from the start of a run; a claim of correlated noise
        over more rounds fails.
      participations_seen: participations of one client in these rounds, for which the noise
        multiplier is stated; 1 if the noise is independent.
      calls: number of calls of the function.
      confidence, false_positive_rate: those of the claim.
    """

    tests: tuple[Outcome, ...]
    noise_multiplier: float
    noise_multiplier_most: float
    epsilon_round: float
    epsilon_run: float
    rounds_seen: int
    participations_seen: int
    calls: int
    confidence: float
    false_positive_rate: float

    @property
    def passed(self) -> bool:
        """Whether no test of the audit failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the tests that failed."""
        return tuple(test.name for test in self.tests if test.passed is False)

    def values(self) -> dict[str, Any]:
        """Returns all attributes in plain JSON types; an infinite epsilon is null."""
        audit_values = {"passed": self.passed} | dataclasses.asdict(self)
        return audit_values | {
            name: finite_or_none(audit_values[name]) for name in ("epsilon_round", "epsilon_run")
        }


class Outcomes:
    """Outcomes of the tests so far, with the thresholds at which a test fails.

    Attributes:
      by_name: test name -> outcome.
      threshold: p-value below which a test fails: the false-positive rate divided by the number of
        tests.
      error: chance that a bound of one test is wrong.
    """

    def __init__(self, claim: AggregatorClaim) -> None:
        self.by_name: dict[str, Outcome] = {}
        self.threshold = claim.false_positive_rate / len(TEST_NAMES)
        self.error = (1 - claim.confidence) / len(TEST_NAMES)

    def add(
        self,
        name: str,
        p_value: float,
        verdict: str,
        *,
        mistake: str = "",
        remark: str = "",
        sees: float | None = None,
    ) -> None:
        """Adds the outcome of a test, with the mistake if it failed or the remark if it passed."""
        # If the p-value is NaN, this comparison is false, so that NaN counts as a failed test.
        has_passed = bool(p_value >= self.threshold)
        outcome_comment = remark if has_passed else mistake
        reported_p_value = 0.0
        if p_value >= 0:
            reported_p_value = min(float(p_value), 1.0)
        self.by_name[name] = Outcome(
            name=name,
            passed=has_passed,
            verdict=f"{verdict} {outcome_comment}".strip(),
            p_value=reported_p_value,
            sees=sees,
        )

    def skip(self, name: str, verdict: str) -> None:
        """Adds the outcome of a test that was skipped."""
        self.by_name[name] = Outcome(name=name, passed=None, verdict=verdict)

    def failed(self, name: str) -> bool:
        """Returns whether a test has failed."""
        return name in self.by_name and self.by_name[name].passed is False

    def deviations(self, num_tests: int = 1) -> float:
        """Computes how many standard deviations a measurement must be away from the claimed value
        to fail a test.

        Args:
          num_tests: number of measurements over which the test's error rate is divided.
        """
        return _upper_quantile(self.threshold / num_tests / 2)

    def reach(self, num_tests: int = 1) -> float:
        """Computes the smallest deviation from the claim that a test detects with probability 1 -
        `MISS_RATE`.

        It is in standard deviations of the measurement.

        Args:
          num_tests: number of measurements over which the test's error rate is divided.
        """
        return self.deviations(num_tests) + _upper_quantile(MISS_RATE)

    def width(self, num_tests: int = 1) -> float:
        """Computes the half-width of a confidence interval in standard deviations.

        The interval is for a bound of one test.

        Args:
          num_tests: number of intervals over which the chance of an error is divided.
        """
        return _upper_quantile(self.error / num_tests / 2)


@functools.cache
def _noise_multiplier(epsilon: float, delta: float) -> float:
    """Computes the noise multiplier that one release needs for an epsilon and a delta.

    Results are cached, since every test uses them.
    """
    return gaussian_noise_multiplier(epsilon, delta)


def _upper_quantile(chance: float) -> float:
    """Returns the value that a standard normal variable exceeds with this chance."""
    import scipy.special

    return -float(scipy.special.ndtri(chance))


def nearest_mistake(ratio: float, error: float, mistakes: Mapping[float, str]) -> str:
    """Returns the text on the known mistake that best explains a measured ratio.

    The text is empty if every mistake predicts a ratio that differs by more than 5% and the error.

    Args:
      ratio: measured factor between the noise or movement and the claimed one.
      error: of the measurement.
      mistakes: the factor that each mistake causes -> the mistake in words.
    """
    nearest_ratio = min(mistakes, key=lambda predicted: abs(ratio - predicted), default=None)
    if nearest_ratio is None or abs(ratio - nearest_ratio) > 0.05 * nearest_ratio + error:
        return ""
    return mistakes[nearest_ratio]
