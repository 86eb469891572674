"""The guarantee of private selection lies between the best attack and the papers' bounds."""

import dataclasses
import functools
import math

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent, RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special

import fedmf
from fedmf.privacy.gaussian import gaussian_epsilon
from fedmf.privacy.plan import Plan

DELTA = 1e-6


@functools.cache
def plan_of(noise_multiplier: float) -> Plan:
    """Returns a plan of eight rounds with independent noise."""
    config = fedmf.PlanConfig(
        rounds=8, min_sep=8, family="identity", noise_multiplier=noise_multiplier
    )
    return config.plan()


def selection_weight(trials, better):
    """Computes f'(F), the density of the selected output in units of that of one trial.

    f is the generating function of the number of trials, and `better` = 1 - F is the probability
    that a trial is better than the output.
    """
    if trials.distribution == "poisson":
        return trials.mean_trials * np.exp(-trials.mean_trials * better)
    base = trials.gamma / (trials.gamma + (1 - trials.gamma) * better)
    return trials.mean_trials * base ** (1 + trials.shape)


def attack_delta(noise_multiplier, trials, epsilon, cut):
    """Computes the delta that one attack on a selection shows, by the midpoint rule.

    A trial's output is N(1 / noise_multiplier, 1) with the client and N(0, 1) without. Outputs
    below the cut have the best scores, the lowest the best; above it the largest are the best.
    """
    ends = np.unique(np.append(np.linspace(-12, 12 + 1 / noise_multiplier, 6001), cut))
    middles = (ends[1:] + ends[:-1]) / 2
    masses = []
    for mean in (1 / noise_multiplier, 0.0):
        # Each cell's mass is a difference of the smaller tails, which have no rounding errors.
        below = np.diff(special.ndtr(ends - mean))
        above = -np.diff(special.ndtr(mean - ends))
        cells = np.where(middles < mean, below, above)
        better_below = special.ndtr(middles - mean)
        better_above = special.ndtr(cut - mean) + special.ndtr(mean - middles)
        better = np.where(middles < cut, better_below, better_above)
        masses.append(cells * selection_weight(trials, better))
    with_client, without = masses
    factor = math.exp(epsilon)
    one_way = np.maximum(with_client - factor * without, 0).sum()
    other_way = np.maximum(without - factor * with_client, 0).sum()
    return max(one_way, other_way)


def attack_epsilon(noise_multiplier, trials, delta=DELTA):
    """Computes a lower bound on the epsilon of a selection, for the best of 49 cuts."""
    best = 0.0
    for cut in np.linspace(-3, 3, 49):
        if attack_delta(noise_multiplier, trials, best, cut) > delta:
            best = optimize.brentq(
                lambda e, cut=cut: attack_delta(noise_multiplier, trials, e, cut) - delta,
                best,
                600.0,
                xtol=1e-5,
            )
    return best


def trial_count(mean, distribution, shape):
    return fedmf.TrialCount(mean_trials=mean, distribution=distribution, shape=shape)


GEOMETRIC = (10, "truncated-negative-binomial", 1.0)
LOGARITHMIC = (10, "truncated-negative-binomial", 0.0)


# The last two numbers are the epsilon of the attack and of the profile bound, computed apart from
# fedmf.
@pytest.mark.parametrize(
    ("noise_multiplier", "distribution", "attack", "bound"),
    [
        (2.2305, LOGARITHMIC, 2.738, 2.827),
        (2.2305, GEOMETRIC, 2.887, 3.014),
        (1.1935, (30, "truncated-negative-binomial", 1.0), 6.452, 6.690),
        (0.6529, LOGARITHMIC, 10.483, 10.633),
        (0.6529, (10, "poisson", 1.0), 13.672, 14.264),
    ],
)
def test_epsilon_is_above_the_attack_and_at_most_the_profile_bound(
    noise_multiplier, distribution, attack, bound
):
    mean, name, shape = distribution
    selection = fedmf.private_selection(
        plan_of(noise_multiplier), mean_trials=mean, distribution=name, shape=shape
    )
    assert attack <= selection.epsilon(DELTA) <= bound + 0.01
    computed = attack_epsilon(noise_multiplier, trial_count(*distribution))
    assert attack - 0.01 <= computed <= selection.epsilon(DELTA)
    # Two accountings that are wrong are caught by the attack: that of one trial, and the union
    # bound m delta_Q alone.
    assert computed > gaussian_epsilon(noise_multiplier, DELTA)
    assert computed > gaussian_epsilon(noise_multiplier, DELTA / mean)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    noise_multiplier=st.floats(0.4, 20),
    mean=st.floats(1, 200),
    distribution=st.sampled_from(["truncated-negative-binomial", "poisson"]),
    shape=st.floats(0, 4),
    log_delta=st.floats(-8, -2),
)
def test_no_attack_exceeds_the_epsilon(noise_multiplier, mean, distribution, shape, log_delta):
    delta = 10.0**log_delta
    trials = trial_count(mean, distribution, shape)
    selection = fedmf.private_selection(
        plan_of(noise_multiplier), mean_trials=mean, distribution=distribution, shape=shape
    )
    # The midpoint rule changes the attack's delta by a thousandth at most, and so its epsilon.
    assert attack_epsilon(noise_multiplier, trials, delta) <= selection.epsilon(delta) + 1e-3


