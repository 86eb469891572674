"""Bounds from canaries: p-values by definition, error rates, and runs that break the claim."""

import dataclasses

import numpy as np
import pytest
import scipy.stats
from numpy.testing import assert_allclose

import fedmf
from fedmf.audits import canary_bounds, canary_scores
from fedmf.audits.canaries import CanaryEvidence, audit_canaries
from fedmf.audits.canary_bounds import (
    BOUNDS,
    epsilon_bound,
    gaussian_refuted,
    normal_epsilon_bound,
    p_value,
)
from fedmf.audits.canary_scores import release_scores
from fedmf.audits.whitening import causal_factor
from fedmf.mechanisms import FFTMechanism, TreeMechanism
from fedmf.privacy.gaussian import gaussian_noise_multiplier
from fedmf.privacy.plan import unamplified_epsilon
from tests.mechanisms.registry import MECHANISMS
from tests.mechanisms.schemas import epochs, fitted, separated
from tests.power import FALSE_POSITIVE_RATE, has_share, missed_by_count, trials_that_detect
from tests.refusals import refusal

ROUNDS = 16
MIN_SEP = 4
SIGNIFICANCE = 0.05


@pytest.mark.parametrize(("m", "r"), [(1, 1), (10, 4), (10, 10), (40, 30)])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-2, 0.5])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
def test_p_value_equals_its_definition(m, r, epsilon, delta):
    chance_correct = np.exp(epsilon) / (1 + np.exp(epsilon))
    probabilities = [scipy.stats.binom.pmf(w, r, chance_correct) for w in range(r + 1)]
    for v in range(r + 1):
        largest_mean = max(sum(probabilities[max(v - i, 0) : v]) / i for i in range(1, m + 1))
        assert p_value(m, r, v, epsilon, delta) == pytest.approx(
            min(1, sum(probabilities[v:]) + 2 * m * delta * largest_mean), abs=1e-12
        )


@pytest.mark.parametrize("m", [100, 600])
@pytest.mark.parametrize("loss", [0.0, 0.3, 1.0, 3.0])
def test_p_values_are_valid_and_tight(m, loss):
    """Computes error rates exactly for mechanisms that attain the bounds.

    Randomised response answers each coin correctly with e^epsilon / (1 + e^epsilon), a Gaussian
    release with Phi(mu / 2).
    """

    def rate_refuted(is_refuted, chance_correct):
        guesses = [v for v in range(m + 1) if is_refuted(v)]
        return scipy.stats.binom.pmf(guesses, m, chance_correct).sum()

    pure_rate = rate_refuted(
        lambda v: p_value(m, m, v, loss, 0.0) <= SIGNIFICANCE, np.exp(loss) / (1 + np.exp(loss))
    )
    gaussian_rate = rate_refuted(
        lambda v: gaussian_refuted(m, m, v, loss, SIGNIFICANCE), scipy.stats.norm.cdf(loss / 2)
    )
    assert SIGNIFICANCE / 20 < pure_rate <= SIGNIFICANCE
    assert gaussian_rate <= SIGNIFICANCE


def steps_of_the_hull(scores, included):
    """Returns (guesses, correct ones) at the corners of the convex ROC curve, as in jax_privacy."""
    sorted_coins = included[np.argsort(-scores, kind="stable")]
    roc_points = np.stack(
        [
            np.concatenate([[0], np.cumsum(~sorted_coins)]),
            np.concatenate([[0], np.cumsum(sorted_coins)]),
        ],
        axis=1,
    )
    convex_hull = []
    for point in roc_points.tolist():
        while len(convex_hull) > 1:
            (x, y), (a, b) = convex_hull[-2:]
            if (b - y) * (point[0] - a) > (point[1] - b) * (a - x):
                break
            convex_hull.pop()
        convex_hull.append(point)
    return [(num_wrong + num_right, num_right) for num_wrong, num_right in convex_hull]


