"""Epsilon of sampled Gaussian queries against integrals, closed forms and simulated releases."""

import dataclasses
import itertools
import math
import pathlib
import resource
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

import fedmf
from fedmf.mechanisms import BandedMechanism, IdentityMechanism
from fedmf.privacy.amplification import sampled_gaussian_epsilon, sampled_gaussian_noise_multiplier
from fedmf.privacy.client_groups import group_epsilon
from fedmf.privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_noise_multiplier
from fedmf.privacy.noise_search import least_noise_multiplier
from fedmf.privacy.plan import (
    dp_event,
    per_query_noise_multiplier,
    rdp_epsilon,
    unamplified_epsilon,
    unit_noise,
)
from fedmf.privacy.random_allocation import allocation_law
from fedmf.privacy.renyi import event_rdp_epsilon
from fedmf.privacy.sampling import CyclicFixedSize, CyclicPoisson, CyclicRandomAllocation
from tests.mechanisms.registry import MECHANISMS
from tests.mechanisms.schemas import epochs, single
from tests.privacy.plans import banded
from tests.privacy.plans import plan as plan_of
from tests.refusals import refusal


def hockey_stick(p, q, epsilon, cell):
    """Computes the larger integral, over both directions, of (p - exp(epsilon) q)+, for densities
    on a grid of cells.
    """
    ratio = math.exp(epsilon)
    return cell * max(np.maximum(p - ratio * q, 0).sum(), np.maximum(q - ratio * p, 0).sum())


def grid(sigma, cells=6000):
    """Returns the points of a grid for noise sigma, and the size of a cell."""
    x = np.linspace(-1 - 9 * sigma, 2 + 9 * sigma, cells)
    return x, x[1] - x[0]


@pytest.mark.parametrize(
    ("sigma", "q", "k"),
    [(0.6, 0.3, 1), (1.0, 0.05, 1), (0.8, 0.9, 1), (1.1, 0.2, 2)],
)
def test_epsilon_of_poisson_samples_is_that_of_the_integral(sigma, q, k):
    # By definition a client's 1 is there with probability q, or never; no accountant is involved.
    num_cells = 6000 if k == 1 else 1500
    x, cell = grid(sigma, num_cells)
    absent = stats.norm.pdf(x, 0, sigma)
    present = q * stats.norm.pdf(x, 1, sigma) + (1 - q) * absent
    if k == 2:
        present = np.outer(present, present)
        absent = np.outer(absent, absent)
        cell = cell**2
    delta = 1e-5 if k == 1 else 1e-4
    epsilon = sampled_gaussian_epsilon(sigma, delta, probability=q, compositions=k)
    assert hockey_stick(present, absent, epsilon, cell) <= delta * 1.0001
    assert hockey_stick(present, absent, 0.995 * epsilon, cell) > delta


@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_composed_deltas_are_above_the_closed_form(sigma):
    """Nearly every client is sampled, so that the releases together are one of noise sigma."""
    k = 2052
    q = 1 - 1e-13
    release_sigma = sigma * math.sqrt(k)
    for delta in (1e-6, 1e-8, 1e-10):
        epsilon = sampled_gaussian_epsilon(release_sigma, delta, probability=q, compositions=k)
        assert gaussian_delta(sigma, epsilon) <= delta
    smaller_delta = 9.9e-11
    epsilon = sampled_gaussian_epsilon(release_sigma, smaller_delta, probability=q, compositions=k)
    assert epsilon == math.inf


@settings(max_examples=6)
@given(st.floats(0.7, 4), st.floats(0.01, 1), st.integers(1, 40))
@pytest.mark.slow
def test_epsilon_decreases_with_noise_and_increases_with_probability_and_rounds(sigma, q, k):
    def epsilon(noise, probability, compositions):
        return sampled_gaussian_epsilon(
            noise, 1e-6, probability=probability, compositions=compositions
        )

    slack = 1 + 1e-4
    reference = epsilon(sigma, q, k)
    assert reference <= gaussian_epsilon(sigma / math.sqrt(k), 1e-6) * slack
    assert epsilon(1.1 * sigma, q, k) <= reference * slack
    assert reference <= epsilon(sigma, min(1.0, 1.2 * q), k) * slack
    assert reference <= epsilon(sigma, q, k + 5) * slack


