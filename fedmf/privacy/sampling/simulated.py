"""Schemes whose epsilon is simulated: balls in bins, and b-min-sep sampling.

Near exact where the encoder has no negative entry.
"""

import abc
import dataclasses
import functools
import math
from typing import Any, ClassVar, Self

import numpy as np

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.leading import column_norm
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.participation.schema import Participation
from fedmf.participation.separation import check_separation
from fedmf.participation.stats import ParticipationStats
from fedmf.privacy.curves import epsilons_of_curve, simulated_curve
from fedmf.privacy.gaussian import (
    MIN_DELTA,
    exact_gaussian_epsilon,
    gaussian_epsilon,
)
from fedmf.privacy.monte_carlo import (
    FAILURE,
    FAILURE_OF_CALIBRATION,
    MAX_ATTEMPTS,
    Losses,
    SimulatedEpsilon,
    expected_epsilon,
    simulated_epsilon,
)
from fedmf.privacy.random_allocation import random_allocation_curve, random_allocation_epsilon
from fedmf.privacy.rounding import down, up
from fedmf.privacy.sampling.base import Sampling, check_bands, check_cohort_size, check_population
from fedmf.privacy.sampling.cyclic import proven_bands
from fedmf.privacy.sampling.draws import BinDraws, Draws, MinSepDraws
from fedmf.privacy.sampling.losses import BinLosses, MinSepLosses, bin_gram, columns_of


class Simulated(Sampling):
    """What schemes with simulated privacy losses have in common: clients are drawn independently of
    each other.
    """

    independent: ClassVar[bool] = True
    simulated: ClassVar[bool] = True
    min_delta: ClassVar[float] = MIN_DELTA

    @abc.abstractmethod
    def losses(self, mechanism: Mechanism, noise: float) -> Losses:
        """The privacy losses of one client."""

    def epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """By simulation: an upper bound but for a chance of `FAILURE` over our own coins, and never
        above the unamplified epsilon.
        """
        found = self._simulated(mechanism, noise, delta).epsilon if noise > 0 else math.inf
        if math.isfinite(found):
            return found
        return gaussian_epsilon(self._multiplier(mechanism, noise), delta)

    def expected_epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """About `epsilon`, in seconds, by random numbers that are independent
        of those of `epsilon`.
        """
        if noise == 0:
            return math.inf
        most = exact_gaussian_epsilon(self._multiplier(mechanism, noise), delta)
        return min(most, expected_epsilon(self.losses(mechanism, noise), delta, most))

    def curve(
        self, mechanism: Mechanism, noise: float, *, search: bool = False
    ) -> tuple[tuple[float, float], ...]:
        """By simulation."""
        epsilons = tuple(epsilons_of_curve(self._multiplier(mechanism, noise)))
        return simulated_curve(self.losses(mechanism, noise), epsilons, search=search)

    def curve_failure(self, mechanism: Mechanism) -> float:
        """Of all points together, of all attempts of a calibration."""
        return FAILURE_OF_CALIBRATION

    def evidence(self, mechanism: Mechanism, noise: float, delta: float) -> str:
        """Sentences: how many samples, both the bound and the estimate, and the chance that the
        bound is wrong.
        """
        if noise == 0:
            return ""
        found = self._simulated(mechanism, noise, delta)
        bound, estimate = (
            up(value if math.isfinite(value) else None) for value in (found.epsilon, found.estimate)
        )
        if found.epsilon == 0 and not found.samples[0]:
            return f"No simulation was needed: delta = {delta} is reached at epsilon = 0."
        bounded = math.isfinite(found.epsilon)
        more = ""
        if found.wanted > 1.5 * found.samples[0] and (bounded or found.samples[0]):
            what = "margin of a few percent of delta" if bounded else "bound"
            more = (
                f" A {what} would take {found.wanted:.2g} samples for removing, "
                f"{found.wanted / max(1, found.samples[0]):.2g} times the minutes of these."
            )
        if not bounded:
            return (
                f"The simulation shows nothing at delta = {delta}, and the Gaussian mechanism "
                f"without amplification is what is stated.{more}"
            )
        return (
            f"It is a Monte-Carlo bound from {found.samples[0]} samples for removing and "
            f"{found.samples[1]} for adding a client. The bound at delta = {delta} is epsilon = "
            f"{bound}, and the point estimate is {estimate}. The bound is wrong with probability "
            f"at most {FAILURE:g}, over the coins of the simulation and not of the run; after "
            f"calibration, which may try {MAX_ATTEMPTS} times, so many times that; after a choice "
            f"among several calibrations, the sum of theirs.{more}"
        )

    def _simulated(self, mechanism: Mechanism, noise: float, delta: float) -> SimulatedEpsilon:
        most = exact_gaussian_epsilon(self._multiplier(mechanism, noise), delta)
        return simulated_epsilon(self.losses(mechanism, noise), delta, most)

    def _multiplier(self, mechanism: Mechanism, noise: float) -> float:
        """The noise multiplier of the whole run without amplification."""
        return noise / sensitivity(mechanism, self.participation(mechanism.rounds)).value

    def _refuse_signed(self, mechanism: Mechanism) -> None:
        """Raises for encoders whose dominating pair is not proven."""
        entries = mechanism.toeplitz_coefficients()
        if entries is None:
            entries = mechanism.banded_rows()
        if entries is None:
            entries = mechanism.encoder()
        least = float(entries.min())
        if least < 0:
            raise ValueError(
                f"the {mechanism.family} encoder has a negative entry, {least:.3g}, and for those "
                f"no pair of distributions is proven to be the worst for {type(self).__name__} "
                "(Choquette-Choo et al. 2024, Lemma 3.2): use banded, toeplitz or blt"
            )

    def _accounting(self, pair: str, mechanism: Mechanism, noise: float) -> str:
        return (
            f"Simulated privacy losses for (epsilon, delta), of {pair} (Choquette-Choo et al. "
            "2024, arXiv:2410.06266, Lemma 3.2) with noise multiplier "
            f"{down(noise / column_norm(mechanism))} for the largest column: by importance "
            "sampling with bounded weights and an empirical Bernstein inequality for removing a "
            "client, and by Ehrhard's inequality for adding one"
        )


