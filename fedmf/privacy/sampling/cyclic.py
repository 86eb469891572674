"""The base classes of cyclic sampling schemes, whose rounds take clients from the partitions of the
population in turn. These schemes are from the banded paper, Sec. 5 and App. F.

The population is split into b partitions, independently of the data, and round t samples from
partition t mod b only. If the encoder C has at most b bands, no row of C x depends on two rounds of
one client, where x has the clipped sum of each round in a row. A run of n rounds is then, for one
partition, ceil(n / b) adaptive queries whose sensitivity is the largest column norm of C (Thm. 4).
The schemes differ in how a round samples from its partition.
"""

import dataclasses
from typing import Any, Self

from fedmf import fields
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.leading import column_norm
from fedmf.participation.schema import Participation
from fedmf.participation.stats import ParticipationStats
from fedmf.privacy.rounding import down
from fedmf.privacy.sampling.base import (
    Sampling,
    check_bands,
    check_cohort_size,
    check_population,
)
from fedmf.privacy.sampling.encoder_checks import proven_bands


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cyclic(Sampling):
    """Base of the schemes whose rounds sample from the partitions of the population in turn.

    Attributes:
      population: m, clients that can be sampled.
      cohort_size: B, clients of a round; the expected number where the number is random.
      partitions: b, partitions of the population; None until a Plan sets it to the mechanism's
        bands.

    Raises:
      TypeError: an attribute that is no whole number.
      ValueError: a cohort larger than the partition from which it is sampled.
    """

    population: int = fields.validated(check_population)
    cohort_size: int = fields.validated(check_cohort_size)
    partitions: int | None = fields.validated(check_bands, None)

    def __post_init__(self) -> None:
        super().__post_init__()
        m = self.population
        B = self.cohort_size
        b = self.partitions or 1
        smallest_size = m // b
        if smallest_size < B:
            way_out = f"raise the population to {B * b}"
            if m // B:
                way_out = f"use a mechanism of at most {m // B} bands, or {way_out}"
            if smallest_size:
                way_out = f"lower `cohort_size` to at most {smallest_size}, or {way_out}"
            raise ValueError(
                f"cohort_size={B} exceeds a partition of population={m} in {b} partitions, which "
                f"has {smallest_size} clients: {way_out}"
            )

    @property
    def num_partitions(self) -> int:
        """The number of partitions; ValueError if neither the caller nor a plan has set it."""
        if self.partitions is None:
            raise ValueError(
                "partitions=None: a plan sets it to the mechanism's bands; or pass partitions"
            )
        return self.partitions

    @property
    def largest_partition_size(self) -> int:
        """The number of clients in the largest partition."""
        return -(-self.population // self.num_partitions)

    def for_mechanism(self, mechanism: Mechanism) -> Self:
        """Returns the scheme with `partitions` set. If it was not set, it becomes the number of the
        mechanism's bands.

        Raises:
          ValueError: `partitions` is less than the number of bands.
        """
        bands = proven_bands(mechanism)
        if self.partitions is None:
            return dataclasses.replace(self, partitions=bands)
        if self.partitions < bands:
            raise ValueError(
                f"sampling has partitions={self.partitions} but the mechanism has {bands} bands, "
                "and two rounds of one client would meet "
                "in a row of C x: leave partitions out, or fit a mechanism of fewer bands"
            )
        return self

    def participation(self, rounds: int) -> Participation:
        """Returns the participation limits, in which rounds of one client are multiples of
        `partitions` apart.
        """
        separation = min(self.num_partitions, rounds)
        return Participation(rounds=rounds, schema="fixed_epoch", min_sep=separation)


class IndependentRounds(Cyclic):
    """Base of the cyclic schemes whose rounds sample independently of each other. A client is
    sampled with the same probability in each round of its partition.
    """

    def compositions(self, rounds: int) -> int:
        """Returns the largest number of rounds in which one client can be sampled, ceil(rounds /
        partitions). It is the number of queries that the accountant composes (Thm. 4).
        """
        return -(-rounds // self.num_partitions)

    def facts(self, rounds: int) -> dict[str, Any]:
        """Returns the scheme's class and fields, the probability with which a client is sampled,
        and the number of composed queries.
        """
        facts = super().facts(rounds)
        facts["probability"] = self.probability
        facts["compositions"] = self.compositions(rounds)
        return facts

    def contradictions(self, observed: ParticipationStats, rounds: int) -> list[str]:
        """Returns evidence that a record was not sampled by this scheme, which is a client that
        took part too often.
        """
        most_participations = observed.max_participations
        # The record may lack some rounds or clients. So its largest number of rounds of a client is
        # compared with the distribution of that number for a complete run.
        return super().contradictions(observed, rounds) + self.unlikely(
            f"a client took part {most_participations} times",
            most_participations,
            draws=self.compositions(rounds),
            times=self.population,
        )

    def _queries(self, mechanism: Mechanism, noise: float) -> str:
        """Returns a clause for the privacy statement about the queries to which the run is reduced
        (banded paper, Thm. 4).
        """
        return (
            f"the run as {self.compositions(mechanism.rounds)} adaptive queries on one of "
            f"{self.num_partitions} partitions of the population (Choquette-Choo et al. 2023, "
            "Theorem 4), each a Gaussian mechanism with noise multiplier "
            f"{down(noise / column_norm(mechanism))}"
        )
