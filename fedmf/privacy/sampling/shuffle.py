"""Shuffled batches: the population in a random order, dealt out epoch after epoch (banded paper, Cor. F.2)."""

import dataclasses
import math
from typing import Any

from fedmf.mechanisms.base import Mechanism
from fedmf.participation.schema import Participation
from fedmf.participation.stats import ParticipationStats
from fedmf.privacy.amplification import shuffled_gaussian_epsilon
from fedmf.privacy.rounding import down
from fedmf.privacy.sampling.base import column_norm
from fedmf.privacy.sampling.cyclic import REPLACES, Cyclic, too_large_cohort
from fedmf.privacy.sampling.draws import Draws, EpochOrder


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicShuffle(Cyclic, names={"shuffle": {"reshuffle": False}, "reshuffle": {"reshuffle": True}}):
    """A random order of the population, dealt out in batches of cohort_size, epoch after epoch (banded paper, Cor. F.2).

    An epoch is floor(population / cohort_size) rounds, which `partitions` must divide; clients left over are never drawn. Batch i of an
    epoch belongs to part i mod partitions. dp_accounting has no such event.

    Attributes:
      reshuffle: deal every part in a new order each epoch; False keeps one order for the whole run.

    >>> shuffle = CyclicShuffle(population=1000, cohort_size=10, partitions=4)
    >>> shuffle.epoch, shuffle.positions, shuffle.participation(250)
    (100, 25, Participation(rounds=250, schema='fixed_epoch', min_sep=100, max_participations=3))
    """

    reshuffle: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.reshuffle, bool):
            raise TypeError(f"reshuffle={self.reshuffle!r} must be True or False")
        if self.partitions is not None and self.epoch % self.partitions:
            raise ValueError(
                f"partitions={self.partitions} does not divide an epoch of {self.epoch} rounds (population={self.population} // "
                f"cohort_size={self.cohort_size}): use a mechanism whose bands divide {self.epoch}, or pass such partitions"
            )

    @property
    def epoch(self) -> int:
        """Rounds in which every client is drawn once."""
        return self.population // self.cohort_size

    @property
    def positions(self) -> int:
        """Rounds of an epoch among which a client's one is uniform: epoch / partitions."""
        return self.epoch // self.parts

    def epochs(self, rounds: int) -> int:
        """Passes over the population that a run begins."""
        return -(-rounds // self.epoch)

    def facts(self, rounds: int) -> dict[str, Any]:
        """Class, fields, and the numbers of rounds and epochs."""
        more = {"epoch": self.epoch, "epochs": self.epochs(rounds)}
        return super().facts(rounds) | more | ({"positions": self.positions} if self.partitions is not None else {})

    def participation(self, rounds: int) -> Participation:
        """One round an epoch: exactly an epoch apart in one order, at least `partitions` apart in new ones."""
        if not self.reshuffle:
            return Participation(rounds=rounds, schema="fixed_epoch", min_sep=min(self.epoch, rounds))
        least = min(self.parts, rounds)
        most = min(self.epochs(rounds), -(-rounds // least))
        return Participation(rounds=rounds, schema="min_sep", min_sep=least, max_participations=most)

    def epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """By the closed form of Feldman, McMillan and Talwar 2021 (Theorem 3.8)."""
        epochs = self.epochs(mechanism.rounds)
        if epochs > 1 and not self.reshuffle:
            return math.inf  # one order for all epochs: what the first reveals of it is known in the second
        sigma = noise / column_norm(mechanism)
        return shuffled_gaussian_epsilon(sigma, delta, positions=self.positions, epochs=epochs)

    def draws(self, seed: int) -> Draws:
        """The batches of the order."""
        return EpochOrder(
            population=self.population,
            cohort_size=self.cohort_size,
            epoch=self.epoch,
            seed=seed,
            reshuffle=self.reshuffle,
            partitions=self.parts,
        )

    def contradictions(self, observed: ParticipationStats, rounds: int) -> list[str]:
        """Those of all schemes, too large cohorts, and clients outside their part."""
        found = super().contradictions(observed, rounds) + too_large_cohort(observed, self.cohort_size)
        off = sum(count for gap, count in observed.separations.items() if gap % self.parts)
        if off and self.reshuffle:  # the participation of one order for all epochs has these gaps in it
            found.append(
                f"{off} separations of two rounds of one client are no multiples of {self.parts}, so that those clients left their "
                "part of the population"
            )
        return found

    def statement(self, mechanism: Mechanism, noise: float) -> dict[str, str]:
        """Sentences for the privacy statement."""
        order = "a new random order every epoch" if self.reshuffle else "one random order for all epochs"
        return {
            "adjacency": f"The bound for shuffled clients {REPLACES}",
            "accounting": "The closed form of Feldman, McMillan and Talwar 2021 (Theorem 3.8) for (epsilon, delta), for a client's "
            f"place among {self.positions} rounds of an epoch (Choquette-Choo et al. 2023, Corollary F.2), {self.epochs(mechanism.rounds)} "
            "epochs composed by privacy loss distributions, each query a Gaussian mechanism with noise multiplier "
            f"{down(noise / column_norm(mechanism))}",
            "drawing": f"{self._in_words()}: batches of {self.cohort_size} clients in {order} of {self.epoch} rounds.",
            "secret": "",
        }
