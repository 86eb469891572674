"""The sampling scheme b-min-sep, which samples independently all clients that took part in none of
the last b - 1 rounds. It is that of Dong et al. 2026, arXiv:2602.09338.
"""

import dataclasses
import functools
from typing import Any, ClassVar, Self

from fedmf import fields
from fedmf.mechanisms.base import Mechanism
from fedmf.participation.schema import Participation
from fedmf.participation.separation import check_separation
from fedmf.participation.stats import ParticipationStats
from fedmf.privacy.losses import Losses
from fedmf.privacy.sampling.base import check_bands, check_cohort_size, check_population
from fedmf.privacy.sampling.description import Description
from fedmf.privacy.sampling.draws import Draws, MinSepDraws
from fedmf.privacy.sampling.encoder_checks import check_no_negative_entry, proven_bands
from fedmf.privacy.sampling.min_sep_losses import MinSepLosses, columns_of
from fedmf.privacy.sampling.simulated import Simulated


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinSepPoisson(Simulated):
    """Poisson sampling with a separation, where a client that took part in none of the last min_sep
    - 1 rounds takes part with probability p (arXiv:2602.09338, b-min-sep sampling).

    The scheme needs an encoder of at most min_sep bands without negative entries. Clients start in
    the stationary state: some are ineligible at the start, so that all rounds have the same
    expected cohort size. Cohorts vary in size; sums of updates are always divided by cohort_size.

    Attributes:
      population: clients that can be sampled.
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
        check_separation(
            self.min_sep or 1, population=self.population, cohort_size=self.cohort_size
        )

    @property
    def separation(self) -> int:
        """The separation b; ValueError if neither the caller nor a plan has set `min_sep`."""
        if self.min_sep is None:
            raise ValueError(
                "min_sep=None: a plan sets it to the mechanism's bands; or pass `min_sep`"
            )
        return self.min_sep

    @property
    def probability(self) -> float:
        """The probability p = q / (1 - (b - 1) q) with which an eligible client is sampled, where
        b is the separation and q = cohort_size / population the expected share of a cohort.
        """
        b = self.separation
        return self.cohort_size / (self.population - (b - 1) * self.cohort_size)

    def facts(self, rounds: int) -> dict[str, Any]:
        """Returns the scheme's class, its fields, and the probability with which an eligible client
        is sampled.
        """
        return super().facts(rounds) | {"probability": self.probability}

    def for_mechanism(self, mechanism: Mechanism) -> Self:
        """Returns the scheme with `min_sep` set. If it was not set, it becomes the number of the
        mechanism's bands.

        Raises:
          ValueError: the encoder is not lower-triangular, has a negative entry, or has more bands
            than min_sep.
        """
        bands = proven_bands(mechanism)
        check_no_negative_entry(mechanism, type(self).__name__)
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
        """Returns the participation limits, in which rounds of one client are at least `min_sep`
        apart.
        """
        return Participation(rounds=rounds, schema="min_sep", min_sep=min(self.separation, rounds))

    def losses(self, mechanism: Mechanism, noise: float) -> Losses:
        """Returns the privacy losses of one client, which a recursion over the rounds computes."""
        return _min_sep_losses(mechanism, self.separation, self.probability, noise)

    def draws(self, seed: int) -> Draws:
        """Returns the samples of all rounds, which are independent. The controller leaves out
        sampled clients that are ineligible.
        """
        return MinSepDraws(
            population=self.population,
            min_sep=self.separation,
            probability=self.probability,
            seed=seed,
        )

    def contradictions(self, observed: ParticipationStats, rounds: int) -> list[str]:
        """Returns evidence that a record was not sampled by this scheme, such as too many clients
        in a round, too many participations of a client, or too many in total.

        Rounds of a client less than min_sep apart are not evidence here; the audit reports them as
        a broken participation limit. A client that took part k times was ineligible for
        (k - 1) (min_sep - 1) rounds, so only the remaining rounds can have sampled it. For the
        other counts all clients count as eligible, which only makes large counts likelier.
        """
        m = self.population
        most_participations = observed.max_participations
        total_participations = observed.participations
        ineligible_rounds = (most_participations - 1) * (self.separation - 1)
        return (
            super().contradictions(observed, rounds)
            + self.unlikely_cohort(observed, m)
            + self.unlikely(
                f"a client took part {most_participations} times",
                most_participations,
                draws=max(most_participations, rounds - ineligible_rounds),
                times=m,
            )
            + self.unlikely(
                f"there are {total_participations} participations",
                total_participations,
                draws=m * observed.rounds,
                times=1,
            )
        )

    def description(self, mechanism: Mechanism, noise: float) -> Description:
        """Returns clauses for the privacy statement about b-min-sep sampling."""
        selection_clause = (
            f"each of {self.population} clients is ineligible for {self.separation - 1} rounds "
            "after a round in which it was sampled, is then sampled with probability "
            f"{self.probability:.12g} in each round, independently of all others, and began in the "
            "stationary state of that rule"
        )
        dominating_pair = (
            "the recursion over rounds of b-min-sep sampling (Dong et al. 2026, "
            "arXiv:2602.09338, Eq. 2)"
        )
        return self._simulated_description(selection_clause, dominating_pair, mechanism, noise)


@functools.lru_cache(maxsize=8)
def _min_sep_losses(
    mechanism: Mechanism, min_sep: int, probability: float, noise: float
) -> MinSepLosses:
    """Returns the privacy losses for the columns of a mechanism's encoder. Results are cached,
    since they take a while to prepare.
    """
    return MinSepLosses(columns_of(mechanism) / noise, min_sep, probability)
