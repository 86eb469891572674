"""How many bands: fewer are amplified more by sampling, more leave less noise in the sums (banded
paper, Sec. 5).

In round t only clients of part t mod b of the population are drawn, each with probability q = b B /
m (Alg. 6, Cor. F.1). A mechanism of b bands is then as private as ceil(n / b) Poisson-sampled
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

# Rows this near to the best in rmse are called close.
CLOSE = 1.01
# The search ends where the candidates next to the best are within this ratio of it. The curve is
# flat there.
_FINEST = 1.06


@dataclasses.dataclass(frozen=True, kw_only=True)
class BandRow:
    """One candidate, with the noise that meets the privacy target.

    Attributes:
      bands: b; `rounds` for the dense optimum.
      family: "banded" with columns of one norm, or "dense".
      amplified: whether the guarantee rests on sampling (q < 1).
      probability: q, with which a client of the round's part is drawn, or a client of min-sep
        Poisson that rests no more; 1 where not amplified.
      compositions: sampled events of one client; its most participations where they
        are not composed.
      per_query_noise_multiplier: stddev / (largest column norm * clip norm), of each sampled event.
      noise_multiplier: stddev / (sensitivity under the search's `participation` * clip norm), the
        unit of the papers' tables.
      rmse: root of the mean squared error per round of the workload's query on sums of updates, for
        clip norm 1.
      effective_rmse: rmse / cohort_size, that on means.
      advantage: of an attacker at most; see `fedmf.attack_risk`.
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
    """The question, and its rows one at a time: each is the noise and error of one mechanism that
    meets the target.

    Attributes:
      workload: A, (n, n).
      population: m, clients in all.
      cohort_size: B, clients drawn in a round, on average.
      epsilon, delta: the target, for the whole run.
      sampling: the name of a scheme, which takes from the mechanism what it leaves open; rows of
        "min-sep-poisson" and "balls-in-bins" take a minute or so each.

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
        hint = f"a round draws at most all of population={m} clients"
        cohort = checks.integer("cohort_size", self.cohort_size, low=1, high=m, hint=hint)
        scheme = scheme_name("sampling", self.sampling)
        target = {"epsilon": check_epsilon(self.epsilon), "delta": check_delta(self.delta)}
        sizes = {"population": m, "cohort_size": cohort}
        fields.set_fields(self, target | sizes | {"sampling": scheme})

    @property
    def participation(self) -> Participation:
        """What clients keep to without sampling: a fixed order, every client once in population //
        cohort_size rounds.
        """
        n = self.workload.rounds
        return Participation(
            rounds=n, schema="fixed_epoch", min_sep=min(n, self.population // self.cohort_size)
        )

    def rows(self, bands: Iterable[int] | None = None) -> Iterator[BandRow]:
        """The rows of `choose_bands`, in the order in which they are tried."""
        n = self.workload.rounds
        if bands is not None:
            hint = f"a number of diagonals in 1..{n}"
            candidates = checks.entries("bands", bands, hint=f"list candidates, each {hint}")
            if not candidates:
                raise ValueError(f"bands={bands!r} is empty: list candidates, each {hint}")
            numbers = {checks.integer("bands", b, low=1, high=n, hint=hint) for b in candidates}
            check_memory_of_fit(n, max(numbers), hint="leave the largest of `bands` out")
            for b in sorted(numbers):
                yield self.banded(b)
            return
        tried: dict[int, BandRow] = {}
        missing = _powers_of_two(min(n, self.population // self.cohort_size))
        # The last one takes most. A search that cannot end is refused before the first fit.
        check_memory_of_fit(n, missing[-1], hint="pass smaller candidates as `bands`")
        while missing:
            for b in missing:
                tried[b] = self.banded(b)
                yield tried[b]
            missing = _between(tried, n)

    def banded(self, bands: int) -> BandRow:
        """The row of the best encoder of so many bands and columns of one norm."""
        once = Participation(rounds=self.workload.rounds, schema="single")
        with interruptible_fits():
            mechanism = fit(self.workload, once, family="banded", bands=bands)
        kind = scheme_class(self.sampling)
        if kind.needs_bands and bands * self.cohort_size >= self.population:
            return self._row(mechanism, bands, None)
        scheme = kind.configured(population=self.population, cohort_size=self.cohort_size)
        return self._row(mechanism, bands, scheme.for_mechanism(mechanism))

    def dense(self) -> BandRow:
        """The row of the best encoder of all without amplification ("b = n" in the paper); its fit
        is O(rounds^3).
        """
        with interruptible_fits():
            mechanism = fit(self.workload, self.participation, family="dense", tolerance=1e-3)
        return self._row(mechanism, self.workload.rounds, None)

    def _row(self, mechanism: Mechanism, bands: int, scheme: Sampling | None) -> BandRow:
        norm = column_norm(mechanism)
        unit = sensitivity(mechanism, self.participation).value
        if scheme is None:
            q = 1.0
            k = self.participation.max_participations
            z = gaussian_noise_multiplier(self.epsilon, self.delta)
            sigma = z * unit / norm
            risk = AttackRisk(mu=1 / z)
        else:
            q = scheme.probability
            k = scheme.participation(self.workload.rounds).max_participations
            plan = calibrate(
                mechanism, None, epsilon=self.epsilon, delta=self.delta, sampling=scheme
            )
            sigma = per_query_noise_multiplier(plan)
            risk = attack_risk(plan)
        error = sigma * rmse(
            mechanism, self.workload, Participation(rounds=self.workload.rounds, schema="single")
        )
        return BandRow(
            bands=bands,
            family=mechanism.family,
            amplified=scheme is not None,
            probability=q,
            compositions=k,
            per_query_noise_multiplier=sigma,
            noise_multiplier=sigma * norm / unit,
            rmse=error,
            effective_rmse=error / self.cohort_size,
            advantage=risk.advantage,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BandChoice:
    """The curve of rmse over bands, and the choice.

    Attributes:
      search: the question.
      rows: one for each candidate, by bands.
    """

    search: BandSearch
    rows: tuple[BandRow, ...]

    @property
    def participation(self) -> Participation:
        """What clients keep to without sampling, and the unit of the rows' `noise_multiplier`."""
        return self.search.participation

    @property
    def best(self) -> BandRow:
        """The row of least rmse."""
        return min(self.rows, key=lambda row: row.rmse)

    @property
    def failure(self) -> float:
        """The chance, over the coins of simulations, that any row's noise or advantage is too
        small: the sum of all calibrations and curves; 0 without any.

        The least noise is chosen among rows, and one that is too small would be. So the chance of
        all is that of the best.
        """
        simulated = scheme_class(self.search.sampling).simulated
        amplified = sum(row.amplified for row in self.rows)
        return 2 * FAILURE_OF_CALIBRATION * amplified if simulated else 0.0

    @property
    def close(self) -> tuple[BandRow, ...]:
        """Rows whose rmse is within 1% of the best, the best among them:
        fewer bands cost less memory.
        """
        return tuple(row for row in self.rows if row.rmse <= CLOSE * self.best.rmse)

    def summary(self) -> dict[str, Any]:
        """In plain JSON types."""
        asked = ("population", "cohort_size", "epsilon", "delta", "sampling")
        question = {name: getattr(self.search, name) for name in asked}
        return {
            "rounds": self.participation.rounds,
            **question,
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

    sigma(b) is the least noise that gives (epsilon, delta): for b * cohort_size < population that
    of ceil(rounds / b) events with Poisson sampling at q = b * cohort_size / population, by PLD
    accounting for addition or removal of a client; otherwise that of one Gaussian release under
    `BandSearch.participation`, without amplification. loss(b) is that of the best encoder of b
    bands and columns of one norm.

    Where the epsilon of a scheme is simulated, each row is a calibration that fails with a chance;
    `BandChoice.failure` adds them up.

    Amplification needs a server that draws whom it likes. Where it cannot, as with phones, take
    bands = min_sep.

    The default candidates are the powers of two up to population / cohort_size, that number, and
    then points between the best and its neighbours until these are within 6% of it. That is the
    best of all b where the curve has one valley around the best power of two, and nothing proves
    that it has; pass `bands=range(1, ...)` to try every one. `BandSearch` gives row after row, and
    the dense optimum.

    Args:
      workload: of `BandSearch`.
      rounds: n; None takes the workload's, which it must equal.
      bands: candidates, each in 1..rounds; None: see above.
      target: population, cohort_size, epsilon, delta, and by choice sampling, of `BandSearch`.

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
    return BandChoice(
        search=search, rows=tuple(sorted(search.rows(bands), key=lambda row: row.bands))
    )


def _powers_of_two(most: int) -> list[int]:
    """Up to `most`, and `most` itself.

    >>> _powers_of_two(6)
    [1, 2, 4, 6]
    """
    return sorted({2**i for i in range(most.bit_length())} | {most})


def _between(rows: dict[int, BandRow], n: int) -> list[int]:
    """Candidates halfway, as a ratio, between the best and its neighbours, where there is something
    between that is worth a look.

    Of numbers with the same ceil(n / b) the smallest is taken: the others are drawn more often for
    as many events.
    """
    tried = sorted(rows)
    best = min(tried, key=lambda b: rows[b].rmse)
    at = tried.index(best)
    pairs = [(tried[i], tried[i + 1]) for i in (at - 1, at) if 0 <= i < len(tried) - 1]
    halfway = [
        round(math.sqrt(low * high))
        for low, high in pairs
        if high > _FINEST * low and high > low + 1
    ]
    return [b for b in (-(-n // -(-n // b)) for b in halfway) if b not in rows]
