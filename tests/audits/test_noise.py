"""The noise audit: honest noise passes at the stated rate, known mistakes fail."""

import numpy as np
import pytest
import scipy.stats

from fedmf.audits.finding import Finding
from fedmf.audits.noise import NoiseAudit, audit_noise
from fedmf.audits.whitening import causal_factor, whiten
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
    trials_that_detect,
)

LEAVES = (1200, 1, 600, 199)
ROUNDS = 40


def released_rows(noising, seed):
    """Returns N Z in float32, as an aggregator releases it."""
    Z = np.random.default_rng(seed).standard_normal((noising.shape[1], sum(LEAVES)))
    return (noising @ Z).astype(np.float32)


def runs_of(noising, seeds=(1, 2)):
    """Returns the causal factor, and the whitened noise of several runs."""
    L = causal_factor(noising)
    return L, [whiten(L, released_rows(noising, seed), 1.0) for seed in seeds]


def decaying(n):
    """Returns a lower-triangular encoder that every mistake changes."""
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
def test_p_values_of_honest_runs_are_valid():
    """Counts small p-values of honest runs: at most the level of each test, 0.05 or 0.01.

    P-values that are a third of the right ones would be detected.
    """
    rng = np.random.default_rng(7)
    p_values = {}
    test_names = [
        finding.name
        for finding in audit_noise(rng.standard_normal((2, 12, 30)), leaves=(20, 1, 9)).findings
    ]
    error_rate = FALSE_POSITIVE_RATE / (2 * len(test_names))
    num_audits = trials_that_detect(
        lambda num_audits: missed_by_count(num_audits, 0.05, 0.15, error_rate)
    )
    for _ in range(num_audits):
        findings = audit_noise(rng.standard_normal((2, 12, 30)), leaves=(20, 1, 9)).findings
        for name, finding in zip(test_names, findings, strict=True):
            p_values.setdefault(name, []).append(finding.p_value)
    max_counts = {
        level: scipy.stats.binom.isf(error_rate, num_audits, level) for level in (0.05, 0.01)
    }
    for name, values in p_values.items():
        for level, max_count in max_counts.items():
            assert (np.array(values) < level).sum() <= max_count, name
        # The p-values do fall below the level: a test whose p-values never did could not fail. So
        # few entries are seldom in the tails; tests/audits/test_tails.py tests the tails.
        assert name.startswith("tails") or min(values) < 0.05, name
    assert (np.array(p_values["run 1: variance of all entries"]) / 3 < 0.05).sum() > max_counts[
        0.05
    ]


@pytest.mark.parametrize(
    "name",
    [
        "decaying",
        "identity",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("blt", "tree full")),
    ],
)
def test_known_mistakes_contradict_the_claim(name):
    if name in MECHANISMS:
        noising = MECHANISMS[name](ROUNDS).noising()
    else:
        noising = np.linalg.inv(decaying(ROUNDS))
    L, runs = runs_of(noising)
    honest_audit = audit_noise(runs, leaves=LEAVES)
    assert honest_audit.consistent
    mistakes = mistakes_over_rounds(L)
    # The identity has the same rows and columns, and is its own Cholesky factor.
    assert len(mistakes) == (5 if name == "identity" else 7)
    for mistake, M in mistakes.items():
        assert missed_by_noise_audit(M @ M.T, sum(LEAVES), honest_audit.threshold) <= MISS_RATE, (
            mistake
        )
        # In one run alone, as after a resume.
        assert not audit_noise([runs[0], M @ runs[1]], leaves=LEAVES).consistent, mistake


def test_noise_shared_by_two_runs_contradicts_the_claim():
    """Tests noise with a correlation of 1, which is detected with certainty."""
    first_run, second_run = np.random.default_rng(4).standard_normal((2, ROUNDS, sum(LEAVES)))
    assert audit_noise([first_run, second_run], leaves=LEAVES).consistent
    assert not audit_noise([first_run, first_run.copy()], leaves=LEAVES).consistent
    second_run[:, 1201:1801] = second_run[:, :600]
    assert not audit_noise([first_run, second_run], leaves=LEAVES).consistent


def later_round_of_a_neighbour(W):
    """Repeats the noise of a coordinate in the next one, a round later."""
    changed_noise = W.copy()
    changed_noise[1:, 7] = W[:-1, 6]
    return changed_noise


COLUMNS = np.arange(sum(LEAVES))
ENTRIES = ROUNDS * sum(LEAVES)
# A uniform distribution of variance 1 is furthest from the normal one where their densities agree.
UNIFORM_DISTANCE = max(
    abs(scipy.stats.norm.cdf(x) - (x / np.sqrt(12) + 0.5)) for x in np.linspace(0, 1.7, 100)
)
# Mistake -> the noise, and the chance to miss it at a finding's threshold. The chance is 0 if a
# correlation is 1 or a variance 0.
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
def test_other_departures_contradict_the_claim(mistake, missed):
    W = np.random.default_rng(5).standard_normal((ROUNDS, sum(LEAVES)))
    honest_audit = audit_noise([W], leaves=LEAVES)
    assert honest_audit.consistent
    assert missed(honest_audit.threshold) <= MISS_RATE
    assert not audit_noise([mistake(W)], leaves=LEAVES).consistent


def test_verdict_uses_bonferronis_correction():
    findings = tuple(
        Finding(name=str(i), statistic=0.0, p_value=p)
        for i, p in enumerate((0.4, 0.03, 0.01, np.nan))
    )
    audit = NoiseAudit(findings=findings, false_positive_rate=0.05)
    assert audit.threshold == 0.0125
    assert {finding.name for finding in audit.contradictions} == {"2", "3"}
