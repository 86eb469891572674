"""Sampling of an aggregator's noise by updates of zeros, and estimation of its scale.

`sample_noise` calls the function. `fit_noise` estimates the scale of the noise in every array and
round, which the movement tests use. For noise that may be correlated over rounds, the covariance
of the rounds is estimated from all entries, which are independent samples of it: p-values are then
exact to first order in 1 / entries.
"""

import dataclasses
import math

import numpy as np

from fedmf.audits import tails
from fedmf.audits.aggregator_claim import TEST_NAMES, AggregatorClaim
from fedmf.audits.aggregator_runs import AggregatorRuns, WrongResult
from fedmf.audits.worst_case import worst_contributions
from fedmf.participation.schema import Participation

# The tests must detect Gaussian noise that is truncated at this many standard deviations.
DETECTED_CUT = 4.0
# The error rate of the tail tests is divided by this number, an upper bound on how many tail tests
# there are.
_NUM_TAIL_TESTS = 16
# Factor by which more entries are sampled than the tail tests need. It makes up for an error of 1%
# in the estimated noise scale of a small array.
_SCALE_MARGIN = 1.2
# Largest number of rounds, at the start of a run, over which correlated noise is whitened (made
# independent). The effect of updates on the releases is measured in these rounds.
MAX_BLOCK_ROUNDS = 8
# Largest number of entries that all clients together send, over all rounds, while noise is sampled.
_MAX_SENT_ENTRIES = 1e9
# At most this many rounds of a run are sampled.
_MAX_SAMPLED_ROUNDS = 4096
# Largest number of entries, over all runs, in the rounds whose releases are stored completely.
_MAX_WHOLE_ENTRIES = 2**21
# Some columns (entries of a release) are stored for every round. They are at most _MAX_COLUMNS
# columns and at most _MAX_COLUMN_ENTRIES entries in all.
_MAX_COLUMN_ENTRIES = 2**23
_MAX_COLUMNS = 4096
# The covariance of all rounds of a run is estimated from at least twice as many samples as rounds,
# plus this number.
_EXTRA_COVARIANCE_SAMPLES = 8192
_MIN_STD = 1e-9
# Each round gets a noise scale of its own if a test of equal scales has a p-value below this
# threshold.
_SAME_SCALE_P_VALUE = 1e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseSample:
    """Sampled noise, which consists of releases for updates of zeros, in units of the sensitivity.

    Attributes:
      whole: one array for each run, (rounds stored whole, entries).
      columns: indices of the entries that are stored for all rounds.
      in_columns: one array for each run, (rounds, columns).
      squares: (rounds of all runs, arrays), sums of squares.
      round_of: (rounds of all runs,), index of the round in its run.
      entry_squares: (entries,), sums of squares over all rounds.
      update: the update of each client; a small one if the function raises an error on zeros.
      raised: the error on updates of zeros in words, or an empty text.
      is_finite: whether all releases are finite.
    """

    whole: list[np.ndarray]
    columns: np.ndarray
    in_columns: list[np.ndarray]
    squares: np.ndarray
    round_of: np.ndarray
    entry_squares: np.ndarray
    update: np.ndarray
    raised: str
    is_finite: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseModel:
    """Estimated standard deviations and covariance of the noise, in units of the sensitivity.

    Attributes:
      array_std: (arrays,), standard deviation in each array, of noise whitened over rounds and
        scaled equally in all of them.
      array_samples: (arrays,), number of entries from which it is estimated.
      entry_std: (entries,), the same for each entry.
      round_scale: (rounds of a run,), factor of the noise of each round; 1 for correlated noise.
      covariance: (block, block), covariance of the rounds of a block of correlated noise, with mean
        variance 1; (1, 1) for independent noise.
      multiplier: noise multiplier of a run whose noise has standard deviation 1; 1 for independent
        noise.
      multiplier_error: relative standard error of `multiplier`.
      required_std: standard deviation of an entry under the claim, in an array that one client
        moves by 1.
      run_p_value: p-value of the run's multiplier under the claim; 1 for independent noise.
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
        """Number of rounds in a block of rounds whose noise is whitened together."""
        return len(self.covariance)

    @property
    def overall_std(self) -> float:
        """Root mean square of the standard deviations of all entries."""
        return math.sqrt(float((self.entry_std**2).mean()))

    @property
    def movement_std(self) -> float:
        """Standard deviation of the noise with which movements are compared.

        It is at most that of the actual noise, so that noise that is smaller than claimed fails one
        test and not all movement tests as well.
        """
        return min(self.required_std, self.overall_std)

    @property
    def exists(self) -> bool:
        """Whether the noise of at least one array is larger than 0."""
        return bool((self.array_std > _MIN_STD).any())


def block_length(claim: AggregatorClaim) -> int:
    """Returns the number of rounds whose noise is whitened together."""
    if not claim.correlated:
        return 1
    return min(claim.rounds, MAX_BLOCK_ROUNDS)


def rounds_seen(claim: AggregatorClaim) -> int:
    """Returns the number of rounds of a run that are sampled."""
    affordable_rounds = _MAX_SENT_ENTRIES / (2 * claim.clients * sum(claim.sizes))
    return int(min(claim.rounds, _MAX_SAMPLED_ROUNDS, max(affordable_rounds, MAX_BLOCK_ROUNDS)))


def participations_seen(claim: AggregatorClaim) -> int:
    """Returns how often the claim lets one client take part in the sampled rounds."""
    if claim.min_sep is None:
        return 1
    return math.ceil(rounds_seen(claim) / claim.min_sep)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _SamplingPlan:
    """Numbers of runs and rounds in which noise is sampled, and of entries that are stored.

    Attributes:
      run_lengths: number of rounds of each run.
      num_columns: number of entries that are stored for all rounds.
      num_whole_rounds: number of rounds at the start of a run that are stored whole.
    """

    run_lengths: list[int]
    num_columns: int
    num_whole_rounds: int


def _sampling_plan(claim: AggregatorClaim) -> _SamplingPlan:
    """Chooses how many rounds to sample, so that the tests detect noise that is cut off.

    There are at least two runs.
    """
    num_entries = sum(claim.sizes)
    num_rounds = rounds_seen(claim)
    tail_threshold = claim.false_positive_rate / len(TEST_NAMES) / _NUM_TAIL_TESTS
    min_samples = _SCALE_MARGIN * tails.entries_to_see(DETECTED_CUT, threshold=tail_threshold)
    min_rounds = math.ceil(min_samples / num_entries)
    affordable_columns = max(256, _MAX_COLUMN_ENTRIES // (2 * num_rounds))
    num_columns = min(num_entries, _MAX_COLUMNS, affordable_columns)
    if not claim.correlated:
        num_runs = max(2, math.ceil(min_rounds / num_rounds))
        return _SamplingPlan(
            run_lengths=[num_rounds] * num_runs,
            num_columns=num_columns,
            num_whole_rounds=max(4, _MAX_WHOLE_ENTRIES // (num_runs * num_entries)),
        )
    block_rounds = block_length(claim)
    num_columns = min(num_entries, max(num_columns, num_rounds))
    min_covariance_samples = 2 * num_rounds + _EXTRA_COVARIANCE_SAMPLES
    num_whole_runs = max(2, math.ceil(min_covariance_samples / num_columns))
    num_short_runs = math.ceil(min_rounds / block_rounds) - num_whole_runs
    return _SamplingPlan(
        run_lengths=[num_rounds] * num_whole_runs + [block_rounds] * num_short_runs,
        num_columns=num_columns,
        num_whole_rounds=block_rounds,
    )


def sample_noise(runs: AggregatorRuns, claim: AggregatorClaim) -> NoiseSample:
    """Samples the noise of an aggregation function, by calls with updates of zeros in several runs.

    Raises:
      WrongResult, ValueError: the function returns no aggregate of zeros, nor of small updates.
    """
    num_entries = sum(claim.sizes)
    update, raised = _working_update(runs, claim, num_entries)
    client_updates = [update] * claim.clients
    sampling_plan = _sampling_plan(claim)
    rng = np.random.default_rng(claim.seed)
    stored_columns = np.sort(rng.choice(num_entries, sampling_plan.num_columns, replace=False))
    array_starts = np.cumsum([0, *claim.sizes[:-1]])
    whole_rounds = []
    column_samples = []
    array_squares = []
    sampled_rounds = []
    entry_squares = np.zeros(num_entries)
    is_finite = True
    for run_length in sampling_plan.run_lengths:
        runs.start()
        whole_rows = np.empty((min(sampling_plan.num_whole_rounds, run_length), num_entries))
        column_rows = np.empty((run_length, sampling_plan.num_columns))
        for t in range(run_length):
            release_row = runs.release(client_updates)
            is_finite = is_finite and bool(np.isfinite(release_row).all())
            column_rows[t] = release_row[stored_columns]
            if t < len(whole_rows):
                whole_rows[t] = release_row
            entry_squares += release_row**2
            array_squares.append(np.add.reduceat(release_row**2, array_starts))
            sampled_rounds.append(t)
        whole_rounds.append(whole_rows)
        column_samples.append(column_rows)
        if not is_finite:
            break
    return NoiseSample(
        whole=whole_rounds,
        columns=stored_columns,
        in_columns=column_samples,
        squares=np.array(array_squares),
        round_of=np.array(sampled_rounds),
        entry_squares=entry_squares,
        update=update,
        raised=raised,
        is_finite=is_finite,
    )


def _working_update(
    runs: AggregatorRuns, claim: AggregatorClaim, num_entries: int
) -> tuple[np.ndarray, str]:
    """Returns an update that the aggregation function accepts, and a text about its error if it
    refuses updates of zeros.

    It is an update of zeros, or a small one if the function raises an error on zeros.
    """
    zero_update = np.zeros(num_entries, np.float32)
    try:
        runs.release([zero_update] * claim.clients)
    except WrongResult:
        raise
    except Exception as zero_error:
        runs.start()
        small_entry = np.float32(1e-6 * claim.clip_norm / math.sqrt(num_entries))
        small_update = zero_update + small_entry
        error_text = f"raised {type(zero_error).__name__}"
        try:
            runs.release([small_update] * claim.clients)
        except WrongResult:
            raise
        except Exception as error:
            raise ValueError(
                f"the function raised {type(error).__name__} ({error}) on updates within the "
                "clip norm: make it work on them first"
            ) from error
        return small_update, error_text
    return zero_update, ""


def fit_noise(sample: NoiseSample, claim: AggregatorClaim) -> NoiseModel:
    """Estimates the scale of the noise from sampled releases, all of which are finite."""
    array_sizes = np.array(claim.sizes)
    if claim.correlated:
        return _fit_correlated(sample, claim)
    num_rows = len(sample.squares)
    array_std = np.sqrt(sample.squares.sum(axis=0) / (array_sizes * num_rows))
    array_std = np.maximum(array_std, _MIN_STD)
    return NoiseModel(
        array_std=array_std,
        array_samples=array_sizes * num_rows,
        entry_std=np.repeat(array_std, array_sizes),
        round_scale=_round_scales(sample, array_std, array_sizes),
        covariance=np.eye(1),
        required_std=claim.multiplier(),
    )


def _round_scales(sample: NoiseSample, array_std: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns the relative noise scale of each round; all are 1 unless rounds clearly differ."""
    from scipy import stats

    num_rounds = int(sample.round_of.max()) + 1
    row_squares = (sample.squares / array_std**2).sum(axis=1)
    round_squares = np.bincount(sample.round_of, row_squares, minlength=num_rounds)
    round_degrees = np.bincount(sample.round_of, minlength=num_rounds) * int(sizes.sum())
    lower_tail = stats.chi2.cdf(round_squares, round_degrees)
    upper_tail = stats.chi2.sf(round_squares, round_degrees)
    if 2 * num_rounds * min(lower_tail.min(), upper_tail.min()) >= _SAME_SCALE_P_VALUE:
        return np.ones(num_rounds)
    return np.maximum(np.sqrt(round_squares / round_degrees), _MIN_STD)


