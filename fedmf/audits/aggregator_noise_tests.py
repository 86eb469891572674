"""Tests of an aggregator's noise: its size, its tails, and whether it is new in every entry, round
and start.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from fedmf.audits import tails
from fedmf.audits.aggregator_claim import AggregatorClaim, Outcomes, nearest
from fedmf.audits.aggregator_noise import (
    NoiseModel,
    NoiseSample,
    participations_seen,
    rounds_seen,
    white_rows,
)
from fedmf.audits.finding import Finding
from fedmf.audits.noise import audit_noise

# An array with fewer samples is tested for the size of its noise alone.
_LEAST_SAMPLES = 2_000
# Of a round, an array with fewer entries is not tested by itself.
_LEAST_IN_ROUND = 64
# Rounds and columns whose noise is compared two by two.
_MOST_ROWS, _MOST_AUDITED_ROUNDS, _MOST_AUDITED_COLUMNS = 3_000, 64, 4_096
_LEAST_PAIRS = 64
# Entries whose Fourier transforms are computed together.
_MOST_TOGETHER = 2**17


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseTest:
    """One row of the table of tests of noise.

    Attributes:
      name: of the test.
      claimed: what the noise is claimed to be.
      mistake: what a failure shows.
    """

    name: str
    claimed: str
    mistake: str


TAILS = NoiseTest(
    name="tails",
    claimed="the tails of a normal distribution",
    mistake="Noise that ends, or that is no normal distribution, does this: a release beyond the "
    "end proves that a client is there.",
)
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


def judge_zeros(sample: NoiseSample, claim: AggregatorClaim, outcomes: Outcomes) -> None:
    """Tests that the function aggregates updates of zeros."""
    seen = sample.raised
    if not sample.finite:
        seen = "gave what is no number"
    outcomes.add(
        "zeros",
        float(not seen),
        f"{claim.clients} updates of zeros: the function {seen or 'gave numbers'}; claimed is "
        "noise.",
        mistake="A clip factor clip_norm / norm, of norm 0, does this: use max(norm, 1e-12).",
    )


def judge_rounds(claim: AggregatorClaim, outcomes: Outcomes) -> None:
    """Tests that a claim of correlated noise is about no more rounds than were sampled."""
    if not claim.correlated:
        seen = rounds_seen(claim)
        words = f"The noise of {seen:,} of {claim.rounds:,} rounds of a run was sampled."
        if seen < claim.rounds:
            words += " Noise that repeats later is not seen: give smaller `shapes`."
        outcomes.skip("rounds", words)
        return
    seen = rounds_seen(claim)
    outcomes.add(
        "rounds",
        float(seen == claim.rounds),
        f"{seen:,} rounds of a run, in which one client takes part "
        f"{participations_seen(claim):,} times; claimed are {claim.rounds:,} rounds.",
        mistake="What follows is about the rounds seen, and nothing is known about the rest: give "
        "smaller `shapes` or fewer `clients`, or claim fewer `rounds`.",
    )


def judge_tails(sample: NoiseSample, model: NoiseModel, outcomes: Outcomes) -> None:
    """Tests the tails of all entries that are held whole."""
    tested = _tested_entries(model)
    if not tested.any():
        outcomes.skip("tails", "Not made: there is no noise.")
        return
    values = np.concatenate(
        [rows[:, tested].ravel() for rows in white_rows(sample, model, whole=True)]
    )
    findings = list(tails.tail_findings(values))
    worst = min(findings, key=_p_value)
    num_tests = len(findings)
    cut = tails.smallest_unseen_cut(len(values), threshold=outcomes.threshold / num_tests)
    outcomes.add(
        "tails",
        num_tests * _p_value(worst),
        f"{len(values):,} entries of noise: {worst.name} is {worst.statistic:.4g}; claimed are "
        f"{TAILS.claimed}.",
        mistake=TAILS.mistake,
        remark=f"The smallest cut of the noise that so many do not show is at {cut:.3g} standard "
        "deviations.",
    )


def judge_dependence(
    sample: NoiseSample, model: NoiseModel, claim: AggregatorClaim, outcomes: Outcomes
) -> None:
    """Tests that noise is new in every entry and round, and after each start."""
    findings: dict[str, list[Finding]] = {"dependence": [], "start": []}
    tested = _tested_entries(model)
    if not tested.any():
        for test in (DEPENDENCE, START):
            outcomes.skip(test.name, "Not made: there is no noise.")
        return
    columns = np.flatnonzero(tested[sample.columns])
    in_columns = [rows[:, columns] for rows in white_rows(sample, model, whole=False)]
    for finding in _audited(in_columns, sample.columns[columns], claim):
        findings["start" if finding.name.startswith("runs") else "dependence"].append(finding)
    findings["dependence"] += _repeated_rounds(in_columns)
    findings["dependence"].append(_predictable_round(in_columns))
    findings["start"].append(_repeated_starts(in_columns))
    whole = [rows[:, tested] for rows in white_rows(sample, model, whole=True)]
    findings["dependence"] += _lags(whole)
    findings["dependence"].append(_reflections(whole))
    findings["dependence"].append(_equal_entries([rows[:, tested] for rows in sample.whole]))
    num_rounds = sum(map(len, sample.in_columns))
    for test in (DEPENDENCE, START):
        worst = min(findings[test.name], key=_p_value)
        outcomes.add(
            test.name,
            len(findings[test.name]) * _p_value(worst),
            f"{num_rounds:,} rounds of updates of zeros, in {len(sample.whole)} runs: "
            f"{worst.name} is {worst.statistic:.4g}; claimed is {test.claimed}.",
            mistake=test.mistake,
        )


def judge_size(
    sample: NoiseSample,
    model: NoiseModel,
    claim: AggregatorClaim,
    outcomes: Outcomes,
    smaller_arrays: Sequence[int],
) -> None:
    """Tests that the noise is as large as claimed, in every array, round and entry.

    Args:
      smaller_arrays: arrays that one client was seen to move by less than is claimed, so that less
        noise suffices: movements test that.
    """
    sizes = np.array(claim.sizes)
    base = np.full(len(sizes), model.required_std)
    exempt = list(smaller_arrays)
    base[exempt] = np.minimum(model.array_std, model.required_std)[exempt]
    parts = dict(_sizes_of_noise(sample, model, claim, base))
    place = min(parts, key=lambda name: parts[name])
    p_value = len(parts) * parts[place]
    if not smaller_arrays:
        p_value = min(p_value, len(parts) * model.run_p_value)
    overall = model.overall_std
    ratio = overall / model.required_std
    multiplier = ratio * claim.multiplier()
    samples = float(model.array_samples.sum())
    error = math.hypot(math.sqrt(1 / (2 * samples)), model.multiplier_error)
    if claim.correlated:
        seen = (
            f"a noise multiplier of {multiplier:.4g} over {rounds_seen(claim):,} rounds, in which "
            f"one client takes part {participations_seen(claim):,} times"
        )
    else:
        seen = f"noise of standard deviation {overall * claim.unit:.4g}, a noise multiplier of "
        seen += f"{multiplier:.4g}"
    remark = ""
    if ratio > 1 + outcomes.reach() * error:
        remark = _larger(ratio, claim.clients)
    elif smaller_arrays:
        remark = "Some arrays have less noise, and one client moves them by less."
    outcomes.add(
        "noise",
        p_value,
        f"{len(sample.squares):,} rounds of updates of zeros: {seen}; claimed is "
        f"{claim.multiplier():.4g}.",
        mistake=_smaller(ratio, place, claim),
        remark=remark,
        sees=1 + outcomes.reach() * error,
    )


def smallest_share(
    sample: NoiseSample, model: NoiseModel, claim: AggregatorClaim, outcomes: Outcomes
) -> float:
    """Returns an upper bound on the smallest standard deviation of a round or an entry that a
    client can count on, as a share of that of all; 1 at most.
    """
    from scipy import stats

    if model.block > 1 or not model.exists:
        return 1.0
    shares = [1.0]
    for sums, degrees in _relative_squares(sample, model, claim):
        shares.append(float(sums.min()) / stats.chi2.ppf(outcomes.error / len(sums), degrees))
    unexplained, num_rounds, degrees = _unexplained(white_rows(sample, model, whole=False))
    shares.append(unexplained / stats.chi2.ppf(outcomes.error / num_rounds, degrees))
    return math.sqrt(max(min(shares), 0.0))


def _relative_squares(
    sample: NoiseSample, model: NoiseModel, claim: AggregatorClaim
) -> Iterator[tuple[np.ndarray, int]]:
    """Yields sums of squares, in parts of the noise that movements are measured in, and their
    degrees of freedom.
    """
    scale = model.round_scale[sample.round_of]
    yield (sample.squares / model.array_std**2).sum(axis=1) / scale**2, sum(claim.sizes)
    # Where rounds differ, an entry's sum over them is no chi-squared number.
    if (model.round_scale == 1).all():
        yield sample.entry_squares / model.entry_std**2, len(sample.squares)


def _sizes_of_noise(
    sample: NoiseSample, model: NoiseModel, claim: AggregatorClaim, base: np.ndarray
) -> Iterator[tuple[str, float]]:
    """Yields places and the p-values of noise that is too small there."""
    from scipy import stats

    sizes = np.array(claim.sizes)
    num_rows = len(sample.squares)
    if model.block > 1:
        degrees = sizes * len(sample.whole)
        # The multiplier of the run is an estimate, too.
        ratio = model.array_std / base * (1 + 6 * model.multiplier_error)
        chances = stats.chi2.cdf(degrees * ratio**2, degrees)
        yield "an array", len(sizes) * float(chances.min())
        rows = np.concatenate(white_rows(sample, model, whole=True))
        chance = float(stats.chi2.cdf((rows**2).sum(axis=0).min(), len(rows)))
        yield "an entry", rows.shape[1] * chance
        return
    sums = sample.squares / base**2
    chances = stats.chi2.cdf(sums.sum(axis=0), num_rows * sizes)
    yield "an array", len(sizes) * float(chances.min())
    yield "all entries", float(stats.chi2.cdf(sums.sum(), num_rows * sizes.sum()))
    chances = stats.chi2.cdf(sums.sum(axis=1), sizes.sum())
    yield "a round", num_rows * float(chances.min())
    large = sizes >= _LEAST_IN_ROUND
    if large.any():
        chances = stats.chi2.cdf(sums[:, large], sizes[large])
        yield "an array in a round", chances.size * float(chances.min())
    by_entry = sample.entry_squares / np.repeat(base, sizes) ** 2
    yield "an entry", len(by_entry) * float(stats.chi2.cdf(by_entry.min(), num_rows))


def _smaller(ratio: float, place: str, claim: AggregatorClaim) -> str:
    """Returns the mistake that noise of this size shows."""
    clients = claim.clients
    mistakes = {
        1 / clients: "Noise of a mean on a sum does this.",
        1 / math.sqrt(clients): "Every client adding its share of the noise, and a mean that "
        "divides it again, does this.",
    }
    if claim.correlated:
        return "Noise that is smaller, or that rounds share, does this."
    fallback = f"The noise of {place} is smaller."
    return nearest(ratio, 0.0, mistakes) or fallback


def _larger(ratio: float, clients: int) -> str:
    """Returns the remark on noise that is larger than claimed."""
    remarks = {
        math.sqrt(2): "Noise that is added twice does this.",
        clients: "Noise of a sum on a mean does this: divide sum and noise together.",
        math.sqrt(clients): "Every client adding the whole noise does this.",
    }
    remark = f"Remark: the noise is {ratio:.4g} times as large as claimed, which costs utility."
    return f"{remark} {nearest(ratio, 0.0, remarks)}".strip()


def _p_value(finding: Finding) -> float:
    """Returns the p-value; one that is not a number contradicts the claim."""
    return float(np.nan_to_num(finding.p_value))


def _tested_entries(model: NoiseModel) -> np.ndarray:
    """Returns which entries have noise, in an array with enough samples of it."""
    arrays = np.repeat(
        model.array_samples >= _LEAST_SAMPLES,
        _sizes(model),
    )
    return arrays & (model.entry_std > 2e-9)


def _sizes(model: NoiseModel) -> np.ndarray:
    num_rows = model.array_samples.sum() // len(model.entry_std)
    return model.array_samples // num_rows


def _audited(
    runs: list[np.ndarray], columns: np.ndarray, claim: AggregatorClaim
) -> Iterator[Finding]:
    """Yields what `audit_noise` finds in two runs."""
    num_rounds = min(_MOST_AUDITED_ROUNDS, *(len(rows) for rows in runs[:2]))
    ends = np.cumsum(claim.sizes)
    some = np.arange(len(columns))[:: max(1, math.ceil(len(columns) / _MOST_AUDITED_COLUMNS))]
    leaves = np.bincount(np.searchsorted(ends, columns[some], side="right"), minlength=len(ends))
    rows = [run[:num_rounds, some] for run in runs[:2]]
    with np.errstate(invalid="ignore"):  # a round without noise has no correlation
        findings = audit_noise(rows, leaves=leaves.tolist()).findings
    for finding in findings:
        # Of all entries, `judge_tails`.
        if not finding.name.startswith("tails"):
            yield finding


def _repeated_rounds(runs: list[np.ndarray]) -> Iterator[Finding]:
    """Yields the largest correlation of two rounds of a run."""
    for number, rows in enumerate(runs[:2], 1):
        rows = rows[:_MOST_ROWS]
        if len(rows) > 1:
            correlations = np.abs(np.tril(_correlations(rows, rows), -1))
            count = len(rows) * (len(rows) - 1) // 2
            name = f"the largest correlation of two rounds of run {number}"
            yield _largest(name, correlations, count, rows.shape[1])


def _predictable_round(runs: list[np.ndarray]) -> Finding:
    """Returns the noise of the round that all other rounds of two runs predict best."""
    from scipy import stats

    unexplained, num_rounds, degrees = _unexplained(runs)
    return Finding(
        name="the least variance of a round that the other rounds leave unexplained",
        statistic=unexplained / degrees,
        p_value=min(1.0, num_rounds * float(stats.chi2.cdf(unexplained, degrees))),
    )


def _unexplained(runs: list[np.ndarray]) -> tuple[float, int, int]:
    """Returns the least sum of squares of a round that the others of two runs leave unexplained,
    the number of rounds, and its degrees of freedom: it is chi-squared.
    """
    num_rows = max(1, min(len(runs[0]), runs[0].shape[1] // 8))
    rows = np.concatenate([run[:num_rows] for run in runs[:2]])
    gram = rows @ rows.T
    gram += 1e-12 * np.trace(gram) / len(gram) * np.eye(len(gram))
    unexplained = float((1 / np.diagonal(np.linalg.inv(gram))).min())
    return unexplained, len(rows), rows.shape[1] - len(rows) + 1


def _repeated_starts(runs: list[np.ndarray]) -> Finding:
    """Returns the largest correlation of a round of one run with a round of another."""
    most = max(1, _MOST_ROWS // len(runs))
    rows = np.concatenate([run[:most] for run in runs])
    number = np.concatenate([np.full(len(run[:most]), i) for i, run in enumerate(runs)])
    correlations = np.abs(_correlations(rows, rows))
    correlations[number[:, None] <= number] = 0
    count = max(1, int((number[:, None] > number).sum()))
    name = "the largest correlation of rounds of two runs"
    return _largest(name, correlations, count, rows.shape[1])


def _correlations(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    norms = np.maximum(np.linalg.norm(rows, axis=1), 1e-300)
    other_norms = np.maximum(np.linalg.norm(columns, axis=1), 1e-300)
    return (rows @ columns.T) / norms[:, None] / other_norms


def _largest(name: str, correlations: np.ndarray, count: int, num_pairs: int) -> Finding:
    from scipy import stats

    largest = min(1.0, float(correlations.max()))
    # Student's t of a correlation about 0.
    t = largest * math.sqrt((num_pairs - 1) / max(1 - largest**2, 1e-300))
    p_value = min(1.0, 2 * count * float(stats.t.sf(t, num_pairs - 1)))
    return Finding(name=name, statistic=largest, p_value=p_value)


def _lags(runs: list[np.ndarray]) -> Iterator[Finding]:
    """Yields the most extreme sum of products of entries a lag apart: of a round, and of all rounds
    of a run one after another.

    Such a sum is z^T A z, of trace 0, Frobenius norm sqrt(pairs / 2) and largest eigenvalue 1 at
    most; by Laurent and Massart (2000, Lemma 1) it is beyond sqrt(2 pairs u) + 2 u with chance
    2 exp(-u) at most.
    """
    for name, sequences in (
        ("a round", runs),
        ("a run", [rows.reshape(1, -1) for rows in runs]),
    ):
        worst = Finding(name=name, statistic=0.0, p_value=1.0)
        num_lags = sum(len(rows) * max(rows.shape[1] - 1, 0) for rows in sequences)
        for rows in sequences:
            for some in _batches(rows):
                worst = min(worst, _largest_lag(some, name, num_lags), key=_p_value)
        yield worst


def _batches(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Yields rows together whose Fourier transforms take little memory."""
    together = max(1, _MOST_TOGETHER // max(rows.shape[1], 1))
    for first in range(0, len(rows), together):
        yield rows[first : first + together]


def _largest_lag(rows: np.ndarray, name: str, num_lags: int) -> Finding:
    import scipy.fft

    size = rows.shape[1]
    if size < 2 * _LEAST_PAIRS:
        return Finding(name=name, statistic=0.0, p_value=1.0)
    padded = scipy.fft.next_fast_len(2 * size, real=True)
    spectrum = scipy.fft.rfft(rows, padded)
    squares = spectrum.real**2 + spectrum.imag**2
    products = np.abs(scipy.fft.irfft(squares, padded)[:, 1 : size - _LEAST_PAIRS]).max(axis=0)
    pairs = size - np.arange(1, len(products) + 1)
    root = (np.sqrt(pairs / 2 + 2 * products) - np.sqrt(pairs / 2)) / 2
    lag = int(root.argmax())
    p_value = min(1.0, 2 * num_lags * math.exp(-(float(root[lag]) ** 2)))
    words = f"the largest correlation of entries of {name}, {lag + 1:,} apart,"
    return Finding(name=words, statistic=float(products[lag] / pairs[lag]), p_value=p_value)


def _reflections(runs: list[np.ndarray]) -> Finding:
    """Returns the most extreme sum of products of a round's entries beside those in reverse order.

    The entries of a pair add up to one number. The bound is that of `_lags`.
    """
    import scipy.fft

    worst = Finding(name="no reflection", statistic=0.0, p_value=1.0)
    num_sums = sum(2 * rows.size for rows in runs)
    for rows in itertools.chain.from_iterable(map(_batches, runs)):
        size = rows.shape[1]
        padded = scipy.fft.next_fast_len(2 * size, real=True)
        sums = scipy.fft.irfft(scipy.fft.rfft(rows, padded) ** 2, padded)[:, : 2 * size - 1]
        sums[:, ::2] -= rows**2
        pairs = (size - np.abs(np.arange(2 * size - 1) - (size - 1))) // 2
        products = np.abs(sums).max(axis=0) / 2 * (pairs >= _LEAST_PAIRS)
        root = (np.sqrt(pairs / 2 + 2 * products) - np.sqrt(pairs / 2)) / 2
        place = int(root.argmax())
        p_value = min(1.0, 2 * num_sums * math.exp(-(float(root[place]) ** 2)))
        if p_value < worst.p_value:
            name = f"the correlation of entries of a round whose numbers add up to {place:,}"
            statistic = float(products[place] / max(pairs[place], 1))
            worst = Finding(name=name, statistic=statistic, p_value=p_value)
    return worst


def _equal_entries(runs: list[np.ndarray]) -> Finding:
    """Returns the share of equal signs among pairs of entries of equal size, in any round and run.

    Signs of independent symmetric noise are fair coins, however coarse its steps are.
    """
    from scipy import stats

    values = np.concatenate([rows.ravel() for rows in runs])
    values = values[values != 0]
    order = np.argsort(np.abs(values), kind="stable")
    values = values[order]
    equal = np.abs(values[1:]) == np.abs(values[:-1])
    indices = np.arange(len(values))
    begins = np.concatenate([[True], ~equal])
    rank = indices - np.maximum.accumulate(np.where(begins, indices, 0))
    # Disjoint pairs: the first and second of equal size, the third and fourth, and so on.
    second = np.flatnonzero(rank % 2 == 1)
    same = int((np.sign(values[second]) == np.sign(values[second - 1])).sum())
    count = len(second)
    p_value = 1.0
    if count:
        fewer = stats.binom.cdf(same, count, 0.5)
        more = stats.binom.sf(same - 1, count, 0.5)
        p_value = min(1.0, 2 * float(fewer), 2 * float(more))
    name = f"the share of equal signs among {count:,} pairs of entries of equal size"
    return Finding(name=name, statistic=same / max(count, 1), p_value=p_value)