@pytest.mark.parametrize(
    ("shift", "epsilon", "gaussian"),
    [(1, 1.13346, 2.164749), (2, 2.311945, 4.7218075), (4, 4.395568, 9.133752)],
)
def test_bounds_equal_those_of_jax_privacy(shift, epsilon, gaussian):
    """Compares with the bounds printed in the tests of jax_privacy.

    They are for 10,000 scores of each kind at the quantiles of two normal distributions,
    significance 5% and delta 1e-6.
    """
    n = 10_000
    normal_scores = scipy.stats.norm.ppf((np.arange(n) + 0.5) / n)
    hull_steps = steps_of_the_hull(
        np.concatenate([normal_scores + shift, normal_scores]), np.arange(2 * n) < n
    )
    step_level = SIGNIFICANCE / len(hull_steps)

    def is_refuted(loss):
        # delta only adds to the p-value.
        refuted_steps = [
            (r, v) for r, v in hull_steps if r and p_value(2 * n, r, v, loss, 0.0) <= step_level
        ]
        return any(p_value(2 * n, r, v, loss, 1e-6) <= step_level for r, v in refuted_steps)

    assert is_refuted(epsilon * (1 - 1e-5))
    assert not is_refuted(epsilon * (1 + 1e-5))
    for factor, expected in ((1 - 1e-5, True), (1 + 1e-5, False)):
        mu = 1 / gaussian_noise_multiplier(gaussian * factor, 1e-6)
        assert (
            any(r and gaussian_refuted(2 * n, r, v, mu, step_level) for r, v in hull_steps)
            is expected
        )


@pytest.mark.parametrize("bound", BOUNDS.values())
def test_uninformative_scores_give_a_bound_of_zero(bound):
    scores = np.arange(200.0)
    is_included = np.arange(200) % 2 == 0
    assert bound(scores, is_included, 1e-6, SIGNIFICANCE) == 0
    # The canaries are the wrong way round.
    assert bound(scores, is_included.sum() > np.arange(200), 1e-6, SIGNIFICANCE) == 0
    assert bound(scores, is_included.sum() <= np.arange(200), 1e-6, SIGNIFICANCE) > 2
    assert bound(np.ones(1), np.ones(1, bool), 1e-6, SIGNIFICANCE) == 0


def test_normal_bound_exceeds_the_truth_at_the_stated_rate(monkeypatch):
    monkeypatch.setattr(
        canary_bounds, "gaussian_epsilon", lambda noise_multiplier, delta: 1 / noise_multiplier
    )
    num_trials = trials_that_detect(
        lambda n: max(missed_by_count(n, SIGNIFICANCE, wrong_rate) for wrong_rate in (0.025, 0.1))
    )
    rng = np.random.default_rng(1)
    num_above = 0
    for _ in range(num_trials):
        is_included = rng.random(100) < 0.5
        scores = 3 * rng.standard_normal(100) + 3 * 0.8 * is_included
        num_above += normal_epsilon_bound(scores, is_included, 1e-6, SIGNIFICANCE) > 0.8
    assert has_share(num_above, num_trials, SIGNIFICANCE, 0.1)


def plan_of(family="banded", epsilon=8.0, **changes):
    """Returns a plan with separated participation and clip norm 0.5."""
    participation = separated(ROUNDS, MIN_SEP)
    mechanism = fitted(participation, family)
    return fedmf.calibrate(
        mechanism, participation, epsilon=epsilon, delta=1e-6, clip_norm=0.5, **changes
    )


def patterns(min_sep=MIN_SEP):
    """Returns every min_sep-th round from each of the first ones, bool (rounds, min_sep)."""
    return np.arange(ROUNDS)[:, None] % min_sep == np.arange(min_sep)


