"""The sampling scheme of cyclic random allocation, in which each client takes part once in every
epoch, in a round that it draws anew for each epoch.
"""

import dataclasses
from typing import Any, ClassVar, Self

from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.leading import column_norm
from fedmf.participation.schema import Participation
from fedmf.participation.stats import ParticipationStats, off_multiples
from fedmf.privacy.gaussian import MIN_DELTA
from fedmf.privacy.random_allocation import random_allocation_curve, random_allocation_epsilon
from fedmf.privacy.rounding import down
from fedmf.privacy.sampling.cyclic import Cyclic
from fedmf.privacy.sampling.description import Description
from fedmf.privacy.sampling.draws import Draws, EpochPlaces
from fedmf.privacy.sampling.encoder_checks import proven_bands


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicRandomAllocation(Cyclic):
    """Random allocation, in which each client draws anew, in every epoch, the one round in which it
    takes part. (With `BallsInBins` a client draws once for the whole run.)

    An epoch has floor(population / cohort_size) rounds. A client draws one of its `positions`
    rounds, the ones congruent to it modulo `partitions`, uniformly and independently of all others.
    `partitions` must divide the epoch. Cohorts vary in size, population / epoch on average.

    The guarantee is that of random allocation (`fedmf.privacy.random_allocation`). A client's
    rounds are multiples of partitions >= bands apart, also across epochs. What the client adds in
    round i lies in rows i .. i + bands - 1 of C x, which none of its other rounds reaches and which
    end before its next round. So each epoch is one of `positions` adaptive Gaussian queries, query
    i of sensitivity ||C e_i||, conditioned on the other clients, whose rounds are independent of
    this client's. dp_accounting has no such event.

    No amplification is proven for one order that all epochs share.

    Attributes:
      population: m, clients that can be sampled.
      cohort_size: clients of a round; an epoch has floor(population / cohort_size) rounds.
      partitions: rounds of one client are multiples of this number apart; it divides the epoch.

    >>> scheme = CyclicRandomAllocation(population=1000, cohort_size=10, partitions=4)
    >>> scheme.epoch, scheme.positions, scheme.participation(250)
    (100, 25, Participation(rounds=250, schema='min_sep', min_sep=4, max_participations=3))
    """

    name: ClassVar[str] = "random-allocation"
    min_delta: ClassVar[float] = MIN_DELTA
    independent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.partitions is not None and self.epoch % self.partitions:
            raise ValueError(
                f"partitions={self.partitions} does not divide an epoch of {self.epoch} rounds "
                f"(population={self.population} // cohort_size={self.cohort_size}): use a "
                f"divisor of {self.epoch}, or leave partitions out"
            )

    def for_mechanism(self, mechanism: Mechanism) -> Self:
        """Returns the scheme with `partitions` set. If it was not set, it becomes the least divisor
        of the epoch that is at least the number of the mechanism's bands.
        """
        if self.partitions is not None:
            return super().for_mechanism(mechanism)
        bands = proven_bands(mechanism)
        possible_partitions = (b for b in range(bands, self.epoch + 1) if self.epoch % b == 0)
        return dataclasses.replace(self, partitions=next(possible_partitions, bands))

    @property
    def epoch(self) -> int:
        """The number of rounds of an epoch, in which every client is sampled once."""
        return self.population // self.cohort_size

    @property
    def positions(self) -> int:
        """The number of rounds of an epoch among which a client draws its round."""
        return self.epoch // self.num_partitions

    @property
    def probability(self) -> float:
        """The probability 1 / positions with which a client draws one of its possible rounds."""
        return 1 / self.positions

    def epochs(self, rounds: int) -> int:
        """Returns the number of epochs in a run; a last epoch that is cut short counts too."""
        return -(-rounds // self.epoch)

    def facts(self, rounds: int) -> dict[str, Any]:
        """Returns the scheme's class and fields, the rounds of an epoch, the number of epochs, and
        the number of rounds among which a client draws.
        """
        facts = super().facts(rounds)
        facts["epoch"] = self.epoch
        facts["epochs"] = self.epochs(rounds)
        facts["positions"] = self.positions
        return facts

    def participation(self, rounds: int) -> Participation:
        """Returns the participation limits, which are one round per epoch, and rounds of one client
        at least `partitions` apart.
        """
        separation = min(self.num_partitions, rounds)
        most_participations = min(self.epochs(rounds), -(-rounds // separation))
        return Participation(
            rounds=rounds,
            schema="min_sep",
            min_sep=separation,
            max_participations=most_participations,
        )

    def epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """Computes epsilon by the accounting of random allocation, with the largest column norm of
        the encoder as the sensitivity of every round.
        """
        return random_allocation_epsilon(
            noise / column_norm(mechanism),
            delta,
            positions=self.positions,
            epochs=self.epochs(mechanism.rounds),
        )

    def curve(
        self, mechanism: Mechanism, noise: float, *, search: bool = False
    ) -> tuple[tuple[float, float], ...]:
        """Computes the privacy curve by the accounting of random allocation."""
        return random_allocation_curve(
            noise / column_norm(mechanism),
            positions=self.positions,
            epochs=self.epochs(mechanism.rounds),
        )

    def draws(self, seed: int) -> Draws:
        """Returns the samples of all rounds, where each round takes the clients that drew it."""
        return EpochPlaces(
            population=self.population,
            epoch=self.epoch,
            partitions=self.num_partitions,
            seed=seed,
        )

    def contradictions(self, observed: ParticipationStats, rounds: int) -> list[str]:
        """Returns evidence that a record was not sampled by this scheme, such as clients in rounds
        outside their partition, and a round with too many clients.
        """
        return (
            super().contradictions(observed, rounds)
            + off_multiples(observed, self.num_partitions)
            + self.unlikely_cohort(observed, self.largest_partition_size)
        )

    def description(self, mechanism: Mechanism, noise: float) -> Description:
        """Returns clauses for the privacy statement about random allocation."""
        epochs = self.epochs(mechanism.rounds)
        epochs_text = "one epoch, in which" if epochs == 1 else f"{epochs} epochs, in each of which"
        return Description(
            selection=f"in every epoch of {self.epoch} rounds each client draws one of its "
            f"{self.positions}, uniformly and independently of all others and of other epochs",
            accountant="random allocation (Feldman and Shenfeld 2026, arXiv 2602.17284)",
            accounted=f"{epochs_text} a client takes part in one of {self.positions} rounds "
            "(Choquette-Choo et al. 2023, Corollary F.2, with rounds drawn independently) and each "
            "round is a Gaussian mechanism with noise multiplier "
            f"{down(noise / column_norm(mechanism))}; computed without simulation and rounded to "
            "the safe side",
            relation="zero-out",
            by_partition=True,
        )
