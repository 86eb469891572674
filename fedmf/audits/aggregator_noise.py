"""Noise of an aggregator, sampled on updates of zeros.

`sample_noise` calls the function and `NoiseModel` holds the scale of the noise in every array and
round, by which the other tests measure movements. With noise that may be correlated over rounds,
the covariance of the rounds is estimated from all entries, which are independent samples of it:
p-values are then exact to first order in 1 / entries.
"""

import dataclasses
import math

import numpy as np

from fedmf.audits import tails
from fedmf.audits.aggregator_claim import TEST_NAMES, AggregatorClaim
from fedmf.audits.aggregator_runs import AggregatorRuns, WrongResult
from fedmf.audits.distinguishing import worst_contributions
from fedmf.participation.schema import Participation

# Noise that ends here must be seen, and so many tests share the rate of false positives for that.
SEEN_CUT, _TAIL_TESTS = 4.0, 16
# More entries than that takes: the scale of the noise of a small array is off by 1% at times, and
# an end that is 1% farther away takes a fifth more.
_ROOM_FOR_SCALE = 1.2
# Rounds of a run in which correlated noise is whitened and movements are measured.
MOST_BLOCK = 8
# Entries that all clients together send for the noise, and rounds of a run, at most.
_MOST_SENT, _MOST_ROUNDS = 1e9, 4096
# Entries of noise that are held whole, and of the columns that are held of every round.
_MOST_WHOLE, _MOST_IN_COLUMNS, _MOST_COLUMNS = 2**21, 2**23, 4096
# Samples of the covariance of a whole run, beyond its rounds.
_MORE_SAMPLES = 8192
_LEAST_STD = 1e-9
# Rounds whose noise differs with a smaller p-value are scaled one by one.
_SAME_SCALE = 1e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseSample:
    """Releases of updates of zeros, in units.

    Attributes:
      whole: one array a run, (rounds held whole, entries).
      columns: places of the entries that are held of all rounds.
      in_columns: one array a run, (rounds, columns).
      squares: (all rounds of all runs, arrays), sums of squares.
      round_of: (all rounds of all runs,), the round in its run.
      entry_squares: (entries,), sums of squares over all rounds.
      sent: the update, small where the function raises an error on zeros.
      raised: an error on updates of zeros, or an empty text.
      finite: whether all are numbers.
    """

    whole: list[np.ndarray]
    columns: np.ndarray
    in_columns: list[np.ndarray]
    squares: np.ndarray
    round_of: np.ndarray
    entry_squares: np.ndarray
    sent: np.ndarray
    raised: str
    finite: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseModel:
    """Scale of the noise, in units.

    Attributes:
      array_std: (arrays,), of noise whose rounds are white and of equal scale.
      array_samples: (arrays,), entries from which that is estimated.
      entry_std: (entries,), the same for each entry.
      round_scale: (rounds of a run,), factor of the noise of a round; 1 where noise is correlated.
      covariance: (block, block), of the rounds of a block of correlated noise, with mean variance
        1; (1, 1) where noise is independent.
      multiplier: noise multiplier of a run, of noise with standard deviation 1; 1 where noise is
        independent.
      multiplier_error: relative standard error of it.
      required_std: of an entry of an array that one client moves by 1, as is claimed.
      run_p_value: of the multiplier of the run, under the claim; 1 where noise is independent.
    """

    array_std: np.ndarray
    array_samples: np.ndarray
    entry_std: np.ndarray
    round_scale: np.ndarray
    covariance: np.ndarray
    multiplier: float = 1.0
    multiplier_error: float = 0.0
    required_std: float
    run_p_value: float = 1.0

    @property
    def block(self) -> int:
        """Rounds of a block."""
        return len(self.covariance)

    @property
    def overall_std(self) -> float:
        """Root mean square of the standard deviations of all entries."""
        return math.sqrt(float((self.entry_std**2).mean()))

    @property
    def movement_std(self) -> float:
        """The standard deviation in which movements are measured: noise that is smaller than
        claimed fails one test, and not those of movement as well.
        """
        return min(self.required_std, self.overall_std)

    @property
    def exists(self) -> bool:
        """Whether there is noise at all."""
        return bool((self.array_std > _LEAST_STD).any())


def block_length(claim: AggregatorClaim) -> int:
    """Returns the rounds in which movements are measured together."""
    return min(claim.rounds, MOST_BLOCK) if claim.correlated else 1