@pytest.mark.parametrize(
    ("q", "k", "delta"), [(0.026, 2052, 1e-6), (0.5, 10, 1e-10), (2e-7, 2052, 1e-6)]
)
def test_epsilon_falls_to_zero_with_much_noise(q, k, delta):
    """Earlier the computation failed from noise 1e12 on, and was 0 at 1e8, where delta(0) is above
    delta.

    It also took up to 16 seconds to become 0.
    """
    began = time.process_time()
    noises = [10.0**i for i in range(2, 10)] + [1e30, 1e300]
    epsilons = [sampled_gaussian_epsilon(z, delta, probability=q, compositions=k) for z in noises]
    assert time.process_time() - began < 20  # 1 on an idle machine
    assert all(
        next_epsilon <= previous_epsilon * (1 + 1e-3)
        for previous_epsilon, next_epsilon in itertools.pairwise(epsilons)
    )
    assert epsilons[-1] == 0
    # With so much noise a release is nearly Gaussian, with mean q and the same deviation.
    for z, epsilon in zip(noises, epsilons, strict=True):
        if epsilon == 0:
            assert gaussian_delta(z / (q * math.sqrt(k)), 0.0) <= 1.01 * delta


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the memory in use")
def test_a_tiny_epsilon_needs_no_finer_grid_than_memory_holds():
    # With ten clients of 50 million, a grid of 1e-9 was requested, which takes 58 GiB.
    in_use = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    previous_limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 2 * 10**9, previous_limits[1]))
    try:
        epsilon = sampled_gaussian_epsilon.__wrapped__(
            4.0, 1e-6, probability=2e-7, compositions=2052
        )
    finally:
        resource.setrlimit(resource.RLIMIT_AS, previous_limits)
    assert 0 <= epsilon < 5e-4


@pytest.mark.slow
def test_calibration_is_fast_where_a_client_is_hardly_ever_sampled():
    """Both calibrations once took minutes: a step of the search took seconds, and there were
    hundreds of steps where no noise is needed.
    """
    rare_sampling = CyclicPoisson(population=10**9, cohort_size=1)
    with refusal("delta is at least the probability that a given client is ever sampled"):
        sampled(IdentityMechanism(rounds=24), rare_sampling)  # 24e-9 of 1e-6
    # The total variation bound behind that refusal, and the composition of twice as many releases
    # that needs noise.
    assert sampled_gaussian_epsilon(0.2, 1e-6, probability=1e-9, compositions=1000) == 0
    began = time.process_time()
    sigma = sampled_gaussian_noise_multiplier(2.0, 1e-6, probability=1e-9, compositions=2052)
    assert time.process_time() - began < 60  # 5 on an idle machine
    assert sampled_gaussian_epsilon(sigma, 1e-6, probability=1e-9, compositions=2052) <= 2.0
    # A release without noise reveals the client whenever it is sampled: delta is 2.052e-6, not
    # 1e-6.
    assert -math.expm1(2052 * math.log1p(-1e-9)) > 2e-6


def test_the_search_for_noise_never_ends_above_the_target():
    def steps(sigma):
        """Returns an epsilon with jumps, as from the grid of an accountant."""
        return math.ceil(20 / sigma) / 10

    sigma = least_noise_multiplier(steps, 0.7)
    assert steps(sigma) <= 0.7
    assert sigma <= 20 / 7 * (1 + 1e-4)


# A client contributes 1, or zero in its place (Denisov et al. 2022, Def. J.1). Any contribution of
# the other clients is allowed, and it determines how well a subset of fixed size hides the client.
@pytest.mark.parametrize("contribution", [0.0, 1.0, -1.0])
@pytest.mark.parametrize(("sigma", "population", "size"), [(1.0, 10, 3), (3.0, 4, 2)])
def test_epsilon_of_fixed_size_bounds_concrete_data_sets(contribution, sigma, population, size):
    q = size / population
    delta = 1e-5
    x, cell = grid(sigma)
    # If the client is not sampled, one more of the other clients is.
    not_sampled = stats.norm.pdf(x, contribution, sigma)
    present = q * stats.norm.pdf(x, 1, sigma) + (1 - q) * not_sampled
    zeroed = q * stats.norm.pdf(x, 0, sigma) + (1 - q) * not_sampled
    scheme = CyclicFixedSize(population=population, cohort_size=size, partitions=1)
    epsilon = scheme.epsilon(IdentityMechanism(rounds=1), sigma, delta)
    assert hockey_stick(present, zeroed, epsilon, cell) <= delta
    if (
        contribution == -1.0
    ):  # Negative control: this data set exceeds the bound of Poisson samples.
        poisson = sampled_gaussian_epsilon(sigma, delta, probability=q, compositions=1)
        assert hockey_stick(zeroed, present, poisson, cell) > delta