class Departure:
    """Departure of a training run from the plan's claim; without arguments there is none."""

    def __init__(self, noise=1.0, reused=False, times=1.0, min_sep=MIN_SEP):
        self.noise = noise
        self.reused = reused
        self.times = times
        self.min_sep = min_sep

    def covariance(self, plan):
        """Returns the covariance of the noise of the rounds along a direction."""
        N = plan.mechanism.noising()
        if self.reused:
            N = N.sum(axis=1, keepdims=True)
        return (self.noise * plan.stddev) ** 2 * N @ N.T

    def evidence(self, plan, count, rng):
        """Draws canaries along orthogonal directions, and the releases along them."""
        rounds = patterns(self.min_sep)[:, rng.integers(0, self.min_sep, count)]
        is_included = rng.random(count) < 0.5
        N = plan.mechanism.noising()
        Z = rng.standard_normal((plan.mechanism.noising().shape[1], count))
        if self.reused:
            Z[:] = Z[:1]
        releases = self.times * plan.clip_norm * rounds * is_included + self.noise * plan.stddev * (
            N @ Z
        )
        return CanaryEvidence(
            included=is_included, rounds=rounds, releases=releases, model=releases.sum(axis=0)
        )

    def snr(self, plan, count):
        """Returns the smallest expected signal-to-noise ratio of the scores of any pattern."""
        L = causal_factor(plan.mechanism.noising())
        a = plan.clip_norm * np.linalg.solve(L, patterns(self.min_sep).astype(float))
        noise_covariance = np.linalg.solve(L, np.linalg.solve(L, self.covariance(plan)).T)
        S = noise_covariance + self.times**2 / 2 * a @ a.T / self.min_sep
        score_weights = np.linalg.solve(S + np.trace(S) / count * np.eye(len(S)), a)
        return (
            self.times
            * (score_weights * a).sum(axis=0)
            / np.sqrt((score_weights * (noise_covariance @ score_weights)).sum(axis=0))
        ).min()

    def canaries(self, plan):
        """Returns the number of canaries with which the normal bound exceeds the claim.

        The bound of all releases misses once in a million runs if the scores are normal.
        """

        def missed(count):
            signal_std = np.sqrt(4 / count)  # Half of the canaries are included.
            bound_level = SIGNIFICANCE / 6
            needed_statistic = scipy.stats.nct.isf(
                bound_level, count - 2, 1 / plan.noise_multiplier / signal_std
            )
            return float(
                scipy.stats.nct.cdf(needed_statistic, count - 2, self.snr(plan, count) / signal_std)
            )

        return trials_that_detect(missed)


@pytest.mark.parametrize("family", ["identity", "banded", "blt", "tree"])
def test_scores_of_honest_releases_have_the_planned_signal(family):
    """Tests that the difference of scores is |C x| / sigma.

    The tolerance is 5% for the estimated covariance, and the error of this number of canaries.
    """
    plan = plan_of(family)
    num_canaries = 40_000
    X = np.linalg.inv(plan.mechanism.noising() @ plan.mechanism.noising().T)
    evidence = Departure().evidence(plan, num_canaries, np.random.default_rng(2))
    scores = release_scores(plan.mechanism, evidence.rounds, evidence.releases, plan.clip_norm)
    for pattern in patterns().T:
        expected_snr = plan.clip_norm * np.sqrt(pattern @ X @ pattern) / plan.stddev
        has_pattern = (evidence.rounds == pattern[:, None]).all(axis=0)
        included_scores = scores[has_pattern & evidence.included]
        excluded_scores = scores[has_pattern & ~evidence.included]
        measured_snr = (included_scores.mean() - excluded_scores.mean()) / np.sqrt(
            (included_scores.var() + excluded_scores.var()) / 2
        )
        largest_error = np.sqrt(
            (4 + expected_snr**2 / 2) / has_pattern.sum()
        ) * scipy.stats.norm.isf(FALSE_POSITIVE_RATE / 2)
        assert 0.95 * expected_snr - largest_error < measured_snr < expected_snr + largest_error
        assert largest_error < 0.1 * expected_snr


@pytest.mark.parametrize("name", ["identity", "banded", "toeplitz", "blt", "dense", "tree full"])
@pytest.mark.parametrize("canaries", [5, 70])
def test_scores_equal_those_computed_with_matrices(name, canaries):
    n = 60
    mechanism = MECHANISMS[name](n)
    rng = np.random.default_rng(1)
    rounds = rng.random((n, canaries)) < 0.1
    releases = rng.standard_normal((n, canaries))
    L = causal_factor(mechanism.noising())
    a = 2.0 * np.linalg.solve(L, rounds.astype(float))
    y = np.linalg.solve(L, releases)
    S = y @ y.T / canaries
    S += np.trace(S) / canaries * np.eye(n)
    expected_scores = (a * np.linalg.solve(S, y - a / 2)).sum(axis=0)
    assert_allclose(release_scores(mechanism, rounds, releases, 2.0), expected_scores, rtol=1e-9)


def test_canaries_of_very_many_rounds_form_no_matrix(monkeypatch):
    monkeypatch.setattr(canary_scores, "causal_factor", lambda _: pytest.fail("formed"))
    rounds = np.zeros((30_000, 3), bool)
    rounds[[0, 7, 9], [0, 1, 2]] = True
    releases = np.random.default_rng(1).standard_normal(rounds.shape)
    for mechanism in (MECHANISMS["blt"](len(rounds)), TreeMechanism(rounds=len(rounds))):
        assert np.isfinite(release_scores(mechanism, rounds, releases, 1.0)).all()
    with refusal("the audit of these canaries would take .*GiB.*fewer rounds"):
        release_scores(FFTMechanism(rounds=30_000), rounds, releases, 1.0)


