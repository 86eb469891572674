"""Distinguishing attack: worst cases, stated error rates, and noise that breaks the claim."""

import dataclasses
import itertools

import numpy as np
import pytest
import scipy.stats

import fedmf
from fedmf.audits.distinguishing import audit_distinguishing
from fedmf.audits.worst_case import worst_case
from fedmf.mechanisms import DenseMechanism, IdentityMechanism
from tests.audits.controls import too_many_rounds
from tests.mechanisms.registry import every_mechanism
from tests.mechanisms.schemas import epochs, every_round, fitted, separated, single
from tests.power import (
    FALSE_POSITIVE_RATE,
    MISS_RATE,
    missed_by_count,
    missed_by_game,
    trials_that_detect,
)
from tests.refusals import refusal


def draw_statistics(plan, case, trials, seed=3, noise=1.0):
    """Draws the statistic s of present and of absent trials, from rows N Z + u.

    Args:
      plan: the claim.
      case: the client's rounds.
      trials: number of trials, half of them present.
      seed: of the noise.
      noise: factor on the claimed noise.
    """
    N = plan.mechanism.noising()
    Y = (
        noise
        * plan.stddev
        * (N @ np.random.default_rng(seed).standard_normal((N.shape[1], trials)))
    )
    Y[:, ::2] += plan.clip_norm * case.contributions[:, None]
    s = case.projection @ Y / plan.stddev
    return s[::2], s[1::2]


def small_plan(epsilon=2.0, rounds=24, family="banded"):
    """Returns a plan of few rounds."""
    participation = separated(rounds, 6)
    mechanism = fitted(participation, family)
    return fedmf.calibrate(mechanism, participation, epsilon=epsilon, delta=1e-6)


def test_a_plan_of_too_many_rounds_is_refused_before_its_matrices_are_formed():
    plan = fedmf.calibrate(
        IdentityMechanism(rounds=50_000), single(50_000), epsilon=2.0, delta=1e-6
    )
    with refusal("search of all rounds would take 4 dense .* GiB in all: .*fewer rounds"):
        worst_case(plan)


def test_worst_case_of_a_budget_spends_all_of_it():
    separated_rounds = separated(24, 6)
    mechanism = fitted(separated_rounds, "toeplitz", coefficients="sqrt")
    budget = fedmf.Budget.of(mechanism, separated_rounds)
    case = worst_case(fedmf.calibrate(mechanism, budget.participation, epsilon=2.0, delta=1e-6))
    plan = fedmf.calibrate(mechanism, separated_rounds, epsilon=2.0, delta=1e-6)
    assert budget.allows(np.flatnonzero(case.contributions))
    assert case.snr * plan.noise_multiplier == pytest.approx(1.0, rel=1e-9)


@every_mechanism
def test_worst_case_equals_brute_force_and_is_within_the_sensitivity(build):
    """Compares with all patterns: the signal is |C u| / stddev (Denisov et al. 2022, Thm. 4.1)."""
    mechanism = build(8)
    N = mechanism.noising()
    X = np.linalg.inv(N @ N.T)
    for participation in (
        single(8),
        epochs(8, 3),
        separated(8, 3),
        separated(8, 2, 2),
        every_round(8),
    ):
        plan = fedmf.calibrate(mechanism, participation, epsilon=2.0, delta=1e-6, clip_norm=0.5)
        case = worst_case(plan)
        best_energy = 0.0
        for pattern in plan.participation.patterns():
            sign_choices = np.array(
                [
                    (1.0, *later_signs)
                    for later_signs in itertools.product((1.0, -1.0), repeat=len(pattern) - 1)
                ]
            )
            best_energy = max(
                best_energy,
                float(
                    ((sign_choices @ X[np.ix_(pattern, pattern)]) * sign_choices).sum(axis=1).max()
                ),
            )
        snr_ratio = case.snr * plan.noise_multiplier
        assert snr_ratio <= 1 + 1e-9
        assert snr_ratio * plan.sensitivity.value == pytest.approx(np.sqrt(best_energy), rel=1e-8)
        assert plan.participation.allows(np.flatnonzero(case.contributions).tolist())
        # Exact in expectation: the mean of s is g . u, its variance g N N^T g.
        g = case.projection
        assert np.sum((g @ N) ** 2) == pytest.approx(1.0, rel=1e-8)
        expected_mean = g @ case.contributions * plan.clip_norm / plan.stddev
        assert expected_mean == pytest.approx(case.snr, rel=1e-8)


def test_worst_case_of_many_rounds_is_found_without_trying_all():
    for family, bands in (("banded", 64), ("blt", None), ("identity", None)):
        participation = separated(512, 64)
        fit_options = {"bands": bands} if bands else {}
        mechanism = fitted(participation, family, **fit_options)
        plan = fedmf.calibrate(mechanism, participation, epsilon=2.0, delta=1e-6)
        assert plan.sensitivity.exact
        case = worst_case(plan)
        assert case.snr == pytest.approx(1 / plan.noise_multiplier, rel=1e-6)
        assert participation.allows(np.flatnonzero(case.contributions).tolist())


