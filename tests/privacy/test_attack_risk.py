"""Bounds on attacks: printed values, exact trade-offs, distinguishers that may not beat them."""

import dataclasses
import itertools
import math

import hypothesis
import mpmath
import numpy as np
import pytest
import scipy.stats
from hypothesis import strategies as st

import fedmf
from fedmf.mechanisms import IdentityMechanism
from fedmf.participation.schema import Participation
from fedmf.privacy.attack_risk import AttackRisk, attack_risk, claimed_alone, picture
from fedmf.privacy.config import PlanConfig
from fedmf.privacy.describe import statement, statement_values, summary
from fedmf.privacy.gaussian import exact_gaussian_epsilon
from fedmf.privacy.stopping import stopped_after
from tests.power import FALSE_POSITIVE_RATE, MISS_RATE, trials_that_see
from tests.privacy.plans import banded, ledger_of, plan, two_bands
from tests.refusals import refusal

TWICE = Participation(rounds=8, schema="min_sep", min_sep=4)
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
    made = fedmf.calibrate(IdentityMechanism(rounds=8), TWICE, epsilon=float(epsilon), delta=delta)
    own = attack_risk(made)
    assert own.mu == pytest.approx(1 / z, rel=1e-6)
    assert own.mu <= 1 / z
    assert own.advantage == pytest.approx(risk.advantage, rel=1e-6)


def test_epsilon_alone_claims_little():
    assert round(claimed_alone(8.0, 1e-6).true_positive_rate(0.001), 5) == 0.99966
    assert claimed_alone(math.inf, 1e-6).advantage == 1


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
    nothing = attack_risk(plan(TWICE, noise_multiplier=0))
    assert (nothing.mu, nothing.advantage, nothing.true_positive_rate(0.0)) == (math.inf, 1, 1)
    assert nothing.values()["mu"] is None
    hardly = attack_risk(plan(TWICE, noise_multiplier=1e-300))
    assert hardly.true_positive_rate(1e-9) == hardly.advantage == 1
    assert attack_risk(plan(TWICE, noise_multiplier=1e20)).advantage < 1e-20
    assert AttackRisk(mu=1.0).true_positive_rate(0.0) == 0
    assert AttackRisk(mu=1.0).success(0.0) == AttackRisk(mu=1.0).success(1.0) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: AttackRisk(mu=-1.0),
        lambda: AttackRisk(mu=math.nan),
        lambda: AttackRisk(mu=1.0, pairs=((-1.0, 0.1),)),
        lambda: AttackRisk(mu=1.0).true_positive_rate(1.1),
        lambda: AttackRisk(mu=1.0).success(-0.1),
        lambda: attack_risk(plan(TWICE), 0),
        lambda: fedmf.calibrate(IdentityMechanism(rounds=8), TWICE, delta=1e-6),
        lambda: fedmf.calibrate(
            IdentityMechanism(rounds=8), TWICE, delta=1e-6, epsilon=1.0, advantage=0.1
        ),
        lambda: fedmf.calibrate(
            IdentityMechanism(rounds=8), TWICE, delta=1e-6, true_positive_rate=(0.05, 0.01)
        ),
        lambda: PlanConfig(min_sep=1, advantage=1.0),
        lambda: PlanConfig(min_sep=1, true_positive_rate="0.05"),
        lambda: PlanConfig(min_sep=1, true_positive_rate="0.01@0.05"),
        lambda: PlanConfig(min_sep=1, advantage=0.1, epsilon=1.0),
        lambda: PlanConfig(family="none", advantage=0.1),
    ],
)
def test_refusals(make):
    with pytest.raises((ValueError, TypeError)):
        make()
    with pytest.raises(TypeError, match=r"fedmf\.Plan"):
        attack_risk(1.0)


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
    pairs = (
        (1.0, float(np.exp(exact_delta(weak.mu, 1.0)))),
        (0.0, min(1.0, weak.advantage)),
    )
    group = AttackRisk(mu=devices * low, devices=devices, pairs=pairs)
    assert group.true_positive_rate(rate) <= AttackRisk(mu=devices * low).true_positive_rate(
        rate
    ) * (1 + 1e-8)
    tests = [prior * weak.true_positive_rate(a) + (1 - prior) * (1 - a) for a in FINE]
    assert max(tests) <= weak.success(prior) * (1 + 1e-8)
    assert weak.success(prior) == pytest.approx(weak.success(1 - prior), rel=1e-9)
    assert weak.success(0.5) == pytest.approx(0.5 + weak.advantage / 2, rel=1e-8)


