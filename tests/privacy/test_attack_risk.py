"""Bounds on attacks: printed values, exact trade-offs, distinguishers that may not beat them."""

import dataclasses
import functools
import math

import hypothesis
import mpmath
import numpy as np
import pytest
import scipy.stats
from hypothesis import strategies as st

import fedmf
from fedmf.mechanisms import IdentityMechanism
from fedmf.privacy.attack_risk import AttackRisk, attack_risk, claimed_alone
from fedmf.privacy.config import PlanConfig
from fedmf.privacy.describe import statement_values
from fedmf.privacy.gaussian import exact_gaussian_epsilon, gaussian_delta
from fedmf.privacy.stopping import stopped_after
from tests.mechanisms.schemas import separated
from tests.oracles import sensitivity_of_nonnegative
from tests.privacy.plans import banded, ledger_of, plan, two_bands
from tests.refusals import assert_refused, named

TWICE = separated(8, 4)
FINE = np.unique(np.concatenate([np.geomspace(1e-12, 0.5, 60), 1 - np.geomspace(1e-12, 0.5, 60)]))
# (epsilon, delta): z, mu, advantage, TPR at .1%, at 1%; computed apart from fedmf
ORACLES = {
    (1, 1e-6): (4.22468, 0.23670, 0.09421, 0.00216, 0.01832),
    (2, 1e-6): (2.23048, 0.44833, 0.17737, 0.00412, 0.03019),
    (4, 1e-6): (1.19352, 0.83786, 0.32473, 0.01215, 0.06831),
    (8, 1e-6): (0.65294, 1.53155, 0.55619, 0.05954, 0.21336),
    (8, 1e-10): (0.83399, 1.19906, 0.45118, 0.02930, 0.12981),
    (1, 1e-10): (5.86778, 0.17042, 0.06791, 0.00175, 0.01554),
}


def root(epsilon, delta):
    """The exact multiplier: calibration is above it by 1e-7 of it or so."""
    return scipy.optimize.brentq(
        lambda z: exact_gaussian_epsilon(z, delta) - epsilon, 0.1, 10, xtol=1e-12
    )


@pytest.mark.parametrize(("target", "printed"), ORACLES.items())
def test_printed_values(target, printed):
    epsilon, delta = target
    z = root(epsilon, delta)
    risk = AttackRisk(mu=1 / z)
    found = (z, risk.mu, risk.advantage, *map(risk.true_positive_rate, (0.001, 0.01)))
    assert tuple(round(x, 5) for x in found) == printed
    own = attack_risk(
        fedmf.calibrate(IdentityMechanism(rounds=8), TWICE, epsilon=float(epsilon), delta=delta)
    )
    assert own.mu == pytest.approx(1 / z, rel=1e-6)
    assert own.mu <= 1 / z
    assert own.advantage == pytest.approx(risk.advantage, rel=1e-6)


@pytest.mark.parametrize("mu", [1e-12, 1e-3, 0.3, 1.0, 4.0, 37.0, 1e9])
def test_rounding_is_to_the_attackers_side(mu):
    """Against 60 digits, from 1e-307 to where float64 knows nothing below 1."""
    risk, last = AttackRisk(mu=mu), 0.0
    with mpmath.workdps(60):
        for x in np.linspace(-37.4, 8.2, 80):
            a, exact = float(mpmath.ncdf(x)), mpmath.ncdf(mpmath.mpf(float(x)) + mu)
            found = risk.true_positive_rate(a)
            assert max(a, last) <= found <= 1
            assert exact * (1 - mpmath.mpf(2) ** -53) <= found <= exact * (1 + 1e-7)
            last = found
        exact = 2 * mpmath.ncdf(mpmath.mpf(mu) / 2) - 1
        assert exact * (1 - mpmath.mpf(2) ** -53) <= risk.advantage <= exact * (1 + 1e-8)
    assert AttackRisk(mu=mu).true_positive_rate(5e-324) >= 5e-324


def test_ends():
    for risk, all_found in ((AttackRisk(mu=0.0), False), (AttackRisk(mu=math.inf), True)):
        assert risk.advantage == all_found
        assert risk.true_positive_rate(0.3) == (1.0 if all_found else 0.3)
        assert risk.success(0.3) == (1.0 if all_found else 0.7)
    assert attack_risk(plan(TWICE, noise_multiplier=0)).mu == math.inf
    hardly = attack_risk(plan(TWICE, noise_multiplier=1e-300))
    assert hardly.true_positive_rate(1e-9) == hardly.advantage == 1
    assert attack_risk(plan(TWICE, noise_multiplier=1e20)).advantage < 1e-20
    assert AttackRisk(mu=1.0).success(0.0) == 1
    assert claimed_alone(math.inf, 1e-6).advantage == 1


