"""Sampling schemes whose randomness amplifies the guarantee of a banded mechanism (banded paper, Sec. 5 and App. F).

The population is split into b parts D_0 .. D_(b-1), whatever the data, and round t draws from part t mod b only. A banded encoder of
at most b bands lets no row of C x depend on two rounds of one client, so that a run is ceil(n / b) adaptive queries on one part, each
with sensitivity max_i ||C e_i|| (Thm. 4). The three schemes differ in how a round draws from its part.
"""

import dataclasses
import functools
from collections.abc import Callable

from fedmf import checks
from fedmf.participation.schema import Participation


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Cyclic:
    """What the schemes share.

    Attributes:
      population: m, clients that can be drawn.
      cohort_size: B, clients of a round; the divisor of the mean. The expected number where the number is random.
      groups: b, parts of the population; None until a Plan sets it to the mechanism's bands.

    Raises:
      TypeError: an attribute that is no whole number.
      ValueError: a cohort larger than the part that it is drawn from.
    """

    population: int
    cohort_size: int
    groups: int | None = None

    def __post_init__(self) -> None:
        population = checks.integer("population", self.population, low=1, hint="use the number of clients")
        cohort_size = checks.integer("cohort_size", self.cohort_size, low=1, hint="use the number of clients a round")
        object.__setattr__(self, "population", population)
        object.__setattr__(self, "cohort_size", cohort_size)
        groups = 1
        if self.groups is not None:
            groups = checks.integer("groups", self.groups, low=1, hint="use the number of bands, or leave it out")
            object.__setattr__(self, "groups", groups)
        if cohort_size > population // groups:
            ways = [
                (population // groups, f"lower cohort_size to at most {population // groups}"),
                (population // cohort_size, f"use a mechanism of at most {population // cohort_size} bands"),
            ]
            raise ValueError(
                f"cohort_size={cohort_size} exceeds a part of population={population} in {groups} groups, which has {population // groups} "
                f"clients: {''.join(f'{way}, or ' for most, way in ways if most)}raise the population to {cohort_size * groups}"
            )

    @property
    def _b(self) -> int:
        if self.groups is None:
            raise ValueError("groups=None: the plan sets it to the mechanism's bands; or pass groups yourself")
        return self.groups


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicPoisson(_Cyclic):
    """Every client of the round's part takes part with probability q, independently (banded paper, Alg. 6 and Cor. F.1).

    Cohorts vary in size; the divisor of the mean stays cohort_size.

    >>> scheme = CyclicPoisson(population=342_000, cohort_size=1000).in_groups(9)
    >>> round(scheme.probability, 6), scheme.compositions(2052), scheme.participation(2052).min_sep
    (0.026316, 228, 9)
    """

    @property
    def probability(self) -> float:
        """q = cohort_size * groups / population (Example F.1, where n and m are swapped). The same for all clients, whatever the sizes
        of parts that cannot be equal: the guarantee asks for no more.
        """
        return self.cohort_size * self._b / self.population

    def compositions(self, rounds: int) -> int:
        """ceil(rounds / groups): the rounds in which one client can be drawn (Thm. 4)."""
        return -(-rounds // self._b)

    def participation(self, rounds: int) -> Participation:
        """What holds with certainty: rounds of one client are multiples of `groups` apart."""
        return Participation(rounds=rounds, schema="fixed_epoch", min_sep=min(self._b, rounds))

    def in_groups(self, groups: int) -> "CyclicPoisson":
        """This scheme with its number of parts."""
        return dataclasses.replace(self, groups=groups)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicFixedSize(_Cyclic):
    """A uniform subset of exactly cohort_size clients of the round's part, drawn anew each round (banded paper, Alg. 2).

    >>> CyclicFixedSize(population=1000, cohort_size=10, groups=3).probability  # 10 of 333
    0.03003003003003003
    """

    @property
    def probability(self) -> float:
        """cohort_size / floor(population / groups): the largest probability of any client."""
        return self.cohort_size / (self.population // self._b)

    def compositions(self, rounds: int) -> int:
        """ceil(rounds / groups): the rounds in which one client can be drawn (Thm. 4)."""
        return -(-rounds // self._b)

    def participation(self, rounds: int) -> Participation:
        """What holds with certainty: rounds of one client are multiples of `groups` apart."""
        return Participation(rounds=rounds, schema="fixed_epoch", min_sep=min(self._b, rounds))

    def in_groups(self, groups: int) -> "CyclicFixedSize":
        """This scheme with its number of parts."""
        return dataclasses.replace(self, groups=groups)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicShuffle(_Cyclic):
    """A random order of the population, dealt out in batches of cohort_size, epoch after epoch (banded paper, Cor. F.2).

    An epoch is floor(population / cohort_size) rounds, which `groups` must divide; clients left over are never drawn. Batch i of an epoch
    belongs to part i mod groups.

    Attributes:
      reshuffle: deal every part in a new order each epoch; False keeps one order for the whole run.

    >>> shuffle = CyclicShuffle(population=1000, cohort_size=10, groups=4)
    >>> shuffle.epoch, shuffle.positions, shuffle.participation(250)
    (100, 25, Participation(rounds=250, schema='fixed_epoch', min_sep=100, max_participations=3))
    """

    reshuffle: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.reshuffle, bool):
            raise TypeError(f"reshuffle={self.reshuffle!r} must be True or False")
        if self.groups is not None and self.epoch % self.groups:
            raise ValueError(
                f"groups={self.groups} does not divide an epoch of {self.epoch} rounds (population={self.population} // "
                f"cohort_size={self.cohort_size}): use a mechanism whose bands divide {self.epoch}, or pass such groups"
            )

    @property
    def epoch(self) -> int:
        """Rounds in which every client is drawn once."""
        return self.population // self.cohort_size

    @property
    def positions(self) -> int:
        """Rounds of an epoch among which a client's one is uniform: epoch / groups."""
        return self.epoch // self._b

    def epochs(self, rounds: int) -> int:
        """Passes over the population that a run begins."""
        return -(-rounds // self.epoch)

    def participation(self, rounds: int) -> Participation:
        """What holds with certainty: one round an epoch, exactly an epoch apart in one order, at least `groups` apart in new ones."""
        if not self.reshuffle:
            return Participation(rounds=rounds, schema="fixed_epoch", min_sep=min(self.epoch, rounds))
        least, most = min(self._b, rounds), self.epochs(rounds)
        return Participation(
            rounds=rounds, schema="min_sep", min_sep=least, max_participations=min(most, -(-rounds // least))
        )

    def in_groups(self, groups: int) -> "CyclicShuffle":
        """This scheme with its number of parts."""
        return dataclasses.replace(self, groups=groups)


Sampling = CyclicPoisson | CyclicFixedSize | CyclicShuffle

# Names of command lines and configs.
SCHEMES: dict[str, Callable[..., Sampling]] = {
    "poisson": CyclicPoisson,
    "fixed_size": CyclicFixedSize,
    "shuffle": CyclicShuffle,
    "reshuffle": functools.partial(CyclicShuffle, reshuffle=True),
}
