"""Cyclic sampling of a banded mechanism (banded paper, Sec. 5 and App. F): Poisson samples,
subsets of fixed size, and one round an epoch for every client, in places drawn anew.

The population is split into b parts D_0 .. D_(b-1), whatever the data, and round t draws from part
t mod b only. With an encoder of at most b bands no row of C x depends on two rounds of one client.
A run is then ceil(n / b) adaptive queries on one part, each of sensitivity max_i ||C e_i|| (Thm.
4). The schemes differ in how a round draws from its part.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from fedmf import fields
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.leading import column_norm
from fedmf.participation.schema import Participation
from fedmf.participation.stats import ParticipationStats, off_multiples
from fedmf.privacy.amplification import sampled_gaussian_curve, sampled_gaussian_epsilon
from fedmf.privacy.fixed_size import fixed_size_epsilon
from fedmf.privacy.gaussian import MIN_DELTA
from fedmf.privacy.random_allocation import (
    random_allocation_curve,
    random_allocation_epsilon,
)
from fedmf.privacy.rounding import down
from fedmf.privacy.sampling.base import (
    Sampling,
    check_bands,
    check_cohort_size,
    check_population,
)
from fedmf.privacy.sampling.draws import Draws, EpochPlaces, PartitionDraws

if TYPE_CHECKING:
    import dp_accounting


REPLACES = (
    "speaks of replacing one client by another, of which zeroing out is a case: the other one "
    "contributes zero. Two clients differ by at "
    "most twice the clip norm, so that it is given half the noise multiplier."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cyclic(Sampling):
    """What the cyclic schemes have in common.

    Attributes:
      population: m, clients that can be drawn.
      cohort_size: B, clients of a round; the expected number where the number is random.
      partitions: b, parts of the population; None until a Plan sets it to the mechanism's bands.

    Raises:
      TypeError: an attribute that is no whole number.
      ValueError: a cohort larger than the part that it is drawn from.
    """

    population: int = fields.validated(check_population)
    cohort_size: int = fields.validated(check_cohort_size)
    partitions: int | None = fields.validated(check_bands, None)

    def __post_init__(self) -> None:
        super().__post_init__()
        m = self.population
        B = self.cohort_size
        b = self.partitions
        part = m // (b or 1)
        if part < B:
            ways = [
                (part, f"lower `cohort_size` to at most {part}"),
                (m // B, f"use a mechanism of at most {m // B} bands"),
            ]
            raise ValueError(
                f"cohort_size={B} exceeds a part of population={m} in {b or 1} partitions, which "
                f"has {part} clients: {''.join(f'{way}, or ' for most, way in ways if most)}raise "
                f"the population to {B * (b or 1)}"
            )

    @property
    def parts(self) -> int:
        """b, once it is known."""
        if self.partitions is None:
            raise ValueError(
                "partitions=None: a plan sets it to the mechanism's bands; or pass partitions"
            )
        return self.partitions

    @property
    def largest_part(self) -> int:
        """Clients of the largest part."""
        return -(-self.population // self.parts)

    def for_mechanism(self, mechanism: Mechanism) -> Self:
        """The scheme in as many parts as the mechanism has bands, unless it has more."""
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
        """Rounds of one client are multiples of `partitions` apart."""
        return Participation(rounds=rounds, schema="fixed_epoch", min_sep=min(self.parts, rounds))

    def _in_words(self) -> str:
        return (
            f"The population of {self.population} clients is split into {self.parts} parts, "
            f"whatever their data, and round t draws from part t mod {self.parts} only"
        )


def proven_bands(mechanism: Mechanism) -> int:
    """Bands of a lower-triangular encoder, from its entries and not from what it says of itself."""
    rows = mechanism.banded_rows()
    if rows is not None:
        return int(rows.shape[1])
    column = mechanism.toeplitz_coefficients()
    if column is not None:
        return int(np.flatnonzero(column).max(initial=0)) + 1
    C = mechanism.encoder()
    n = mechanism.rounds
    if C.shape != (n, n) or np.triu(C, 1).any():
        raise ValueError(
            f"family={mechanism.family} has no square lower-triangular encoder, which "
            "amplification by sampling needs: use banded, "
            "identity, toeplitz or dense, or leave sampling out"
        )
    filled = C != 0
    lags = np.arange(n) - filled.argmax(axis=1)
    return int(lags[filled.any(axis=1)].max(initial=0)) + 1


class _RoundByRound(Cyclic):
    """Schemes whose rounds draw independently of each other: a client is drawn in each of its
    rounds with one probability.
    """

    def compositions(self, rounds: int) -> int:
        """ceil(rounds / partitions): the rounds in which one client can be drawn (Thm. 4)."""
        return -(-rounds // self.parts)

    def facts(self, rounds: int) -> dict[str, Any]:
        """Class, fields, probability, and compositions of one client."""
        more = {"probability": self.probability, "compositions": self.compositions(rounds)}
        return super().facts(rounds) | more

    def contradictions(self, observed: ParticipationStats, rounds: int) -> list[str]:
        """Too many clients, or a client too often."""
        found = super().contradictions(observed, rounds)
        most = observed.max_participations
        # At most as likely as the largest count of any client, over all rounds of the plan.
        return found + self.unlikely(
            f"a client took part {most} times",
            most,
            draws=self.compositions(rounds),
            times=self.population,
        )

    def _accounting(self, mechanism: Mechanism, noise: float) -> str:
        return (
            f"of the run as {self.compositions(mechanism.rounds)} adaptive queries on one of "
            f"{self.parts} parts of the population (Choquette-Choo et al. 2023, Theorem 4), each a "
            f"Gaussian mechanism with noise multiplier {down(noise / column_norm(mechanism))}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicPoisson(_RoundByRound):
    """Every client of the round's part takes part with probability q, independently (banded paper,
    Alg. 6 and Cor. F.1).

    Cohorts vary in size; the divisor of the mean stays cohort_size.

    Attributes:
      population, cohort_size, partitions: m clients, B of them a round, in b parts; None takes the
        mechanism's bands for b.

    >>> scheme = CyclicPoisson(population=342_000, cohort_size=1000, partitions=9)
    >>> round(scheme.probability, 6), scheme.compositions(2052), scheme.participation(2052).min_sep
    (0.026316, 228, 9)
    """

    name: ClassVar[str] = "poisson"
    independent: ClassVar[bool] = True

    @property
    def probability(self) -> float:
        """q = cohort_size * partitions / population (banded paper, Example F.1, swaps n and m).

        The same for all clients, whatever the sizes of parts that cannot be equal: the guarantee
        asks for no more.
        """
        return self.cohort_size * self.parts / self.population

    def event(self, mechanism: Mechanism, noise: float) -> "dp_accounting.DpEvent":
        """For add/remove, which is zero-out for clients that are drawn independently."""
        import dp_accounting

        one = dp_accounting.GaussianDpEvent(noise / column_norm(mechanism))
        sampled = dp_accounting.PoissonSampledDpEvent(self.probability, one)
        return dp_accounting.SelfComposedDpEvent(sampled, self.compositions(mechanism.rounds))

    def epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """By privacy loss distributions (banded paper, Cor. F.1)."""
        k = self.compositions(mechanism.rounds)
        sigma = noise / column_norm(mechanism)
        return sampled_gaussian_epsilon(sigma, delta, probability=self.probability, compositions=k)

    def curve(
        self, mechanism: Mechanism, noise: float, *, search: bool = False
    ) -> tuple[tuple[float, float], ...]:
        """By privacy loss distributions."""
        return sampled_gaussian_curve(
            noise / column_norm(mechanism),
            probability=self.probability,
            compositions=self.compositions(mechanism.rounds),
        )

    def draws(self, seed: int) -> Draws:
        """Independent clients of the round's part."""
        q = self.probability
        return PartitionDraws(
            population=self.population, partitions=self.parts, seed=seed, probability=q
        )

    def contradictions(self, observed: ParticipationStats, rounds: int) -> list[str]:
        """Those of all such schemes, too large a round, and too many participations; the largest
        part bounds them all.
        """
        part = self.largest_part
        total = observed.participations
        return (
            super().contradictions(observed, rounds)
            + self.unlikely_cohort(observed, part)
            + self.unlikely(
                f"there are {total} participations", total, draws=part * observed.rounds, times=1
            )
        )

    def statement(self, mechanism: Mechanism, noise: float) -> dict[str, str]:
        """Sentences for the privacy statement."""
        return {
            "adjacency": "The accountant of the sampled queries speaks of adding or removing a "
            "client. That is the same where clients are drawn as assumed below: independently, "
            "with a probability and a part of the population that depend on no other client. With "
            "a fixed divisor zeroing a client out and removing it then give the same two "
            "distributions of the output.",
            "accounting": "Privacy loss distributions (the library dp-accounting) for (epsilon, "
            f"delta), {self._accounting(mechanism, noise)} on a Poisson sample with probability "
            f"{self.probability:.12g} (Corollary F.1)",
            "drawing": f"{self._in_words()}: each client with probability {self.probability:.12g}, "
            "independently of all others and of other rounds.",
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicFixedSize(_RoundByRound):
    """A uniform subset of exactly cohort_size clients of the round's part, drawn anew each round
    (banded paper, Alg. 2).

    Attributes:
      population, cohort_size, partitions: m clients, B of them a round, in b parts; None takes the
        mechanism's bands for b.

    >>> CyclicFixedSize(population=1000, cohort_size=10, partitions=3).probability  # 10 of 333
    0.03003003003003003
    """

    name: ClassVar[str] = "fixed_size"
    min_delta: ClassVar[float] = MIN_DELTA

    @property
    def probability(self) -> float:
        """cohort_size / floor(population / partitions): the largest probability of any client."""
        return self.cohort_size / (self.population // self.parts)

    def event(self, mechanism: Mechanism, noise: float) -> "dp_accounting.DpEvent":
        """For replacing a record: a zeroed-out client is one replaced by one that contributes zero.

        Any two records differ by at most two sensitivities: hence half the multiplier.
        """
        import dp_accounting

        one = dp_accounting.GaussianDpEvent(noise / column_norm(mechanism) / 2)
        sampled = dp_accounting.SampledWithoutReplacementDpEvent(
            self.population // self.parts, self.cohort_size, one
        )
        return dp_accounting.SelfComposedDpEvent(sampled, self.compositions(mechanism.rounds))

    def epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """By Renyi differential privacy (Wang, Balle and Kasiviswanathan 2019, Theorem 27)."""
        k = self.compositions(mechanism.rounds)
        each = noise / column_norm(mechanism) / 2
        return fixed_size_epsilon(each, delta, probability=self.probability, compositions=k)

    def rdp_epsilon(self, mechanism: Mechanism, noise: float, delta: float) -> float:
        """`epsilon`, which is that."""
        return self.epsilon(mechanism, noise, delta)

    def draws(self, seed: int) -> Draws:
        """Uniform subsets of the round's part."""
        size = self.cohort_size
        return PartitionDraws(
            population=self.population, partitions=self.parts, seed=seed, size=size
        )

    def contradictions(self, observed: ParticipationStats, rounds: int) -> list[str]:
        """Those of all schemes, and a round with more clients than are drawn."""
        found = super().contradictions(observed, rounds)
        largest = int(observed.cohort_sizes.max())
        if largest > self.cohort_size:
            found.append(f"a round has {largest} clients where {self.cohort_size} were to be drawn")
        return found

    def statement(self, mechanism: Mechanism, noise: float) -> dict[str, str]:
        """Sentences for the privacy statement."""
        return {
            "adjacency": f"The accountant of the sampled queries {REPLACES}",
            "accounting": "Renyi differential privacy for (epsilon, delta), "
            f"{self._accounting(mechanism, noise)} on a sample of fixed size without replacement "
            "(Wang, Balle and Kasiviswanathan 2019, Theorem 27)",
            "drawing": f"{self._in_words()}: a uniform subset of {self.cohort_size} clients, "
            "independently of other rounds.",
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicRandomAllocation(Cyclic):
    """Random allocation: in every epoch each client draws its one round anew, where `BallsInBins`
    draws it once for the whole run.

    An epoch has floor(population / cohort_size) rounds. A client draws one of its `positions`
    rounds, the ones congruent to it modulo `partitions`, uniformly and independently of all others.
    `partitions` must divide the epoch. Cohorts vary in size, population / epoch on average.

    The guarantee is that of random allocation (`fedmf.privacy.random_allocation`). A client's
    rounds are multiples of partitions >= bands apart, in epochs as in the next one. What it adds in
    round i lies in rows i .. i + bands - 1 of C x, which no other of its rounds reaches and which
    end before its next one. So a run is, for each epoch, one of `positions` adaptive Gaussian
    queries, query i of sensitivity ||C e_i||: conditioned on the others, whose places say nothing
    of this client's. dp_accounting has no such event.

    No amplification is proven for one order that all epochs share.

    Attributes:
      population: m, clients that can be drawn.
      cohort_size: clients of a round: an epoch has floor(population / cohort_size) rounds.
      partitions: rounds of one client are multiples of it apart; it divides the epoch.

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
        sigma = noise / column_norm(mechanism)
        epochs = self.epochs(mechanism.rounds)
        return random_allocation_epsilon(sigma, delta, positions=self.positions, epochs=epochs)

    def curve(
        self, mechanism: Mechanism, noise: float, *, search: bool = False
    ) -> tuple[tuple[float, float], ...]:
        """That of random allocation."""
        sigma = noise / column_norm(mechanism)
        epochs = self.epochs(mechanism.rounds)
        return random_allocation_curve(sigma, positions=self.positions, epochs=epochs)

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
            "adjacency": "The accountant of random allocation speaks of zeroing a client out, "
            "where the places of other clients are drawn independently of its own and the divisor "
            "is fixed.",
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
