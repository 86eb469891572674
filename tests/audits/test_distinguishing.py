"""The distinguishing audit's statistics: the worst case, bounds that hold at the stated rate, and
games that break the claim.
"""

import dataclasses
import itertools

import numpy as np
import pytest
import scipy.stats

import fedmf
from fedmf.audits.distinguishing import (
    audit_distinguishing,
    worst_case,
)
from fedmf.mechanisms import DenseMechanism, IdentityMechanism
from tests.audits.controls import too_many_rounds
from tests.mechanisms.registry import every_mechanism
from tests.mechanisms.schemas import epochs, every_round, fitted, separated, single
from tests.power import (
    FALSE_POSITIVE_RATE,
    MISS_RATE,
    missed_by_count,
    missed_by_game,
    trials_that_see,
)
from tests.refusals import refusal


def play(plan, case, trials, seed=3, noise=1.0):
    """s of present and absent trials, from rows N Z + u made in numpy; noise: the part of the
    claimed noise that is added.
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
    participation = separated(rounds, 6)
    mechanism = fitted(participation, family)
    return fedmf.calibrate(mechanism, participation, epsilon=epsilon, delta=1e-6)


def test_a_plan_of_too_many_rounds_is_refused_before_its_matrices_are_formed():
    plan = fedmf.calibrate(
        IdentityMechanism(rounds=50_000), single(50_000), epsilon=2.0, delta=1e-6
    )
    with refusal("search of all rounds would take 4 dense .* GiB in all: .*fewer rounds"):
        worst_case(plan)


def test_worst_case_of_a_budget_is_within_it_and_reaches_what_it_is_of():
    apart = separated(24, 6)
    mechanism = fitted(apart, "toeplitz", coefficients="sqrt")
    budget = fedmf.Budget.of(mechanism, apart)
    case = worst_case(fedmf.calibrate(mechanism, budget.participation, epsilon=2.0, delta=1e-6))
    plan = fedmf.calibrate(mechanism, apart, epsilon=2.0, delta=1e-6)
    assert budget.allows(np.flatnonzero(case.contributions))
    assert case.snr * plan.noise_multiplier == pytest.approx(1.0, rel=1e-9)


@every_mechanism
def test_worst_case_is_the_brute_force_and_within_the_sensitivity(build):
    """The best test of all releases sees what one Gaussian release of C u shows, |C u| / stddev,
    and no more (Denisov et al. 2022, Thm. 4.1).
    """
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
        best = 0.0
        for pattern in plan.participation.patterns():
            signs = np.array(
                [(1.0, *rest) for rest in itertools.product((1.0, -1.0), repeat=len(pattern) - 1)]
            )
            best = max(
                best, float(((signs @ X[np.ix_(pattern, pattern)]) * signs).sum(axis=1).max())
            )
        ratio = case.snr * plan.noise_multiplier
        assert ratio <= 1 + 1e-9
        assert ratio * plan.sensitivity.value == pytest.approx(np.sqrt(best), rel=1e-8)
        assert plan.participation.allows(np.flatnonzero(case.contributions).tolist())
        # Exact in expectation: the mean of s is g . u, its variance g N N^T g.
        g = case.projection
        assert np.sum((g @ N) ** 2) == pytest.approx(1.0, rel=1e-8)
        mean = g @ case.contributions * plan.clip_norm / plan.stddev
        assert mean == pytest.approx(case.snr, rel=1e-8)


def test_worst_case_of_many_rounds_is_found_without_trying_all():
    for family, bands in (("banded", 64), ("blt", None), ("identity", None)):
        participation = separated(512, 64)
        options = {"bands": bands} if bands else {}
        mechanism = fitted(participation, family, **options)
        plan = fedmf.calibrate(mechanism, participation, epsilon=2.0, delta=1e-6)
        assert plan.sensitivity.exact
        case = worst_case(plan)
        assert case.snr == pytest.approx(1 / plan.noise_multiplier, rel=1e-6)
        assert participation.allows(np.flatnonzero(case.contributions).tolist())


@pytest.mark.parametrize(("epsilon", "family"), [(0.5, "identity"), (2.0, "banded"), (8.0, "blt")])
def test_an_honest_game_has_the_ratio_of_the_plan(family, epsilon):
    plan = small_plan(epsilon, family=family)
    case = worst_case(plan)
    assert case.snr == pytest.approx(1 / plan.noise_multiplier, rel=1e-3)
    trials = trials_that_see(
        lambda trials: missed_by_game(trials, 1.25 * case.snr, case.snr, FALSE_POSITIVE_RATE / 2)
    )
    # The confidence is that of the test, so that interval and bound are wrong
    # as rarely as a finding.
    statistics = play(plan, case, trials)
    result = audit_distinguishing(plan, case, *statistics, confidence=1 - FALSE_POSITIVE_RATE)
    assert all(finding.p_value > FALSE_POSITIVE_RATE for finding in result.findings)
    assert result.snr_lower <= case.snr <= result.snr_upper
    assert result.epsilon_lower <= plan.epsilon
    statistics[0][:] += 0.25 * case.snr
    assert audit_distinguishing(plan, case, *statistics).findings[1].p_value < FALSE_POSITIVE_RATE


# Intervals and bounds that are wrong in a quarter of games, and not in a twentieth, would be seen,
# and so would those that never are.
GAMES = trials_that_see(lambda games: max(missed_by_count(games, 0.05, 0.25), 0.95**games))


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "trials"), [(2.0, 20_000), (8.0, 4_000)])
def test_bounds_are_as_often_right_as_they_say(epsilon, trials):
    """The interval misses in at most 5% of games, the bound exceeds the truth in at most 5%, and
    0.8 of the expected bound is missed in at most 15% of games of so few trials (2.5%
    to 10.5% were measured).
    """
    plan = small_plan(epsilon)
    case, rng = worst_case(plan), np.random.default_rng(1)
    five_in_a_hundred = scipy.stats.binom.isf(FALSE_POSITIVE_RATE, GAMES, 0.05)
    deviations = 3 * np.sqrt((4 + case.snr**2 / 2) / trials)
    missed = above = short = wrong = 0
    for _ in range(GAMES):
        absent, present = rng.standard_normal((2, trials // 2))
        result = audit_distinguishing(plan, case, case.snr + present, absent)
        missed += not result.snr_lower <= case.snr <= result.snr_upper
        wrong += not result.snr_lower <= case.snr + deviations <= result.snr_upper
        above += result.epsilon_lower > plan.epsilon
        short += result.epsilon_lower < 0.8 * result.epsilon_expected
    # An interval that never missed would be too wide to find anything.
    assert 0 < missed <= five_in_a_hundred < wrong
    assert above <= five_in_a_hundred
    assert short <= scipy.stats.binom.isf(FALSE_POSITIVE_RATE, GAMES, 0.15)


@pytest.mark.slow
def test_the_bound_never_trusts_the_trials_that_chose_the_threshold():
    """Without any difference between the two, a bound above 0 is wrong; with one it is seen."""
    plan, rng = small_plan(), np.random.default_rng(2)
    case = worst_case(plan)
    few = scipy.stats.binom.isf(FALSE_POSITIVE_RATE, GAMES, 0.05)
    wrong = right = 0
    for _ in range(GAMES):
        present, absent = rng.standard_normal((2, 500))
        wrong += audit_distinguishing(plan, case, present, absent).epsilon_lower > 0
        if right <= few:
            right += audit_distinguishing(plan, case, present + 1, absent).epsilon_lower > 0
    assert wrong <= few < right


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_two_thirds_of_the_noise_is_caught(epsilon):
    plan = small_plan(epsilon)
    case = worst_case(plan)
    claimed = 1 / plan.noise_multiplier
    trials = trials_that_see(lambda trials: missed_by_game(trials, 1.5 * case.snr, claimed))
    assert (
        missed_by_game(trials, 1.5 * case.snr, claimed)
        <= MISS_RATE
        < missed_by_game(trials // 2, 1.5 * case.snr, claimed)
    )
    result = audit_distinguishing(plan, case, *play(plan, case, trials, noise=2 / 3))
    assert result.findings[2].name.startswith("variance")
    assert result.findings[2].p_value < FALSE_POSITIVE_RATE
    assert result.snr_lower > result.snr_claimed


@pytest.mark.parametrize("extra", [1, None])
@pytest.mark.parametrize("family", ["identity", "banded", "blt"])
def test_rounds_too_many_are_caught(family, extra):
    plan = small_plan(family=family)
    case = worst_case(plan, rounds=too_many_rounds(plan, extra))
    trials = trials_that_see(
        lambda trials: missed_by_game(trials, case.snr, 1 / plan.noise_multiplier)
    )
    result = audit_distinguishing(plan, case, *play(plan, case, trials))
    assert result.findings[0].p_value < FALSE_POSITIVE_RATE


@pytest.mark.parametrize("rounding", [-1e-12, 1e-12])
def test_of_worst_cases_that_tie_the_first_is_taken(rounding):
    """Every client of a column-normalised banded mechanism is a worst case, and a processor's
    rounding must not choose.
    """
    plan = small_plan()
    C = plan.mechanism.encoder() * (1 + rounding * np.arange(24))
    tilted = dataclasses.replace(plan, mechanism=DenseMechanism(matrix=C))
    assert np.array_equal(worst_case(plan).contributions, worst_case(tilted).contributions)


def test_without_noise_the_empirical_epsilon_itself_breaks_the_claim():
    plan = small_plan(1.0)
    case = worst_case(plan)
    result = audit_distinguishing(plan, case, *play(plan, case, 4_000, noise=0.02))
    assert result.epsilon_lower > plan.epsilon
    assert result.findings[3].p_value < FALSE_POSITIVE_RATE
