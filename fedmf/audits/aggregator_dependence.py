"""Tests that an aggregator's noise is independent between entries, rounds and runs."""

import dataclasses
import itertools
import math
from collections.abc import Iterator

import numpy as np

from fedmf.audits.aggregator_claim import AggregatorClaim, Outcomes
from fedmf.audits.aggregator_noise import NoiseModel, NoiseSample, white_rows
from fedmf.audits.finding import Finding
from fedmf.audits.noise import audit_noise

# Arrays with fewer samples of noise than this are not tested for dependence.
_MIN_SAMPLES = 2_000
# Pairwise correlations are computed for at most this many rounds.
_MAX_CORRELATED_ROWS = 3_000
# `audit_noise` examines at most this many rounds and columns of a run.
_MAX_AUDITED_ROUNDS = 64
_MAX_AUDITED_COLUMNS = 4_096
# A correlation is tested only if at least this many pairs of entries contribute to it.
_MIN_PAIRS = 64
# At most this many entries are transformed by one call of the fast Fourier transform.
_MAX_BATCH_ENTRIES = 2**17


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseTest:
    """Name of a noise test, with the texts for its outcome.

    Attributes:
      name: of the test.
      claimed: the claimed property of the noise.
      mistake: likely mistake if the test fails.
    """

    name: str
    claimed: str
    mistake: str


DEPENDENCE = NoiseTest(
    name="dependence",
    claimed="independent normal noise in every entry and round",
    mistake="One draw for several entries, arrays or rounds, a generator that starts again, or "
    "other noise than normal does this. For noise that is meant to be correlated over rounds say "
    'so: `noise`="correlated".',
)
START = NoiseTest(
    name="start",
    claimed="other noise after each start",
    mistake="A seed that is a constant, or the number of the round, does this: whoever knows it "
    "takes the noise away.",
)


def check_dependence(
    sample: NoiseSample, model: NoiseModel, claim: AggregatorClaim, outcomes: Outcomes
) -> None:
    """Tests that the noise is independent between entries, rounds and runs."""
    tested_entries = is_tested(model)
    if not tested_entries.any():
        for test in (DEPENDENCE, START):
            outcomes.skip(test.name, "Not made: there is no noise.")
        return
    tested_columns = np.flatnonzero(tested_entries[sample.columns])
    column_runs = [rows[:, tested_columns] for rows in white_rows(sample, model, whole=False)]
    whole_runs = [rows[:, tested_entries] for rows in white_rows(sample, model, whole=True)]
    audited_runs = list(_audit_two_runs(column_runs, sample.columns[tested_columns], claim))
    dependence_findings = [
        finding for finding in audited_runs if not finding.name.startswith("runs")
    ]
    dependence_findings += _repeated_rounds(column_runs)
    dependence_findings.append(_predictable_round(column_runs))
    dependence_findings += _lags(whole_runs)
    dependence_findings.append(_reflections(whole_runs))
    dependence_findings.append(_equal_entries([rows[:, tested_entries] for rows in sample.whole]))
    between_run_findings = [finding for finding in audited_runs if finding.name.startswith("runs")]
    between_run_findings.append(_repeated_starts(column_runs))
    num_rounds = sum(map(len, sample.in_columns))
    for test, findings in ((DEPENDENCE, dependence_findings), (START, between_run_findings)):
        worst_finding = min(findings, key=p_value_of)
        outcomes.add(
            test.name,
            len(findings) * p_value_of(worst_finding),
            f"{num_rounds:,} rounds of updates of zeros, in {len(sample.whole)} runs: "
            f"{worst_finding.name} is {worst_finding.statistic:.4g}; claimed is {test.claimed}.",
            mistake=test.mistake,
        )


def p_value_of(finding: Finding) -> float:
    """Returns the p-value of a finding, or 0 if it is NaN, which contradicts the claim."""
    return float(np.nan_to_num(finding.p_value))


