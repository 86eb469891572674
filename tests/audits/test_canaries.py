"""The canaries' statistics: p-values by definition, bounds that hold as often as they say, and runs
that break their claim.
"""

import dataclasses

import numpy as np
import pytest
import scipy.stats
from numpy.testing import assert_allclose

import fedmf
from fedmf.audits import canaries
from fedmf.audits.canaries import (
    BOUNDS,
    CanaryEvidence,
    audit_canaries,
    epsilon_bound,
    gaussian_refuted,
    normal_epsilon_bound,
    p_value,
    release_scores,
)
from fedmf.audits.noise import causal_factor
from fedmf.privacy.gaussian import gaussian_noise_multiplier
from fedmf.privacy.plan import unamplified_epsilon
from tests.mechanisms.registry import MECHANISMS
from tests.mechanisms.schemas import epochs, fitted, separated
from tests.power import FALSE_POSITIVE_RATE, counted, missed_by_count, trials_that_see
from tests.refusals import refusal

ROUNDS, MIN_SEP, SIGNIFICANCE = 16, 4, 0.05


@pytest.mark.parametrize(("m", "r"), [(1, 1), (10, 4), (10, 10), (40, 30)])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-2, 0.5])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
def test_p_value_is_the_definition(m, r, epsilon, delta):
    q = np.exp(epsilon) / (1 + np.exp(epsilon))
    of = [scipy.stats.binom.pmf(w, r, q) for w in range(r + 1)]
    for v in range(r + 1):
        most = max(sum(of[max(v - i, 0) : v]) / i for i in range(1, m + 1))
        assert p_value(m, r, v, epsilon, delta) == pytest.approx(
            min(1, sum(of[v:]) + 2 * m * delta * most), abs=1e-12
        )


@pytest.mark.parametrize("m", [100, 600])
@pytest.mark.parametrize("loss", [0.0, 0.3, 1.0, 3.0])
def test_p_values_hold_and_are_tight_for_mechanisms_that_reach_them(m, loss):
    """Exact: randomised response answers each coin rightly with e^epsilon / (1 + e^epsilon), a
    Gaussian release with Phi(mu / 2).
    """

    def share_refuted(refuted, right):
        guesses = [v for v in range(m + 1) if refuted(v)]
        return scipy.stats.binom.pmf(guesses, m, right).sum()

    pure = share_refuted(
        lambda v: p_value(m, m, v, loss, 0.0) <= SIGNIFICANCE, np.exp(loss) / (1 + np.exp(loss))
    )
    gaussian = share_refuted(
        lambda v: gaussian_refuted(m, m, v, loss, SIGNIFICANCE), scipy.stats.norm.cdf(loss / 2)
    )
    assert SIGNIFICANCE / 20 < pure <= SIGNIFICANCE
    assert gaussian <= SIGNIFICANCE


def steps_of_the_hull(scores, included):
    """(guesses, right ones) of "in" above a threshold, at the corners of the convex ROC curve, as
    jax_privacy takes them.
    """
    order = included[np.argsort(-scores, kind="stable")]
    points = np.stack(
        [np.concatenate([[0], np.cumsum(~order)]), np.concatenate([[0], np.cumsum(order)])], axis=1
    )
    hull = []
    for point in points.tolist():
        while len(hull) > 1:
            (x, y), (a, b) = hull[-2:]
            if (b - y) * (point[0] - a) > (point[1] - b) * (a - x):
                break
            hull.pop()
        hull.append(point)
    return [(wrong + right, right) for wrong, right in hull]


@pytest.mark.parametrize(
    ("shift", "epsilon", "gaussian"),
    [(1, 1.13346, 2.164749), (2, 2.311945, 4.7218075), (4, 4.395568, 9.133752)],
)
def test_bounds_of_jax_privacy(shift, epsilon, gaussian):
    """Printed in its tests: 10,000 scores of each kind at the quantiles of two normal
    distributions, significance 5%, delta 1e-6.
    """
    n = 10_000
    normal = scipy.stats.norm.ppf((np.arange(n) + 0.5) / n)
    steps = steps_of_the_hull(np.concatenate([normal + shift, normal]), np.arange(2 * n) < n)
    each = SIGNIFICANCE / len(steps)

    def refuted(loss):
        # delta only adds to the p-value
        few = [(r, v) for r, v in steps if r and p_value(2 * n, r, v, loss, 0.0) <= each]
        return any(p_value(2 * n, r, v, loss, 1e-6) <= each for r, v in few)

    assert refuted(epsilon * (1 - 1e-5))
    assert not refuted(epsilon * (1 + 1e-5))
    for factor, expected in ((1 - 1e-5, True), (1 + 1e-5, False)):
        mu = 1 / gaussian_noise_multiplier(gaussian * factor, 1e-6)
        assert any(r and gaussian_refuted(2 * n, r, v, mu, each) for r, v in steps) is expected


