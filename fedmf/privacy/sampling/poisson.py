"""The sampling scheme in which each round samples the clients of one partition independently, with
the same probability. It is that of the banded paper, Alg. 6.
"""

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.leading import column_norm
from fedmf.participation.stats import ParticipationStats
from fedmf.privacy.amplification import sampled_gaussian_curve, sampled_gaussian_epsilon
from fedmf.privacy.sampling.cyclic import IndependentRounds
from fedmf.privacy.sampling.description import Description
from fedmf.privacy.sampling.draws import Draws, PartitionDraws

if TYPE_CHECKING:
    import dp_accounting


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicPoisson(IndependentRounds):
    """Poisson sampling within partitions, where every client of the round's partition takes part
    with probability q, independently (banded paper, Alg. 6 and Cor. F.1).

    Cohorts vary in size; sums of updates are always divided by cohort_size.

    The guarantee also covers sampled clients that are unavailable or drop out. Let a sampled client
    participate with probability a: 0 or 1 if this depends on the client's availability, or 1 -
    dropout. Let P0 and P1 be the distributions of the release without and with the client. The
    client participates with probability q a, independently of all others. The mixture (1 - q a) P0
    + q a P1 is a mixture of (1 - q) P0 + q P1 and P0, with weights a and 1 - a. The hockey-stick
    divergence is jointly convex, so that the divergence of this mixture from P0 is at most a times
    the divergence of (1 - q) P0 + q P1 from P0. Each round is therefore dominated by the same pair
    of distributions as with probability q, and composition applies. This needs that availability
    depends neither on the sample nor on whether other clients are sampled.

    Attributes:
      population, cohort_size, partitions: m clients, B of them a round, in b partitions; None takes
        the mechanism's bands for b.

    >>> scheme = CyclicPoisson(population=342_000, cohort_size=1000, partitions=9)
    >>> round(scheme.probability, 6), scheme.compositions(2052), scheme.participation(2052).min_sep
    (0.026316, 228, 9)
    """

    name: ClassVar[str] = "poisson"
    independent: ClassVar[bool] = True

    @property
    def probability(self) -> float:
        """The probability with which a client is sampled in a round of its partition, q =
        cohort_size * partitions / population (Example F.1 of the banded paper swaps n and m).

        The probability is the same for all clients, although partitions may differ in size by one:
        the guarantee does not need equal sizes.
        """
        return self.cohort_size * self.num_partitions / self.population

    def event(self, mechanism: Mechanism, noise: float) -> "dp_accounting.DpEvent":
        """Returns the run as an event for adding or removing a client. The event also covers
        zero-out, because clients are sampled independently.
        """
        import dp_accounting

        query = dp_accounting.GaussianDpEvent(noise / column_norm(mechanism))
        sampled_query = dp_accounting.PoissonSampledDpEvent(self.probability, query)
        return dp_accounting.SelfComposedDpEvent(sampled_query, self.compositions(mechanism.rounds))

    def epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """Computes epsilon by privacy loss distributions. This is the accounting of the
        banded paper, Cor. F.1.
        """
        return sampled_gaussian_epsilon(
            noise / column_norm(mechanism),
            delta,
            probability=self.probability,
            compositions=self.compositions(mechanism.rounds),
        )

    def curve(
        self, mechanism: Mechanism, noise: float, *, search: bool = False
    ) -> tuple[tuple[float, float], ...]:
        """Computes the privacy curve by privacy loss distributions."""
        return sampled_gaussian_curve(
            noise / column_norm(mechanism),
            probability=self.probability,
            compositions=self.compositions(mechanism.rounds),
        )

    def draws(self, seed: int) -> Draws:
        """Returns the samples of all rounds, which are independent samples of each round's
        partition.
        """
        return PartitionDraws(
            population=self.population,
            partitions=self.num_partitions,
            seed=seed,
            probability=self.probability,
        )

    def contradictions(self, observed: ParticipationStats, rounds: int) -> list[str]:
        """Returns evidence that a record was not sampled by this scheme, such as too many clients
        in a round, too many participations of a client, or too many in total.

        The counts of a round and in total are compared with rounds that all sample from the largest
        partition.
        """
        num_members = self.largest_partition_size
        total_participations = observed.participations
        return (
            super().contradictions(observed, rounds)
            + self.unlikely_cohort(observed, num_members)
            + self.unlikely(
                f"there are {total_participations} participations",
                total_participations,
                draws=num_members * observed.rounds,
                times=1,
            )
        )

    def description(self, mechanism: Mechanism, noise: float) -> Description:
        """Returns clauses for the privacy statement about Poisson sampling within partitions."""
        return Description(
            selection=f"each client with probability {self.probability:.12g}, independently of all "
            "others and of other rounds",
            accountant="privacy loss distributions (the library dp-accounting)",
            accounted=f"{self._queries(mechanism, noise)} on a Poisson sample with probability "
            f"{self.probability:.12g} (Corollary F.1)",
            by_partition=True,
        )
