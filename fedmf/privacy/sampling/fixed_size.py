"""The sampling scheme in which each round takes a fixed number of clients from one partition of the
population. It is that of the banded paper, Alg. 2.
"""

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.leading import column_norm
from fedmf.participation.stats import ParticipationStats
from fedmf.privacy.fixed_size import fixed_size_epsilon
from fedmf.privacy.gaussian import MIN_DELTA
from fedmf.privacy.sampling.cyclic import IndependentRounds
from fedmf.privacy.sampling.description import Description
from fedmf.privacy.sampling.draws import Draws, PartitionDraws

if TYPE_CHECKING:
    import dp_accounting


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicFixedSize(IndependentRounds):
    """Fixed-size sampling within partitions, where each round draws a uniform subset of exactly
    cohort_size clients from its partition (banded paper, Alg. 2).

    Attributes:
      population, cohort_size, partitions: m clients, B of them a round, in b partitions; None takes
        the mechanism's bands for b.

    >>> CyclicFixedSize(population=1000, cohort_size=10, partitions=3).probability  # 10 of 333
    0.03003003003003003
    """

    name: ClassVar[str] = "fixed_size"
    min_delta: ClassVar[float] = MIN_DELTA

    @property
    def _smallest_partition_size(self) -> int:
        return self.population // self.num_partitions

    @property
    def probability(self) -> float:
        """The largest probability with which any client is sampled in a round of its partition,
        cohort_size / floor(population / partitions).
        """
        return self.cohort_size / self._smallest_partition_size

    def event(self, mechanism: Mechanism, noise: float) -> "dp_accounting.DpEvent":
        """Returns the run as an event for the replacement of a record. This covers zero-out,
        because a zeroed-out client is one that is replaced by a client that contributes zero.

        Two records differ by at most twice the sensitivity, so the event has half the noise
        multiplier.
        """
        import dp_accounting

        query = dp_accounting.GaussianDpEvent(noise / column_norm(mechanism) / 2)
        sampled_query = dp_accounting.SampledWithoutReplacementDpEvent(
            self._smallest_partition_size, self.cohort_size, query
        )
        return dp_accounting.SelfComposedDpEvent(sampled_query, self.compositions(mechanism.rounds))

    def epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """Computes epsilon by Renyi differential privacy (Wang, Balle and Kasiviswanathan 2019,
        Theorem 27).
        """
        return fixed_size_epsilon(
            noise / column_norm(mechanism) / 2,
            delta,
            probability=self.probability,
            compositions=self.compositions(mechanism.rounds),
        )

    def rdp_epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """Returns `epsilon`, which is computed by Renyi accounting already."""
        return self.epsilon(mechanism, noise, delta)

    def draws(self, seed: int) -> Draws:
        """Returns the samples of all rounds, uniform subsets of each round's partition."""
        return PartitionDraws(
            population=self.population,
            partitions=self.num_partitions,
            seed=seed,
            size=self.cohort_size,
        )

    def contradictions(self, observed: ParticipationStats, rounds: int) -> list[str]:
        """Returns evidence that a record was not sampled by this scheme, such as a client that took
        part too often, or a round with more clients than are sampled.
        """
        sentences = super().contradictions(observed, rounds)
        largest_cohort = int(observed.cohort_sizes.max())
        if largest_cohort > self.cohort_size:
            sentences.append(
                f"a round has {largest_cohort} clients where {self.cohort_size} were to be sampled"
            )
        return sentences

    def description(self, mechanism: Mechanism, noise: float) -> Description:
        """Returns clauses for the privacy statement about fixed-size sampling within partitions."""
        return Description(
            selection=f"a uniform subset of {self.cohort_size} clients, independently of other "
            "rounds",
            accountant="Renyi differential privacy",
            accounted=f"{self._queries(mechanism, noise)} on a sample of fixed size without "
            "replacement (Wang, Balle and Kasiviswanathan 2019, Theorem 27)",
            relation="replace",
            by_partition=True,
        )