def test_group_epsilon_of_two_bounds_the_integral_of_two_present_clients():
    sigma = 2.0
    q = 0.3
    delta = 1e-4
    x, cell = grid(sigma)
    density_of_sum = [stats.norm.pdf(x, c, sigma) for c in (0, 1, 2)]
    absent = density_of_sum[0]
    present = (1 - q) ** 2 * absent + 2 * q * (1 - q) * density_of_sum[1]
    present += q**2 * density_of_sum[2]

    def epsilon_at(d):
        return sampled_gaussian_epsilon(sigma, d, probability=q, compositions=1)

    epsilon = group_epsilon(epsilon_at, delta, 2)
    with_larger_delta = group_epsilon(epsilon_at, delta, 2, min_delta=1e-10)
    assert epsilon == pytest.approx(with_larger_delta, rel=1e-5)
    assert hockey_stick(present, absent, epsilon, cell) <= delta
    # No delta of one client is small enough.
    assert group_epsilon(lambda d: 0.1, 1e-10, 2, min_delta=1e-10) == math.inf


ONCE = single(24)
FOUR = banded(24, 1.0, 0.6, 0.36, 0.216)
UNEVEN = MECHANISMS["banded, uneven"](24)  # of 4 bands as well
POISSON = CyclicPoisson(population=1000, cohort_size=20)


def sampled(mechanism, sampling, participation=None, **options):
    """Returns a calibrated plan with sampling."""
    return fedmf.calibrate(
        mechanism, participation, epsilon=2.0, delta=1e-6, sampling=sampling, **options
    )


def test_the_participation_of_a_plan_is_that_of_its_scheme():
    plan = sampled(UNEVEN, POISSON, ONCE)
    assert plan.participation == epochs(24, 4)
    with refusal("is not the participation of CyclicPoisson", naming=[plan.participation]):
        dataclasses.replace(plan, participation=ONCE)


def test_the_event_of_poisson_sampling_is_that_of_example_f1():
    """Banded paper, Cor. F.1, Example F.1: ceil(n / b) samples at the largest column norm."""
    import dp_accounting

    plan = sampled(UNEVEN, POISSON)
    assert plan.sampling.partitions == 4
    largest_norm = np.linalg.norm(plan.mechanism.encoder(), axis=0).max()
    sigma = plan.stddev / largest_norm
    assert per_query_noise_multiplier(plan) == pytest.approx(sigma, rel=1e-12)
    poisson = dp_event(plan).event
    assert isinstance(poisson, dp_accounting.PoissonSampledDpEvent)
    assert (dp_event(plan).count, poisson.sampling_probability) == (6, 20 * 4 / 1000)
    assert poisson.event.noise_multiplier == pytest.approx(sigma, rel=1e-12)
    # Both accountants of dp_accounting read it.
    assert rdp_epsilon(plan) >= plan.epsilon * (1 - 1e-3)


@pytest.mark.parametrize(
    "scheme",
    [
        POISSON,
        CyclicFixedSize(population=1000, cohort_size=20),
        CyclicRandomAllocation(population=480, cohort_size=20),
    ],
)
def test_calibration_meets_the_target_without_much_excess_noise(scheme):
    plan = sampled(FOUR, scheme)
    assert plan.epsilon <= 2.0
    assert dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier * 0.999).epsilon > 2.0
    # No scheme needs more noise than its participation does without secrecy.
    unamplified_multiplier = gaussian_noise_multiplier(2.0, 1e-6) * math.sqrt(6)
    assert per_query_noise_multiplier(plan) <= unamplified_multiplier * (1 + 1e-6)


SCALES = np.linspace(1.0, 1.5, 11)


