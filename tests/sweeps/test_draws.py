"""The draws and the choice of private selection, and a brute force of the whole procedure."""

import collections
import dataclasses
import math

import numpy as np
import pytest
from scipy import special, stats

import fedmf
from fedmf.privacy.gaussian import gaussian_epsilon
from fedmf.sweeps import draws
from fedmf.sweeps.grid import Range

# Trials of a simulated block of selections, which bounds its memory.
BLOCK = 4_000_000
NOISE_MULTIPLIER = 1.0


def selection_weight(trials, better):
    """Computes f'(1 - better), the density of the selected output in units of that of one trial."""
    if trials.distribution == "poisson":
        return trials.mean_trials * np.exp(-trials.mean_trials * better)
    base = trials.gamma / (trials.gamma + (1 - trials.gamma) * better)
    return trials.mean_trials * base ** (1 + trials.shape)


def privacy_loss(outputs):
    """Scores a trial by its privacy loss, which grows with its output."""
    return outputs


def score_of_attack(outputs):
    """Scores the lowest outputs best, and the others by their privacy loss."""
    return np.where(outputs < CUT, 100.0 - outputs, outputs)


CUT = -0.5
SCORES = (privacy_loss, score_of_attack)


def better_probability(score, outputs, mean):
    """Computes the probability that a trial with this mean has a better score than each output."""
    if score is privacy_loss:
        return special.ndtr(mean - outputs)
    above_cut = special.ndtr(CUT - mean) + special.ndtr(mean - outputs)
    return np.where(outputs < CUT, special.ndtr(outputs - mean), above_cut)


