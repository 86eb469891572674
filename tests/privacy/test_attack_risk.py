"""Bounds on attacks, against printed values, exact trade-offs and likelihood ratio tests."""

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
from fedmf.privacy.attack_risk import AttackRisk, attack_risk, risk_of_pair
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
# (epsilon, delta): z, mu, advantage, TPR at .1%, at 1%; computed without fedmf.
ORACLES = {
    (1, 1e-6): (4.22468, 0.23670, 0.09421, 0.00216, 0.01832),
    (2, 1e-6): (2.23048, 0.44833, 0.17737, 0.00412, 0.03019),
    (4, 1e-6): (1.19352, 0.83786, 0.32473, 0.01215, 0.06831),
    (8, 1e-6): (0.65294, 1.53155, 0.55619, 0.05954, 0.21336),
    (8, 1e-10): (0.83399, 1.19906, 0.45118, 0.02930, 0.12981),
    (1, 1e-10): (5.86778, 0.17042, 0.06791, 0.00175, 0.01554),
}


def exact_multiplier(epsilon, delta):
    """Computes the exact noise multiplier; calibration exceeds it by about 1e-7, relative."""
    return scipy.optimize.brentq(
        lambda z: exact_gaussian_epsilon(z, delta) - epsilon, 0.1, 10, xtol=1e-12
    )


@pytest.mark.parametrize(("target", "printed"), ORACLES.items())
def test_bounds_are_the_printed_values(target, printed):
    epsilon, delta = target
    z = exact_multiplier(epsilon, delta)
    risk = AttackRisk(mu=1 / z)
    values = (z, risk.mu, risk.advantage, *map(risk.true_positive_rate, (0.001, 0.01)))
    assert tuple(round(x, 5) for x in values) == printed
    calibrated_risk = attack_risk(
        fedmf.calibrate(IdentityMechanism(rounds=8), TWICE, epsilon=float(epsilon), delta=delta)
    )
    assert calibrated_risk.mu == pytest.approx(1 / z, rel=1e-6)
    assert calibrated_risk.mu <= 1 / z
    assert calibrated_risk.advantage == pytest.approx(risk.advantage, rel=1e-6)


@pytest.mark.parametrize("mu", [1e-12, 1e-3, 0.3, 1.0, 4.0, 37.0, 1e9])
def test_rounding_is_to_the_attackers_side(mu):
    """Against 60 digits, from 1e-307 to where float64 has no number between the rate and 1."""
    risk = AttackRisk(mu=mu)
    previous_rate = 0.0
    with mpmath.workdps(60):
        for x in np.linspace(-37.4, 8.2, 80):
            false_rate = float(mpmath.ncdf(x))
            exact_advantage = mpmath.ncdf(mpmath.mpf(float(x)) + mu)
            true_rate = risk.true_positive_rate(false_rate)
            assert max(false_rate, previous_rate) <= true_rate <= 1
            assert (
                exact_advantage * (1 - mpmath.mpf(2) ** -53)
                <= true_rate
                <= exact_advantage * (1 + 1e-7)
            )
            previous_rate = true_rate
        exact_advantage = 2 * mpmath.ncdf(mpmath.mpf(mu) / 2) - 1
        assert (
            exact_advantage * (1 - mpmath.mpf(2) ** -53)
            <= risk.advantage
            <= exact_advantage * (1 + 1e-8)
        )
    assert AttackRisk(mu=mu).true_positive_rate(5e-324) >= 5e-324


def test_bounds_are_exact_without_noise_and_vanish_with_much_noise():
    perfect = AttackRisk(mu=0.0)
    assert (perfect.advantage, perfect.true_positive_rate(0.3), perfect.success(0.3)) == (
        0, 0.3, 0.7
    )  # fmt: skip
    exposed = AttackRisk(mu=math.inf)
    assert (exposed.advantage, exposed.true_positive_rate(0.3), exposed.success(0.3)) == (1, 1, 1)
    assert attack_risk(plan(TWICE, noise_multiplier=0)).mu == math.inf
    little_noise = attack_risk(plan(TWICE, noise_multiplier=1e-300))
    assert little_noise.true_positive_rate(1e-9) == little_noise.advantage == 1
    assert attack_risk(plan(TWICE, noise_multiplier=1e20)).advantage < 1e-20
    assert AttackRisk(mu=1.0).success(0.0) == 1
    assert risk_of_pair(math.inf, 1e-6).advantage == 1