def _fit_correlated(sample: NoiseSample, claim: AggregatorClaim) -> NoiseModel:
    """Estimates the scale of noise that is correlated between rounds.

    The noise multiplier of a run is estimated as well.
    """
    from scipy import stats

    array_sizes = np.array(claim.sizes)
    block_noise = np.concatenate(sample.whole, axis=1)
    block, num_samples = block_noise.shape
    is_in_block = sample.round_of < block
    num_rows = int(is_in_block.sum())
    array_std = np.sqrt(sample.squares[is_in_block].sum(axis=0) / (array_sizes * num_rows))
    array_std = np.maximum(array_std, _MIN_STD)
    entry_std = np.repeat(array_std, array_sizes)
    block_noise = block_noise / np.tile(entry_std, len(sample.whole))
    covariance = _nonsingular(block_noise @ block_noise.T / num_samples)
    num_rounds = rounds_seen(claim)
    whole_runs = [run for run in sample.in_columns if len(run) == num_rounds]
    column_std = entry_std[sample.columns]
    scaled_rows = np.concatenate(whole_runs, axis=1) / np.tile(column_std, len(whole_runs))
    half_columns = scaled_rows.shape[1] // 2
    # The participation pattern of the least protected client is selected by one half of the noise
    # samples, and the noise multiplier for it is measured on the other half.
    participation = Participation(
        rounds=num_rounds, schema="min_sep", min_sep=min(claim.min_sep or num_rounds, num_rounds)
    )
    worst_direction = worst_contributions(_precision(scaled_rows[:, :half_columns]), participation)
    num_measured = scaled_rows.shape[1] - half_columns
    degrees = num_measured - num_rounds + 1
    # Let u be a client's contributions to the rounds, Sigma the covariance of the rounds' noise,
    # and G its sample estimate times the number of samples. Then (1 / u' G^-1 u) / (1 / u' Sigma^-1
    # u) has a chi-squared distribution (Muirhead 1982, Theorem 3.2.12).
    unexplained_ratio = num_measured / float(
        worst_direction @ _precision(scaled_rows[:, half_columns:]) @ worst_direction
    )
    multiplier_estimate = math.sqrt(unexplained_ratio / degrees)
    claimed_variance = claim.multiplier() ** 2 / float((entry_std**2).mean())
    p_value = float(stats.chi2.cdf(unexplained_ratio / claimed_variance, degrees))
    return NoiseModel(
        array_std=array_std,
        array_samples=array_sizes * num_rows,
        entry_std=entry_std,
        round_scale=np.ones(block),
        covariance=covariance,
        multiplier=max(multiplier_estimate, _MIN_STD),
        multiplier_error=math.sqrt(1 / (2 * degrees)),
        required_std=claim.multiplier() / max(multiplier_estimate, _MIN_STD),
        run_p_value=p_value,
    )


