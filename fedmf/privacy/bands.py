"""How many bands: fewer are amplified more by sampling, more leave less noise in the sums (banded paper, Sec. 5).

In round t only clients of part t mod b of the population are drawn, each with probability q = b B / m (Alg. 6, Cor. F.1). A mechanism of b
bands is then as private as ceil(n / b) Poisson-sampled Gaussian events whose sensitivity is the largest column norm of C.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fedmf import checks
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.error import rmse
from fedmf.mechanisms.fit import fit
from fedmf.mechanisms.fitting.progress import interruptible_fits
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.participation.schema import Participation
from fedmf.privacy.amplification import MIN_COMPOSED_DELTA, sampled_gaussian_noise_multiplier
from fedmf.privacy.gaussian import check_delta, check_epsilon, gaussian_noise_multiplier
from fedmf.privacy.sampling import CyclicPoisson
from fedmf.privacy.sampling.base import column_norm
from fedmf.workloads import Workload

# Rows this near to the best in rmse are called close.
CLOSE = 1.01
# The search ends where the candidates next to the best are within this ratio of it. The curve is flat there.
_FINEST = 1.06


@dataclasses.dataclass(frozen=True, kw_only=True)
class BandRow:
    """One candidate, with the noise that meets the privacy target.

    Attributes:
      bands: b; `rounds` for the dense optimum.
      family: "banded" with columns of one norm, or "dense".
      amplified: whether the guarantee rests on sampling (q < 1).
      probability: q, with which a client of the round's part is drawn; 1 where not amplified.
      compositions: sampled events of one client; its participations where not amplified.
      per_query_noise_multiplier: stddev / (largest column norm * clip norm), of each sampled event.
      noise_multiplier: stddev / (sensitivity under the choice's `participation` * clip norm), the unit of the papers' tables.
      rmse: root of the mean squared error per round of the workload's query on sums of updates, for clip norm 1.
      effective_rmse: rmse / cohort_size, that on means.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class BandChoice:
    """The curve of rmse over bands, and the choice.

    Attributes:
      rows: one for each candidate, by bands; the dense optimum, if asked for, is last.
      population, cohort_size, epsilon, delta: the question.
      participation: what clients keep to without sampling, and the unit of the rows' `noise_multiplier`.
    """

    rows: tuple[BandRow, ...]
    population: int
    cohort_size: int
    epsilon: float
    delta: float
    participation: Participation

    @property
    def best(self) -> BandRow:
        """The row of least rmse."""
        return min(self.rows, key=lambda row: row.rmse)

    @property
    def close(self) -> tuple[BandRow, ...]:
        """Rows whose rmse is within 1% of the best, the best among them: fewer bands cost less memory."""
        return tuple(row for row in self.rows if row.rmse <= CLOSE * self.best.rmse)

    def row(self, bands: int) -> BandRow:
        """The row of so many bands.

        Raises:
          ValueError: there is none.
        """
        for row in self.rows:
            if row.bands == bands:
                return row
        tried = ", ".join(str(row.bands) for row in self.rows)
        raise ValueError(f"bands={bands} was not tried: choose one of {tried}, or pass bands= to choose_bands")

    def summary(self) -> dict[str, Any]:
        """In plain JSON types."""
        return {
            "rounds": self.participation.rounds,
            "population": self.population,
            "cohort_size": self.cohort_size,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "participation": dataclasses.asdict(self.participation),
            "best": dataclasses.asdict(self.best),
            "close": [row.bands for row in self.close],
            "rows": [dataclasses.asdict(row) for row in self.rows],
        }


def choose_bands(
    workload: Workload,
    *,
    population: int,
    cohort_size: int,
    epsilon: float,
    delta: float,
    rounds: int | None = None,
    bands: Iterable[int] | None = None,
    participation: Participation | None = None,
    dense: bool = False,
    progress: Callable[[str], None] | None = None,
) -> BandChoice:
    """Minimises sigma(b)^2 * loss(b) over the number of bands b (banded paper, Sec. 5).

    sigma(b) is the least noise that gives (epsilon, delta): for b * cohort_size < population that of ceil(rounds / b) events with Poisson
    sampling at q = b * cohort_size / population, by PLD accounting for addition or removal of a client; otherwise that of one Gaussian
    release under `participation`, without amplification. loss(b) is that of the best encoder of b bands and columns of one norm.

    Amplification needs a server that draws whom it likes. Where it cannot, as with phones, take bands = min_sep.

    The default candidates are the powers of two up to population / cohort_size, that number, and then points between the best and its
    neighbours until these are within 6% of it. That is the best of all b where the curve has one valley around the best power of two, and
    nothing proves that it has; pass `bands=range(1, ...)` to try every one.

    Args:
      workload: A.
      population: m, clients in all.
      cohort_size: B, clients drawn in a round, on average.
      epsilon, delta: the target, for the whole run.
      rounds: n; None takes the workload's, which it must equal.
      bands: candidates, each in 1..rounds; None: see above.
      participation: what clients keep to without sampling; None is a fixed order, every client once in population // cohort_size rounds.
      dense: whether to try the best encoder of all without amplification as well ("b = n" in the paper); its fit is O(rounds^3).
      progress: called with a phrase before each step; fits are kept on disk (`fedmf.fit`).

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.

    >>> from fedmf.workloads import prefix_sum
    >>> choice = choose_bands(prefix_sum(32), population=320, cohort_size=20, epsilon=4.0, delta=1e-6, bands=[1, 4, 16])
    >>> [(row.bands, row.amplified, row.compositions) for row in choice.rows], choice.best.bands
    ([(1, True, 32), (4, True, 8), (16, False, 2)], 4)
    """
    if not isinstance(workload, Workload):
        raise TypeError(f"workload is of type {type(workload).__name__}: pass a fedmf.Workload")
    n = workload.rounds
    if rounds is not None and checks.integer("rounds", rounds, low=1, hint="leave it out") != n:
        raise ValueError(
            f"rounds={rounds} but workload {workload.name!r} has rounds={n}: pass that number, or leave it out"
        )
    m = checks.integer("population", population, low=1, hint="pass the number of clients, a positive int")
    hint = f"a round draws at most all of population={m} clients"
    B = checks.integer("cohort_size", cohort_size, low=1, high=m, hint=hint)
    candidates = _Candidates(
        workload=workload,
        population=m,
        cohort_size=B,
        epsilon=check_epsilon(epsilon),
        delta=check_delta(delta),
        participation=_without_sampling(participation, n, m, B),
        progress=progress or (lambda phrase: None),
    )
    if bands is not None:
        hint = f"a number of diagonals in 1..{n}"
        chosen = bands if isinstance(bands, Sequence) else list(bands)
        tried = sorted({checks.integer("bands", b, low=1, high=n, hint=hint) for b in chosen})
        if not tried and not dense:
            raise ValueError(f"bands={bands!r} names no candidate: pass numbers of diagonals, or leave it out")
        rows = {b: candidates.banded(b) for b in tried}
    else:
        rows = {b: candidates.banded(b) for b in _powers_of_two(min(n, m // B))}
        while missing := _between(rows, n):
            rows |= {b: candidates.banded(b) for b in missing}
    by_bands = [rows[b] for b in sorted(rows)]
    return BandChoice(
        rows=(*by_bands, candidates.dense()) if dense else tuple(by_bands),
        population=m,
        cohort_size=B,
        epsilon=candidates.epsilon,
        delta=candidates.delta,
        participation=candidates.participation,
    )


def _without_sampling(participation: Participation | None, n: int, m: int, B: int) -> Participation:
    """What clients keep to without sampling: by default a fixed order of the population."""
    if participation is None:
        return Participation(rounds=n, schema="fixed_epoch", min_sep=min(n, m // B))
    if not isinstance(participation, Participation):
        raise TypeError(f"participation is of type {type(participation).__name__}: pass a fedmf.Participation")
    if participation.rounds != n:
        raise ValueError(f"participation has rounds={participation.rounds} but the workload has {n}: make both for {n}")
    if participation.min_sep < n and participation.min_sep * B > m:
        raise ValueError(
            f"participation has min_sep={participation.min_sep}, and cohorts of {B} out of {m} clients come round after {m // B} "
            f"rounds: choose min_sep up to {m // B}"
        )
    return participation


def _powers_of_two(most: int) -> list[int]:
    """Up to `most`, and `most` itself.

    >>> _powers_of_two(6)
    [1, 2, 4, 6]
    """
    return sorted({2**i for i in range(most.bit_length())} | {most})


def _between(rows: dict[int, BandRow], n: int) -> list[int]:
    """Candidates halfway, as a ratio, between the best and its neighbours, where there is something between that is worth a look.

    Of numbers with the same ceil(n / b) the smallest is taken: the others are drawn more often for as many events.
    """
    tried = sorted(rows)
    best = min(tried, key=lambda b: rows[b].rmse)
    at = tried.index(best)
    pairs = [(tried[i], tried[i + 1]) for i in (at - 1, at) if 0 <= i < len(tried) - 1]
    halfway = [round(math.sqrt(low * high)) for low, high in pairs if high > _FINEST * low and high > low + 1]
    return [b for b in (-(-n // -(-n // b)) for b in halfway) if b not in rows]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Candidates:
    """Makes rows, each the noise and error of one mechanism that meets the target."""

    workload: Workload
    population: int
    cohort_size: int
    epsilon: float
    delta: float
    participation: Participation
    progress: Callable[[str], None]

    def banded(self, b: int) -> BandRow:
        """The row of the best encoder with b bands and columns of one norm."""
        self.progress(f"fitting {b} bands")
        once = Participation(rounds=self.workload.rounds, schema="single")
        with interruptible_fits():
            mechanism = fit(self.workload, once, family="banded", bands=b)
        if b * self.cohort_size >= self.population:
            return self._row(mechanism, b, None)
        if self.delta < MIN_COMPOSED_DELTA:
            raise ValueError(
                f"delta={self.delta} is below {MIN_COMPOSED_DELTA:g}, where the epsilon of sampled cohorts is not computed (the rounding "
                "of float64 would count): raise delta, or try only bands that need no sampling, with bands * cohort_size >= population"
            )
        self.progress(f"noise for {b} bands")
        return self._row(
            mechanism, b, CyclicPoisson(population=self.population, cohort_size=self.cohort_size, partitions=b)
        )

    def dense(self) -> BandRow:
        """The row of the best encoder of all under the participation, without amplification."""
        self.progress("fitting the dense optimum")
        with interruptible_fits():
            mechanism = fit(self.workload, self.participation, family="dense", tolerance=1e-3)
        return self._row(mechanism, self.workload.rounds, None)

    def _row(self, mechanism: Mechanism, bands: int, scheme: CyclicPoisson | None) -> BandRow:
        norm, unit = column_norm(mechanism), sensitivity(mechanism, self.participation).value
        if scheme is None:
            q, k = 1.0, self.participation.max_participations
            sigma = gaussian_noise_multiplier(self.epsilon, self.delta) * unit / norm
        else:
            q, k = scheme.probability, scheme.compositions(self.workload.rounds)
            sigma = sampled_gaussian_noise_multiplier(self.epsilon, self.delta, probability=q, compositions=k)
        error = sigma * rmse(mechanism, self.workload, Participation(rounds=self.workload.rounds, schema="single"))
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
        )