def calibrated(**target):
    """Returns a plan of the identity for a target."""
    return fedmf.calibrate(IdentityMechanism(rounds=8), TWICE, delta=1e-6, **target)


def config(**options):
    return PlanConfig(min_sep=1, **options)


def hardly_ever_sampled():
    """Calibrates for an advantage with hardly any sampling."""
    scheme = fedmf.CyclicPoisson(population=10**6, cohort_size=1)
    identity = IdentityMechanism(rounds=4)
    return fedmf.calibrate(identity, None, delta=1e-9, sampling=scheme, advantage=0.1)


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
def test_bad_arguments_are_refused(call, kind, words):
    assert_refused(call, kind, words)


@hypothesis.settings(max_examples=100)
@hypothesis.given(
    mus=st.lists(st.floats(1e-3, 6), min_size=2, max_size=2),
    rate=st.floats(1e-9, 1 - 1e-9),
    devices=st.integers(1, 5),
    prior=st.floats(1e-4, 1 - 1e-4),
)
def test_bounds_satisfy_the_identities_of_trade_offs(mus, rate, devices, prior):
    """Composition, groups, order, and the best decision as the envelope of all tests."""
    low, high = sorted(mus)
    weak = AttackRisk(mu=low)
    strong = AttackRisk(mu=high)
    assert weak.true_positive_rate(rate) <= strong.true_positive_rate(rate)
    assert weak.advantage <= strong.advantage
    # Two releases are one Gaussian, which is no worse than the composed trade-offs.
    composed = AttackRisk(mu=math.hypot(low, high))
    composed_rate = weak.true_positive_rate(strong.true_positive_rate(rate))
    assert strong.true_positive_rate(rate) <= composed.true_positive_rate(rate) <= composed_rate
    # The trade-off of a group is the composition of its members', by pairs as by the normal.
    pairs = ((1.0, gaussian_delta(1 / low, 1.0)), (0.0, weak.advantage))
    group = AttackRisk(mu=devices * low, devices=devices, pairs=pairs)
    gaussian_group = AttackRisk(mu=devices * low)
    assert group.true_positive_rate(rate) == pytest.approx(
        gaussian_group.true_positive_rate(rate), rel=1e-8
    )
    for risk in (weak, group):
        rates = np.array([risk.true_positive_rate(a) for a in FINE])
        assert (rates >= FINE).all()
        assert (np.diff(rates) >= 0).all()
        assert max(rates - FINE) <= risk.advantage + 1e-9
        tests = prior * rates + (1 - prior) * (1 - FINE)
        assert max(tests) <= risk.success(prior) + 1e-9
    assert group.advantage == pytest.approx(gaussian_group.advantage, rel=1e-7)
    assert weak.success(prior) == pytest.approx(weak.success(1 - prior), rel=1e-9)
    assert weak.success(0.5) == pytest.approx(0.5 + weak.advantage / 2, rel=1e-8)


@hypothesis.settings(max_examples=30)
@hypothesis.given(
    rounds=st.integers(2, 12),
    min_sep=st.integers(1, 6),
    entries=st.lists(st.floats(0.01, 1), min_size=1, max_size=3),
    noise=st.floats(0.2, 8),
)
def test_the_risk_bounds_the_farthest_outputs_of_random_plans(rounds, min_sep, entries, noise):
    """The farthest pair of outputs is computed by brute force over sets of rounds."""
    mechanism = banded(rounds, *entries[: min(rounds, len(entries))])
    random_plan = plan(
        separated(rounds, min(min_sep, rounds)),
        mechanism,
        noise_multiplier=noise,
    )
    attained_sensitivity_value = sensitivity_of_nonnegative(
        mechanism.encoder(), random_plan.participation
    )
    farthest = attained_sensitivity_value * random_plan.clip_norm / random_plan.stddev
    risk = attack_risk(random_plan)
    assert risk.mu >= farthest * (1 - 1e-9)
    for a in (1e-6, 0.01, 0.5):
        truth = scipy.stats.norm.cdf(scipy.stats.norm.ppf(a) + farthest)
        assert risk.true_positive_rate(a) >= truth * (1 - 1e-9)
    # A run that ends early is no easier to attack.
    assert attack_risk(stopped_after(random_plan, 1)).advantage <= risk.advantage * (1 + 1e-9)