def is_tested(model: NoiseModel) -> np.ndarray:
    """Returns for each entry of a release whether its noise is tested, bool (entries,).

    These have noise, and are in arrays with enough samples.
    """
    num_rows = model.array_samples.sum() // len(model.entry_std)
    array_sizes = model.array_samples // num_rows
    has_enough_samples = np.repeat(model.array_samples >= _MIN_SAMPLES, array_sizes)
    return has_enough_samples & (model.entry_std > 2e-9)


def _audit_two_runs(
    runs: list[np.ndarray], columns: np.ndarray, claim: AggregatorClaim
) -> Iterator[Finding]:
    """Yields the findings of `audit_noise` for the first two runs, except its tests of tails."""
    num_rounds = min(_MAX_AUDITED_ROUNDS, *(len(rows) for rows in runs[:2]))
    array_ends = np.cumsum(claim.sizes)
    column_step = max(1, math.ceil(len(columns) / _MAX_AUDITED_COLUMNS))
    audited_columns = np.arange(len(columns))[::column_step]
    column_arrays = np.searchsorted(array_ends, columns[audited_columns], side="right")
    columns_per_array = np.bincount(column_arrays, minlength=len(array_ends))
    audited_rows = [run[:num_rounds, audited_columns] for run in runs[:2]]
    # If a round has no noise, its correlations are NaN.
    with np.errstate(invalid="ignore"):
        findings = audit_noise(audited_rows, leaves=columns_per_array.tolist()).findings
    for finding in findings:
        # The findings about tails are left out, because `check_tails` tests the tails with more
        # entries.
        if not finding.name.startswith("tails"):
            yield finding


def _repeated_rounds(runs: list[np.ndarray]) -> Iterator[Finding]:
    """Yields a test of the largest correlation between rounds, for each of the first two runs."""
    for run_number, run in enumerate(runs[:2], 1):
        first_rows = run[:_MAX_CORRELATED_ROWS]
        if len(first_rows) > 1:
            correlations = np.abs(np.tril(_correlations(first_rows), -1))
            num_pairs = len(first_rows) * (len(first_rows) - 1) // 2
            finding_name = f"the largest correlation of two rounds of run {run_number}"
            yield _largest_correlation(finding_name, correlations, num_pairs, first_rows.shape[1])