def exact_delta(mu, epsilon):
    """log delta of the Gaussian."""
    a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    log = scipy.stats.norm.logcdf
    return log(a) + math.log1p(-min(1.0, math.exp(epsilon + log(b) - log(a))) + 1e-12)


@hypothesis.settings(max_examples=30, deadline=None)
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
        Participation(rounds=rounds, schema="min_sep", min_sep=min(min_sep, rounds)),
        mechanism,
        noise_multiplier=noise,
    )
    C, stddev = mechanism.encoder(), made.stddev / made.clip_norm
    farthest = 0.0
    for pattern in range(2**rounds):
        t = [i for i in range(rounds) if pattern >> i & 1]
        if all(b - a >= made.participation.min_sep for a, b in itertools.pairwise(t)):
            farthest = max(farthest, float(np.linalg.norm(C[:, t].sum(axis=1))))
    risk = attack_risk(made)
    assert risk.mu >= farthest / stddev * (1 - 1e-9)
    for a in (1e-6, 0.01, 0.5):
        truth = scipy.stats.norm.cdf(scipy.stats.norm.ppf(a) + farthest / stddev)
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
    for false, true in ((absent, present), (1 - present, 1 - absent)):
        inside = (false > 1e-9) & (false < 1 - 1e-9)
        bound = np.array([risk.true_positive_rate(a) for a in false[inside]])
        assert (bound >= true[inside] * (1 - 1e-9)).all()
    tight = np.maximum(np.interp(FINE, absent[::-1], present[::-1]),
                       np.interp(FINE, 1 - present, 1 - absent))  # fmt: skip
    middle = (FINE > 1e-4) & (FINE < 0.99)
    bound = np.array([risk.true_positive_rate(a) for a in FINE[middle]])
    # The bound is of both directions at once, whose concave hull is above the larger.
    assert np.max(bound / tight[middle]) < 1.06
    assert risk.advantage == pytest.approx(q * AttackRisk(mu=1 / z).advantage, rel=5e-3)


SCHEMES = {
    "poisson": fedmf.CyclicPoisson(population=40, cohort_size=20),
    "poisson, two bands": fedmf.CyclicPoisson(population=80, cohort_size=20),
    "fixed_size": fedmf.CyclicFixedSize(population=40, cohort_size=4),
    "reshuffle": fedmf.CyclicShuffle(population=40, cohort_size=20),
    "bins, orthogonal": fedmf.BallsInBins(population=40, bins=2),
    "bins, simulated": fedmf.BallsInBins(population=40, bins=2),
    "min-sep-poisson": fedmf.MinSepPoisson(population=40, cohort_size=10, min_sep=2),
}


def patterns(name):
    """Rounds of one client in a run of two, with their chances; written anew from the papers."""
    if name == "poisson":
        return {(): 0.25, (0,): 0.25, (1,): 0.25, (0, 1): 0.25}
    if name == "poisson, two bands":  # a client of the first half
        return {(): 0.5, (0,): 0.5}
    if name == "fixed_size":
        return {(): 0.81, (0,): 0.09, (1,): 0.09, (0, 1): 0.01}
    if name == "min-sep-poisson":  # a quarter of the clients in each round
        return {(): 0.5, (0,): 0.25, (1,): 0.25}
    return {(0,): 0.5, (1,): 0.5}


