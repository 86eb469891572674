"""The choice of the number of bands: sampling amplifies fewer bands more, and more bands leave less
noise in the sums (banded paper, Sec. 5).

Round t samples only from partition t mod b of the population, each client with probability q = b B
/ m (Alg. 6, Cor. F.1). A mechanism of b bands is then as private as ceil(n / b) Poisson-sampled
Gaussian events whose sensitivity is the largest column norm of C.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Any

from fedmf import checks, fields
from fedmf.mechanisms.banded.fit import check_memory_of_fit
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.error import rmse
from fedmf.mechanisms.fit import fit
from fedmf.mechanisms.fitting.progress import interruptible_fits
from fedmf.mechanisms.leading import column_norm
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.participation.schema import Participation
from fedmf.privacy.attack_risk import AttackRisk, attack_risk
from fedmf.privacy.calibrate import calibrate
from fedmf.privacy.gaussian import check_delta, check_epsilon, gaussian_noise_multiplier
from fedmf.privacy.monte_carlo import FAILURE_OF_CALIBRATION
from fedmf.privacy.plan import per_query_noise_multiplier
from fedmf.privacy.sampling import Sampling, scheme_class, scheme_name
from fedmf.workloads import Workload, check_workload

# Rows with at most this times the best rmse are called close.
CLOSE = 1.01
# The search ends when the candidates next to the best are within this ratio of it, where the curve
# is flat.
_FINEST_RATIO = 1.06


@dataclasses.dataclass(frozen=True, kw_only=True)
class BandRow:
    """One candidate, with the noise that meets the privacy target.

    Attributes:
      bands: b; `rounds` for the dense optimum.
      family: "banded" with columns of the same norm, or "dense".
      amplified: whether the guarantee rests on sampling (q < 1).
      probability: q of a client of the round's partition, or of an eligible client of min-sep
        Poisson, to be sampled; 1 without amplification.
      compositions: sampled events of one client, or its largest number of participations if they
        are not composed.
      per_query_noise_multiplier: stddev / (largest column norm * clip norm), of each sampled event.
      noise_multiplier: stddev / (sensitivity under the search's `participation` * clip norm), the
        unit of the papers' tables.
      rmse: root of the mean squared error per round of the workload's query on sums of updates, for
        clip norm 1.
      effective_rmse: rmse / cohort_size, the error on means.
      advantage: bound on an attacker's advantage; see `fedmf.attack_risk`.
    """

    bands: int
    family: str
    amplified: bool
    probability: float
    compositions: int
    per_query_noise_multiplier: float
    noise_multiplier: float
    rmse: float
    effective_rmse: float
    advantage: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class BandSearch:
    """A search for the number of bands. It computes one row at a time, which is the noise and the
    error of one mechanism that meets the target.

    Attributes:
      workload: A, (n, n).
      population: m, number of clients.
      cohort_size: B, clients sampled in a round, on average.
      epsilon, delta: the target, for the whole run.
      sampling: the name of a scheme, whose further fields follow from the mechanism; rows of
        "min-sep-poisson" and "balls-in-bins" take about a minute each.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.
    """

    workload: Workload
    population: int
    cohort_size: int
    epsilon: float
    delta: float
    sampling: str = "poisson"

    def __post_init__(self) -> None:
        check_workload(self.workload)
        hint = "pass the number of clients, a positive int"
        m = checks.integer("population", self.population, low=1, high=fields.MAX_COUNT, hint=hint)
        hint = f"a round samples at most all of population={m} clients"
        cohort_size = checks.integer("cohort_size", self.cohort_size, low=1, high=m, hint=hint)
        scheme = scheme_name("sampling", self.sampling)
        target = {"epsilon": check_epsilon(self.epsilon), "delta": check_delta(self.delta)}
        sizes = {"population": m, "cohort_size": cohort_size}
        fields.set_fields(self, target | sizes | {"sampling": scheme})

    @property
    def participation(self) -> Participation:
        """The participation without sampling: a fixed order, every client once in population //
        cohort_size rounds.
        """
        n = self.workload.rounds
        return Participation(
            rounds=n, schema="fixed_epoch", min_sep=min(n, self.population // self.cohort_size)
        )

    def rows(self, bands: Iterable[int] | None = None) -> Iterator[BandRow]:
        """Yields the rows of `choose_bands`, in the order in which they are computed."""
        if bands is not None:
            for b in self._checked_candidates(bands):
                yield self.banded(b)
            return
        n = self.workload.rounds
        row_by_bands: dict[int, BandRow] = {}
        candidates = _powers_of_two(min(n, self.population // self.cohort_size))
        # The last one takes most memory. A search that cannot end is refused before the first fit.
        check_memory_of_fit(n, candidates[-1], hint="pass smaller candidates as `bands`")
        while candidates:
            for b in candidates:
                row_by_bands[b] = self.banded(b)
                yield row_by_bands[b]
            candidates = _refined_candidates(row_by_bands, n)

    def _checked_candidates(self, bands: Iterable[int]) -> list[int]:
        """Returns the different candidates in ascending order."""
        n = self.workload.rounds
        hint = f"a number of diagonals in 1..{n}"
        entries = checks.entries("bands", bands, hint=f"list candidates, each {hint}")
        if not entries:
            raise ValueError(f"bands={bands!r} is empty: list candidates, each {hint}")
        candidates = {checks.integer("bands", b, low=1, high=n, hint=hint) for b in entries}
        check_memory_of_fit(n, max(candidates), hint="leave the largest of `bands` out")
        return sorted(candidates)

    def banded(self, bands: int) -> BandRow:
        """Computes the row of the best encoder with so many bands and columns of the same norm."""
        one_epoch = Participation(rounds=self.workload.rounds, schema="single")
        with interruptible_fits():
            mechanism = fit(self.workload, one_epoch, family="banded", bands=bands)
        scheme_type = scheme_class(self.sampling)
        if scheme_type.needs_bands and bands * self.cohort_size >= self.population:
            return self._row(mechanism, bands, None)
        scheme = scheme_type.configured(population=self.population, cohort_size=self.cohort_size)
        return self._row(mechanism, bands, scheme.for_mechanism(mechanism))

    def dense(self) -> BandRow:
        """Computes the row of the best of all encoders without amplification ("b = n" in the
        paper); its fit is O(rounds^3).
        """
        with interruptible_fits():
            mechanism = fit(self.workload, self.participation, family="dense", tolerance=1e-3)
        return self._row(mechanism, self.workload.rounds, None)

    def _row(self, mechanism: Mechanism, bands: int, scheme: Sampling | None) -> BandRow:
        """Computes the row of a mechanism with or without sampling."""
        norm = column_norm(mechanism)
        unsampled_sensitivity = sensitivity(mechanism, self.participation).value
        if scheme is None:
            probability = 1.0
            compositions = self.participation.max_participations
            z = gaussian_noise_multiplier(self.epsilon, self.delta)
            sigma = z * unsampled_sensitivity / norm
            risk = AttackRisk(mu=1 / z)
        else:
            probability = scheme.probability
            compositions = scheme.participation(self.workload.rounds).max_participations
            plan = calibrate(
                mechanism, None, epsilon=self.epsilon, delta=self.delta, sampling=scheme
            )
            sigma = per_query_noise_multiplier(plan)
            risk = attack_risk(plan)
        one_epoch = Participation(rounds=self.workload.rounds, schema="single")
        error = sigma * rmse(mechanism, self.workload, one_epoch)
        return BandRow(
            bands=bands,
            family=mechanism.family,
            amplified=scheme is not None,
            probability=probability,
            compositions=compositions,
            per_query_noise_multiplier=sigma,
            noise_multiplier=sigma * norm / unsampled_sensitivity,
            rmse=error,
            effective_rmse=error / self.cohort_size,
            advantage=risk.advantage,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BandChoice:
    """The curve of rmse over bands, and the choice.

    Attributes:
      search: the search that computed the rows.
      rows: one for each candidate, by bands.
    """

    search: BandSearch
    rows: tuple[BandRow, ...]

    @property
    def participation(self) -> Participation:
        """The participation without sampling, and the unit of the rows' `noise_multiplier`."""
        return self.search.participation

    @property
    def best(self) -> BandRow:
        """The row with the least rmse."""
        return min(self.rows, key=lambda row: row.rmse)

    @property
    def failure(self) -> float:
        """The probability, over the randomness of simulations, that the noise or advantage of any
        row is too small: the sum over all calibrations and curves; 0 without simulations.

        The choice of the least noise prefers a row whose noise is too small. So the failure
        probability of the best row is that of all rows together.
        """
        if not scheme_class(self.search.sampling).simulated:
            return 0.0
        num_amplified = sum(row.amplified for row in self.rows)
        return 2 * FAILURE_OF_CALIBRATION * num_amplified

    @property
    def close(self) -> tuple[BandRow, ...]:
        """The rows whose rmse is within 1% of the best, including the best: fewer bands cost less
        memory.
        """
        return tuple(row for row in self.rows if row.rmse <= CLOSE * self.best.rmse)

    def summary(self) -> dict[str, Any]:
        """Returns the search and its rows in plain JSON types."""
        names = ("population", "cohort_size", "epsilon", "delta", "sampling")
        return {
            "rounds": self.participation.rounds,
            **{name: getattr(self.search, name) for name in names},
            "participation": self.participation.limits(),
            "best": dataclasses.asdict(self.best),
            "close": [row.bands for row in self.close],
            "failure": self.failure,
            "rows": [dataclasses.asdict(row) for row in self.rows],
        }


@with_numpy_defaults
def choose_bands(
    workload: Workload,
    *,
    rounds: int | None = None,
    bands: Iterable[int] | None = None,
    **target: Any,
) -> BandChoice:
    """Minimises sigma(b)^2 * loss(b) over the number of bands b (banded paper, Sec. 5).

    sigma(b) is the least noise for (epsilon, delta). If b * cohort_size < population it is that
    of ceil(rounds / b) events with Poisson sampling at q = b * cohort_size / population, by PLD
    accounting for addition or removal of a client; otherwise that of one Gaussian release under
    `BandSearch.participation`, without amplification. loss(b) is that of the best encoder with b
    bands and columns of the same norm.

    If the epsilon of a scheme is simulated, the calibration of each row has a failure probability;
    `BandChoice.failure` is their sum.

    Amplification needs a server that can sample any client in any round. With phones, where it
    cannot, use bands = min_sep.

    The default candidates are the powers of two up to population / cohort_size, that number, and
    then points between the best and its neighbours until these are within 6% of it. That is the
    best of all b if the curve has one valley around the best power of two, which is not proven;
    pass `bands=range(1, ...)` to try all. `BandSearch` computes row after row, and the dense
    optimum.

    Args:
      workload: as in `BandSearch`.
      rounds: n; None takes the workload's, which it must equal.
      bands: candidates, each in 1..rounds; None for the default candidates.
      target: population, cohort_size, epsilon, delta, and optionally sampling, as in `BandSearch`.

    Returns:
      A row for each number of bands, and the best.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.

    >>> from fedmf.workloads import prefix_sum
    >>> choice = choose_bands(
    ...     prefix_sum(32), population=320, cohort_size=20, epsilon=4.0, delta=1e-6,
    ...     bands=[1, 4, 16]
    ... )
    >>> [(row.bands, row.amplified, row.compositions) for row in choice.rows], choice.best.bands
    ([(1, True, 32), (4, True, 8), (16, False, 2)], 4)
    """
    fields.check_names("choose_bands", BandSearch, {"workload": workload, **target})
    search = BandSearch(workload=workload, **target)
    if rounds is not None and checks.rounds("rounds", rounds) != workload.rounds:
        raise ValueError(
            f"rounds={rounds} but workload {workload.name!r} has rounds={workload.rounds}: pass "
            "that number, or leave it out"
        )
    rows = sorted(search.rows(bands), key=lambda row: row.bands)
    return BandChoice(search=search, rows=tuple(rows))


def _powers_of_two(limit: int) -> list[int]:
    """Returns the powers of two up to `limit`, and `limit` itself.

    >>> _powers_of_two(6)
    [1, 2, 4, 6]
    """
    return sorted({2**i for i in range(limit.bit_length())} | {limit})


def _refined_candidates(row_by_bands: dict[int, BandRow], n: int) -> list[int]:
    """Returns the geometric means of the best candidate and its neighbours, if these are not within
    `_FINEST_RATIO` of it.

    Of the numbers with the same ceil(n / b) the smallest is taken: the others sample clients more
    often for as many events.
    """
    numbers = sorted(row_by_bands)
    best = min(numbers, key=lambda b: row_by_bands[b].rmse)
    best_index = numbers.index(best)
    candidates = []
    for i in (best_index - 1, best_index):
        if not 0 <= i < len(numbers) - 1:
            continue
        low = numbers[i]
        high = numbers[i + 1]
        if high > _FINEST_RATIO * low and high > low + 1:
            mean = round(math.sqrt(low * high))
            compositions = -(-n // mean)
            candidates.append(-(-n // compositions))
    return [b for b in candidates if b not in row_by_bands]