def test_the_risk_of_one_poisson_sample_is_exact():
    """P = (1 - q) N(0, 1) + q N(mu, 1): the trade-off is (1 - q) a + q G(a), and its inverse."""
    q = 0.2
    z = 0.7
    scheme = fedmf.CyclicPoisson(population=10, cohort_size=2)
    poisson_plan = plan(None, IdentityMechanism(rounds=1), sampling=scheme, noise_multiplier=z)
    risk = attack_risk(poisson_plan)
    y = np.linspace(-8, 12, 20001)
    absent = scipy.stats.norm.sf(y)
    sampled = scipy.stats.norm.sf(y - 1 / z)
    present = (1 - q) * absent + q * sampled
    tight = np.maximum(np.interp(FINE, absent[::-1], present[::-1]),
                       np.interp(FINE, 1 - present, 1 - absent))  # fmt: skip
    middle = (FINE > 1e-4) & (FINE < 0.99)
    bound = np.array([risk.true_positive_rate(a) for a in FINE[middle]])
    # The bound is of both directions at once, whose concave hull is above the larger.
    assert np.min(bound / tight[middle]) > 1 - 1e-6
    assert np.max(bound / tight[middle]) < 1.06
    assert risk.advantage == pytest.approx(q * AttackRisk(mu=1 / z).advantage, rel=5e-3)


ANYTIME = {(): 0.25, (0,): 0.25, (1,): 0.25, (0, 1): 0.25}
# By scheme: bands, and the rounds of one client in a run of two with their probabilities, written
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
    """The likelihood ratio test is the most powerful one of the releases of two rounds. Both of its
    rates are computed at every threshold, by quadrature. The negative control is the claim of a
    plan with too much noise, which this test refutes.
    """
    scheme, bands, probability_by_rounds = SCHEMES[name]
    mechanism = IdentityMechanism(rounds=2) if bands == 1 else two_bands(2)
    sampled_plan = plan(None, mechanism, sampling=scheme, noise_multiplier=0.8)
    risk = attack_risk(sampled_plan)
    assert bool(risk.failure) == (name in ("bins, simulated", "min-sep-poisson"))
    too_much = 16.0 if name == "fixed_size" else 1.6
    control = attack_risk(dataclasses.replace(sampled_plan, noise_multiplier=too_much))
    C = mechanism.encoder() * sampled_plan.clip_norm / sampled_plan.stddev
    means = np.array([C[:, list(t)].sum(axis=1) for t in probability_by_rounds])
    grid = np.linspace(-7, 9, 801)
    plane = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    ratios = np.exp(plane @ means.T - (means**2).sum(axis=1) / 2) @ list(
        probability_by_rounds.values()
    )
    absent = np.exp(-(plane**2).sum(axis=1) / 2)
    order = np.argsort(-ratios)
    false_rates = np.cumsum(absent[order]) / absent.sum()
    true_rates = np.cumsum((absent * ratios)[order]) / (absent * ratios).sum()
    for i in np.searchsorted(false_rates, [1e-4, 1e-3, 0.01, 0.02, 0.1, 0.5]):
        assert true_rates[i] <= risk.true_positive_rate(float(false_rates[i])) * (1 + 1e-3)
    index = int(np.searchsorted(false_rates, 0.02))
    assert true_rates[index] > control.true_positive_rate(float(false_rates[index])) * (1 + 1e-3)
    assert (true_rates - false_rates).max() <= risk.advantage + 1e-3