@pytest.mark.parametrize("name", SCHEMES)
def test_no_distinguisher_beats_the_bound(name, quick):
    """The likelihood ratio test, the best there is, on simulated runs of two rounds.

    A false positive has a chance of FALSE_POSITIVE_RATE. The control is the claim of a plan of
    too much noise, which the trials refute but for a chance of MISS_RATE.
    """
    scheme, chances = SCHEMES[name], patterns(name)
    mechanism = IdentityMechanism(rounds=2)
    if name in ("poisson, two bands", "bins, simulated", "min-sep-poisson"):
        mechanism = two_bands(2)
    made = plan(None, mechanism, sampling=scheme, noise_multiplier=0.8)
    risk = attack_risk(made)
    assert bool(risk.failure) == (name in ("bins, simulated", "min-sep-poisson"))
    control = attack_risk(
        dataclasses.replace(made, noise_multiplier=16.0 if name == "fixed_size" else 1.6)
    )
    stddev = made.stddev / made.clip_norm
    C = mechanism.encoder()
    means = np.array([C[:, list(t)].sum(axis=1) / stddev for t in chances])
    weights = np.array(list(chances.values()))

    def ratio(y):
        return np.exp(y @ means.T - (means**2).sum(axis=1) / 2) @ weights

    # Both rates of the test, by quadrature.
    grid = np.linspace(-7, 9, 801)
    plane = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    absent = np.exp(-(plane**2).sum(axis=1) / 2)
    ratios = ratio(plane)
    order = np.argsort(-ratios)
    false = np.cumsum(absent[order]) / absent.sum()
    true = np.cumsum((absent * ratios)[order]) / (absent * ratios).sum()
    at = int(np.searchsorted(false, 0.02))
    threshold, rates = ratios[order][at], (float(false[at]), float(true[at]))

    def bounds(hits, trials):
        low, high = FALSE_POSITIVE_RATE / 2, 1 - FALSE_POSITIVE_RATE / 2
        return (
            float(scipy.stats.beta.ppf(high, hits[0] + 1, trials - hits[0])),
            float(scipy.stats.beta.ppf(low, hits[1], trials - hits[1] + 1)),
        )

    def missed(trials):
        worst = (
            scipy.stats.binom.isf(MISS_RATE / 4, trials, rates[0]),
            scipy.stats.binom.ppf(MISS_RATE / 4, trials, rates[1]),
        )
        accused, found = bounds(worst, trials)
        return 0.0 if found > control.true_positive_rate(accused) else 1.0

    trials = trials_that_see(missed, start=1000)
    rng = np.random.default_rng(7)
    noise = rng.standard_normal((2, trials, 2))
    drawn = rng.choice(len(weights), size=trials, p=weights)
    hits = [int((ratio(y) >= threshold).sum()) for y in (noise[0], noise[1] + means[drawn])]
    accused, found = bounds(hits, trials)
    assert found <= risk.true_positive_rate(accused)
    assert found > control.true_positive_rate(accused)
    # And by quadrature at every threshold, with devices as so many clients.
    for i in np.searchsorted(false, [1e-4, 1e-3, 0.01, 0.1, 0.5]):
        assert true[i] <= risk.true_positive_rate(float(false[i])) * (1 + 1e-3)
    assert (true - false).max() <= risk.advantage + 1e-3


@pytest.mark.parametrize("scheme", SCHEMES.values())
def test_more_noise_and_fewer_devices_are_less_risk(scheme, quick):
    mechanism = two_bands(8) if scheme.needs_bands else IdentityMechanism(rounds=8)
    if isinstance(scheme, fedmf.CyclicShuffle):
        mechanism = IdentityMechanism(rounds=8)
    risks = [
        attack_risk(plan(None, mechanism, sampling=scheme, noise_multiplier=z))
        for z in (0.5, 0.7, 1.0, 2.0, 8.0)
    ]
    slack = 1.15 if risks[0].failure else 1.001  # of samples of their own
    for less, more in zip(risks[1:], risks, strict=False):
        assert less.advantage <= more.advantage * slack
        assert less.true_positive_rate(0.01) <= more.true_positive_rate(0.01) * slack
    for risk in risks:
        unamplified = AttackRisk(mu=risk.mu)
        rates = np.array([risk.true_positive_rate(a) for a in FINE])
        assert (np.diff(rates) >= 0).all()
        assert (rates >= FINE).all()
        assert risk.advantage <= unamplified.advantage * (1 + 1e-8)
        assert max(rates - FINE) <= risk.advantage + 1e-9
        for prior in (0.01, 0.5, 0.9):
            guesses = prior * rates + (1 - prior) * (1 - FINE)
            assert max(guesses) <= risk.success(prior) + 1e-9
        last = 0.0
        for g in (1, 2, 3, 5):
            group = dataclasses.replace(risk, mu=g * risk.mu, devices=g)
            assert last <= group.advantage <= AttackRisk(mu=group.mu).advantage * (1 + 1e-7)
            last = group.advantage


def test_devices_of_one_user():
    made = plan(TWICE)
    for g in (1, 2, 5):
        assert attack_risk(made, g).mu == g / made.noise_multiplier
    assert attack_risk(made, 10**9).advantage == 1
    rows = statement_values(made)["group_privacy"]
    assert [row["attack_risk"]["mu"] for row in rows] == [1.0, 1.5, 2.5]