def _predictable_round(runs: list[np.ndarray]) -> Finding:
    """Tests whether the noise of a round can be predicted from that of all other rounds."""
    from scipy import stats

    smallest_residual = least_residual(runs)
    p_value = float(stats.chi2.cdf(smallest_residual.squares, smallest_residual.degrees))
    return Finding(
        name="the least variance of a round that the other rounds leave unexplained",
        statistic=smallest_residual.squares / smallest_residual.degrees,
        p_value=min(1.0, smallest_residual.num_rounds * p_value),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Residual:
    """Residual of a linear regression of one round's noise on that of all other rounds.

    Attributes:
      squares: sum of squares, which is chi-squared for independent noise of variance 1.
      degrees: its degrees of freedom.
      num_rounds: number of rounds, the one with the smallest residual among them.
    """

    squares: float
    degrees: int
    num_rounds: int


def least_residual(runs: list[np.ndarray]) -> Residual:
    """Returns the residual for the round that all other rounds of two runs predict best."""
    num_rows = max(1, min(len(runs[0]), runs[0].shape[1] // 8))
    first_rows = np.concatenate([run[:num_rows] for run in runs[:2]])
    row_gram = first_rows @ first_rows.T
    row_gram += 1e-12 * np.trace(row_gram) / len(row_gram) * np.eye(len(row_gram))
    return Residual(
        squares=float((1 / np.diagonal(np.linalg.inv(row_gram))).min()),
        degrees=first_rows.shape[1] - len(first_rows) + 1,
        num_rounds=len(first_rows),
    )


def _repeated_starts(runs: list[np.ndarray]) -> Finding:
    """Tests the largest correlation between rounds of different runs."""
    max_rows = max(1, _MAX_CORRELATED_ROWS // len(runs))
    run_rows = [run[:max_rows] for run in runs]
    all_rows = np.concatenate(run_rows)
    run_of_row = np.repeat(np.arange(len(runs)), [len(all_rows) for all_rows in run_rows])
    is_pair = run_of_row[:, None] > run_of_row
    correlations = np.abs(_correlations(all_rows))
    correlations[~is_pair] = 0
    num_pairs = max(1, int(is_pair.sum()))
    finding_name = "the largest correlation of rounds of two runs"
    return _largest_correlation(finding_name, correlations, num_pairs, all_rows.shape[1])


def _correlations(rows: np.ndarray) -> np.ndarray:
    """Returns the correlation of any two rows whose mean is 0, an array (rows, rows)."""
    row_norms = np.maximum(np.linalg.norm(rows, axis=1), 1e-300)
    return (rows @ rows.T) / row_norms[:, None] / row_norms


def _largest_correlation(
    name: str, correlations: np.ndarray, num_pairs: int, num_entries: int
) -> Finding:
    """Tests the largest of many correlations, with Bonferroni's correction for their number."""
    from scipy import stats

    largest_correlation = min(1.0, float(correlations.max()))
    # For independent noise this statistic has Student's t distribution.
    t_statistic = largest_correlation * math.sqrt(
        (num_entries - 1) / max(1 - largest_correlation**2, 1e-300)
    )
    p_value = min(1.0, 2 * num_pairs * float(stats.t.sf(t_statistic, num_entries - 1)))
    return Finding(name=name, statistic=largest_correlation, p_value=p_value)


def _lags(runs: list[np.ndarray]) -> Iterator[Finding]:
    """Yields tests of the largest autocovariance of entries, in a round and in a whole run.

    For a run, the entries of all rounds are concatenated. The sum of products of entries a lag
    apart is z^T A z, where A has trace 0, Frobenius norm sqrt(pairs / 2) and largest eigenvalue at
    most 1; by Laurent and Massart (2000, Lemma 1) it exceeds sqrt(2 pairs u) + 2 u in absolute
    value with chance at most 2 exp(-u).
    """
    for name, sequences in (
        ("a round", runs),
        ("a run", [rows.reshape(1, -1) for rows in runs]),
    ):
        worst_finding = Finding(name=name, statistic=0.0, p_value=1.0)
        num_lags = sum(len(rows) * max(rows.shape[1] - 1, 0) for rows in sequences)
        for rows in sequences:
            for batch in _batches(rows):
                worst_finding = min(
                    worst_finding, _largest_lag(batch, name, num_lags), key=p_value_of
                )
        yield worst_finding


def _batches(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the rows in batches, so that their Fourier transforms take little memory."""
    batch_size = max(1, _MAX_BATCH_ENTRIES // max(rows.shape[1], 1))
    for start in range(0, len(rows), batch_size):
        yield rows[start : start + batch_size]


def _largest_lag(rows: np.ndarray, name: str, num_lags: int) -> Finding:
    """Tests the largest autocovariance of rows at any lag, by the bound on its tail that `_lags`
    states.
    """
    import scipy.fft

    num_entries = rows.shape[1]
    if num_entries < 2 * _MIN_PAIRS:
        return Finding(name=name, statistic=0.0, p_value=1.0)
    padded_length = scipy.fft.next_fast_len(2 * num_entries, real=True)
    fourier_transform = scipy.fft.rfft(rows, padded_length)
    power_spectrum = fourier_transform.real**2 + fourier_transform.imag**2
    autocovariances = scipy.fft.irfft(power_spectrum, padded_length)
    largest_sums = np.abs(autocovariances[:, 1 : num_entries - _MIN_PAIRS]).max(axis=0)
    num_pairs = num_entries - np.arange(1, len(largest_sums) + 1)
    root_u = _root_of_exponent(largest_sums, num_pairs)
    worst_lag = int(root_u.argmax())
    p_value = min(1.0, 2 * num_lags * math.exp(-(float(root_u[worst_lag]) ** 2)))
    return Finding(
        name=f"the largest correlation of entries of {name}, {worst_lag + 1:,} apart,",
        statistic=float(largest_sums[worst_lag] / num_pairs[worst_lag]),
        p_value=p_value,
    )


def _root_of_exponent(products: np.ndarray, num_pairs: np.ndarray) -> np.ndarray:
    """Returns for each sum of products the value sqrt(u) at which the bound of `_lags` equals the
    sum.

    The bound is sqrt(2 pairs u) + 2 u.
    """
    return (np.sqrt(num_pairs / 2 + 2 * products) - np.sqrt(num_pairs / 2)) / 2


def _reflections(runs: list[np.ndarray]) -> Finding:
    """Tests for noise that repeats in reverse order within a round.

    The statistic is the most extreme sum of products of pairs of entries whose indices have the
    same sum. The bound is that of `_lags`.
    """
    import scipy.fft

    worst_finding = Finding(name="no reflection", statistic=0.0, p_value=1.0)
    num_sums = sum(2 * rows.size for rows in runs)
    for rows in itertools.chain.from_iterable(map(_batches, runs)):
        num_entries = rows.shape[1]
        num_index_sums = 2 * num_entries - 1
        padded_length = scipy.fft.next_fast_len(2 * num_entries, real=True)
        squared_spectrum = scipy.fft.rfft(rows, padded_length) ** 2
        entry_sums = scipy.fft.irfft(squared_spectrum, padded_length)[:, :num_index_sums]
        # The statistic sums products of two different entries, so the squares of single entries are
        # subtracted.
        entry_sums[:, ::2] -= rows**2
        center_distances = np.abs(np.arange(num_index_sums) - (num_entries - 1))
        num_pairs = (num_entries - center_distances) // 2
        largest_sums = np.abs(entry_sums).max(axis=0) / 2 * (num_pairs >= _MIN_PAIRS)
        root_u = _root_of_exponent(largest_sums, num_pairs)
        index_sum = int(root_u.argmax())
        p_value = min(1.0, 2 * num_sums * math.exp(-(float(root_u[index_sum]) ** 2)))
        if p_value < worst_finding.p_value:
            worst_finding = Finding(
                name=f"the correlation of entries of a round whose numbers add up to {index_sum:,}",
                statistic=float(largest_sums[index_sum] / max(num_pairs[index_sum], 1)),
                p_value=p_value,
            )
    return worst_finding


def _equal_entries(runs: list[np.ndarray]) -> Finding:
    """Tests whether entries with equal absolute values have independent signs.

    The signs of independent symmetric noise are fair coins, also if the noise is on a grid. The
    entries of a pair may come from any rounds and runs.
    """
    from scipy import stats

    sorted_values = np.concatenate([rows.ravel() for rows in runs])
    sorted_values = sorted_values[sorted_values != 0]
    sorted_values = sorted_values[np.argsort(np.abs(sorted_values), kind="stable")]
    is_equal = np.abs(sorted_values[1:]) == np.abs(sorted_values[:-1])
    entry_indices = np.arange(len(sorted_values))
    starts_group = np.concatenate([[True], ~is_equal])
    rank_in_group = entry_indices - np.maximum.accumulate(np.where(starts_group, entry_indices, 0))
    # Among entries with equal absolute values, the first is paired with the second, the third with
    # the fourth, and so on. So no entry is in two pairs.
    second_indices = np.flatnonzero(rank_in_group % 2 == 1)
    num_equal_signs = int(
        (np.sign(sorted_values[second_indices]) == np.sign(sorted_values[second_indices - 1])).sum()
    )
    num_pairs = len(second_indices)
    p_value = 1.0
    if num_pairs:
        chance_at_most = stats.binom.cdf(num_equal_signs, num_pairs, 0.5)
        chance_at_least = stats.binom.sf(num_equal_signs - 1, num_pairs, 0.5)
        p_value = min(1.0, 2 * float(chance_at_most), 2 * float(chance_at_least))
    return Finding(
        name=f"the fraction of equal signs among {num_pairs:,} pairs of entries of equal size",
        statistic=num_equal_signs / max(num_pairs, 1),
        p_value=p_value,
    )