def calibrated(**target):
    return fedmf.calibrate(IdentityMechanism(rounds=8), TWICE, delta=1e-6, **target)


def config(**options):
    return PlanConfig(min_sep=1, **options)


def hardly_ever_sampled():
    scheme = fedmf.CyclicPoisson(population=10**6, cohort_size=1)
    one = IdentityMechanism(rounds=4)
    return fedmf.calibrate(one, None, delta=1e-9, sampling=scheme, advantage=0.1)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        *named(ValueError, AttackRisk, mu=[-1.0, math.nan]),
        *named(ValueError, AttackRisk(mu=1.0).true_positive_rate, false_positive_rate=[1.1]),
        *named(ValueError, AttackRisk(mu=1.0).success, prior=[-0.1]),
        *named(ValueError, functools.partial(attack_risk, plan(TWICE)), devices=[0]),
        *named(ValueError, calibrated, true_positive_rate=[(0.05, 0.01), (1e-12, 1e-11)]),
        *named(ValueError, calibrated, advantage=[1e-9]),
        *named(ValueError, config, true_positive_rate=["0.05"]),
        (lambda: calibrated(epsilon=1.0, advantage=0.1), ValueError, "2 targets"),
        (lambda: config(true_positive_rate="0.01@0.05"), ValueError, "no more than guess"),
        (lambda: PlanConfig(family="none", advantage=0.1), ValueError, "advantage"),
        (hardly_ever_sampled, ValueError, "hardly ever sampled"),
    ],
)
def test_refusals(call, kind, words):
    assert_refused(call, kind, words)


@hypothesis.settings(max_examples=100)
@hypothesis.given(
    mus=st.lists(st.floats(1e-3, 6), min_size=2, max_size=2),
    rate=st.floats(1e-9, 1 - 1e-9),
    devices=st.integers(1, 5),
    prior=st.floats(1e-4, 1 - 1e-4),
)
def test_laws(mus, rate, devices, prior):
    """Composition, groups, order, and the best guess as the envelope of all tests."""
    low, high = sorted(mus)
    weak, strong = AttackRisk(mu=low), AttackRisk(mu=high)
    assert weak.true_positive_rate(rate) <= strong.true_positive_rate(rate)
    assert weak.advantage <= strong.advantage
    # Both released: one Gaussian, no worse than one after the other on the same clients.
    both = AttackRisk(mu=math.hypot(low, high))
    one_after_other = weak.true_positive_rate(strong.true_positive_rate(rate))
    assert strong.true_positive_rate(rate) <= both.true_positive_rate(rate) <= one_after_other
    # A group is the composition of its members; of pairs as of the normal.
    pairs = ((1.0, gaussian_delta(1 / low, 1.0)), (0.0, weak.advantage))
    group = AttackRisk(mu=devices * low, devices=devices, pairs=pairs)
    together = AttackRisk(mu=devices * low)
    assert group.true_positive_rate(rate) == pytest.approx(
        together.true_positive_rate(rate), rel=1e-8
    )
    for risk in (weak, group):
        rates = np.array([risk.true_positive_rate(a) for a in FINE])
        assert (rates >= FINE).all()
        assert (np.diff(rates) >= 0).all()
        assert max(rates - FINE) <= risk.advantage + 1e-9
        tests = prior * rates + (1 - prior) * (1 - FINE)
        assert max(tests) <= risk.success(prior) + 1e-9
    assert group.advantage == pytest.approx(together.advantage, rel=1e-7)
    assert weak.success(prior) == pytest.approx(weak.success(1 - prior), rel=1e-9)
    assert weak.success(0.5) == pytest.approx(0.5 + weak.advantage / 2, rel=1e-8)


@hypothesis.settings(max_examples=30)
@hypothesis.given(
    rounds=st.integers(2, 12),
    min_sep=st.integers(1, 6),
    entries=st.lists(st.floats(0.01, 1), min_size=1, max_size=3),
    noise=st.floats(0.2, 8),
)
def test_the_risk_of_random_plans(rounds, min_sep, entries, noise):
    """It is that of the farthest pair of outputs, by brute force over sets of rounds."""
    mechanism = banded(rounds, *entries[: min(rounds, len(entries))])
    made = plan(
        separated(rounds, min(min_sep, rounds)),
        mechanism,
        noise_multiplier=noise,
    )
    attained = sensitivity_of_nonnegative(mechanism.encoder(), made.participation)
    farthest = attained * made.clip_norm / made.stddev
    risk = attack_risk(made)
    assert risk.mu >= farthest * (1 - 1e-9)
    for a in (1e-6, 0.01, 0.5):
        truth = scipy.stats.norm.cdf(scipy.stats.norm.ppf(a) + farthest)
        assert risk.true_positive_rate(a) >= truth * (1 - 1e-9)
    # A run that ends early is no easier to attack.
    assert attack_risk(stopped_after(made, 1)).advantage <= risk.advantage * (1 + 1e-9)