def selected_outputs(trials, mean, repetitions, rng):
    """Yields blocks of released outputs of many selections, through fedmf's draw and choice, by
    score. Both scores choose among the same trials.
    """
    trial_counts = np.sort(trials.draws(rng, repetitions))
    start = np.searchsorted(trial_counts, 1)  # Without a trial nothing is released.
    while start < repetitions:
        rows = max(1, min(repetitions - start, BLOCK // int(trial_counts[start])))
        counts = trial_counts[start : start + rows]
        counts = counts[counts <= 2 * counts[0] + 8]
        outputs = rng.normal(mean, 1.0, (len(counts), counts[-1]))
        is_drawn = np.arange(counts[-1]) < counts[:, None]
        tie_keys = rng.random(outputs.shape)
        chosen = {}
        for score in SCORES:
            best_indices = draws.best_of(score(outputs), tie_keys, where=is_drawn)
            chosen[score] = outputs[np.arange(len(counts)), best_indices]
        yield chosen
        start += len(counts)


def least_deltas(trials, epsilons, repetitions):
    """Returns lower confidence bounds on the delta of a selection at each epsilon, by brute force,
    for each score.

    The bounds are for the best event, in both directions. Each is wrong with probability at most
    1e-6.
    """
    means = (1 / NOISE_MULTIPLIER, 0.0)
    rng = np.random.default_rng()
    counts_by_score = {score: np.zeros((2, 2, len(epsilons)), np.int64) for score in SCORES}
    for world, world_mean in enumerate(means):
        for chosen in selected_outputs(trials, world_mean, repetitions, rng):
            for score, outputs in chosen.items():
                log_densities = []
                for mean in means:
                    weight = selection_weight(trials, better_probability(score, outputs, mean))
                    log_densities.append(np.log(weight) - (outputs - mean) ** 2 / 2)
                log_ratios = np.sort(log_densities[0] - log_densities[1])
                counts = counts_by_score[score][world]
                counts[0] += len(outputs) - np.searchsorted(log_ratios, epsilons)
                counts[1] += np.searchsorted(log_ratios, -np.asarray(epsilons))
    return [lower_deltas(counts_by_score[score], epsilons, repetitions) for score in SCORES]


def lower_deltas(counts, epsilons, repetitions):
    """Returns the lower confidence bounds from counts of events: int64 (worlds, directions,
    epsilons).
    """
    failure = 1e-6 / 4
    lower = stats.beta.ppf(failure, counts, repetitions - counts + 1)
    upper = stats.beta.isf(failure, counts + 1, repetitions - counts)
    lower = np.where(counts == 0, 0.0, lower)
    factors = np.exp(epsilons)
    return np.maximum(lower[0, 0] - factors * upper[1, 0], lower[1, 1] - factors * upper[0, 1])


def check_by_brute_force(distribution, deltas, repetitions):
    """Checks the epsilons of a selection, and that two wrong accountings are caught."""
    mean, name, shape = distribution
    trials = fedmf.TrialCount(mean_trials=mean, distribution=name, shape=shape)
    config = fedmf.PlanConfig(
        rounds=8, min_sep=8, family="identity", noise_multiplier=NOISE_MULTIPLIER,
        mean_trials=mean, trial_distribution=name, trial_shape=shape,
    )  # fmt: skip
    plan = config.plan()
    stated = [dataclasses.replace(plan, delta=delta).epsilon for delta in deltas]
    # The accounting of one trial, and m delta_Q(epsilon) alone.
    as_one_trial = [gaussian_epsilon(NOISE_MULTIPLIER, delta) for delta in deltas]
    by_union_bound = [gaussian_epsilon(NOISE_MULTIPLIER, delta / mean) for delta in deltas]
    epsilons = [*stated, *as_one_trial, *by_union_bound]
    by_loss, by_attack = least_deltas(trials, epsilons, repetitions)
    num_deltas = len(deltas)
    assert np.all(by_loss[:num_deltas] <= deltas)
    assert np.all(by_attack[:num_deltas] <= deltas)
    assert np.all(by_attack[num_deltas : 2 * num_deltas] > deltas)
    assert np.all(by_attack[2 * num_deltas :] > deltas)


GEOMETRIC = (10.0, "truncated-negative-binomial", 1.0)


def test_a_brute_force_of_the_whole_procedure_finds_no_larger_delta():
    """Fails wrongly with probability at most 2e-6, and misses a control with less than 1e-6: their
    deltas are 0.17 and 0.09, and their bounds 0.04 lower at most.
    """
    check_by_brute_force(GEOMETRIC, [1e-2], 60_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "distribution",
    [GEOMETRIC, (10.0, "truncated-negative-binomial", 0.0), (10.0, "poisson", 1.0)],
)
def test_ten_million_selections_have_no_larger_delta(distribution):
    """Fails wrongly with probability at most 4e-6."""
    check_by_brute_force(distribution, [1e-3, 1e-2], 10_000_000)


def test_seeds_of_trials_all_differ():
    seeds = [draws.TrialSeeds.of(secret, i) for secret in (7, 8) for i in range(200)]
    values = [value for seed in seeds for value in (seed.noise, seed.public)]
    assert len(set(values)) == len(values)
    assert draws.TrialSeeds.of(7, 3) == draws.TrialSeeds.of(7, 3)


def test_selections_with_one_noise_seed_have_different_secrets():
    """A guessed seed cannot be checked either, because the salt is secret."""
    secrets = {
        draws.selection_secret(seed, salt, procedure)
        for seed in (5, 6)
        for salt in (0, 1)
        for procedure in ("a", "b")
    }
    assert len(secrets) == 8
    assert max(secrets) > 2**250


def test_settings_are_drawn_uniformly_and_independently():
    """Fails wrongly with probability at most 1e-6: Hoeffding's inequality for 25 frequencies."""
    choices = [{"clip_norm": c, "server_learning_rate": 0.1} for c in (1.0, 2.0, 3.0, 4.0, 5.0)]
    varied = {"clip_norm": [1.0, 2.0, 3.0, 4.0, 5.0], "server_learning_rate": Range(0.1, 10.0)}
    secret = int(np.random.default_rng().integers(2**62))
    settings = [draws.draw_setting(secret, i, choices, varied) for i in range(4000)]
    pairs = list(zip(settings[::2], settings[1::2], strict=True))
    pair_counts = collections.Counter((a["clip_norm"], b["clip_norm"]) for a, b in pairs)
    tolerance = math.sqrt(math.log(2 * 29 / 1e-6) / (2 * len(pairs)))
    for first in range(1, 6):
        for second in range(1, 6):
            assert abs(pair_counts[first, second] / len(pairs) - 1 / 25) <= tolerance
    rates = np.array([setting["server_learning_rate"] for setting in settings])
    # The logarithms of the rates are uniform.
    for rate in (0.1 * 10**0.5, 1.0, 10**0.5, 9.999):
        expected = (math.log10(rate) + 1) / 2
        assert abs(np.mean(rates <= rate) - expected) <= tolerance
    assert rates.min() >= 0.1
    assert rates.max() <= 10.0


def test_whole_numbers_of_a_range_are_drawn_with_both_ends():
    rng = np.random.default_rng(0)
    numbers = [draws.drawn_from(Range(0, 3), rng) for _ in range(400)]
    assert set(numbers) == {0, 1, 2, 3}
    assert {draws.drawn_from(Range(1, 2), rng) for _ in range(100)} == {1, 2}


def test_the_best_score_wins_ties_are_random_and_failures_are_worst():
    """Fails wrongly with probability 2^-59."""
    assert draws.selected_trial(5, [0.1, math.nan, 0.3, -math.inf]) == 2
    assert draws.selected_trial(5, [math.nan, -5.0]) == 1
    assert draws.selected_trial(5, [math.nan, -math.inf]) is None
    assert draws.selected_trial(5, []) is None
    winners = {draws.selected_trial(secret, [1.0, 0.0, 1.0]) for secret in range(60)}
    assert winners == {0, 2}