@pytest.mark.parametrize(("epsilon", "family"), [(0.5, "identity"), (2.0, "banded"), (8.0, "blt")])
def test_honest_trials_have_the_planned_snr(family, epsilon):
    plan = small_plan(epsilon, family=family)
    case = worst_case(plan)
    assert case.snr == pytest.approx(1 / plan.noise_multiplier, rel=1e-3)
    num_trials = trials_that_detect(
        lambda num_trials: missed_by_game(
            num_trials, 1.25 * case.snr, case.snr, FALSE_POSITIVE_RATE / 2
        )
    )
    # The confidence is that of the test, so that interval and bound are wrong
    # as rarely as a finding.
    trial_statistics = draw_statistics(plan, case, num_trials)
    result = audit_distinguishing(plan, case, *trial_statistics, confidence=1 - FALSE_POSITIVE_RATE)
    assert all(finding.p_value > FALSE_POSITIVE_RATE for finding in result.findings)
    assert result.snr_lower <= case.snr <= result.snr_upper
    assert result.epsilon_lower <= plan.epsilon
    trial_statistics[0][:] += 0.25 * case.snr
    assert (
        audit_distinguishing(plan, case, *trial_statistics).findings[1].p_value
        < FALSE_POSITIVE_RATE
    )


# Intervals and bounds that are wrong in a quarter of the attacks are detected,
# and so are those that never are wrong.
NUM_ATTACKS = trials_that_detect(
    lambda attacks: max(missed_by_count(attacks, 0.05, 0.25), 0.95**attacks)
)


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "trials"), [(2.0, 20_000), (8.0, 4_000)])
def test_intervals_and_bounds_fail_at_the_stated_rates(epsilon, trials):
    """Counts the attacks with wrong intervals and bounds.

    The interval misses in at most 5% of the attacks, the bound exceeds the truth in at most 5%, and
    it is below 0.8 of the expected bound in at most 15% (2.5% to 10.5% were measured).
    """
    plan = small_plan(epsilon)
    case = worst_case(plan)
    rng = np.random.default_rng(1)
    max_failures = scipy.stats.binom.isf(FALSE_POSITIVE_RATE, NUM_ATTACKS, 0.05)
    wrong_shift = 3 * np.sqrt((4 + case.snr**2 / 2) / trials)
    num_missed = num_above = num_short = num_wrong = 0
    for _ in range(NUM_ATTACKS):
        absent, present = rng.standard_normal((2, trials // 2))
        result = audit_distinguishing(plan, case, case.snr + present, absent)
        num_missed += not result.snr_lower <= case.snr <= result.snr_upper
        num_wrong += not result.snr_lower <= case.snr + wrong_shift <= result.snr_upper
        num_above += result.epsilon_lower > plan.epsilon
        num_short += result.epsilon_lower < 0.8 * result.epsilon_expected
    # An interval that never missed would be too wide to find anything.
    assert 0 < num_missed <= max_failures < num_wrong
    assert num_above <= max_failures
    assert num_short <= scipy.stats.binom.isf(FALSE_POSITIVE_RATE, NUM_ATTACKS, 0.15)


@pytest.mark.slow
def test_bound_excludes_the_trials_that_selected_the_threshold():
    """Counts bounds above 0 without any signal, and with one."""
    plan = small_plan()
    rng = np.random.default_rng(2)
    case = worst_case(plan)
    max_failures = scipy.stats.binom.isf(FALSE_POSITIVE_RATE, NUM_ATTACKS, 0.05)
    num_wrong = num_right = 0
    for _ in range(NUM_ATTACKS):
        present, absent = rng.standard_normal((2, 500))
        num_wrong += audit_distinguishing(plan, case, present, absent).epsilon_lower > 0
        if num_right <= max_failures:
            num_right += audit_distinguishing(plan, case, present + 1, absent).epsilon_lower > 0
    assert num_wrong <= max_failures < num_right


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_two_thirds_of_the_noise_contradict_the_claim(epsilon):
    plan = small_plan(epsilon)
    case = worst_case(plan)
    claimed_snr = 1 / plan.noise_multiplier
    num_trials = trials_that_detect(
        lambda num_trials: missed_by_game(num_trials, 1.5 * case.snr, claimed_snr)
    )
    assert (
        missed_by_game(num_trials, 1.5 * case.snr, claimed_snr)
        <= MISS_RATE
        < missed_by_game(num_trials // 2, 1.5 * case.snr, claimed_snr)
    )
    result = audit_distinguishing(plan, case, *draw_statistics(plan, case, num_trials, noise=2 / 3))
    assert result.findings[2].name.startswith("variance")
    assert result.findings[2].p_value < FALSE_POSITIVE_RATE
    assert result.snr_lower > result.snr_claimed


@pytest.mark.parametrize("extra", [1, None])
@pytest.mark.parametrize("family", ["identity", "banded", "blt"])
def test_too_many_rounds_contradict_the_claim(family, extra):
    plan = small_plan(family=family)
    case = worst_case(plan, rounds=too_many_rounds(plan, extra))
    num_trials = trials_that_detect(
        lambda num_trials: missed_by_game(num_trials, case.snr, 1 / plan.noise_multiplier)
    )
    result = audit_distinguishing(plan, case, *draw_statistics(plan, case, num_trials))
    assert result.findings[0].p_value < FALSE_POSITIVE_RATE


@pytest.mark.parametrize("rounding", [-1e-12, 1e-12])
def test_worst_case_is_the_first_of_ties(rounding):
    """Tests a column-normalised banded mechanism, for which every client is a worst case.

    Rounding, which differs between processors, must not choose.
    """
    plan = small_plan()
    C = plan.mechanism.encoder() * (1 + rounding * np.arange(24))
    tilted_plan = dataclasses.replace(plan, mechanism=DenseMechanism(matrix=C))
    assert np.array_equal(worst_case(plan).contributions, worst_case(tilted_plan).contributions)


def test_empirical_epsilon_without_noise_exceeds_the_claim():
    plan = small_plan(1.0)
    case = worst_case(plan)
    result = audit_distinguishing(plan, case, *draw_statistics(plan, case, 4_000, noise=0.02))
    assert result.epsilon_lower > plan.epsilon
    assert result.findings[3].p_value < FALSE_POSITIVE_RATE