def test_one_poisson_sample_is_exact():
    """P = (1 - q) N(0, 1) + q N(mu, 1): found as often as (1 - q) a + q G(a), and the reverse."""
    q, z = 0.2, 0.7
    scheme = fedmf.CyclicPoisson(population=10, cohort_size=2)
    made = plan(None, IdentityMechanism(rounds=1), sampling=scheme, noise_multiplier=z)
    risk = attack_risk(made)
    y = np.linspace(-8, 12, 20001)
    absent, alone = scipy.stats.norm.sf(y), scipy.stats.norm.sf(y - 1 / z)
    present = (1 - q) * absent + q * alone
    tight = np.maximum(np.interp(FINE, absent[::-1], present[::-1]),
                       np.interp(FINE, 1 - present, 1 - absent))  # fmt: skip
    middle = (FINE > 1e-4) & (FINE < 0.99)
    bound = np.array([risk.true_positive_rate(a) for a in FINE[middle]])
    # The bound is of both directions at once, whose concave hull is above the larger.
    assert np.min(bound / tight[middle]) > 1 - 1e-6
    assert np.max(bound / tight[middle]) < 1.06
    assert risk.advantage == pytest.approx(q * AttackRisk(mu=1 / z).advantage, rel=5e-3)


ANYTIME = {(): 0.25, (0,): 0.25, (1,): 0.25, (0, 1): 0.25}
# Scheme -> bands, and the rounds of one client in a run of two with their chances, written anew
# from the papers.
SCHEMES = {
    "poisson": (fedmf.CyclicPoisson(population=40, cohort_size=20), 1, ANYTIME),
    # A client of the first half.
    "poisson, two bands": (
        fedmf.CyclicPoisson(population=80, cohort_size=20), 2, {(): 0.5, (0,): 0.5},
    ),
    "fixed_size": (
        fedmf.CyclicFixedSize(population=40, cohort_size=4), 1,
        {(): 0.81, (0,): 0.09, (1,): 0.09, (0, 1): 0.01},
    ),
    "random-allocation": (
        fedmf.CyclicRandomAllocation(population=40, cohort_size=20), 1, {(0,): 0.5, (1,): 0.5},
    ),
    "bins, orthogonal": (fedmf.BallsInBins(population=40, bins=2), 1, {(0,): 0.5, (1,): 0.5}),
    "bins, simulated": (fedmf.BallsInBins(population=40, bins=2), 2, {(0,): 0.5, (1,): 0.5}),
    # A quarter of the clients in each round.
    "min-sep-poisson": (
        fedmf.MinSepPoisson(population=40, cohort_size=10, min_sep=2), 2,
        {(): 0.5, (0,): 0.25, (1,): 0.25},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n == "bins, simulated" else n for n in SCHEMES],
)
def test_no_distinguisher_beats_the_bound(name, quick):
    """The likelihood ratio test, the best there is, of all that two rounds release: both of its
    rates at every threshold, by quadrature. The control is the claim of a plan of too much noise,
    which this test refutes.
    """
    scheme, bands, chances = SCHEMES[name]
    mechanism = IdentityMechanism(rounds=2) if bands == 1 else two_bands(2)
    made = plan(None, mechanism, sampling=scheme, noise_multiplier=0.8)
    risk = attack_risk(made)
    assert bool(risk.failure) == (name in ("bins, simulated", "min-sep-poisson"))
    too_much = 16.0 if name == "fixed_size" else 1.6
    control = attack_risk(dataclasses.replace(made, noise_multiplier=too_much))
    C = mechanism.encoder() * made.clip_norm / made.stddev
    means = np.array([C[:, list(t)].sum(axis=1) for t in chances])
    grid = np.linspace(-7, 9, 801)
    plane = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    ratios = np.exp(plane @ means.T - (means**2).sum(axis=1) / 2) @ list(chances.values())
    absent = np.exp(-(plane**2).sum(axis=1) / 2)
    order = np.argsort(-ratios)
    false = np.cumsum(absent[order]) / absent.sum()
    true = np.cumsum((absent * ratios)[order]) / (absent * ratios).sum()
    for i in np.searchsorted(false, [1e-4, 1e-3, 0.01, 0.02, 0.1, 0.5]):
        assert true[i] <= risk.true_positive_rate(float(false[i])) * (1 + 1e-3)
    at = int(np.searchsorted(false, 0.02))
    assert true[at] > control.true_positive_rate(float(false[at])) * (1 + 1e-3)
    assert (true - false).max() <= risk.advantage + 1e-3


