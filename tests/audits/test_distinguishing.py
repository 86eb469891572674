"""The distinguishing audit's statistics: the worst case, bounds that hold at the stated rate, and games that break the claim."""

import itertools

import numpy as np
import pytest
import scipy.stats

import fedmf
from fedmf.audits.distinguishing import (
    _noncentral_tail,
    audit_distinguishing,
    expected_bound,
    largest_epsilon,
    too_many_rounds,
    worst_case,
)
from tests.mechanisms.registry import every_mechanism

# Chance that an honest game fails a test here; the seeds are fixed, so that it says how surprising a failure is.
FALSE_POSITIVE = 1e-6
SCHEMAS = [
    {"schema": "single"},
    {"schema": "fixed_epoch", "min_sep": 3},
    {"schema": "min_sep", "min_sep": 3},
    {"schema": "min_sep", "min_sep": 2, "max_participations": 2},
    {"schema": "every_round"},
]


def plan_of(mechanism, epsilon=2.0, **schema):
    schema = schema or {"schema": "min_sep", "min_sep": 3}
    participation = fedmf.Participation(rounds=mechanism.rounds, **schema)
    return fedmf.calibrate(mechanism, participation, epsilon=epsilon, delta=1e-6, clip_norm=0.5)


def play(plan, case, trials, seed=3, noise=1.0):
    """s of present and absent trials, from rows N Z + u made in numpy; noise: the part of the claimed noise that is added."""
    N = plan.mechanism.noising()
    Y = noise * plan.stddev * (N @ np.random.default_rng(seed).standard_normal((N.shape[1], trials)))
    Y[:, ::2] += plan.clip_norm * case.contributions[:, None]
    s = case.projection @ Y / plan.stddev
    return s[::2], s[1::2]


def small_plan(epsilon=2.0, rounds=24, family="banded"):
    participation = fedmf.Participation(rounds=rounds, schema="min_sep", min_sep=6)
    mechanism = fedmf.fit(fedmf.prefix_sum(rounds), participation, family=family)
    return fedmf.calibrate(mechanism, participation, epsilon=epsilon, delta=1e-6)


@every_mechanism
def test_worst_case_is_the_brute_force_and_within_the_sensitivity(build):
    mechanism = build(8)
    N = mechanism.noising()
    X = np.linalg.inv(N @ N.T)
    for schema in SCHEMAS:
        plan = plan_of(mechanism, **schema)
        case = worst_case(plan)
        best = 0.0
        for pattern in plan.participation.patterns():
            signs = np.array([(1.0, *rest) for rest in itertools.product((1.0, -1.0), repeat=len(pattern) - 1)])
            best = max(best, float(((signs @ X[np.ix_(pattern, pattern)]) * signs).sum(axis=1).max()))
        ratio = case.snr * plan.noise_multiplier
        assert ratio <= 1 + 1e-9
        assert ratio * plan.sensitivity.value == pytest.approx(np.sqrt(best), rel=1e-8)
        assert plan.participation.allows(np.flatnonzero(case.contributions).tolist())


def test_worst_case_of_many_rounds_is_found_without_trying_all():
    for family, bands in (("banded", 64), ("blt", None), ("identity", None)):
        participation = fedmf.Participation(rounds=512, schema="min_sep", min_sep=64)
        options = {"bands": bands} if bands else {}
        mechanism = fedmf.fit(fedmf.prefix_sum(512), participation, family=family, **options)
        plan = fedmf.calibrate(mechanism, participation, epsilon=2.0, delta=1e-6)
        assert plan.sensitivity.exact
        case = worst_case(plan)
        assert case.snr == pytest.approx(1 / plan.noise_multiplier, rel=1e-6)
        assert participation.allows(np.flatnonzero(case.contributions).tolist())


@every_mechanism
def test_statistic_has_the_mean_and_spread_it_says(build):
    """Exact in expectation: the mean of s is g . u, its variance g N N^T g."""
    plan = plan_of(build(9))
    case = worst_case(plan)
    g, N = case.projection, plan.mechanism.noising()
    assert np.sum((g @ N) ** 2) == pytest.approx(1.0, rel=1e-8)
    assert g @ case.contributions * plan.clip_norm / plan.stddev == pytest.approx(case.snr, rel=1e-8)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("family", ["identity", "banded", "blt", "toeplitz"])
def test_an_honest_game_proves_most_of_what_can_be_proved(family, epsilon):
    plan = small_plan(epsilon, family=family)
    case = worst_case(plan)
    result = audit_distinguishing(plan, case, *play(plan, case, 400_000))
    assert all(finding.p_value > FALSE_POSITIVE for finding in result.findings)
    assert result.epsilon_lower <= plan.epsilon
    assert result.epsilon_lower >= 0.8 * result.epsilon_expected  # see the next test for how often that fails
    assert result.snr_lower <= result.snr_claimed * (1 + 1e-9)
    assert result.snr == pytest.approx(1 / plan.noise_multiplier, rel=0.03)
    assert largest_epsilon(result.snr, plan.delta) == pytest.approx(plan.epsilon, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "trials"), [(2.0, 20_000), (8.0, 4_000)])