@pytest.mark.parametrize("bound", BOUNDS.values())
def test_scores_that_say_nothing_prove_nothing(bound):
    scores, included = np.arange(200.0), np.arange(200) % 2 == 0
    assert bound(scores, included, 1e-6, SIGNIFICANCE) == 0
    # Wrong way round
    assert bound(scores, included.sum() > np.arange(200), 1e-6, SIGNIFICANCE) == 0
    assert bound(scores, included.sum() <= np.arange(200), 1e-6, SIGNIFICANCE) > 2
    assert bound(np.ones(1), np.ones(1, bool), 1e-6, SIGNIFICANCE) == 0


def test_the_normal_bound_is_above_the_truth_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr(
        canaries, "gaussian_epsilon", lambda noise_multiplier, delta: 1 / noise_multiplier
    )
    trials = trials_that_see(
        lambda n: max(missed_by_count(n, SIGNIFICANCE, wrong) for wrong in (0.025, 0.1))
    )
    rng, above = np.random.default_rng(1), 0
    for _ in range(trials):
        included = rng.random(100) < 0.5
        scores = 3 * rng.standard_normal(100) + 3 * 0.8 * included
        above += normal_epsilon_bound(scores, included, 1e-6, SIGNIFICANCE) > 0.8
    assert counted(above, trials, SIGNIFICANCE, 0.1)


def plan_of(family="banded", epsilon=8.0, **changes):
    participation = separated(ROUNDS, MIN_SEP)
    mechanism = fitted(participation, family)
    return fedmf.calibrate(
        mechanism, participation, epsilon=epsilon, delta=1e-6, clip_norm=0.5, **changes
    )


def patterns(min_sep=MIN_SEP):
    """Every min_sep-th round, from each of the first ones on: bool (rounds, min_sep)."""
    return np.arange(ROUNDS)[:, None] % min_sep == np.arange(min_sep)


class Departure:
    """A way to train that is not what the plan claims; without arguments there is none."""

    def __init__(self, noise=1.0, reused=False, times=1.0, min_sep=MIN_SEP):
        self.noise, self.reused, self.times, self.min_sep = noise, reused, times, min_sep

    def covariance(self, plan):
        """Of the noise of the rounds along a direction."""
        N = plan.mechanism.noising()
        if self.reused:
            N = N.sum(axis=1, keepdims=True)
        return (self.noise * plan.stddev) ** 2 * N @ N.T

    def evidence(self, plan, count, rng):
        """Canaries along orthogonal directions; `releases` is all that was released along them."""
        rounds = patterns(self.min_sep)[:, rng.integers(0, self.min_sep, count)]
        included = rng.random(count) < 0.5
        N, Z = (
            plan.mechanism.noising(),
            rng.standard_normal((plan.mechanism.noising().shape[1], count)),
        )
        if self.reused:
            Z[:] = Z[:1]
        releases = self.times * plan.clip_norm * rounds * included + self.noise * plan.stddev * (
            N @ Z
        )
        return CanaryEvidence(
            included=included, rounds=rounds, releases=releases, model=releases.sum(axis=0)
        )

    def snr(self, plan, count):
        """Of the scores of all releases, the least of any pattern, where S is its expectation."""
        L = causal_factor(plan.mechanism.noising())
        a = plan.clip_norm * np.linalg.solve(L, patterns(self.min_sep).astype(float))
        noise = np.linalg.solve(L, np.linalg.solve(L, self.covariance(plan)).T)
        S = noise + self.times**2 / 2 * a @ a.T / self.min_sep
        w = np.linalg.solve(S + np.trace(S) / count * np.eye(len(S)), a)
        return (self.times * (w * a).sum(axis=0) / np.sqrt((w * (noise @ w)).sum(axis=0))).min()

    def canaries(self, plan):
        """So many that the normal bound of all releases is above the claim but for one run in a
        million, if the scores are normal.
        """

        def missed(count):
            width = np.sqrt(4 / count)  # half of them in
            level = SIGNIFICANCE / 6
            needed = scipy.stats.nct.isf(level, count - 2, 1 / plan.noise_multiplier / width)
            return float(scipy.stats.nct.cdf(needed, count - 2, self.snr(plan, count) / width))

        return trials_that_see(missed)


@pytest.mark.parametrize("family", ["identity", "banded", "blt", "tree"])
def test_scores_of_honest_releases_are_as_far_apart_as_the_plan_says(family):
    """Sharp: |C x| / sigma for the pattern, to 5% that the measured covariance costs and the error
    of so many canaries.
    """
    plan, count = plan_of(family), 40_000
    X = np.linalg.inv(plan.mechanism.noising() @ plan.mechanism.noising().T)
    evidence = Departure().evidence(plan, count, np.random.default_rng(2))
    scores = release_scores(plan.mechanism, evidence.rounds, evidence.releases, plan.clip_norm)
    for pattern in patterns().T:
        expected = plan.clip_norm * np.sqrt(pattern @ X @ pattern) / plan.stddev
        of = (evidence.rounds == pattern[:, None]).all(axis=0)
        present, absent = scores[of & evidence.included], scores[of & ~evidence.included]
        measured = (present.mean() - absent.mean()) / np.sqrt((present.var() + absent.var()) / 2)
        error = np.sqrt((4 + expected**2 / 2) / of.sum()) * scipy.stats.norm.isf(
            FALSE_POSITIVE_RATE / 2
        )
        assert 0.95 * expected - error < measured < expected + error
        assert error < 0.1 * expected


