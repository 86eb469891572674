"""Claims about an aggregator of any origin, and the results of testing them.

All is in one unit: the most that one client may move a release, clip_norm (of a sum) or
clip_norm / clients (of a mean). There the noise of a claim has standard deviation noise_multiplier,
and one client moves the release by 1.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

from fedmf import checks, fields
from fedmf.audits.noise import FALSE_POSITIVE_RATE
from fedmf.privacy.gaussian import exact_gaussian_epsilon, gaussian_noise_multiplier
from fedmf.privacy.rounding import finite

# Tests of the noise, on updates of zeros.
NOISE_TESTS = ("zeros", "noise", "rounds", "tails", "dependence", "start")
# Tests of what clients move.
MOVEMENT_TESTS = tuple(
    "norms patterns types one order cohort weights sums not-finite dropout releases "
    "noise-with-data".split()
)
TEST_NAMES = NOISE_TESTS + MOVEMENT_TESTS
# Chance, at most, to miss a departure that a test is said to see.
MISS_RATE = 1e-6
_LEAST_ENTRIES = 256
_MAX_CLIENTS = 1_000_000


def _shapes(name: str, value: Any) -> str:
    hint = 'write them as "784x10,10"'
    parts = fields.text(None, "").metadata["check"](name, value).split(",")
    if not all(size.isdecimal() and int(size) for part in parts for size in part.split("x")):
        raise ValueError(f"{name}={value!r} are no shapes of arrays: {hint}")
    return ",".join(parts)


def _clients(name: str, value: Any) -> int:
    return checks.integer(name, value, low=2, high=_MAX_CLIENTS, hint="one of two may drop out")


def _left_out(name: str, value: Any) -> str:
    for test_name in str(value).split(","):
        checks.one_of(name, test_name, MOVEMENT_TESTS)
    return str(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AggregatorClaim(fields.Checked):
    """Claim about an aggregator, and settings of the tests.

    Attributes:
      noise_multiplier: standard deviation of a round's noise, in the most that a client may move
        it; with correlated noise that of all rounds together, of the whole run's sensitivity.
        None computes it from epsilon.
    """

    rounds: int = fields.whole_number(8, "Of a run. After so many the function is made anew.")
    clients: int = fields.option(10, "Updates of a round, and what a mean is divided by.", _clients)
    releases: str = fields.choice("mean", "What comes out.", lambda: ("mean", "sum"))
    clip_norm: float = fields.positive_float(1.0, "L2 bound on a client's update.")
    epsilon: float | None = fields.positive_float(
        None, "Claimed of all rounds, each with every client; or give noise_multiplier."
    )
    noise_multiplier: float | None = fields.positive_float(
        None, "Claimed: noise of a sum's entry, in clip norms. Replaces epsilon."
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
    shapes: str = fields.option("100x100,100x100,1000,1", "Of an update's arrays.", _shapes)
    leave_out: str | None = fields.option(
        None, "Tests that are left out, as one,weights.", _left_out
    )
    seed: int = fields.seed(1, "Of the updates that are sent.")
    false_positive_rate: float = fields.positive_float(
        FALSE_POSITIVE_RATE, "Chance, at most, that an honest function fails any test.", below=1
    )
    confidence: float = fields.positive_float(0.99, "Of what is allowed at most.", below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError(
                f"epsilon={self.epsilon} and noise_multiplier={self.noise_multiplier}: give one of "
                "the two, it is what is held against the function"
            )
        fields.require(self, "min_sep", needs="correlated noise", present=self.correlated)
        if sum(self.sizes) < _LEAST_ENTRIES:
            raise ValueError(
                f"shapes={self.shapes!r} have {sum(self.sizes)} entries, each a sample of the "
                f"noise: give at least {_LEAST_ENTRIES}"
            )

    @property
    def correlated(self) -> bool:
        """Whether noise may be correlated over rounds."""
        return self.noise == "correlated"

    @functools.cached_property
    def arrays(self) -> list[tuple[int, ...]]:
        """Shapes of an update's arrays."""
        return [tuple(map(int, part.split("x"))) for part in self.shapes.split(",")]

    @functools.cached_property
    def sizes(self) -> list[int]:
        """Entries of each array."""
        return [math.prod(shape) for shape in self.arrays]

    @property
    def unit(self) -> float:
        """The most that a client may move a release."""
        return self.clip_norm / (self.clients if self.releases == "mean" else 1)

    def multiplier(self) -> float:
        """Returns the noise multiplier that is claimed."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        times = 1 if self.correlated else self.rounds
        return _noise_multiplier(self.epsilon or 0, self.delta) * math.sqrt(times)

    def epsilons(self, multiplier: float) -> tuple[float, float]:
        """Computes epsilon of one round, and of all rounds with every client in each; with
        correlated noise both are of a run.
        """
        num_releases = 1 if self.correlated else self.rounds
        return self._epsilon(multiplier, 1), self._epsilon(multiplier, num_releases)

    def _epsilon(self, multiplier: float, num_releases: int) -> float:
        if multiplier <= 1e-9:
            return math.inf
        return exact_gaussian_epsilon(multiplier / math.sqrt(num_releases), self.delta)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of one test.

    Attributes:
      name: one of `TEST_NAMES`.
      passed: None where the test was not made.
      verdict: what was sent, seen and claimed; of a failure the mistake that does this, of a
        passed test a remark on what costs only utility.
      p_value: under the claim; None where the test was not made.
      sees: the least factor by which noise or a movement is off that the test's sharpest input
        misses once in a million times at most; None where that is no question of chance.
    """

    name: str
    passed: bool | None
    verdict: str
    p_value: float | None = None
    sees: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AggregatorAudit:
    """All tests, and the empirical bound on the guarantee.

    Attributes:
      tests: in the order of `TEST_NAMES`.
      noise_multiplier: claimed.
      noise_multiplier_most: the largest that the tests allow, at the claim's confidence; 0 for
        none at all.
      epsilon_round, epsilon_run: of noise_multiplier_most, at least; infinite for 0.
      rounds_seen: of a run, from its start; a claim of correlated noise over more rounds fails.
      participations_seen: of one client in them, which the noise multiplier is about: 1 where
        noise is independent.
      calls: of the function.
      confidence, false_positive_rate: of the claim.
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
        """Whether no test failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the tests that failed."""
        return tuple(test.name for test in self.tests if test.passed is False)

    def values(self) -> dict[str, Any]:
        """Returns all of it as JSON has it: an infinite epsilon is null."""
        values = {"passed": self.passed} | dataclasses.asdict(self)
        return values | {name: finite(values[name]) for name in ("epsilon_round", "epsilon_run")}


class Outcomes:
    """Outcomes of the tests so far.

    Attributes:
      by_name: name -> outcome.
      threshold: the p-value below which a test fails: tests share the rate of false positives.
      error: chance that the bounds of one test are wrong.
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
        """Adds a test's outcome; the mistake is told where it fails, the remark where it passes."""
        # A p-value that is not a number contradicts the claim.
        passed = bool(p_value >= self.threshold)
        addition = remark if passed else mistake
        self.by_name[name] = Outcome(
            name=name,
            passed=passed,
            verdict=f"{verdict} {addition}".strip(),
            p_value=min(float(p_value), 1.0) if p_value >= 0 else 0.0,
            sees=sees,
        )

    def skip(self, name: str, verdict: str) -> None:
        """Adds a test that was not made."""
        self.by_name[name] = Outcome(name=name, passed=None, verdict=verdict)

    def failed(self, name: str) -> bool:
        """Returns whether this test was made and failed."""
        return name in self.by_name and self.by_name[name].passed is False

    def deviations(self, num_tests: int = 1) -> float:
        """Computes how many standard deviations beyond the claim one of so many measurements is
        where it contradicts the claim.
        """
        return _upper_quantile(self.threshold / num_tests / 2)

    def reach(self, num_tests: int = 1) -> float:
        """Computes how many standard deviations beyond the claim a departure is that one of so many
        measurements misses at `MISS_RATE`.
        """
        return self.deviations(num_tests) + _upper_quantile(MISS_RATE)

    def width(self, num_tests: int = 1) -> float:
        """Computes how many standard deviations a bound allows for, one of so many."""
        return _upper_quantile(self.error / num_tests / 2)


@functools.cache
def _noise_multiplier(epsilon: float, delta: float) -> float:
    """Returns the noise multiplier of one release; every test asks for it."""
    return gaussian_noise_multiplier(epsilon, delta)


def _upper_quantile(chance: float) -> float:
    """Returns what a standard normal variable exceeds with this chance."""
    import scipy.special

    return -float(scipy.special.ndtri(chance))


def nearest(ratio: float, error: float, mistakes: Mapping[Any, str]) -> str:
    """Returns the mistake that makes this ratio, within 5% and the error; else an empty text."""
    predicted = min(mistakes, key=lambda key: abs(ratio - key), default=None)
    if predicted is None or abs(ratio - predicted) > 0.05 * predicted + error:
        return ""
    return mistakes[predicted]