@pytest.mark.parametrize("distribution", [GEOMETRIC, LOGARITHMIC, (10, "poisson", 1.0)])
def test_epsilon_is_at_most_the_renyi_bound_of_dp_accounting(distribution):
    mean, name, shape = distribution
    accountant = RdpAccountant()
    rdp_shape = math.inf if name == "poisson" else shape
    accountant.compose(RepeatAndSelectDpEvent(GaussianDpEvent(2.0), mean, rdp_shape))
    selection = fedmf.private_selection(
        plan_of(2.0), mean_trials=mean, distribution=name, shape=shape
    )
    assert selection.epsilon(DELTA) <= accountant.get_epsilon(DELTA) + 0.01


def test_one_trial_costs_what_the_plan_costs():
    selection = fedmf.private_selection(plan_of(2.0), mean_trials=1)
    assert selection.epsilon(DELTA) == pytest.approx(plan_of(2.0).epsilon, rel=1e-4)


def test_delta_inverts_epsilon():
    selection = fedmf.private_selection(plan_of(2.0), mean_trials=10)
    epsilon = selection.epsilon(1e-5)
    assert selection.delta(epsilon) == pytest.approx(1e-5, rel=1e-5)
    assert selection.epsilon(selection.delta(1.0)) <= 1.0
    assert selection.delta(0.0) > selection.delta(1.0)


@pytest.mark.parametrize("distribution", [GEOMETRIC, LOGARITHMIC, (10, "poisson", 1.0)])
def test_calibrated_trials_meet_the_target_with_little_to_spare(distribution):
    plan = plan_of(1.0)
    mean, name, shape = distribution
    calibrated = fedmf.calibrate(
        plan.mechanism,
        plan.participation,
        epsilon=4.0,
        delta=DELTA,
        selection=trial_count(*distribution),
    )
    selection = fedmf.private_selection(
        calibrated, mean_trials=mean, distribution=name, shape=shape
    )
    assert 3.999 <= selection.epsilon(DELTA) <= 4.0


def test_selection_among_sampled_plans_costs_less_than_without_sampling():
    scheme = fedmf.CyclicPoisson(population=1000, cohort_size=10)
    sampled = fedmf.Plan(
        mechanism=plan_of(1.0).mechanism,
        noise_multiplier=1.0,
        clip_norm=1.0,
        delta=DELTA,
        sampling=scheme,
    )
    selection = fedmf.private_selection(sampled)
    unsampled = fedmf.private_selection(plan_of(1.0))
    assert sampled.epsilon < selection.epsilon(DELTA) < unsampled.epsilon(DELTA)


