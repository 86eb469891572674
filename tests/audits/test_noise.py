"""The audit's statistics on noise made with numpy: honest noise passes at the stated rate, known
mistakes do not.
"""

import numpy as np
import pytest
import scipy.stats

from fedmf.audits.finding import Finding
from fedmf.audits.noise import NoiseAudit, audit_noise, causal_factor, whiten
from tests.audits.controls import mistakes_over_rounds
from tests.mechanisms.registry import MECHANISMS, every_form, every_mechanism
from tests.power import (
    FALSE_POSITIVE_RATE,
    MISS_RATE,
    missed_by_correlation,
    missed_by_count,
    missed_by_distance,
    missed_by_noise_audit,
    missed_by_variance,
    trials_that_see,
)

LEAVES = (1200, 1, 600, 199)
ROUNDS = 40


def released(noising, seed):
    """N Z in float32, as an aggregator releases it."""
    Z = np.random.default_rng(seed).standard_normal((noising.shape[1], sum(LEAVES)))
    return (noising @ Z).astype(np.float32)


def runs_of(noising, seeds=(1, 2)):
    L = causal_factor(noising)
    return L, [whiten(L, released(noising, seed), 1.0) for seed in seeds]


def decaying(n):
    """A lower-triangular encoder that no mistake leaves unchanged."""
    return sum(np.diag(np.full(n - j, 0.8**j), -j) for j in range(n))


@every_mechanism
@pytest.mark.parametrize("rounds", [1, 2, 9])
def test_causal_factor_is_the_triangular_root_of_the_claimed_covariance(build, rounds):
    N = build(rounds).noising()
    L = causal_factor(N)
    assert not np.triu(L, 1).any()
    assert (np.diagonal(L) > 0).all()
    np.testing.assert_allclose(L @ L.T, N @ N.T, rtol=1e-9, atol=1e-9 * np.abs(N @ N.T).max())


@every_form
def test_honest_noise_is_consistent(build):
    L, runs = runs_of(build(17).noising())
    assert len(L) == 17
    assert audit_noise(runs, leaves=LEAVES).contradictions == ()


@pytest.mark.slow
def test_p_values_are_as_rare_as_they_say():
    """Of each test a share of at most 0.05 (0.01) of the p-values of honest runs is below it; a
    third of the true ones would be seen.
    """
    rng, p_values = np.random.default_rng(7), {}
    names = [
        finding.name
        for finding in audit_noise(rng.standard_normal((2, 12, 30)), leaves=(20, 1, 9)).findings
    ]
    rate = FALSE_POSITIVE_RATE / (2 * len(names))
    games = trials_that_see(lambda games: missed_by_count(games, 0.05, 0.15, rate))
    for _ in range(games):
        findings = audit_noise(rng.standard_normal((2, 12, 30)), leaves=(20, 1, 9)).findings
        for name, finding in zip(names, findings, strict=True):
            p_values.setdefault(name, []).append(finding.p_value)
    limits = {share: scipy.stats.binom.isf(rate, games, share) for share in (0.05, 0.01)}
    for name, values in p_values.items():
        for share, limit in limits.items():
            assert (np.array(values) < share).sum() <= limit, name
        # And they do fall below: a test whose p-values never did could not fail. So few entries
        # are seldom in the tails, of which tests/audits/test_tails.py has more.
        assert name.startswith("tails") or min(values) < 0.05, name
    assert (np.array(p_values["run 1: variance of all entries"]) / 3 < 0.05).sum() > limits[0.05]


