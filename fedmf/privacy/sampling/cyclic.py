"""The base classes of cyclic sampling of a banded mechanism (banded paper, Sec. 5 and App. F).

The population is split into b partitions D_0 .. D_(b-1), whatever the data, and round t samples
from partition t mod b only. With an encoder of at most b bands no row of C x depends on two rounds
of one client. A run is then ceil(n / b) adaptive queries on one partition, each of sensitivity
max_i ||C e_i|| (Thm. 4). The schemes differ in how a round samples from its partition.
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
    """Schemes whose rounds sample from the partitions of the population in turn.

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
        """The number of partitions, once it is set."""
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
        """Returns the scheme with one partition for each band of the mechanism, if `partitions` is
        not set.

        Raises:
          ValueError: fewer partitions than bands.
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
        """Returns the participation in which rounds of one client are multiples of `partitions`
        apart.
        """
        separation = min(self.num_partitions, rounds)
        return Participation(rounds=rounds, schema="fixed_epoch", min_sep=separation)


class IndependentRounds(Cyclic):
    """Cyclic schemes whose rounds sample independently of each other: a client is sampled with the
    same probability in each round of its partition.
    """

    def compositions(self, rounds: int) -> int:
        """Returns ceil(rounds / partitions), the rounds in which one client can be sampled (Thm.
        4).
        """
        return -(-rounds // self.num_partitions)

    def facts(self, rounds: int) -> dict[str, Any]:
        """Returns class, fields, probability, and compositions of one client."""
        facts = super().facts(rounds)
        facts["probability"] = self.probability
        facts["compositions"] = self.compositions(rounds)
        return facts

    def contradictions(self, observed: ParticipationStats, rounds: int) -> list[str]:
        """Adds a client that took part too often."""
        participations = observed.max_participations
        # The largest count of all clients in all rounds of the plan is at least as large.
        return super().contradictions(observed, rounds) + self.unlikely(
            f"a client took part {participations} times",
            participations,
            draws=self.compositions(rounds),
            times=self.population,
        )

    def _queries(self, mechanism: Mechanism, noise: float) -> str:
        """Returns a clause about the queries to which Thm. 4 reduces the run."""
        return (
            f"the run as {self.compositions(mechanism.rounds)} adaptive queries on one of "
            f"{self.num_partitions} partitions of the population (Choquette-Choo et al. 2023, "
            "Theorem 4), each a Gaussian mechanism with noise multiplier "
            f"{down(noise / column_norm(mechanism))}"
        )