@pytest.mark.parametrize("shape", [0.0, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("mean", [1.0, 2.5, 40.0])
def test_number_of_trials_has_the_stated_mean(mean, shape):
    trials = fedmf.TrialCount(mean_trials=mean, shape=shape)
    probabilities = trials.probabilities
    assert probabilities.sum() == pytest.approx(1, abs=1e-12)
    assert probabilities @ np.arange(len(probabilities)) == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize("distribution", [GEOMETRIC, LOGARITHMIC, (3, "poisson", 1.0)])
def test_draws_follow_the_probabilities(distribution):
    """Fails wrongly with a probability of at most 1e-6: Hoeffding's inequality for 30 counts."""
    trials = trial_count(*distribution)
    rng = np.random.default_rng()
    num_draws = 20_000
    draws = np.array([trials.draw(rng) for _ in range(num_draws)])
    tolerance = math.sqrt(math.log(2 * 30 / 1e-6) / (2 * num_draws))
    for k in range(30):
        expected = trials.probabilities[: k + 1].sum()
        assert abs(np.mean(draws <= k) - expected) <= tolerance


def test_selection_refuses_what_it_cannot_account_for():
    simulated = fedmf.PlanConfig(
        rounds=8, family="banded", bands=2, population=100, cohort_size=10,
        sampling="min-sep-poisson", min_sep=2, noise_multiplier=1.0,
    )  # fmt: skip
    with pytest.raises(ValueError, match="has an epsilon that may be simulated"):
        fedmf.private_selection(simulated.plan())
    with pytest.raises(ValueError, match="least delta for mean_trials=10"):
        fedmf.private_selection(plan_of(1.0)).epsilon(1e-15)
    with pytest.raises(ValueError, match="mean_trials=0.5"):
        fedmf.TrialCount(mean_trials=0.5)
    with pytest.raises(ValueError, match="selection needs an epsilon"):
        fedmf.calibrate(
            plan_of(1.0).mechanism,
            plan_of(1.0).participation,
            advantage=0.1,
            delta=DELTA,
            selection=fedmf.TrialCount(),
        )


def test_a_plan_without_noise_guarantees_nothing():
    config = fedmf.PlanConfig(rounds=8, min_sep=8, family="identity", noise_multiplier=0.0)
    assert fedmf.private_selection(config.plan()).epsilon(DELTA) == math.inf


@pytest.mark.parametrize(
    ("target", "delta", "mean", "shape"), [(75.0, 1e-6, 1e4, 0.0), (68.0, 1e-9, 1e3, 1.0)]
)
def test_trials_whose_noise_may_reveal_a_client_are_refused(target, delta, mean, shape):
    """A score that prefers revealing noise selects it up to `mean` times as often as a trial has
    it.
    """
    plan = plan_of(1.0)
    with pytest.raises(ValueError, match="they reveal a client"):
        fedmf.calibrate(
            plan.mechanism,
            plan.participation,
            epsilon=target,
            delta=delta,
            selection=fedmf.TrialCount(mean_trials=mean, shape=shape),
        )
    for noise_multiplier in (0.155, 0.1, 0.01):
        revealing_plan = dataclasses.replace(plan, noise_multiplier=noise_multiplier)
        selection = fedmf.private_selection(revealing_plan, mean_trials=mean, shape=shape)
        with pytest.raises(ValueError, match="they reveal a client"):
            selection.epsilon(delta)


def test_many_poisson_trials_have_the_noise_of_the_renyi_bound():
    plan = plan_of(1.0)
    trials = fedmf.TrialCount(mean_trials=300, distribution="poisson")
    calibrated = fedmf.calibrate(
        plan.mechanism, plan.participation, epsilon=2.0, delta=DELTA, selection=trials
    )
    selection = fedmf.private_selection(calibrated, mean_trials=300, distribution="poisson")
    assert 1.999 <= selection.epsilon(DELTA) <= 2.0
    assert "Renyi" in selection.source(DELTA)


def test_trials_with_samples_of_fixed_size_have_an_epsilon():
    scheme = fedmf.CyclicFixedSize(population=1000, cohort_size=10)
    plan = fedmf.calibrate(
        plan_of(1.0).mechanism,
        None,
        epsilon=8.0,
        delta=DELTA,
        sampling=scheme,
        selection=fedmf.TrialCount(),
    )
    assert 7.99 <= fedmf.private_selection(plan).epsilon(DELTA) <= 8.0


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("noise_multiplier", [1e-200, 1e-120, 1e-20, 1e-3, 1e8, 1e160])
@pytest.mark.parametrize("distribution", ["truncated-negative-binomial", "poisson"])
def test_extreme_noise_has_an_epsilon(noise_multiplier, distribution):
    plan = dataclasses.replace(plan_of(1.0), noise_multiplier=noise_multiplier)
    selection = fedmf.private_selection(plan, distribution=distribution)
    epsilon = selection.bound(1e-3)
    assert (epsilon < 1e-3) if noise_multiplier > 1 else (epsilon == math.inf)


def test_means_next_to_1_are_a_single_trial():
    assert fedmf.TrialCount(mean_trials=1 + 1e-12, shape=2.0).gamma == 1


def test_trials_that_end_early_are_refused():
    from fedmf.privacy.stopping import stopped_after

    with pytest.raises(ValueError, match="run to their end"):
        fedmf.private_selection(stopped_after(plan_of(1.0), 4))
