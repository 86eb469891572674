"""Balls in bins (Choquette-Choo et al. 2024, arXiv:2410.06266)."""

import dataclasses
import functools
import math
from typing import Any, ClassVar, Self

import numpy as np

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism
from fedmf.participation.schema import Participation
from fedmf.participation.stats import ParticipationStats
from fedmf.privacy.losses import Losses
from fedmf.privacy.random_allocation import random_allocation_curve, random_allocation_epsilon
from fedmf.privacy.rounding import down
from fedmf.privacy.sampling.base import check_cohort_size, check_population
from fedmf.privacy.sampling.bin_losses import BinLosses, bin_gram
from fedmf.privacy.sampling.description import Description
from fedmf.privacy.sampling.draws import BinDraws, Draws
from fedmf.privacy.sampling.encoder_checks import check_no_negative_entry, proven_bands
from fedmf.privacy.sampling.simulated import Simulated

# Bins whose squared norms differ by less, relatively, count as bins of the same norm.
_NORM_TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class BallsInBins(Simulated):
    """Balls in bins: each client draws one of `bins` residues once for the whole run, and takes
    part in rounds i, i + bins, i + 2 bins, .. (arXiv:2410.06266).

    For any lower-triangular encoder without negative entries. Cohorts vary in size; the divisor of
    the mean stays cohort_size. Where no two bins meet in a row of C x and all have the same norm,
    as with the identity, epsilon is that of random allocation and not simulated.

    Attributes:
      population: clients that can be sampled.
      bins: b; if rounds are no multiple of it, clients of the last bins take part once less.

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
        """The number of clients of a round on average, rounded down."""
        return self.population // self.bins

    @property
    def probability(self) -> float:
        """The probability of each bin."""
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
        """Returns the scheme with `partitions`, or else population // cohort_size, as the bins."""
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
        """Returns the fields of a `PlanConfig` from which `configured` makes this scheme."""
        return {
            "sampling": self.name,
            "population": self.population,
            "cohort_size": self.cohort_size,
            "partitions": self.bins,
        }

    def resized(self, *, population: int, cohort_size: int) -> Self:
        """Returns the scheme for another population and cohort size, with bins of that size."""
        population = check_population("population", population)
        cohort_size = check_cohort_size("cohort_size", cohort_size)
        if (population, cohort_size) == (self.population, self.cohort_size):
            return self
        return self.configured(population=population, cohort_size=cohort_size)

    def for_mechanism(self, mechanism: Mechanism) -> Self:
        """Returns the scheme itself.

        Raises:
          ValueError: the encoder is not lower-triangular or has a negative entry.
        """
        proven_bands(mechanism)
        check_no_negative_entry(mechanism, type(self).__name__)
        return self

    def participation(self, rounds: int) -> Participation:
        """Returns the participation in which rounds of one client are exactly `bins` apart."""
        return Participation(rounds=rounds, schema="fixed_epoch", min_sep=min(self.bins, rounds))

    def losses(self, mechanism: Mechanism, noise: float) -> Losses:
        """Returns the losses by the Gram matrix of the bins' sums of columns."""
        return _bin_losses(mechanism, self.bins, noise)

    def epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """Computes epsilon of random allocation if the bins are orthogonal, and else simulates."""
        norm = self._orthogonal_norm(mechanism)
        if norm is None:
            return super().epsilon(mechanism, noise, delta)
        return random_allocation_epsilon(noise / norm, delta, positions=self.bins)

    def expected_epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """Estimates `epsilon`, or returns `epsilon` itself where that is not simulated."""
        if self._orthogonal_norm(mechanism) is None:
            return super().expected_epsilon(mechanism, noise, delta)
        return self.epsilon(mechanism, noise, delta)

    def curve(
        self, mechanism: Mechanism, noise: float, *, search: bool = False
    ) -> tuple[tuple[float, float], ...]:
        """Computes the curve of random allocation if the bins are orthogonal, and else simulates
        it.
        """
        norm = self._orthogonal_norm(mechanism)
        if norm is None:
            return super().curve(mechanism, noise, search=search)
        return random_allocation_curve(noise / norm, positions=self.bins)

    def curve_failure(self, mechanism: Mechanism) -> float:
        """Returns 0 if the bins are orthogonal, where nothing is simulated."""
        if self._orthogonal_norm(mechanism) is None:
            return super().curve_failure(mechanism)
        return 0.0

    def evidence(self, mechanism: Mechanism, noise: float, delta: float) -> str:
        """Returns sentences about the simulation; empty if epsilon is not simulated."""
        if self._orthogonal_norm(mechanism) is None:
            return super().evidence(mechanism, noise, delta)
        return ""

    def _orthogonal_norm(self, mechanism: Mechanism) -> float | None:
        """Returns the norm of the bins' sums of columns if they are orthogonal and of the same
        norm, and else None.

        Each bin is then a Gaussian release of its own.
        """
        gram = bin_gram(mechanism, self.bins)
        squares = np.diagonal(gram)
        is_diagonal = np.count_nonzero(gram) == self.bins
        if is_diagonal and squares.max() <= squares.min() * (1 + _NORM_TOLERANCE):
            return math.sqrt(squares.max())
        return None

    def draws(self, seed: int) -> Draws:
        """Returns the clients of each round's bin."""
        return BinDraws(population=self.population, bins=self.bins, seed=seed)

    def contradictions(self, observed: ParticipationStats, rounds: int) -> list[str]:
        """Adds a round that is too large."""
        return super().contradictions(observed, rounds) + self.unlikely_cohort(
            observed, self.population
        )

    def description(self, mechanism: Mechanism, noise: float) -> Description:
        """Returns a short description of balls in bins."""
        selection = (
            f"each of {self.population} clients draws one of {self.bins} bins once, uniformly and "
            f"independently of all others, and round t takes the clients of bin t mod {self.bins}"
        )
        norm = self._orthogonal_norm(mechanism)
        if norm is None:
            pair = f"a mixture of {self.bins} Gaussians, one for each bin"
            return self._simulated_description(selection, pair, mechanism, noise)
        return Description(
            selection=selection,
            accountant="random allocation (Feldman and Shenfeld 2026, arXiv 2602.17284)",
            accounted=f"one of {self.bins} Gaussian releases with noise multiplier "
            f"{down(noise / norm)}",
        )


@functools.lru_cache(maxsize=8)
def _bin_losses(mechanism: Mechanism, bins: int, noise: float) -> BinLosses:
    """Returns the losses for the Gram matrix of a mechanism's bins."""
    return BinLosses(bin_gram(mechanism, bins) / noise**2)