TARGETS = [{"advantage": 0.1}, {"true_positive_rate": (0.01, 0.05)}, {"epsilon": 2.0}]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "scheme",
    [
        None,
        fedmf.CyclicPoisson(population=400, cohort_size=20),
        fedmf.CyclicFixedSize(population=400, cohort_size=20),
        fedmf.CyclicShuffle(population=400, cohort_size=20),
        fedmf.BallsInBins(population=400, bins=8),
    ],
)
def test_targets_are_met_and_not_by_much_more_noise(target, scheme):
    mechanism = IdentityMechanism(rounds=16)
    made = fedmf.calibrate(
        mechanism,
        Participation(rounds=16, schema="min_sep", min_sep=8) if scheme is None else None,
        delta=1e-6,
        sampling=scheme,
        **target,
    )

    def reached(made):
        if "epsilon" in target:
            return made.epsilon / 2.0
        risk = attack_risk(made)
        if "advantage" in target:
            return risk.advantage / 0.1
        return risk.true_positive_rate(0.01) / 0.05

    assert reached(made) <= 1
    less = dataclasses.replace(made, noise_multiplier=made.noise_multiplier * 0.995)
    assert reached(less) > 1


@pytest.mark.slow
def test_a_simulated_target(quick):
    scheme = fedmf.BallsInBins(population=400, bins=4)
    made = fedmf.calibrate(two_bands(8), None, delta=1e-6, sampling=scheme, advantage=0.3)
    risk = attack_risk(made)
    assert risk.failure > 0
    assert risk.advantage <= 0.3
    assert (
        made.noise_multiplier
        <= fedmf.calibrate(
            two_bands(8), made.participation, delta=1e-6, advantage=0.3
        ).noise_multiplier
    )


def test_an_advantage_that_needs_no_noise_is_refused():
    scheme = fedmf.CyclicPoisson(population=10**6, cohort_size=1)
    with pytest.raises(ValueError, match="hardly ever drawn"):
        fedmf.calibrate(
            IdentityMechanism(rounds=4), None, delta=1e-9, sampling=scheme, advantage=0.1
        )


@pytest.mark.parametrize(
    "target", [{"advantage": 0.1}, {"true_positive_rate": "0.05@0.01"}, {"epsilon": 2.0}]
)
def test_a_config_says_its_target_and_gives_the_plan_again(target):
    config = PlanConfig(rounds=8, min_sep=4, family="identity", **target)
    ((name, value),) = target.items()
    assert f"--{name.replace('_', '-')} {value}" in " ".join(config.flags())
    assert PlanConfig.from_json(config.to_json()) == config
    made = config.plan()
    stated = config.stating(made)
    assert stated.noise_multiplier == made.noise_multiplier
    assert getattr(stated, name) is None
    assert stated.adds_noise
    assert config.adds_noise


def test_summary_and_statement():
    made = PlanConfig(rounds=8, min_sep=4, family="identity", epsilon=8.0).plan()
    text = statement(made)
    assert "## What an attacker learns" in text
    assert "at most 77.81% of the answers are right" in text
    assert "| 0.1% | 5.954% | 99.97% |" in text
    assert summary(made)["attack_risk"] == attack_risk(made).values()
    drawn = picture(attack_risk(made), claimed_alone(8.0, 1e-6))
    assert all(f"    {line}" in text for line in drawn)
    for line in drawn[1:12]:  # the curve is never above the line of epsilon alone
        assert len(line.partition("|")[2].rpartition("|")[0]) == 49
    assert "What an attacker learns" not in statement(plan(TWICE, noise_multiplier=0))


def test_a_simulation_says_that_its_model_is_easier_to_attack():
    made = plan(TWICE).simulating(simulated=7, claimed=90)
    assert attack_risk(made) == attack_risk(plan(TWICE))
    assert "an attacker can learn more" in statement(made).replace("\n", " ")
    trained = summary(made)["attack_risk"]["trained_here"]
    assert trained["mu"] == pytest.approx(90 / 7 / made.noise_multiplier)