def _nonsingular(covariance: np.ndarray) -> np.ndarray:
    """Adds a small multiple of the identity to a covariance matrix, to make it invertible."""
    mean_variance = np.trace(covariance) / len(covariance)
    return covariance + 1e-12 * (mean_variance + 1e-12) * np.eye(len(covariance))


def _precision(rows: np.ndarray) -> np.ndarray:
    """Returns the inverse of the empirical covariance between rows."""
    return np.linalg.inv(_nonsingular(rows @ rows.T / rows.shape[1]))


def white_rows(sample: NoiseSample, model: NoiseModel, *, whole: bool) -> list[np.ndarray]:
    """Returns the sampled noise of each run, whitened over rounds and scaled to variance 1.

    Args:
      sample: the noise.
      model: its estimated scale.
      whole: whether to return all entries of the rounds that are stored whole, or the stored
        columns of all rounds; of correlated noise, only the first block of rounds is returned.
    """
    entry_std = model.entry_std
    noise_runs = sample.whole
    if not whole:
        entry_std = model.entry_std[sample.columns]
        noise_runs = sample.in_columns
    if model.block == 1:
        return [rows / entry_std / model.round_scale[: len(rows), None] for rows in noise_runs]
    whitener = np.linalg.inv(np.linalg.cholesky(model.covariance))
    return [whitener @ (rows[: model.block] / entry_std) for rows in noise_runs]
