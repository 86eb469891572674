"""The sampling scheme "balls in bins", in which each client takes part in every b-th round from a
random first round on. It is that of Choquette-Choo et al. 2024, arXiv:2410.06266.
"""

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

# Two bins count as having the same norm if their squared norms differ by at most this relative
# amount.
_NORM_TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class BallsInBins(Simulated):
    """Balls in bins, where each client draws one bin i of `bins`, once for the whole run, and takes
    part in rounds i, i + bins, i + 2 bins, .. (arXiv:2410.06266).

    The scheme needs a lower-triangular encoder C without negative entries. Cohorts vary in size;
    sums of updates are always divided by cohort_size. The columns of C that belong to the rounds of
    one bin have a sum. If these sums are orthogonal and have the same norm for all bins, as with
    the identity, epsilon is that of random allocation and is not simulated.

    Attributes:
      population: clients that can be sampled.
      bins: number of bins. If the number of rounds is not a multiple of it, clients of the last
        bins take part once less than the others.

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
        """The average number of clients of a round, rounded down."""
        return self.population // self.bins

    @property
    def probability(self) -> float:
        """The probability with which a client draws any one of the bins."""
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
        """Returns the scheme whose number of bins is `partitions` or, if that is None, population
        // cohort_size.
        """
        if population is None or cohort_size is None:
            missing_setting = "population" if population is None else "cohort_size"
            raise ValueError(f"sampling=balls-in-bins needs {missing_setting}=None to be given")
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
        """Returns the values of the `PlanConfig` fields that describe this scheme, by field name.
        The number of bins is the field `partitions`.
        """
        return {
            "sampling": self.name,
            "population": self.population,
            "cohort_size": self.cohort_size,
            "partitions": self.bins,
        }

    def resized(self, *, population: int, cohort_size: int) -> Self:
        """Returns the scheme for another population and cohort size, with a number of bins such
        that a bin has cohort_size clients on average.
        """
        population = check_population("population", population)
        cohort_size = check_cohort_size("cohort_size", cohort_size)
        if (population, cohort_size) == (self.population, self.cohort_size):
            return self
        return self.configured(population=population, cohort_size=cohort_size)

    def for_mechanism(self, mechanism: Mechanism) -> Self:
        """Returns the scheme itself, after checking that its guarantee covers the mechanism.

        Raises:
          ValueError: the encoder is not lower-triangular or has a negative entry.
        """
        proven_bands(mechanism)
        check_no_negative_entry(mechanism, type(self).__name__)
        return self

    def participation(self, rounds: int) -> Participation:
        """Returns the participation limits, in which consecutive rounds of one client are exactly
        `bins` apart.
        """
        return Participation(rounds=rounds, schema="fixed_epoch", min_sep=min(self.bins, rounds))

    def losses(self, mechanism: Mechanism, noise: float) -> Losses:
        """Returns the privacy losses of one client. For each bin the columns of the encoder C are
        summed, and the losses follow from the inner products of these sums.
        """
        return _bin_losses(mechanism, self.bins, noise)

    def epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """Computes epsilon by the accounting of random allocation if the bins' sums of columns are
        orthogonal with the same norm, and otherwise by simulation.
        """
        orthogonal_norm = self._orthogonal_norm(mechanism)
        if orthogonal_norm is None:
            return super().epsilon(mechanism, noise, delta)
        return random_allocation_epsilon(noise / orthogonal_norm, delta, positions=self.bins)

    def expected_epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """Estimates `epsilon` quickly. If `epsilon` needs no simulation, its exact value is
        returned.
        """
        if self._orthogonal_norm(mechanism) is None:
            return super().expected_epsilon(mechanism, noise, delta)
        return self.epsilon(mechanism, noise, delta)

    def curve(
        self, mechanism: Mechanism, noise: float, *, search: bool = False
    ) -> tuple[tuple[float, float], ...]:
        """Computes the privacy curve by the accounting of random allocation if the bins' sums of
        columns are orthogonal with the same norm, and otherwise by simulation.
        """
        orthogonal_norm = self._orthogonal_norm(mechanism)
        if orthogonal_norm is None:
            return super().curve(mechanism, noise, search=search)
        return random_allocation_curve(noise / orthogonal_norm, positions=self.bins)

    def curve_failure(self, mechanism: Mechanism) -> float:
        """Returns the probability that a simulated curve is too small; 0 if nothing is simulated,
        because the bins' sums of columns are orthogonal with the same norm.
        """
        if self._orthogonal_norm(mechanism) is None:
            return super().curve_failure(mechanism)
        return 0.0

    def evidence(self, mechanism: Mechanism, noise: float, delta: float) -> str:
        """Returns sentences for the privacy statement about the simulation of epsilon; an empty
        text if epsilon is not simulated.
        """
        if self._orthogonal_norm(mechanism) is None:
            return super().evidence(mechanism, noise, delta)
        return ""

    def _orthogonal_norm(self, mechanism: Mechanism) -> float | None:
        """Returns the norm of the bins' sums of columns of the encoder C if these are orthogonal
        and have the same norm, and None otherwise.

        If they do, each bin is a separate Gaussian release.
        """
        inner_products = bin_gram(mechanism, self.bins)
        squared_norms = np.diagonal(inner_products)
        is_diagonal = np.count_nonzero(inner_products) == self.bins
        if is_diagonal and squared_norms.max() <= squared_norms.min() * (1 + _NORM_TOLERANCE):
            return math.sqrt(squared_norms.max())
        return None

    def draws(self, seed: int) -> Draws:
        """Returns the samples of all rounds. Round t takes the clients of bin t mod `bins`."""
        return BinDraws(population=self.population, bins=self.bins, seed=seed)

    def contradictions(self, observed: ParticipationStats, rounds: int) -> list[str]:
        """Returns evidence that a record was not sampled by this scheme, which is a round with too
        many clients.
        """
        return super().contradictions(observed, rounds) + self.unlikely_cohort(
            observed, self.population
        )

    def description(self, mechanism: Mechanism, noise: float) -> Description:
        """Returns clauses for the privacy statement about balls in bins."""
        selection_clause = (
            f"each of {self.population} clients draws one of {self.bins} bins once, uniformly and "
            f"independently of all others, and round t takes the clients of bin t mod {self.bins}"
        )
        orthogonal_norm = self._orthogonal_norm(mechanism)
        if orthogonal_norm is None:
            dominating_pair = f"a mixture of {self.bins} Gaussians, one for each bin"
            return self._simulated_description(selection_clause, dominating_pair, mechanism, noise)
        return Description(
            selection=selection_clause,
            accountant="random allocation (Feldman and Shenfeld 2026, arXiv 2602.17284)",
            accounted=f"one of {self.bins} Gaussian releases with noise multiplier "
            f"{down(noise / orthogonal_norm)}",
        )


@functools.lru_cache(maxsize=8)
def _bin_losses(mechanism: Mechanism, bins: int, noise: float) -> BinLosses:
    """Returns the privacy losses for a mechanism, a number of bins and a standard deviation of the
    noise. Results are cached, since each needs the square root of a matrix.
    """
    return BinLosses(bin_gram(mechanism, bins) / noise**2)
