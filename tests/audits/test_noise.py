"""The audit's statistics on noise made with numpy: honest noise passes at the stated rate, known mistakes do not."""

import functools

import numpy as np
import pytest
import scipy.stats

from fedmf.audits.controls import negative_controls
from fedmf.audits.noise import Finding, NoiseAudit, audit_noise, causal_factor, whiten
from tests.mechanisms.registry import MECHANISMS, every_mechanism

LEAVES = (1200, 1, 600, 199)
ROUNDS = 40


def released(noising, seed):
    """N Z in float32, as an aggregator releases it."""
    Z = np.random.default_rng(seed).standard_normal((noising.shape[1], sum(LEAVES)))
    return (noising @ Z).astype(np.float32)


def runs_of(noising, seeds=(1, 2)):
    L = causal_factor(noising)
    return L, [whiten(L, released(noising, seed), 1.0) for seed in seeds]


def decaying_toeplitz(n):
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


@every_mechanism
def test_honest_noise_of_every_mechanism_is_consistent(build):
    L, runs = runs_of(build(17).noising())
    assert len(L) == 17
    assert audit_noise(runs, leaves=LEAVES).contradictions == ()


@pytest.mark.slow
def test_p_values_are_as_rare_as_they_say():
    """300 honest pairs of runs: of each test a share of at most 0.05 (0.01) of p-values is below it, but for chance.

    The share is binomial; the bounds are crossed with chance 1e-6 a test (some 40 tests).
    """
    rng, p_values = np.random.default_rng(7), {}
    trials = 300
    for _ in range(trials):
        for found in audit_noise(rng.standard_normal((2, 12, 30)), leaves=(20, 1, 9)).findings:
            p_values.setdefault(found.name.partition(", the most")[0].partition(":")[0] + found.name[:6], []).append(
                found.p_value
            )
    for values in p_values.values():
        values = np.array(values)
        for share in (0.05, 0.01):
            assert (values < share).sum() <= scipy.stats.binom.isf(1e-6, len(values), share)
    # And they do fall below: a test whose p-values never did could not fail.
    assert all(min(values) < 0.05 for values in p_values.values())


@functools.cache
def controls_of(name):
    noising = np.linalg.inv(decaying_toeplitz(ROUNDS)) if name == "decaying" else MECHANISMS[name](ROUNDS).noising()
    L, runs = runs_of(noising)
    assert audit_noise(runs, leaves=LEAVES).consistent
    return list(negative_controls(L, runs, LEAVES))


def test_every_mistake_is_made():
    names = [control.name for control in controls_of("decaying")]
    assert len(names) == 9
    assert all(control.whitened is not None for control in controls_of("decaying"))


@pytest.mark.parametrize(
    "name", ["decaying", "identity", "banded", "toeplitz", "blt", "tree online", "tree full", "fft plain"]
)
@pytest.mark.parametrize("which", range(9))
def test_mistakes_are_caught(name, which):
    control = controls_of(name)[which]
    if control.whitened is None:
        assert name == "identity"
        assert control.reason
        return
    audit = audit_noise(control.whitened, leaves=LEAVES)
    assert not audit.consistent, control.name


def test_a_row_normalised_encoder_is_caught_from_its_matrices():
    """The control's shortcut, W multiplied by a diagonal, beside the noise of the wrongly normalised matrix itself."""
    C = decaying_toeplitz(ROUNDS)
    columns, rows = C / np.linalg.norm(C, axis=0), C / np.linalg.norm(C, axis=1, keepdims=True)
    claimed = causal_factor(np.linalg.inv(columns))
    honest, wrong = (whiten(claimed, released(np.linalg.inv(M), 3), 1.0) for M in (columns, rows))
    assert audit_noise([honest], leaves=LEAVES).consistent
    assert not audit_noise([wrong], leaves=LEAVES).consistent


def test_an_unflipped_cholesky_factor_is_caught_from_its_matrices():
    C = decaying_toeplitz(ROUNDS)
    C = C / np.linalg.norm(C, axis=0)
    unflipped = np.linalg.cholesky(C.T @ C)
    np.testing.assert_allclose(unflipped @ unflipped.T, C.T @ C, atol=1e-12)
    wrong = whiten(causal_factor(np.linalg.inv(C)), released(np.linalg.inv(unflipped), 3), 1.0)
    assert not audit_noise([wrong], leaves=LEAVES).consistent


def constant_noise(W):
    return np.repeat(W[:1], len(W), axis=0)


def slightly_uniform(W):
    return np.sqrt(12) * (scipy.stats.norm.cdf(W) - 0.5)


def moving_average(W):
    return (W + 0.1 * np.roll(W, 1, axis=0)) / np.sqrt(1.01)


def one_dead_coordinate(W):
    return W * (np.arange(W.shape[1]) != 5)


def one_weak_leaf(W):
    return W * np.where(np.arange(W.shape[1]) == 1200, 0.3, 1.0)


def shifted(W):
    return W + 0.05


def neighbours_a_round_later(W):
    changed = W.copy()
    changed[1:, 7] = W[:-1, 6]
    return changed


@pytest.mark.parametrize(
    "mistake",
    [
        constant_noise,
        slightly_uniform,
        moving_average,
        one_dead_coordinate,
        one_weak_leaf,
        shifted,
        neighbours_a_round_later,
    ],
)
def test_other_departures_are_caught(mistake):
    W = np.random.default_rng(5).standard_normal((ROUNDS, sum(LEAVES)))
    assert audit_noise([W], leaves=LEAVES).consistent
    assert not audit_noise([mistake(W)], leaves=LEAVES).consistent


def test_verdict_is_bonferronis():
    findings = tuple(Finding(name=str(i), statistic=0.0, p_value=p) for i, p in enumerate((0.4, 0.03, 0.01, np.nan)))
    audit = NoiseAudit(findings=findings, false_positive_rate=0.05)
    assert audit.threshold == 0.0125
    assert {finding.name for finding in audit.contradictions} == {"2", "3"}


def test_refusals_name_the_argument():
    W = np.ones((3, 4))
    with pytest.raises(ValueError, match=r"leaves=\(1, 2\) has 3 coordinates but the rows have 4"):
        audit_noise([W], leaves=(1, 2))
    with pytest.raises(ValueError, match="false_positive_rate=1.0"):
        audit_noise([W], leaves=(4,), false_positive_rate=1.0)
    with pytest.raises(ValueError, match=r"whitened has shapes \[\(3, 4\), \(2, 4\)\]"):
        audit_noise([W, W[:2]], leaves=(4,))
    with pytest.raises(ValueError, match="not finite"):
        whiten(np.eye(3), np.full((3, 4), np.nan), 1.0)
    with pytest.raises(ValueError, match="scale=0"):
        whiten(np.eye(3), W, 0.0)
    with pytest.raises(ValueError, match="3 rounds"):
        whiten(np.eye(3), np.ones((2, 4)), 1.0)
    with pytest.raises(ValueError, match="fewer sources than rounds"):
        causal_factor(np.ones((3, 2)))
    with pytest.raises(ValueError, match="linearly dependent"):
        causal_factor(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="ill-conditioned"):
        whiten(np.array([[1.0, 0.0], [1e6, 1.0]]), np.ones((2, 4)), 1.0)
