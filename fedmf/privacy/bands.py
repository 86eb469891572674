"""The choice of a mechanism's number of bands for a run with client sampling. With fewer bands,
sampling amplifies privacy more; with more bands, more noise cancels across rounds (banded paper,
Sec. 5).

With b bands, round t samples only from partition t mod b of the m clients, each with probability
q = b B / m for a cohort size of B (Alg. 6, Cor. F.1). A run of n rounds is then as private as
ceil(n / b) Poisson-sampled Gaussian events whose sensitivity is the largest column norm of the
encoder C.
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

# A candidate for the number of bands is called close if its rmse is at most this many times the
# smallest rmse.
CLOSE = 1.01
# The search for the best number of bands ends when the neighbouring candidates differ from it by at
# most this ratio. Smaller differences in the number of bands hardly change the error.
_FINEST_RATIO = 1.06


@dataclasses.dataclass(frozen=True, kw_only=True)
class BandRow:
    """A candidate for the number of bands, with the noise that meets the privacy target and the
    error that follows.

    Attributes:
      bands: b, the number of bands; the number of rounds for the dense optimum.
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
    """A search for the number of bands with the least error. It computes candidates one at a time,
    each as a `BandRow`.

    Attributes:
      workload: the linear query A of n rounds whose error is computed.
      population: m, number of clients.
      cohort_size: B, clients sampled in a round, on average.
      epsilon, delta: the target, for the whole run.
      sampling: the name of a scheme, whose further fields follow from the mechanism; rows of
        "min-sep-poisson" and "balls-in-bins" take about a minute each.

    Raises:
      TypeError: workload is not a `fedmf.Workload`, or a number has another type.
      ValueError: population, cohort_size, epsilon or delta is out of range, the sampling scheme is
        unknown, or a number of bands or of rounds does not suit the workload.
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
        """The participation that is assumed without sampling, a fixed order in which every client
        takes part once in population // cohort_size rounds.
        """
        n = self.workload.rounds
        return Participation(
            rounds=n, schema="fixed_epoch", min_sep=min(n, self.population // self.cohort_size)
        )

    def rows(self, bands: Iterable[int] | None = None) -> Iterator[BandRow]:
        """Yields the rows of `choose_bands` one by one, as soon as each is computed."""
        if bands is not None:
            for b in self._checked_candidates(bands):
                yield self.banded(b)
            return
        n = self.workload.rounds
        row_by_bands: dict[int, BandRow] = {}
        candidates = _powers_of_two(min(n, self.population // self.cohort_size))
        # The fit with the most bands takes most memory. Its memory is checked first, so that an
        # error is raised before the first fit and not after hours.
        check_memory_of_fit(n, candidates[-1], hint="pass smaller candidates as `bands`")
        while candidates:
            for b in candidates:
                row_by_bands[b] = self.banded(b)
                yield row_by_bands[b]
            candidates = _refined_candidates(row_by_bands, n)

    def _checked_candidates(self, bands: Iterable[int]) -> list[int]:
        """Checks candidates that the caller passed, and returns the distinct ones in ascending
        order.
        """
        n = self.workload.rounds
        hint = f"a number of diagonals in 1..{n}"
        bands_entries = checks.entries("bands", bands, hint=f"list candidates, each {hint}")
        if not bands_entries:
            raise ValueError(f"bands={bands!r} is empty: list candidates, each {hint}")
        candidates = {checks.integer("bands", b, low=1, high=n, hint=hint) for b in bands_entries}
        check_memory_of_fit(n, max(candidates), hint="leave the largest of `bands` out")
        return sorted(candidates)

    def banded(self, bands: int) -> BandRow:
        """Computes the row of the best mechanism with `bands` bands and equal column norms."""
        one_epoch = Participation(rounds=self.workload.rounds, schema="single")
        with interruptible_fits():
            mechanism = fit(self.workload, one_epoch, family="banded", bands=bands)
        scheme_type = scheme_class(self.sampling)
        if scheme_type.needs_bands and bands * self.cohort_size >= self.population:
            return self._row(mechanism, bands, None)
        scheme = scheme_type.configured(population=self.population, cohort_size=self.cohort_size)
        return self._row(mechanism, bands, scheme.for_mechanism(mechanism))

    def dense(self) -> BandRow:
        """Computes the row of the best of all mechanisms, dense and without amplification ("b = n"
        in the paper). The fit takes time proportional to rounds^3.
        """
        with interruptible_fits():
            mechanism = fit(self.workload, self.participation, family="dense", tolerance=1e-3)
        return self._row(mechanism, self.workload.rounds, None)

    def _row(self, mechanism: Mechanism, bands: int, scheme: Sampling | None) -> BandRow:
        """Calibrates a mechanism's noise to the target, with sampling by `scheme` or without
        sampling, evaluates its error, and returns both as a row.
        """
        largest_column_norm = column_norm(mechanism)
        unsampled_sensitivity = sensitivity(mechanism, self.participation).value
        if scheme is None:
            probability = 1.0
            compositions = self.participation.max_participations
            z = gaussian_noise_multiplier(self.epsilon, self.delta)
            sigma = z * unsampled_sensitivity / largest_column_norm
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
        weighted_rmse = sigma * rmse(mechanism, self.workload, one_epoch)
        return BandRow(
            bands=bands,
            family=mechanism.family,
            amplified=scheme is not None,
            probability=probability,
            compositions=compositions,
            per_query_noise_multiplier=sigma,
            noise_multiplier=sigma * largest_column_norm / unsampled_sensitivity,
            rmse=weighted_rmse,
            effective_rmse=weighted_rmse / self.cohort_size,
            advantage=risk.advantage,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BandChoice:
    """The result of `choose_bands`, which has all candidates with their errors, and the best of
    them.

    Attributes:
      search: the search that computed the rows.
      rows: one for each candidate, by bands.
    """

    search: BandSearch
    rows: tuple[BandRow, ...]

    @property
    def participation(self) -> Participation:
        """The participation that is assumed without sampling. The `noise_multiplier` of every row
        refers to the sensitivity under it.
        """
        return self.search.participation

    @property
    def best(self) -> BandRow:
        """The row with the least rmse."""
        return min(self.rows, key=lambda row: row.rmse)

    @property
    def failure(self) -> float:
        """The probability that the noise or the advantage of any row is too small because of the
        random numbers of simulations; 0 without simulations.

        It is the sum over all calibrations and curves. The best row fails with this probability
        too, because a choice of the least noise prefers a row whose noise is too small.
        """
        if not scheme_class(self.search.sampling).simulated:
            return 0.0
        num_amplified = sum(row.amplified for row in self.rows)
        return 2 * FAILURE_OF_CALIBRATION * num_amplified

    @property
    def close(self) -> tuple[BandRow, ...]:
        """The rows whose rmse is within 1% of the best one, including the best row itself. Among
        them, fewer bands take less memory.
        """
        return tuple(row for row in self.rows if row.rmse <= CLOSE * self.best.rmse)

    def summary(self) -> dict[str, Any]:
        """Returns the arguments of the search, its rows and the best row in plain JSON types."""
        setting_names = ("population", "cohort_size", "epsilon", "delta", "sampling")
        return {
            "rounds": self.participation.rounds,
            **{name: getattr(self.search, name) for name in setting_names},
            "participation": self.participation.limits(),
            "best": dataclasses.asdict(self.best),
            "close": [row.bands for row in self.close],
            "failure": self.failure,
            "rows": [dataclasses.asdict(row) for row in self.rows],
        }


@with_numpy_defaults
def choose_bands(  # noqa: PLR0913  (the fields of `BandSearch` are arguments)
    workload: Workload,
    *,
    rounds: int | None = None,
    bands: Iterable[int] | None = None,
    population: int,
    cohort_size: int,
    epsilon: float,
    delta: float,
    sampling: str = BandSearch.sampling,
) -> BandChoice:
    """Finds the number of bands b of the mechanism with the least error at the same privacy
    guarantee. The error is sigma(b)^2 * loss(b) (banded paper, Sec. 5).

    sigma(b) is the least noise for (epsilon, delta). If b * cohort_size < population, it is the
    noise of ceil(rounds / b) events with Poisson sampling at q = b * cohort_size / population, by
    PLD accounting for addition or removal of a client. Otherwise it is the noise of one Gaussian
    release under `BandSearch.participation`, without amplification. loss(b) is the squared error of
    the best encoder with b bands and columns of the same norm.

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
      population, cohort_size, epsilon, delta, sampling: as in `BandSearch`.

    Returns:
      A row for each number of bands, and the best.

    Raises:
      TypeError: workload is not a `fedmf.Workload`, or a number has another type.
      ValueError: population, cohort_size, epsilon or delta is out of range, the sampling scheme is
        unknown, or a number of bands or of rounds does not suit the workload.

    >>> from fedmf.workloads import prefix_sum
    >>> choice = choose_bands(
    ...     prefix_sum(32), population=320, cohort_size=20, epsilon=4.0, delta=1e-6,
    ...     bands=[1, 4, 16]
    ... )
    >>> [(row.bands, row.amplified, row.compositions) for row in choice.rows], choice.best.bands
    ([(1, True, 32), (4, True, 8), (16, False, 2)], 4)
    """
    search = BandSearch(
        workload=workload,
        population=population,
        cohort_size=cohort_size,
        epsilon=epsilon,
        delta=delta,
        sampling=sampling,
    )
    if rounds is not None and checks.rounds("rounds", rounds) != workload.rounds:
        raise ValueError(
            f"rounds={rounds} but workload {workload.name!r} has rounds={workload.rounds}: pass "
            "that number, or leave it out"
        )
    sorted_rows = sorted(search.rows(bands), key=lambda row: row.bands)
    return BandChoice(search=search, rows=tuple(sorted_rows))


def _powers_of_two(limit: int) -> list[int]:
    """Returns all powers of two up to `limit`, and `limit` itself, in ascending order.

    >>> _powers_of_two(6)
    [1, 2, 4, 6]
    """
    return sorted({2**i for i in range(limit.bit_length())} | {limit})


def _refined_candidates(row_by_bands: dict[int, BandRow], n: int) -> list[int]:
    """Returns the geometric means of the best candidate and its neighbours as new candidates,
    unless the neighbours are within `_FINEST_RATIO` of the best one.

    A geometric mean is replaced by the smallest number of bands b with the same ceil(n / b). The
    larger ones have as many composed events, and each event samples a client more often.
    """
    sorted_bands = sorted(row_by_bands)
    best_bands = min(sorted_bands, key=lambda b: row_by_bands[b].rmse)
    best_index = sorted_bands.index(best_bands)
    new_candidates = []
    for i in (best_index - 1, best_index):
        if not 0 <= i < len(sorted_bands) - 1:
            continue
        lower_candidate = sorted_bands[i]
        upper_candidate = sorted_bands[i + 1]
        if (
            upper_candidate > _FINEST_RATIO * lower_candidate
            and upper_candidate > lower_candidate + 1
        ):
            geometric_mean = round(math.sqrt(lower_candidate * upper_candidate))
            compositions = -(-n // geometric_mean)
            new_candidates.append(-(-n // compositions))
    return [b for b in new_candidates if b not in row_by_bands]