ADJACENCY = (
    "The pair of distributions is that of adding or removing a client. That is the same where "
    "clients are drawn independently of each other and the divisor is fixed: zeroing a client out "
    "and removing it then give the same two distributions of the output."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BallsInBins(Simulated):
    """Every client draws one of `bins` residues once and takes part in rounds i, i + bins, i + 2
    bins, .. (arXiv:2410.06266).

    For any lower-triangular encoder without negative entries. Cohorts vary in size; the divisor of
    the mean stays cohort_size. Where no two bins meet in a row of C x and all have one norm, as
    with the identity, epsilon is that of random allocation and not simulated.

    Attributes:
      population: clients that can be drawn.
      bins: b; rounds need not be a multiple of it, clients of the last bins then come once less.

    >>> scheme = BallsInBins(population=1000, bins=20)
    >>> scheme.cohort_size, scheme.participation(100)
    (50, Participation(rounds=100, schema='fixed_epoch', min_sep=20, max_participations=5))
    """

    name: ClassVar[str] = "balls-in-bins"
    needs_bands: ClassVar[bool] = False

    population: int = fields.validated(check_population)
    bins: int

    def __post_init__(self) -> None:
        super().__post_init__()
        m = self.population
        hint = f"use at most the population={m}; population / cohort_size bins have such cohorts"
        bins = checks.integer("bins", self.bins, low=1, high=m, hint=hint)
        fields.set_fields(self, {"bins": bins})

    @property
    def cohort_size(self) -> int:
        """Clients of a round on average, rounded down."""
        return self.population // self.bins

    @property
    def probability(self) -> float:
        """Of each bin."""
        return 1 / self.bins

    @classmethod
    def configured(
        cls,
        *,
        population: int | None,
        cohort_size: int | None,
        partitions: int | None = None,
        min_sep: int | None = None,
    ) -> Self:
        """`partitions`, or else population // cohort_size, as the number of bins."""
        if population is None or cohort_size is None:
            missing = "population" if population is None else "cohort_size"
            raise ValueError(f"sampling=balls-in-bins needs {missing}=None to be given")
        population = check_population("population", population)
        cohort_size = check_cohort_size("cohort_size", cohort_size)
        bins = max(1, population // cohort_size) if partitions is None else partitions
        scheme = cls(population=population, bins=bins)
        if scheme.cohort_size != cohort_size:
            raise ValueError(
                f"cohort_size={cohort_size} is not that of population={population} in {bins} bins: "
                f"use {scheme.cohort_size}"
            )
        return scheme

    def settings(self) -> dict[str, Any]:
        """The fields of a `PlanConfig` that `configured` makes this scheme from."""
        sizes = {"population": self.population, "cohort_size": self.cohort_size}
        return {"sampling": self.name, **sizes, "partitions": self.bins}

    def resized(self, *, population: int, cohort_size: int) -> Self:
        """The scheme of another population and cohort size, in bins that give such cohorts."""
        population = check_population("population", population)
        cohort_size = check_cohort_size("cohort_size", cohort_size)
        if (population, cohort_size) == (self.population, self.cohort_size):
            return self
        return self.configured(population=population, cohort_size=cohort_size)

    def for_mechanism(self, mechanism: Mechanism) -> Self:
        """Itself, for encoders that are lower-triangular and have no negative entry."""
        proven_bands(mechanism)
        self._refuse_signed(mechanism)
        return self

    def participation(self, rounds: int) -> Participation:
        """Rounds of one client are exactly `bins` apart."""
        return Participation(rounds=rounds, schema="fixed_epoch", min_sep=min(self.bins, rounds))

    def losses(self, mechanism: Mechanism, noise: float) -> Losses:
        """Those of the Gram matrix of the bins' sums of columns."""
        return _bin_losses(mechanism, self.bins, noise)

    def epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """That of random allocation where the bins are orthogonal; else by simulation."""
        norm = self._orthogonal_norm(mechanism)
        if norm is None:
            return super().epsilon(mechanism, noise, delta)
        return random_allocation_epsilon(noise / norm, delta, positions=self.bins)

    def expected_epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """`epsilon` itself where that is not simulated."""
        simulated = self._orthogonal_norm(mechanism) is None
        return (super().expected_epsilon if simulated else self.epsilon)(mechanism, noise, delta)

    def curve(
        self, mechanism: Mechanism, noise: float, *, search: bool = False
    ) -> tuple[tuple[float, float], ...]:
        """That of random allocation where the bins are orthogonal."""
        norm = self._orthogonal_norm(mechanism)
        if norm is None:
            return super().curve(mechanism, noise, search=search)
        return random_allocation_curve(noise / norm, positions=self.bins)

    def curve_failure(self, mechanism: Mechanism) -> float:
        """None where the bins are orthogonal."""
        return 0.0 if self._orthogonal_norm(mechanism) else super().curve_failure(mechanism)

    def evidence(self, mechanism: Mechanism, noise: float, delta: float) -> str:
        """Nothing where epsilon is not simulated."""
        if self._orthogonal_norm(mechanism) is None:
            return super().evidence(mechanism, noise, delta)
        return ""

    def _orthogonal_norm(self, mechanism: Mechanism) -> float | None:
        """The norm of the bins' sums of columns, if they are orthogonal and of one norm: then each
        is a Gaussian release of its own.
        """
        gram = bin_gram(mechanism, self.bins)
        squares = np.diagonal(gram)
        alike = np.count_nonzero(gram) == self.bins and squares.max() <= squares.min() * (1 + 1e-9)
        return math.sqrt(squares.max()) if alike else None

    def draws(self, seed: int) -> Draws:
        """The clients of the round's bin."""
        return BinDraws(population=self.population, bins=self.bins, seed=seed)

    def contradictions(self, observed: ParticipationStats, rounds: int) -> list[str]:
        """Those of all schemes, and a round with more clients than chance gives."""
        return super().contradictions(observed, rounds) + self.unlikely_cohort(
            observed, self.population
        )

    def statement(self, mechanism: Mechanism, noise: float) -> dict[str, str]:
        """Sentences for the privacy statement."""
        norm = self._orthogonal_norm(mechanism)
        if norm is None:
            accounting = self._accounting(
                f"a mixture of {self.bins} Gaussians, one for each bin", mechanism, noise
            )
        else:
            accounting = (
                "Random allocation (Feldman and Shenfeld 2026, arXiv 2602.17284) for (epsilon, "
                f"delta), among {self.bins} Gaussian "
                f"releases with noise multiplier {down(noise / norm)}"
            )
        return {
            "adjacency": ADJACENCY,
            "accounting": accounting,
            "drawing": f"Each of {self.population} clients draws one of {self.bins} bins once, "
            "uniformly and independently of all "
            f"others, and round t is that of bin t mod {self.bins}.",
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinSepPoisson(Simulated):
    """A client that took part in none of the last min_sep - 1 rounds takes part with probability p
    (arXiv:2602.09338, b-min-sep sampling).

    For encoders of at most min_sep bands without negative entries. Each client starts in the
    stationary state: all rounds expect the same cohort. Cohorts vary in size; the divisor of the
    mean stays cohort_size.

    Attributes:
      population: clients that can be drawn.
      cohort_size: clients of a round on average.
      min_sep: b; None until a Plan sets it to the mechanism's bands.

    >>> scheme = MinSepPoisson(population=1000, cohort_size=50, min_sep=4)
    >>> round(scheme.probability, 6), scheme.participation(10).max_participations
    (0.058824, 3)
    """

    name: ClassVar[str] = "min-sep-poisson"
    population: int = fields.validated(check_population)
    cohort_size: int = fields.validated(check_cohort_size)
    min_sep: int | None = fields.validated(check_bands, None)

    def __post_init__(self) -> None:
        super().__post_init__()
        m = self.population
        B = self.cohort_size
        b = self.min_sep
        check_separation(b or 1, population=m, cohort_size=B)

    @property
    def separation(self) -> int:
        """b, once it is known."""
        if self.min_sep is None:
            raise ValueError(
                "min_sep=None: a plan sets it to the mechanism's bands; or pass `min_sep`"
            )
        return self.min_sep

    @property
    def probability(self) -> float:
        """p = q / (1 - (b - 1) q) for q = cohort_size / population, the stationary share."""
        b = self.separation
        return self.cohort_size / (self.population - (b - 1) * self.cohort_size)

    def facts(self, rounds: int) -> dict[str, Any]:
        """Class, fields and probability."""
        return super().facts(rounds) | {"probability": self.probability}

    def for_mechanism(self, mechanism: Mechanism) -> Self:
        """The scheme with min_sep the mechanism's bands, unless it has more."""
        bands = proven_bands(mechanism)
        self._refuse_signed(mechanism)
        if self.min_sep is None:
            return dataclasses.replace(self, min_sep=bands)
        if self.min_sep < bands:
            raise ValueError(
                f"sampling has min_sep={self.min_sep} but the mechanism has {bands} bands, and two "
                "rounds of one client would meet in a row of C x: use BallsInBins, which needs no "
                "bands, or fit a mechanism of fewer bands, or leave `min_sep` out"
            )
        return self

    def participation(self, rounds: int) -> Participation:
        """Rounds of one client are at least `min_sep` apart."""
        return Participation(rounds=rounds, schema="min_sep", min_sep=min(self.separation, rounds))

    def losses(self, mechanism: Mechanism, noise: float) -> Losses:
        """Those of the recursion over rounds."""
        return _min_sep_losses(mechanism, self.separation, self.probability, noise)

    def draws(self, seed: int) -> Draws:
        """Independent coins, of which the controller leaves out those of clients that rest."""
        return MinSepDraws(
            population=self.population,
            min_sep=self.separation,
            probability=self.probability,
            seed=seed,
        )

    def contradictions(self, observed: ParticipationStats, rounds: int) -> list[str]:
        """Those of all schemes, and counts that chance hardly gives; a separation below min_sep
        breaks the participation.

        A client that takes part k times has k - 1 rests behind it, and so at most rounds - (k - 1)
        (min_sep - 1) draws for it. Without rests every count would be larger still.
        """
        most = observed.max_participations
        total = observed.participations
        draws = max(most, rounds - (most - 1) * (self.separation - 1))
        m = self.population
        return (
            super().contradictions(observed, rounds)
            + self.unlikely_cohort(observed, m)
            + self.unlikely(f"a client took part {most} times", most, draws=draws, times=m)
            + self.unlikely(
                f"there are {total} participations", total, draws=m * observed.rounds, times=1
            )
        )

    def statement(self, mechanism: Mechanism, noise: float) -> dict[str, str]:
        """Sentences for the privacy statement."""
        return {
            "adjacency": ADJACENCY,
            "accounting": self._accounting(
                "the recursion over rounds of b-min-sep sampling (Dong et al. 2026, "
                "arXiv:2602.09338, Eq. 2)",
                mechanism,
                noise,
            ),
            "drawing": f"Each of {self.population} clients rests {self.separation - 1} rounds "
            "after a round in which it was drawn, is "
            f"then drawn with probability {self.probability:.12g} in each round, independently of "
            "all others, and began in the stationary state of that rule.",
        }


@functools.lru_cache(maxsize=8)
def _bin_losses(mechanism: Mechanism, bins: int, noise: float) -> BinLosses:
    return BinLosses(bin_gram(mechanism, bins) / noise**2)


@functools.lru_cache(maxsize=8)
def _min_sep_losses(
    mechanism: Mechanism, min_sep: int, probability: float, noise: float
) -> MinSepLosses:
    return MinSepLosses(columns_of(mechanism) / noise, min_sep, probability)