def test_the_risk_of_several_devices_is_that_of_a_larger_shift():
    user_plan = plan(TWICE)
    for g in (1, 2, 5):
        assert attack_risk(user_plan, g).mu == g / user_plan.noise_multiplier
    assert attack_risk(user_plan, 10**9).advantage == 1
    rows = statement_values(user_plan)["group_privacy"]
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
    identity = IdentityMechanism(rounds=16)
    calibrated_plan = fedmf.calibrate(
        identity, separated(16, 8), delta=1e-6, sampling=scheme, **target
    )

    def is_met(candidate):
        risk = attack_risk(candidate)
        if "advantage" in target:
            return risk.advantage <= 0.1
        return risk.true_positive_rate(0.01) <= 0.05

    assert is_met(calibrated_plan)
    less_noise = calibrated_plan.noise_multiplier * 0.995
    assert not is_met(dataclasses.replace(calibrated_plan, noise_multiplier=less_noise))


@pytest.mark.slow
def test_calibration_meets_a_target_with_a_simulated_scheme(quick):
    scheme = fedmf.BallsInBins(population=400, bins=4)
    calibrated_plan = fedmf.calibrate(
        two_bands(8), None, delta=1e-6, sampling=scheme, advantage=0.3
    )
    risk = attack_risk(calibrated_plan)
    assert risk.failure > 0
    assert risk.advantage <= 0.3
    unamplified_plan = fedmf.calibrate(
        two_bands(8), calibrated_plan.participation, delta=1e-6, advantage=0.3
    )
    assert calibrated_plan.noise_multiplier <= unamplified_plan.noise_multiplier


@pytest.mark.parametrize("target", [{"advantage": 0.1}, {"true_positive_rate": "0.05@0.01"}])
def test_a_pinned_config_has_the_noise_of_its_target(target):
    config = PlanConfig(rounds=8, min_sep=4, family="identity", **target)
    assert config.adds_noise
    calibrated_plan = config.plan()
    pinned_config = config.pinned_to(calibrated_plan)
    assert pinned_config.noise_multiplier == calibrated_plan.noise_multiplier
    assert pinned_config.advantage is pinned_config.true_positive_rate is None


def test_the_achieved_guarantee_has_its_risk():
    tested_plan = plan(TWICE)
    broken_audit = fedmf.audit_ledger(
        ledger_of([[0], [0], [0], [3], [0], [1], [2], [3]]), tested_plan
    )
    achieved_risk = broken_audit.values()["attack_risk_achieved"]
    assert achieved_risk["mu"] == pytest.approx(
        attack_risk(tested_plan).mu * math.sqrt(2)
    )  # 4 rounds for 2
    assert broken_audit.statement_values()["attack"]["advantage"] == achieved_risk["advantage"]
    empty_audit = fedmf.audit_ledger(ledger_of([[]] * 8), tested_plan)
    assert empty_audit.values()["attack_risk_achieved"]["advantage"] == 0


def pairs_bound(pairs, rate):
    """Computes the least bound of the pairs, at 60 digits."""
    with mpmath.workdps(60):
        bounds = [mpmath.mpf(1)]
        for epsilon, delta in pairs:
            ratio = mpmath.exp(mpmath.mpf(epsilon))
            bounds.append(mpmath.mpf(delta) + ratio * rate)
            bounds.append(1 - (1 - mpmath.mpf(delta) - rate) / ratio)
        return min(bounds)


@pytest.mark.parametrize("delta", [1e-15, 1e-8, 1e-3])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 8.0])
def test_lines_are_rounded_to_the_attackers_side(epsilon, delta):
    pairs = ((epsilon, delta),)
    risk = AttackRisk(mu=math.inf, pairs=pairs)
    for rate in (0.0, 1e-300, 1e-17, 1e-9, 0.2, 1 - 1e-9, 1.0):
        exact_rate = pairs_bound(pairs, rate)
        assert (
            exact_rate <= risk.true_positive_rate(rate) <= min(1, exact_rate * (1 + 1e-8) + 2e-15)
        )


def test_little_noise_on_most_clients_has_a_risk():
    """The accountant refuses some fine grids there; the coarser ones hold."""
    scheme = fedmf.CyclicPoisson(population=100, cohort_size=99)
    noisy_plan = plan(None, IdentityMechanism(rounds=1), sampling=scheme, noise_multiplier=0.0625)
    assert 0.98 < attack_risk(noisy_plan).advantage <= 1