@pytest.mark.parametrize(
    "name",
    [
        "decaying",
        "identity",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("blt", "tree full")),
    ],
)
def test_mistakes_are_caught(name):
    L, runs = runs_of(
        MECHANISMS[name](ROUNDS).noising()
        if name in MECHANISMS
        else np.linalg.inv(decaying(ROUNDS))
    )
    honest = audit_noise(runs, leaves=LEAVES)
    assert honest.consistent
    mistakes = mistakes_over_rounds(L)
    # The identity has the same rows and columns, and is its own Cholesky factor.
    assert len(mistakes) == (5 if name == "identity" else 7)
    for mistake, M in mistakes.items():
        assert missed_by_noise_audit(M @ M.T, sum(LEAVES), honest.threshold) <= MISS_RATE, mistake
        # In one run alone, as after a resume.
        assert not audit_noise([runs[0], M @ runs[1]], leaves=LEAVES).consistent, mistake


def test_shared_noise_is_caught():
    """A correlation of 1 is seen with certainty."""
    one, other = np.random.default_rng(4).standard_normal((2, ROUNDS, sum(LEAVES)))
    assert audit_noise([one, other], leaves=LEAVES).consistent
    assert not audit_noise([one, one.copy()], leaves=LEAVES).consistent
    other[:, 1201:1801] = other[:, :600]
    assert not audit_noise([one, other], leaves=LEAVES).consistent


def later_round_of_a_neighbour(W):
    changed = W.copy()
    changed[1:, 7] = W[:-1, 6]
    return changed


COLUMNS = np.arange(sum(LEAVES))
ENTRIES = ROUNDS * sum(LEAVES)
# A uniform distribution of variance 1 is furthest from the normal one where their densities agree.
UNIFORM_DISTANCE = max(
    abs(scipy.stats.norm.cdf(x) - (x / np.sqrt(12) + 0.5)) for x in np.linspace(0, 1.7, 100)
)
# Mistake -> the noise, and the chance to miss it at a finding's threshold; 0 where a correlation is
# 1 or a variance 0.
DEPARTURES = {
    "the same in all rounds": (lambda W: np.repeat(W[:1], len(W), axis=0), lambda rate: 0.0),
    "a coordinate without noise": (lambda W: W * (COLUMNS != 5), lambda rate: 0.0),
    "of the neighbour a round ago": (later_round_of_a_neighbour, lambda rate: 0.0),
    "uniform": (
        lambda W: np.sqrt(12) * (scipy.stats.norm.cdf(W) - 0.5),
        lambda rate: missed_by_distance(ENTRIES, UNIFORM_DISTANCE, rate),
    ),
    "moving average": (
        lambda W: (W + 0.1 * np.roll(W, 1, axis=0)) / np.sqrt(1.01),
        lambda rate: missed_by_correlation(ENTRIES // 2, 0.1 / 1.01, rate / 9),  # of 9 lags
    ),
    "a leaf of one entry with a fifth of the noise": (
        lambda W: W * np.where(COLUMNS == 1200, 0.2, 1.0),
        lambda rate: missed_by_variance(ROUNDS, 0.2**2, rate / len(LEAVES)),
    ),
    "not centred": (
        lambda W: W + 0.05,
        lambda rate: scipy.stats.norm.sf(0.05 * np.sqrt(ENTRIES) - scipy.stats.norm.isf(rate / 2)),
    ),
}


@pytest.mark.parametrize(("mistake", "missed"), DEPARTURES.values(), ids=DEPARTURES)
def test_other_departures_are_caught(mistake, missed):
    W = np.random.default_rng(5).standard_normal((ROUNDS, sum(LEAVES)))
    honest = audit_noise([W], leaves=LEAVES)
    assert honest.consistent
    assert missed(honest.threshold) <= MISS_RATE
    assert not audit_noise([mistake(W)], leaves=LEAVES).consistent


def test_verdict_is_bonferronis():
    findings = tuple(
        Finding(name=str(i), statistic=0.0, p_value=p)
        for i, p in enumerate((0.4, 0.03, 0.01, np.nan))
    )
    audit = NoiseAudit(findings=findings, false_positive_rate=0.05)
    assert audit.threshold == 0.0125
    assert {finding.name for finding in audit.contradictions} == {"2", "3"}
