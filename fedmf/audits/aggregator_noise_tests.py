"""Tests of whether an aggregator's noise has the claimed size and normal tails."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from fedmf.audits import tails
from fedmf.audits.aggregator_claim import AggregatorClaim, Outcomes, nearest_mistake
from fedmf.audits.aggregator_dependence import is_tested, least_residual, p_value_of
from fedmf.audits.aggregator_noise import (
    NoiseModel,
    NoiseSample,
    participations_seen,
    rounds_seen,
    white_rows,
)

# Arrays with fewer entries than this are not tested for too little noise in single rounds.
_MIN_ENTRIES_IN_ROUND = 64


def check_zeros(sample: NoiseSample, claim: AggregatorClaim, outcomes: Outcomes) -> None:
    """Tests that the aggregation function releases finite numbers for updates of zeros."""
    failure_text = sample.raised
    if not sample.is_finite:
        failure_text = "gave NaN or an infinity"
    outcomes.add(
        "zeros",
        float(not failure_text),
        f"{claim.clients} updates of zeros: the function {failure_text or 'gave numbers'}; claimed "
        "is noise.",
        mistake="A clip factor clip_norm / norm, of norm 0, does this: use max(norm, 1e-12).",
    )


def check_rounds(claim: AggregatorClaim, outcomes: Outcomes) -> None:
    """Tests that all rounds were sampled, if correlated noise is claimed."""
    num_sampled = rounds_seen(claim)
    if not claim.correlated:
        verdict = f"The noise of {num_sampled:,} of {claim.rounds:,} rounds of a run was sampled."
        if num_sampled < claim.rounds:
            verdict += " Noise that repeats later is not seen: give smaller `shapes`."
        outcomes.skip("rounds", verdict)
        return
    outcomes.add(
        "rounds",
        float(num_sampled == claim.rounds),
        f"{num_sampled:,} rounds of a run, in which one client takes part "
        f"{participations_seen(claim):,} times; claimed are {claim.rounds:,} rounds.",
        mistake="What follows is about the rounds seen, and nothing is known about the rest: give "
        "smaller `shapes` or fewer `clients`, or claim fewer `rounds`.",
    )


def check_tails(sample: NoiseSample, model: NoiseModel, outcomes: Outcomes) -> None:
    """Tests whether the noise has the tails of a normal distribution.

    The rounds that are stored whole are used.
    """
    tested_entries = is_tested(model)
    if not tested_entries.any():
        outcomes.skip("tails", "Not made: there is no noise.")
        return
    white_runs = white_rows(sample, model, whole=True)
    tested_values = np.concatenate([rows[:, tested_entries].ravel() for rows in white_runs])
    findings = list(tails.tail_findings(tested_values))
    worst_finding = min(findings, key=p_value_of)
    num_tests = len(findings)
    unseen_cut = tails.smallest_unseen_cut(
        len(tested_values), threshold=outcomes.threshold / num_tests
    )
    outcomes.add(
        "tails",
        num_tests * p_value_of(worst_finding),
        f"{len(tested_values):,} entries of noise: {worst_finding.name} is "
        f"{worst_finding.statistic:.4g}; "
        "claimed are the tails of a normal distribution.",
        mistake="Noise that ends, or that is no normal distribution, does this: a release beyond "
        "the end proves that a client is there.",
        remark="The smallest cut of the noise that so many do not show is at "
        f"{unseen_cut:.3g} standard deviations.",
    )


def check_size(
    sample: NoiseSample,
    model: NoiseModel,
    claim: AggregatorClaim,
    outcomes: Outcomes,
    smaller_arrays: Sequence[int],
) -> None:
    """Tests that the noise is at least as large as claimed, in every array, round and entry.

    Args:
      sample: the noise.
      model: its estimated scale.
      claim: the claimed noise multiplier.
      outcomes: where the outcome is added.
      smaller_arrays: arrays that one client moves by less than the claim allows, as the movement
        tests found: less noise suffices there.
    """
    array_sizes = np.array(claim.sizes)
    required_std = np.full(len(array_sizes), model.required_std)
    exempt_arrays = list(smaller_arrays)
    required_std[exempt_arrays] = np.minimum(model.array_std, model.required_std)[exempt_arrays]
    p_value_by_group = dict(_size_p_values(sample, model, claim, required_std))
    worst_group = min(p_value_by_group, key=lambda group: p_value_by_group[group])
    p_value = len(p_value_by_group) * p_value_by_group[worst_group]
    if not smaller_arrays:
        p_value = min(p_value, len(p_value_by_group) * model.run_p_value)
    noise_ratio = model.overall_std / model.required_std
    measured_multiplier = noise_ratio * claim.multiplier()
    num_samples = float(model.array_samples.sum())
    relative_error = math.hypot(math.sqrt(1 / (2 * num_samples)), model.multiplier_error)
    if claim.correlated:
        measured_text = (
            f"a noise multiplier of {measured_multiplier:.4g} over {rounds_seen(claim):,} rounds, "
            f"in which one client takes part {participations_seen(claim):,} times"
        )
    else:
        measured_text = (
            f"noise of standard deviation {model.overall_std * claim.unit:.4g}, a noise multiplier "
            f"of {measured_multiplier:.4g}"
        )
    size_remark = ""
    if noise_ratio > 1 + outcomes.reach() * relative_error:
        size_remark = _remark_on_larger_noise(noise_ratio, claim.clients)
    elif smaller_arrays:
        size_remark = "Some arrays have less noise, and one client moves them by less."
    outcomes.add(
        "noise",
        p_value,
        f"{len(sample.squares):,} rounds of updates of zeros: {measured_text}; claimed is "
        f"{claim.multiplier():.4g}.",
        mistake=_mistake_of_smaller_noise(noise_ratio, worst_group, claim),
        remark=size_remark,
        sees=1 + outcomes.reach() * relative_error,
    )


def smallest_noise_ratio(
    sample: NoiseSample, model: NoiseModel, claim: AggregatorClaim, outcomes: Outcomes
) -> float:
    """Returns an upper bound on the smallest noise of any round or entry.

    It is relative to the standard deviation of all noise, and 1 at most. Noise that other rounds
    predict does not count.
    """
    from scipy import stats

    if model.block > 1 or not model.exists:
        return 1.0
    variance_ratios = [1.0]
    for sums, degrees in _relative_squares(sample, model, claim):
        low_quantile = stats.chi2.ppf(outcomes.error / len(sums), degrees)
        variance_ratios.append(float(sums.min()) / low_quantile)
    smallest_residual = least_residual(white_rows(sample, model, whole=False))
    low_quantile = stats.chi2.ppf(
        outcomes.error / smallest_residual.num_rounds, smallest_residual.degrees
    )
    variance_ratios.append(smallest_residual.squares / low_quantile)
    return math.sqrt(max(min(variance_ratios), 0.0))


def _relative_squares(
    sample: NoiseSample, model: NoiseModel, claim: AggregatorClaim
) -> Iterator[tuple[np.ndarray, int]]:
    """Yields sums of squares of the scaled noise over arrays, rounds or entries, with their degrees
    of freedom.

    The first array has the sum of each round, and the second the sum of each entry.
    """
    row_scale = model.round_scale[sample.round_of]
    yield (sample.squares / model.array_std**2).sum(axis=1) / row_scale**2, sum(claim.sizes)
    # The sum of an entry's squares over rounds has a chi-squared distribution only if the noise of
    # all rounds has the same scale. Otherwise this test is left out.
    if (model.round_scale == 1).all():
        yield sample.entry_squares / model.entry_std**2, len(sample.squares)


def _size_p_values(
    sample: NoiseSample, model: NoiseModel, claim: AggregatorClaim, required_std: np.ndarray
) -> Iterator[tuple[str, float]]:
    """Yields the name of each grouping of the noise (by array, round or entry), with a p-value of
    the smallest noise in any group.
    """
    from scipy import stats

    array_sizes = np.array(claim.sizes)
    num_rows = len(sample.squares)
    if model.block > 1:
        array_degrees = array_sizes * len(sample.whole)
        # The factor 1 + 6 * multiplier_error is a margin for the error of the estimated noise
        # multiplier.
        std_ratio = model.array_std / required_std * (1 + 6 * model.multiplier_error)
        lower_tails = stats.chi2.cdf(array_degrees * std_ratio**2, array_degrees)
        yield "an array", len(array_sizes) * float(lower_tails.min())
        whole_rows = np.concatenate(white_rows(sample, model, whole=True))
        entry_tail = float(stats.chi2.cdf((whole_rows**2).sum(axis=0).min(), len(whole_rows)))
        yield "an entry", whole_rows.shape[1] * entry_tail
        return
    relative_squares = sample.squares / required_std**2
    lower_tails = stats.chi2.cdf(relative_squares.sum(axis=0), num_rows * array_sizes)
    yield "an array", len(array_sizes) * float(lower_tails.min())
    yield "all entries", float(stats.chi2.cdf(relative_squares.sum(), num_rows * array_sizes.sum()))
    lower_tails = stats.chi2.cdf(relative_squares.sum(axis=1), array_sizes.sum())
    yield "a round", num_rows * float(lower_tails.min())
    is_large_array = array_sizes >= _MIN_ENTRIES_IN_ROUND
    if is_large_array.any():
        lower_tails = stats.chi2.cdf(
            relative_squares[:, is_large_array], array_sizes[is_large_array]
        )
        yield "an array in a round", lower_tails.size * float(lower_tails.min())
    entry_squares = sample.entry_squares / np.repeat(required_std, array_sizes) ** 2
    yield "an entry", len(entry_squares) * float(stats.chi2.cdf(entry_squares.min(), num_rows))


def _mistake_of_smaller_noise(noise_ratio: float, group: str, claim: AggregatorClaim) -> str:
    """Returns a text on the mistake that most likely makes the noise smaller than claimed."""
    if claim.correlated:
        return "Noise that is smaller, or that rounds share, does this."
    mistakes = {
        1 / claim.clients: "Noise of a mean on a sum does this.",
        1 / math.sqrt(claim.clients): "Every client adding its part of the noise, and a mean that "
        "divides it again, does this.",
    }
    return nearest_mistake(noise_ratio, 0.0, mistakes) or f"The noise of {group} is smaller."


def _remark_on_larger_noise(noise_ratio: float, num_clients: int) -> str:
    """Returns a text on noise that is larger than claimed, with the likely mistake."""
    mistakes = {
        math.sqrt(2): "Noise that is added twice does this.",
        num_clients: "Noise of a sum on a mean does this: divide sum and noise together.",
        math.sqrt(num_clients): "Every client adding the whole noise does this.",
    }
    noise_remark = (
        f"Remark: the noise is {noise_ratio:.4g} times as large as claimed, which costs utility."
    )
    return f"{noise_remark} {nearest_mistake(noise_ratio, 0.0, mistakes)}".strip()