def test_bounds_are_as_often_right_as_they_say(epsilon, trials):
    """200 games: the interval misses in at most 5%, the bound exceeds the truth in at most 5%, and 0.8 of the expected bound is
    missed in at most 10% of games of so few trials; each but for chance, 1e-6."""
    plan = small_plan(epsilon)
    case, rng, games = worst_case(plan), np.random.default_rng(1), 200
    missed = above = short = 0
    for _ in range(games):
        result = audit_distinguishing(
            plan, case, case.snr + rng.standard_normal(trials // 2), rng.standard_normal(trials // 2)
        )
        missed += not result.snr_lower <= case.snr <= result.snr_upper
        above += result.epsilon_lower > plan.epsilon
        short += result.epsilon_lower < 0.8 * result.epsilon_expected
    assert missed <= scipy.stats.binom.isf(1e-6, games, 0.05)
    assert missed > 0  # an interval that never missed would be too wide to find anything
    assert above <= scipy.stats.binom.isf(1e-6, games, 0.05)
    assert short <= scipy.stats.binom.isf(1e-6, games, 0.10)


@pytest.mark.slow
def test_the_bound_never_trusts_the_trials_that_chose_the_threshold():
    """Without any difference between the two, a bound above 0 is wrong: at most 5% of games."""
    plan, rng, games = small_plan(), np.random.default_rng(2), 200
    case = worst_case(plan)
    wrong = sum(
        audit_distinguishing(plan, case, *rng.standard_normal((2, 500))).epsilon_lower > 0 for _ in range(games)
    )
    assert wrong <= scipy.stats.binom.isf(1e-6, games, 0.05)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_two_thirds_of_the_noise_is_caught(epsilon):
    plan = small_plan(epsilon)
    case = worst_case(plan)
    result = audit_distinguishing(plan, case, *play(plan, case, 20_000, noise=2 / 3))
    assert result.findings[0].name.startswith("signal-to-noise above the claim")
    assert result.findings[0].p_value < FALSE_POSITIVE
    assert result.snr_lower > result.snr_claimed


@pytest.mark.parametrize(("extra", "trials"), [(1, 200_000), (None, 20_000)])
@pytest.mark.parametrize("family", ["identity", "banded", "blt"])
def test_rounds_too_many_are_caught(family, extra, trials):
    plan = small_plan(family=family)
    rounds = too_many_rounds(plan, extra)
    assert not plan.participation.allows(rounds)
    case = worst_case(plan, rounds=rounds)
    assert case.snr > 1 / plan.noise_multiplier
    result = audit_distinguishing(plan, case, *play(plan, case, trials))
    assert result.findings[0].p_value < FALSE_POSITIVE


def test_without_noise_the_empirical_epsilon_itself_breaks_the_claim():
    plan = small_plan(1.0)
    case = worst_case(plan)
    result = audit_distinguishing(plan, case, *play(plan, case, 4_000, noise=0.02))
    assert result.epsilon_lower > plan.epsilon
    assert result.findings[3].p_value < FALSE_POSITIVE


@pytest.mark.parametrize(("degrees", "noncentrality"), [(6, 1.0), (100, 5.0), (20_000, 108.0)])
def test_noncentral_t_is_scipys(degrees, noncentrality):
    for t in noncentrality * np.array([0.8, 1.0, 1.03]):
        ours = _noncentral_tail(float(t), degrees, noncentrality)
        assert ours == pytest.approx(scipy.stats.nct.sf(t, degrees, noncentrality), rel=1e-5)


def test_largest_epsilon_is_that_of_the_plan():
    plan = small_plan(8.0)
    assert largest_epsilon(1 / plan.noise_multiplier, 1e-6) == pytest.approx(8.0, rel=1e-4)
    assert largest_epsilon(0.0, 1e-6) == largest_epsilon(1e-9, 1e-6) == 0.0


def test_expected_bound_grows_with_trials_towards_the_claim():
    bounds = [expected_bound(1 / 2.23048, 10**p, 10**p, 1e-6, 0.95) for p in (2, 4, 6, 9)]
    assert bounds == sorted(bounds)
    assert 0 <= bounds[0] < 0.5 * bounds[-1] < bounds[-1] < 2.0


def test_nobody_can_take_part_too_often_where_every_round_is_allowed():
    mechanism = fedmf.fit(fedmf.prefix_sum(4), fedmf.Participation(rounds=4, schema="every_round"), family="identity")
    assert too_many_rounds(plan_of(mechanism, schema="every_round")) is None


def test_refusals_name_the_argument():
    plan = small_plan()
    case = worst_case(plan)
    with pytest.raises(ValueError, match="present has 3 trials"):
        audit_distinguishing(plan, case, np.zeros(3), np.zeros(9))
    with pytest.raises(ValueError, match=r"confidence=1\.5"):
        audit_distinguishing(plan, case, np.zeros(9), np.zeros(9), confidence=1.5)
    without = fedmf.Plan(
        mechanism=plan.mechanism, participation=plan.participation, noise_multiplier=0.0, clip_norm=1.0, delta=1e-6
    )
    for refused in (without, plan.simulating(simulated=10, claimed=100)):
        with pytest.raises(ValueError, match="guarantees nothing of what runs"):
            worst_case(refused)