def test_devices_of_one_user():
    made = plan(TWICE)
    for g in (1, 2, 5):
        assert attack_risk(made, g).mu == g / made.noise_multiplier
    assert attack_risk(made, 10**9).advantage == 1
    rows = statement_values(made)["group_privacy"]
    assert [row["attack_risk"]["mu"] for row in rows] == [1.0, 1.5, 2.5]


POISSON = fedmf.CyclicPoisson(population=400, cohort_size=20)


@pytest.mark.parametrize(
    ("scheme", "target"),
    [
        (None, {"advantage": 0.1}),
        (None, {"true_positive_rate": (0.01, 0.05)}),
        (POISSON, {"true_positive_rate": (0.01, 0.05)}),
        pytest.param(POISSON, {"advantage": 0.1}, marks=pytest.mark.slow),
    ],
)
def test_targets_are_met_and_not_by_much_more_noise(scheme, target):
    made = fedmf.calibrate(
        IdentityMechanism(rounds=16), separated(16, 8), delta=1e-6, sampling=scheme, **target
    )

    def met(made):
        risk = attack_risk(made)
        if "advantage" in target:
            return risk.advantage <= 0.1
        return risk.true_positive_rate(0.01) <= 0.05

    assert met(made)
    assert not met(dataclasses.replace(made, noise_multiplier=made.noise_multiplier * 0.995))


@pytest.mark.slow
def test_a_simulated_target(quick):
    scheme = fedmf.BallsInBins(population=400, bins=4)
    made = fedmf.calibrate(two_bands(8), None, delta=1e-6, sampling=scheme, advantage=0.3)
    risk = attack_risk(made)
    assert risk.failure > 0
    assert risk.advantage <= 0.3
    plain = fedmf.calibrate(two_bands(8), made.participation, delta=1e-6, advantage=0.3)
    assert made.noise_multiplier <= plain.noise_multiplier


@pytest.mark.parametrize("target", [{"advantage": 0.1}, {"true_positive_rate": "0.05@0.01"}])
def test_a_config_states_the_noise_that_its_target_took(target):
    config = PlanConfig(rounds=8, min_sep=4, family="identity", **target)
    assert config.adds_noise
    made = config.plan()
    stated = config.pinned_to(made)
    assert stated.noise_multiplier == made.noise_multiplier
    assert stated.advantage is stated.true_positive_rate is None


def test_the_achieved_guarantee_has_its_risk():
    made = plan(TWICE)
    broke = fedmf.audit_ledger(ledger_of([[0], [0], [0], [3], [0], [1], [2], [3]]), made)
    worse = broke.values()["attack_risk_achieved"]
    assert worse["mu"] == pytest.approx(attack_risk(made).mu * math.sqrt(2))  # 4 rounds for 2
    assert broke.statement_values()["attack"]["advantage"] == worse["advantage"]
    nobody = fedmf.audit_ledger(ledger_of([[]] * 8), made)
    assert nobody.values()["attack_risk_achieved"]["advantage"] == 0


def pairs_bound(pairs, rate):
    """The least line through the pairs, at 60 digits."""
    with mpmath.workdps(60):
        lines = [
            min(delta + mpmath.exp(e) * rate, 1 - mpmath.exp(-e) * (1 - delta - rate))
            for e, delta in ((mpmath.mpf(e), mpmath.mpf(delta)) for e, delta in pairs)
        ]
        return min(mpmath.mpf(1), *lines)


@pytest.mark.parametrize("delta", [1e-15, 1e-8, 1e-3])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 8.0])
def test_lines_are_rounded_to_the_attackers_side(epsilon, delta):
    pairs = ((epsilon, delta),)
    risk = AttackRisk(mu=math.inf, pairs=pairs)
    for rate in (0.0, 1e-300, 1e-17, 1e-9, 0.2, 1 - 1e-9, 1.0):
        found, least = risk.true_positive_rate(rate), pairs_bound(pairs, rate)
        assert least <= found <= min(1, least * (1 + 1e-8) + 2e-15)


def test_little_noise_on_most_clients_has_a_risk():
    """The accountant refuses some fine grids there; the coarser ones hold."""
    scheme = fedmf.CyclicPoisson(population=100, cohort_size=99)
    made = plan(None, IdentityMechanism(rounds=1), sampling=scheme, noise_multiplier=0.0625)
    assert 0.98 < attack_risk(made).advantage <= 1