@pytest.mark.parametrize("name", ["identity", "banded", "toeplitz", "blt", "dense", "tree full"])
@pytest.mark.parametrize("canaries", [5, 70])
def test_scores_without_matrices_are_those_of_the_matrices(name, canaries):
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
    expected = (a * np.linalg.solve(S, y - a / 2)).sum(axis=0)
    assert_allclose(release_scores(mechanism, rounds, releases, 2.0), expected, rtol=1e-9)


def test_canaries_of_very_many_rounds_form_no_matrix(monkeypatch):
    monkeypatch.setattr(canaries, "causal_factor", lambda _: pytest.fail("formed"))
    rounds = np.zeros((30_000, 3), bool)
    rounds[[0, 7, 9], [0, 1, 2]] = True
    releases = np.random.default_rng(1).standard_normal(rounds.shape)
    mechanism = MECHANISMS["blt"](len(rounds))
    assert np.isfinite(release_scores(mechanism, rounds, releases, 1.0)).all()
    with refusal("the audit of these canaries would take .*GiB.*fewer rounds"):
        release_scores(fedmf.mechanisms.TreeMechanism(rounds=30_000), rounds, releases, 1.0)


RUNS = trials_that_see(lambda runs: missed_by_count(runs, SIGNIFICANCE, 0.25), start=200)


@pytest.mark.slow
def test_honest_runs_are_above_their_claim_as_rarely_as_stated():
    """A claim that is refuted in a quarter of runs would be seen; at 5% the test fails
    once in a million.
    """
    plan, rng = plan_of(epsilon=2.0), np.random.default_rng(3)
    above = sum(
        bool(audit_canaries(plan, Departure().evidence(plan, 100, rng)).exceeded)
        for _ in range(RUNS)
    )
    assert above <= scipy.stats.binom.isf(FALSE_POSITIVE_RATE, RUNS, SIGNIFICANCE)


DEPARTURES = {
    "noise at a third": {"noise": 1 / 3},
    "noise reused every round": {"reused": True},
    "clipping off, ten times the norm": {"times": 10.0},
    "a client let in twice as often": {"min_sep": MIN_SEP // 2},
}


@pytest.mark.parametrize("family", ["identity", "banded"])
@pytest.mark.parametrize("name", DEPARTURES)
def test_departures_are_above_the_claim(name, family):
    plan, departure = plan_of(family), Departure(**DEPARTURES[name])
    count = departure.canaries(plan)
    assert count <= 3_000
    result = audit_canaries(plan, departure.evidence(plan, count, np.random.default_rng(4)))
    assert "all releases" in {bound.score for bound in result.exceeded}
    honest = audit_canaries(plan, Departure().evidence(plan, count, np.random.default_rng(4)))
    assert not honest.exceeded


def test_what_is_claimed_of_whom():
    """Bounds that know who was drawn, or assume a Gaussian, are held against
    the guarantee without amplification.
    """
    scheme = fedmf.CyclicPoisson(population=400, cohort_size=10)
    participation = epochs(ROUNDS, 4)
    mechanism = fitted(participation, "banded", bands=2)
    plan = fedmf.calibrate(mechanism, None, epsilon=4.0, delta=1e-6, sampling=scheme)
    assert plan.epsilon < unamplified_epsilon(plan)
    evidence = Departure().evidence(plan, 50, np.random.default_rng(5))
    evidence.rounds[:, 10:20] = False
    result = audit_canaries(plan, evidence)
    assert (result.canaries, result.took_part) == (50, 40)
    claims = {(bound.score, bound.assumes): bound.epsilon_claimed for bound in result.bounds}
    assert claims.pop(("final model", "nothing")) == plan.epsilon
    assert set(claims.values()) == {unamplified_epsilon(plan)}
    assert len(claims) == 5


def test_refusals():
    plan = plan_of()
    evidence = Departure().evidence(plan, 20, np.random.default_rng(6))
    with refusal("claimed_cohort=100"):
        audit_canaries(plan.simulating(simulated=10, claimed=100), evidence)
    with refusal("confidence=1"):
        audit_canaries(plan, evidence, confidence=1.0)
    for wrong in (np.nan, -np.inf):
        for name, place, words in (
            ("releases", (3, 7), f"in round 3 along canary 7: {wrong}"),
            ("model", 5, f"moved by {wrong} along canary 5"),
        ):
            changed = getattr(evidence, name).copy()
            changed[place] = wrong
            with refusal(words):
                audit_canaries(plan, dataclasses.replace(evidence, **{name: changed}))
    nobody = dataclasses.replace(evidence, rounds=np.zeros_like(evidence.rounds))
    assert all(bound.epsilon_lower == 0 for bound in audit_canaries(plan, nobody).bounds)
    assert epsilon_bound(np.zeros(0), np.zeros(0, bool), 1e-6, SIGNIFICANCE) == 0
