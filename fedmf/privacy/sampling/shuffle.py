"""One round an epoch for every client, in places drawn anew (banded paper, Cor. F.2)."""

import dataclasses
from typing import Any, ClassVar, Self

from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.leading import column_norm
from fedmf.participation.schema import Participation
from fedmf.participation.stats import ParticipationStats
from fedmf.privacy.gaussian import MIN_DELTA
from fedmf.privacy.random_allocation import random_allocation_epsilon
from fedmf.privacy.rounding import down
from fedmf.privacy.sampling.base import off_multiples
from fedmf.privacy.sampling.cyclic import Cyclic, proven_bands
from fedmf.privacy.sampling.draws import Draws, EpochPlaces


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicShuffle(Cyclic):
    """Every client once an epoch of floor(population / cohort_size) rounds, in a place drawn anew.

    Every epoch each client draws one of its `positions` rounds, the ones congruent to it modulo
    `partitions`, independently of all others. `partitions` must divide the epoch. Cohorts vary in
    size, population / epoch on average.

    The guarantee is that of random allocation (`fedmf.privacy.random_allocation`). A client's
    rounds are multiples of partitions >= bands apart, in epochs as in the next one. What it adds in
    round i lies in rows i .. i + bands - 1 of C x, which no other of its rounds reaches and which
    end before its next one. So a run is, for each epoch, one of `positions` adaptive Gaussian
    queries, query i of sensitivity ||C e_i||: conditioned on the others, whose places say nothing
    of this client's. dp_accounting has no such event.

    No amplification is proven for one order that all epochs share.

    >>> shuffle = CyclicShuffle(population=1000, cohort_size=10, partitions=4)
    >>> shuffle.epoch, shuffle.positions, shuffle.participation(250)
    (100, 25, Participation(rounds=250, schema='min_sep', min_sep=4, max_participations=3))
    """

    name: ClassVar[str] = "reshuffle"
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
        """The scheme in the least number of parts that divides an epoch and is no less than the
        mechanism's bands, unless it has more.
        """
        if self.partitions is not None:
            return super().for_mechanism(mechanism)
        bands = proven_bands(mechanism)
        parts = (b for b in range(bands, self.epoch + 1) if self.epoch % b == 0)
        return dataclasses.replace(self, partitions=next(parts, bands))

    @property
    def epoch(self) -> int:
        """Rounds in which every client is drawn once."""
        return self.population // self.cohort_size

    @property
    def positions(self) -> int:
        """Rounds of an epoch among which a client's one is uniform: epoch / partitions."""
        return self.epoch // self.parts

    @property
    def probability(self) -> float:
        """1 / positions, of a client's place to be a given one of its rounds."""
        return 1 / self.positions

    def epochs(self, rounds: int) -> int:
        """Passes over the population that a run begins."""
        return -(-rounds // self.epoch)

    def facts(self, rounds: int) -> dict[str, Any]:
        """Class, fields, and the numbers of rounds and epochs."""
        more = {"epoch": self.epoch, "epochs": self.epochs(rounds), "positions": self.positions}
        return super().facts(rounds) | more

    def participation(self, rounds: int) -> Participation:
        """One round an epoch, at least `partitions` apart."""
        least = min(self.parts, rounds)
        most = min(self.epochs(rounds), -(-rounds // least))
        return Participation(
            rounds=rounds, schema="min_sep", min_sep=least, max_participations=most
        )

    def epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """That of random allocation."""
        sigma, epochs = noise / column_norm(mechanism), self.epochs(mechanism.rounds)
        return random_allocation_epsilon(sigma, delta, positions=self.positions, epochs=epochs)

    def draws(self, seed: int) -> Draws:
        """The places of every epoch."""
        return EpochPlaces(
            population=self.population, epoch=self.epoch, partitions=self.parts, seed=seed
        )

    def contradictions(self, observed: ParticipationStats, rounds: int) -> list[str]:
        """Those of all schemes, and clients outside their part."""
        return (
            super().contradictions(observed, rounds)
            + off_multiples(observed, self.parts)
            + self.unlikely_cohort(observed, self.largest_part)
        )

    def statement(self, mechanism: Mechanism, noise: float) -> dict[str, str]:
        """Sentences for the privacy statement."""
        return {
            "adjacency": "The accountant of random allocation speaks of zeroing a client out: the "
            "places of other clients are drawn independently of its own, and the divisor is fixed.",
            "accounting": "Random allocation (Feldman and Shenfeld 2026, arXiv 2602.17284) for "
            f"(epsilon, delta), for a client's place among {self.positions} rounds of an epoch "
            "(Choquette-Choo et al. 2023, Corollary F.2, with places drawn independently), "
            f"{self.epochs(mechanism.rounds)} epochs composed, each query a Gaussian mechanism "
            f"with noise multiplier {down(noise / column_norm(mechanism))}; computed without "
            "simulation and rounded to the safe side",
            "drawing": f"{self._in_words()}: in every epoch of {self.epoch} rounds each client "
            f"draws one of its {self.positions}, "
            "uniformly and independently of all others and of other epochs.",
        }