RUNS = trials_that_detect(lambda runs: missed_by_count(runs, SIGNIFICANCE, 0.25), start=200)


@pytest.mark.slow
def test_honest_runs_refute_their_claim_at_the_stated_rate():
    """Counts refuted claims of honest runs.

    A rate of a quarter would be detected; at 5% the test fails once in a million.
    """
    plan = plan_of(epsilon=2.0)
    rng = np.random.default_rng(3)
    num_above = sum(
        bool(audit_canaries(plan, Departure().evidence(plan, 100, rng)).exceeded)
        for _ in range(RUNS)
    )
    assert num_above <= scipy.stats.binom.isf(FALSE_POSITIVE_RATE, RUNS, SIGNIFICANCE)


DEPARTURES = {
    "noise at a third": {"noise": 1 / 3},
    "noise reused every round": {"reused": True},
    "clipping off, ten times the norm": {"times": 10.0},
    "a client let in twice as often": {"min_sep": MIN_SEP // 2},
}


@pytest.mark.parametrize("family", ["identity", "banded"])
@pytest.mark.parametrize("name", DEPARTURES)
def test_departures_refute_the_claim(name, family):
    plan = plan_of(family)
    departure = Departure(**DEPARTURES[name])
    num_canaries = departure.canaries(plan)
    assert num_canaries <= 3_000
    departure_audit = audit_canaries(
        plan, departure.evidence(plan, num_canaries, np.random.default_rng(4))
    )
    assert "all releases" in {bound.score for bound in departure_audit.exceeded}
    honest_audit = audit_canaries(
        plan, Departure().evidence(plan, num_canaries, np.random.default_rng(4))
    )
    assert not honest_audit.exceeded


def test_bounds_are_compared_with_the_epsilon_of_their_assumptions():
    """Tests which bounds are compared with the epsilon for known cohorts.

    They are those that use the rounds of a canary, or assume a Gaussian mechanism.
    """
    sampling_scheme = fedmf.CyclicPoisson(population=400, cohort_size=10)
    participation = epochs(ROUNDS, 4)
    mechanism = fitted(participation, "banded", bands=2)
    plan = fedmf.calibrate(mechanism, None, epsilon=4.0, delta=1e-6, sampling=sampling_scheme)
    assert plan.epsilon < unamplified_epsilon(plan)
    evidence = Departure().evidence(plan, 50, np.random.default_rng(5))
    evidence.rounds[:, 10:20] = False
    result = audit_canaries(plan, evidence)
    assert (result.canaries, result.took_part) == (50, 40)
    claimed_epsilons = {
        (bound.score, bound.assumes): bound.epsilon_claimed for bound in result.bounds
    }
    assert claimed_epsilons.pop(("final model", "nothing")) == plan.epsilon
    assert set(claimed_epsilons.values()) == {unamplified_epsilon(plan)}
    assert len(claimed_epsilons) == 5


def test_evidence_and_arguments_that_say_nothing_are_refused_or_bound_nothing():
    plan = plan_of()
    evidence = Departure().evidence(plan, 20, np.random.default_rng(6))
    with refusal("claimed_cohort=100"):
        audit_canaries(plan.simulating(simulated=10, claimed=100), evidence)
    with refusal("confidence=1"):
        audit_canaries(plan, evidence, confidence=1.0)
    for bad_value in (np.nan, -np.inf):
        for name, entry_index, expected_words in (
            ("releases", (3, 7), f"in round 3 along canary 7: {bad_value}"),
            ("model", 5, f"moved by {bad_value} along canary 5"),
        ):
            changed_array = getattr(evidence, name).copy()
            changed_array[entry_index] = bad_value
            with refusal(expected_words):
                audit_canaries(plan, dataclasses.replace(evidence, **{name: changed_array}))
    absent_canaries = dataclasses.replace(evidence, rounds=np.zeros_like(evidence.rounds))
    assert all(bound.epsilon_lower == 0 for bound in audit_canaries(plan, absent_canaries).bounds)
    assert epsilon_bound(np.zeros(0), np.zeros(0, bool), 1e-6, SIGNIFICANCE) == 0