@pytest.mark.parametrize(
    ("mechanism", "exact"),
    [
        (banded(16, 1.0, 0.6), True),
        (BandedMechanism(diagonals=banded(11, 1.0, 0.6).diagonals * SCALES[:, None]), False),
    ],
    ids=["even", "uneven"],
)
def test_deltas_of_random_allocation_are_those_of_simulated_releases(mechanism, exact):
    """Both deltas of C x + Z itself, for a client of partition 0 that adds 1 in one of 4 rounds of
    each of two epochs, against the queries on its partition (banded paper, Thm. 4, Alg. 7;
    Cor. F.2, with rounds drawn anew).

    They are equal if the columns have the same norm and the epochs their full length; otherwise the
    claim is an upper bound.
    """
    n = mechanism.rounds
    epsilon = 0.5
    samples = 200_000
    plan = sampled(mechanism, CyclicRandomAllocation(population=160, cohort_size=20))
    assert (plan.sampling.positions, plan.sampling.epochs(n)) == (4, 2)
    rng = np.random.default_rng(1)
    noise = unit_noise(plan)
    # Rounds beyond the last one add nothing.
    columns = np.pad(mechanism.encoder(), ((0, 0), (0, 16 - n)))
    rounds = itertools.product(range(0, 8, 2), range(8, 16, 2))
    means = np.array([columns[:, i] + columns[:, j] for i, j in rounds])
    zeroed = noise * rng.standard_normal((samples, n))
    present = means[rng.integers(16, size=samples)] + noise * rng.standard_normal((samples, n))

    def loss(y):
        exponents = (y @ means.T - (means**2).sum(axis=1) / 2) / noise**2
        return special.logsumexp(exponents, axis=1) - math.log(16)

    losses = (loss(present), -loss(zeroed))
    simulated_deltas = [np.maximum(0, -np.expm1(epsilon - x)).mean() for x in losses]
    # Hoeffding: each is further from its mean with probability at most 1e-6.
    error = math.sqrt(math.log(2e6) / (2 * samples))
    multiplier = per_query_noise_multiplier(plan)
    claims = allocation_law(multiplier, 4, 2).deltas(epsilon)
    controls = allocation_law(multiplier, 8, 2).deltas(epsilon)
    for simulated_delta, claim, control in zip(simulated_deltas, claims, controls, strict=True):
        assert simulated_delta <= claim + error
        if exact:
            assert claim - error <= simulated_delta * 1.002
            # Negative control: twice the positions would claim too little.
            assert control < simulated_delta - error


def test_sampling_every_client_gives_no_amplification():
    # App. F.4: with b = m / B all clients are sampled.
    plan = plan_of(None, FOUR, sampling=CyclicPoisson(population=80, cohort_size=20))
    assert plan.sampling.probability == 1
    assert plan.epsilon == pytest.approx(unamplified_epsilon(plan), rel=1e-9)


def test_group_epsilon_without_sampling_is_that_of_a_larger_sensitivity():
    plan = plan_of(ONCE)
    assert plan.group_epsilon(3) == gaussian_epsilon(plan.noise_multiplier / 3, 1e-6)


def test_group_epsilon_with_sampling_grows_faster_than_the_group():
    plan = sampled(FOUR, POISSON)
    epsilon_by_size = {size: plan.group_epsilon(size) for size in (1, 2, 3)}
    assert epsilon_by_size[1] == pytest.approx(plan.epsilon, rel=1e-9)
    assert 2 * epsilon_by_size[1] < epsilon_by_size[2] < epsilon_by_size[3]
    assert epsilon_by_size[3] <= gaussian_epsilon(plan.noise_multiplier / 3, 1e-6)


@pytest.mark.parametrize(
    ("sigma", "label"), [(0.341, 18.9), (0.682, 8.2), (1.364, 3.7), (2.728, 1.7), (5.456, 0.8)]
)
def test_renyi_accounting_reproduces_the_labels_of_denisov(sigma, label):
    # Denisov et al. 2022, Sec. 5: labels by RDP with integer orders, rounded; ours has more orders
    # and is at most as large.
    plan = plan_of(ONCE, noise_multiplier=sigma)
    assert label - 0.5 <= rdp_epsilon(plan) <= label + 0.05
    assert plan.epsilon < rdp_epsilon(plan) == event_rdp_epsilon(dp_event(plan), 1e-6)


def test_bands_are_counted_from_the_entries_of_the_encoder():
    class Boasting(IdentityMechanism):
        def banded_rows(self):
            return None

        def toeplitz_coefficients(self):
            return None

        def encoder(self):
            return FOUR.encoder()

    assert Boasting(rounds=24).bands == 1
    assert plan_of(None, Boasting(rounds=24), sampling=POISSON).sampling.partitions == 4