def rounds_seen(claim: AggregatorClaim) -> int:
    """Returns how many rounds of a run are sampled."""
    affordable = _MOST_SENT / (2 * claim.clients * sum(claim.sizes))
    return int(min(claim.rounds, _MOST_ROUNDS, max(affordable, MOST_BLOCK)))


def participations_seen(claim: AggregatorClaim) -> int:
    """Returns how often one client takes part in the rounds that are sampled, as is claimed."""
    if claim.min_sep is None:
        return 1
    return math.ceil(rounds_seen(claim) / claim.min_sep)


def sample_noise(runs: AggregatorRuns, claim: AggregatorClaim) -> NoiseSample:
    """Calls the function on updates of zeros, in at least two runs.

    Raises:
      WrongResult, ValueError: the function gives no aggregate of zeros, nor of small updates.
    """
    num_entries = sum(claim.sizes)
    sent, raised = _probe(runs, claim, num_entries)
    length = rounds_seen(claim)
    threshold = claim.false_positive_rate / len(TEST_NAMES) / _TAIL_TESTS
    needed = _ROOM_FOR_SCALE * tails.entries_to_see(SEEN_CUT, threshold=threshold)
    num_rounds = math.ceil(needed / num_entries)
    num_columns = min(num_entries, _MOST_COLUMNS, max(256, _MOST_IN_COLUMNS // (2 * length)))
    if claim.correlated:
        block = block_length(claim)
        num_columns = min(num_entries, max(num_columns, length))
        num_whole_runs = max(2, math.ceil((2 * length + _MORE_SAMPLES) / num_columns))
        lengths = [length] * num_whole_runs
        lengths += [block] * (math.ceil(num_rounds / block) - num_whole_runs)
        held_whole = block
    else:
        lengths = [length] * max(2, math.ceil(num_rounds / length))
        held_whole = max(4, _MOST_WHOLE // (len(lengths) * num_entries))
    rng = np.random.default_rng(claim.seed)
    columns = np.sort(rng.choice(num_entries, num_columns, replace=False))
    starts = np.cumsum([0, *claim.sizes[:-1]])
    whole, in_columns, squares, round_of = [], [], [], []
    entry_squares = np.zeros(num_entries)
    finite = True
    for run_length in lengths:
        runs.start()
        held = np.empty((min(held_whole, run_length), num_entries))
        rows = np.empty((run_length, num_columns))
        for t in range(run_length):
            row = runs.release(sent)
            finite = finite and bool(np.isfinite(row).all())
            rows[t] = row[columns]
            if t < len(held):
                held[t] = row
            entry_squares += row**2
            squares.append(np.add.reduceat(row**2, starts))
            round_of.append(t)
        whole.append(held)
        in_columns.append(rows)
        if not finite:
            break
    return NoiseSample(
        whole=whole,
        columns=columns,
        in_columns=in_columns,
        squares=np.array(squares),
        round_of=np.array(round_of),
        entry_squares=entry_squares,
        sent=sent[0],
        raised=raised,
        finite=finite,
    )


def _probe(
    runs: AggregatorRuns, claim: AggregatorClaim, num_entries: int
) -> tuple[list[np.ndarray], str]:
    """Returns updates of zeros, or small ones if the function raises an error on zeros."""
    zeros = np.zeros(num_entries, np.float32)
    try:
        runs.release([zeros] * claim.clients)
    except WrongResult:
        raise
    except Exception as error:
        runs.start()
        small = zeros + np.float32(1e-6 * claim.clip_norm / math.sqrt(num_entries))
        raised = f"raised {type(error).__name__}"
        try:
            runs.release([small] * claim.clients)
        except WrongResult:
            raise
        except Exception as second:
            raise ValueError(
                f"the function raised {type(second).__name__} ({second}) on updates within the "
                "clip norm: make it work on them first"
            ) from second
        return [small] * claim.clients, raised
    return [zeros] * claim.clients, ""


def fit_noise(sample: NoiseSample, claim: AggregatorClaim) -> NoiseModel:
    """Estimates the scale of the noise from finite releases."""
    sizes = np.array(claim.sizes)
    if claim.correlated:
        return _fit_correlated(sample, claim)
    num_rows = len(sample.squares)
    array_std = np.sqrt(sample.squares.sum(axis=0) / (sizes * num_rows))
    array_std = np.maximum(array_std, _LEAST_STD)
    return NoiseModel(
        array_std=array_std,
        array_samples=sizes * num_rows,
        entry_std=np.repeat(array_std, sizes),
        round_scale=_round_scales(sample, array_std, sizes),
        covariance=np.eye(1),
        required_std=claim.multiplier(),
    )


def _round_scales(sample: NoiseSample, array_std: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns a factor for each round: 1 for all, unless their noise differs."""
    from scipy import stats

    length = int(sample.round_of.max()) + 1
    by_row = (sample.squares / array_std**2).sum(axis=1)
    sums = np.bincount(sample.round_of, by_row, minlength=length)
    degrees = np.bincount(sample.round_of, minlength=length) * int(sizes.sum())
    smaller = stats.chi2.cdf(sums, degrees)
    larger = stats.chi2.sf(sums, degrees)
    if 2 * length * min(smaller.min(), larger.min()) >= _SAME_SCALE:
        return np.ones(length)
    return np.maximum(np.sqrt(sums / degrees), _LEAST_STD)


def _fit_correlated(sample: NoiseSample, claim: AggregatorClaim) -> NoiseModel:
    from scipy import stats

    sizes = np.array(claim.sizes)
    blocks = np.concatenate(sample.whole, axis=1)
    block, num_samples = blocks.shape
    in_block = sample.round_of < block
    num_rows = int(in_block.sum())
    array_std = np.sqrt(sample.squares[in_block].sum(axis=0) / (sizes * num_rows))
    array_std = np.maximum(array_std, _LEAST_STD)
    entry_std = np.repeat(array_std, sizes)
    blocks = blocks / np.tile(entry_std, len(sample.whole))
    covariance = _nonsingular(blocks @ blocks.T / num_samples)
    length = rounds_seen(claim)
    whole_runs = [rows for rows in sample.in_columns if len(rows) == length]
    rows = np.concatenate(whole_runs, axis=1) / np.tile(entry_std[sample.columns], len(whole_runs))
    half = rows.shape[1] // 2
    # The worst participation is chosen on one half of the samples and measured on the other.
    participation = Participation(
        rounds=length, schema="min_sep", min_sep=min(claim.min_sep or length, length)
    )
    worst = worst_contributions(_precision(rows[:, :half]), participation)
    degrees = rows.shape[1] - half - length + 1
    # 1 / u' G^-1 u is chi-squared about 1 / u' Sigma^-1 u (Muirhead 1982, Theorem 3.2.12).
    unexplained = (rows.shape[1] - half) / float(worst @ _precision(rows[:, half:]) @ worst)
    multiplier = math.sqrt(unexplained / degrees)
    claimed_variance = claim.multiplier() ** 2 / float((entry_std**2).mean())
    p_value = float(stats.chi2.cdf(unexplained / claimed_variance, degrees))
    return NoiseModel(
        array_std=array_std,
        array_samples=sizes * num_rows,
        entry_std=entry_std,
        round_scale=np.ones(block),
        covariance=covariance,
        multiplier=max(multiplier, _LEAST_STD),
        multiplier_error=math.sqrt(1 / (2 * degrees)),
        required_std=claim.multiplier() / max(multiplier, _LEAST_STD),
        run_p_value=p_value,
    )


def _nonsingular(covariance: np.ndarray) -> np.ndarray:
    return covariance + 1e-12 * (np.trace(covariance) / len(covariance) + 1e-12) * np.eye(
        len(covariance)
    )


def _precision(rows: np.ndarray) -> np.ndarray:
    return np.linalg.inv(_nonsingular(rows @ rows.T / rows.shape[1]))


def white_rows(sample: NoiseSample, model: NoiseModel, *, whole: bool) -> list[np.ndarray]:
    """Returns the noise of each run, scaled to standard deviation 1 and white over rounds.

    Args:
      whole: all entries of the rounds that are held whole, or the held columns of all rounds; of
        correlated noise those of the first block.
    """
    std = model.entry_std if whole else model.entry_std[sample.columns]
    runs = sample.whole if whole else sample.in_columns
    if model.block == 1:
        return [rows / std / model.round_scale[: len(rows), None] for rows in runs]
    factor = np.linalg.inv(np.linalg.cholesky(model.covariance))
    return [factor @ (rows[: model.block] / std) for rows in runs]
