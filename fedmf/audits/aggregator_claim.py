"""What an aggregator is said to do, how it is played with, and what was found.

All is in one unit: the most that one client may move a release, clip_norm (of a sum) or
clip_norm / clients (of a mean). There the noise of a claim has standard deviation noise_multiplier,
and one client moves the release by 1.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from fedmf import checks, fields
from fedmf.audits.noise import FALSE_POSITIVE_RATE
from fedmf.privacy.gaussian import exact_gaussian_epsilon, gaussian_noise_multiplier
from fedmf.privacy.rounding import finite

PLAYS = tuple(
    "zeros noise arrays dependence start inside huge slightly-above mixed one order weights "
    "integers half-precision not-finite dropout noise-with-data".split()
)
# Chance, at most, to miss a departure that a play is said to see.
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
    for play in str(value).split(","):
        checks.one_of(name, play, PLAYS[5:])
    return str(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AggregatorClaim(fields.Checked):
    """What an aggregator is said to do, and how it is played with.

    Attributes:
      noise_multiplier: standard deviation of a round's noise, in the most that a client may move
        it; with correlated noise that of all rounds together, of the whole run's sensitivity.
        None computes it from epsilon.
    """

    rounds: int = fields.whole(8, "Of a run. After so many the function is made anew.")
    clients: int = fields.option(10, "Updates of a round, and what a mean is divided by.", _clients)
    releases: str = fields.choice("mean", "What comes out.", lambda: ("mean", "sum"))
    clip_norm: float = fields.real(1.0, "L2 bound on a client's update.")
    epsilon: float | None = fields.real(
        None, "Claimed of all rounds, each with every client; or give noise_multiplier."
    )
    noise_multiplier: float | None = fields.real(
        None, "Claimed: noise of a sum's entry, in clip norms. Replaces epsilon."
    )
    delta: float = fields.real(1e-6, "Failure probability.", below=1)
    noise: str = fields.choice(
        "independent",
        "Correlated: between rounds, as in matrix factorization; epsilon and the noise multiplier "
        "are then those of a run.",
        lambda: ("independent", "correlated"),
    )
    min_sep: int | None = fields.whole(
        None, "With correlated noise: rounds from one participation of a client to its next."
    )
    shapes: str = fields.option("100x100,50x100,1000,1", "Of an update's arrays.", _shapes)
    leave_out: str | None = fields.option(
        None, "Plays that are not played, as one,weights.", _left_out
    )
    seed: int = fields.seed(1, "Of the updates that are sent.")
    false_positive_rate: float = fields.real(
        FALSE_POSITIVE_RATE, "Chance, at most, that an honest function fails any play.", below=1
    )
    confidence: float = fields.real(0.99, "Of what is allowed at most.", below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError(
                f"epsilon={self.epsilon} and noise_multiplier={self.noise_multiplier}: give one of "
                "the two, it is what is held against the function"
            )
        fields.belongs(self, "min_sep", to="correlated noise", there=self.correlated)
        if sum(self.sizes) < _LEAST_ENTRIES:
            raise ValueError(
                f"shapes={self.shapes!r} have {sum(self.sizes)} entries, each a sample of the "
                f"noise: give at least {_LEAST_ENTRIES}"
            )

    @property
    def correlated(self) -> bool:
        """Whether noise may be correlated over rounds."""
        return self.noise == "correlated"

    @property
    def arrays(self) -> list[tuple[int, ...]]:
        """Their shapes."""
        return [tuple(map(int, part.split("x"))) for part in self.shapes.split(",")]

    @property
    def sizes(self) -> list[int]:
        """Entries of each array."""
        return [math.prod(shape) for shape in self.arrays]

    @property
    def unit(self) -> float:
        """The most that a client may move a release."""
        return self.clip_norm / (self.clients if self.releases == "mean" else 1)

    def multiplier(self) -> float:
        """The noise multiplier that is claimed."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        times = 1 if self.correlated else self.rounds
        return gaussian_noise_multiplier(self.epsilon or 0, self.delta) * math.sqrt(times)

    def epsilons(self, multiplier: float) -> tuple[float, float]:
        """Epsilon of one round and of all, each with every client; with correlated noise of a run,
        twice.
        """
        times = (1, 1 if self.correlated else self.rounds)
        one, run = (
            exact_gaussian_epsilon(multiplier / math.sqrt(n), self.delta)
            if multiplier > 1e-9
            else math.inf
            for n in times
        )
        return one, run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Play:
    """One play and its verdict.

    Attributes:
      name: one of `PLAYS`.
      passed: None where it was not played.
      verdict: one sentence: what was done, seen and claimed, and the mistake that does this.
      p_value: under the claim; None where it was not played.
      sees: the least factor by which noise or a movement is off that is missed once in a million
        times at most; None where that is no question of chance.
    """

    name: str
    passed: bool | None
    verdict: str
    p_value: float | None = None
    sees: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AggregatorAudit:
    """All plays, and what the function guarantees at most.

    Attributes:
      plays: in the order of `PLAYS`.
      noise_multiplier: claimed.
      noise_multiplier_most: the largest that what was seen allows, at the claim's confidence; 0
        for none at all.
      epsilon_round, epsilon_run: of noise_multiplier_most, at least; infinite for 0.
      calls: of the function.
      confidence, false_positive_rate: of the claim.
    """

    plays: tuple[Play, ...]
    noise_multiplier: float
    noise_multiplier_most: float
    epsilon_round: float
    epsilon_run: float
    calls: int
    confidence: float
    false_positive_rate: float

    @property
    def passed(self) -> bool:
        """Whether no play failed."""
        return all(play.passed is not False for play in self.plays)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the plays that failed."""
        return tuple(play.name for play in self.plays if play.passed is False)

    def values(self) -> dict[str, Any]:
        """All of it as JSON has it: an infinite epsilon is null."""
        values = {"passed": self.passed} | dataclasses.asdict(self)
        return values | {name: finite(values[name]) for name in ("epsilon_round", "epsilon_run")}


class Evidence:
    """What plays found so far.

    Attributes:
      plays: name -> its verdict.
      moves: lower bounds of what one client moves a release, in units.
      most_noise: upper bound of the noise that a client can count on, in units.
      broken: whether something came out that is no number.
      threshold: the p-value below which a play fails: plays share the rate of false positives.
      error: chance that one of the bounds is wrong.
    """

    def __init__(self, claim: AggregatorClaim) -> None:
        self.claim = claim
        self.threshold = claim.false_positive_rate / len(PLAYS)
        self.error = (1 - claim.confidence) / (2 * len(PLAYS))
        self.plays: dict[str, Play] = {}
        self.moves = [1e-9]
        self.most_noise = math.inf
        self.broken = False

    def say(
        self, name: str, p: float, facts: tuple[str, str, str], mistake: str, sees: Any = None
    ) -> None:
        """Keeps the verdict of a play; facts are what was done, seen and claimed."""
        passed = bool(p >= self.threshold)
        done, seen, claimed = facts
        verdict = f"{done}: {seen}; claimed is {claimed}." + f" {mistake}" * (not passed)
        self.plays[name] = Play(
            name=name, passed=passed, verdict=verdict, p_value=min(float(p), 1.0), sees=sees
        )

    def reach(self, count: int = 1) -> float:
        """Standard deviations from the claim to what one of `count` tests misses at MISS_RATE."""
        from scipy import stats

        return float(stats.norm.isf(self.threshold / count / 2) + stats.norm.isf(MISS_RATE))

    def width(self, count: int = 1) -> float:
        """Standard deviations that a bound on one of `count` measurements allows for."""
        from scipy import stats

        return float(stats.norm.isf(self.error / count))


def nearest(ratio: float, error: float, mistakes: Mapping[Any, str]) -> str:
    """The mistake that makes this ratio, within 5% and the error of it; an empty text for none."""
    predicted = min(mistakes, key=lambda predicted: abs(ratio - predicted), default=None)
    if predicted is None or abs(ratio - predicted) > 0.05 * predicted + error:
        return ""
    return mistakes[predicted]