def test_the_achieved_guarantee_has_its_risk():
    made = plan(TWICE)
    kept = fedmf.audit_ledger(ledger_of([[0], [1], [2], [3], [0], [1], [2], [3]]), made)
    broke = fedmf.audit_ledger(ledger_of([[0], [0], [0], [3], [0], [1], [2], [3]]), made)
    planned = attack_risk(made).values()
    assert kept.values()["attack_risk_achieved"] == planned
    worse = broke.values()["attack_risk_achieved"]
    assert worse["mu"] == pytest.approx(planned["mu"] * math.sqrt(2))  # 4 rounds for 2
    values = broke.statement_values()
    assert values["attack"]["advantage"] == worse["advantage"] > planned["advantage"]
    assert "By the achieved guarantee" in broke.statement()
    nobody = fedmf.audit_ledger(ledger_of([[]] * 8), made)
    assert nobody.values()["attack_risk_achieved"]["advantage"] == 0


# What an audit of the first version found


def pairs_bound(pairs, rate):
    """The least line through the pairs, at 60 digits."""
    with mpmath.workdps(60):
        lines = [
            min(delta + mpmath.exp(e) * rate, 1 - mpmath.exp(-e) * (1 - delta - rate))
            for e, delta in ((mpmath.mpf(e), mpmath.mpf(delta)) for e, delta in pairs)
        ]
        return min(mpmath.mpf(1), *lines)


@pytest.mark.parametrize("delta", [1e-15, 1e-12, 1e-8, 1e-3])
@pytest.mark.parametrize("epsilon", [0.0, 1e-9, 0.3, 8.0])
def test_lines_are_rounded_to_the_attackers_side(epsilon, delta):
    pairs = ((epsilon, delta),)
    risk = AttackRisk(mu=math.inf, pairs=pairs)
    for rate in (0.0, 1e-300, 1e-17, 1e-9, 0.2, 1 - 1e-9, 1.0):
        found, least = risk.true_positive_rate(rate), pairs_bound(pairs, rate)
        assert least <= found <= min(1, least * (1 + 1e-8) + 2e-15)


def test_little_noise_on_most_clients_has_a_risk():
    """The accountant refuses some fine grids there; the coarser ones hold."""
    for z in (0.06, 0.0625, 0.06420290033768254):
        scheme = fedmf.CyclicPoisson(population=100, cohort_size=99)
        made = fedmf.Plan(
            mechanism=IdentityMechanism(rounds=1),
            noise_multiplier=z, clip_norm=1.0, delta=1e-6, sampling=scheme,
        )  # fmt: skip
        assert 0.98 < attack_risk(made).advantage <= 1


def test_sampling_never_claims_more_than_the_noise_alone():
    """So that noise that is enough without sampling is enough, to the last bit."""
    pairs = ((0.0, 0.9), (5.0, 0.5))  # of a scheme that does not help
    for mu in (0.1, 0.5, 2.0):
        alone, both = AttackRisk(mu=mu), AttackRisk(mu=mu, pairs=pairs)
        assert both.advantage <= alone.advantage
        for x in (1e-6, 0.01, 0.3):
            assert both.true_positive_rate(x) <= alone.true_positive_rate(x)
            assert both.success(x) <= alone.success(x)


def test_the_plan_s_own_epsilon_is_among_the_bounds():
    scheme = fedmf.CyclicPoisson(population=1000, cohort_size=100)
    made = fedmf.Plan(
        mechanism=two_bands(8), noise_multiplier=1.0, clip_norm=1.0, delta=1e-3, sampling=scheme
    )
    alone, risk = claimed_alone(made.epsilon, made.delta), attack_risk(made)
    for rate in (0.0, 1e-6, 1e-3, 0.1, 0.7):
        assert risk.true_positive_rate(rate) <= alone.true_positive_rate(rate)


@pytest.mark.parametrize(
    "target", [{"advantage": 1e-9}, {"true_positive_rate": (1e-12, 1e-11)}], ids=str
)
def test_a_target_that_no_curve_tells_is_refused(target):
    with refusal("is below 1e-8, which no curve tells"):
        fedmf.calibrate(IdentityMechanism(rounds=8), TWICE, delta=1e-6, **target)


def test_a_drawn_bound_is_never_below_the_bound():
    risk = AttackRisk(mu=0.8)
    rows = [line[1:50] for line in picture(risk, claimed_alone(4.0, 1e-6))[1:12]]
    for x in range(49):
        y = next(i for i, row in enumerate(reversed(rows)) if row[x] == "o")
        assert y / 10 >= risk.true_positive_rate(10 ** (4 * (x / 48 - 1)))
