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
from fedmf.privacy.amplification import (
    event_rdp_epsilon,
    group_epsilon,
    least_noise_multiplier,
    sampled_gaussian_epsilon,
    sampled_gaussian_noise_multiplier,
)
from fedmf.privacy.gaussian import gaussian_delta, gaussian_epsilon, gaussian_noise_multiplier
from fedmf.privacy.plan import (
    dp_event,
    per_query_noise_multiplier,
    rdp_epsilon,
    unamplified_epsilon,
    unit_noise,
)
from fedmf.privacy.random_allocation import allocation_law
from fedmf.privacy.sampling import CyclicFixedSize, CyclicPoisson, CyclicRandomAllocation
from tests.mechanisms.registry import MECHANISMS
from tests.mechanisms.schemas import epochs, single
from tests.privacy.plans import banded
from tests.privacy.plans import plan as plan_of
from tests.refusals import refusal


def hockey_stick(p, q, epsilon, cell):
    """max over both directions of the integral of (p - exp(epsilon) q)+,
    densities on a grid of cells.
    """
    growth = math.exp(epsilon)
    return cell * max(np.maximum(p - growth * q, 0).sum(), np.maximum(q - growth * p, 0).sum())


def grid(sigma, cells=6000):
    x = np.linspace(-1 - 9 * sigma, 2 + 9 * sigma, cells)
    return x, x[1] - x[0]


@pytest.mark.parametrize(
    ("sigma", "q", "k"),
    [(0.6, 0.3, 1), (1.0, 0.05, 1), (0.8, 0.9, 1), (1.1, 0.2, 2)],
)
def test_samples_against_the_integral(sigma, q, k):
    # The definition: a client's 1 is there with probability q, or never; no accountant is involved.
    x, cell = grid(sigma, 6000 if k == 1 else 1500)
    without = stats.norm.pdf(x, 0, sigma)
    present = q * stats.norm.pdf(x, 1, sigma) + (1 - q) * without
    if k == 2:
        present, without, cell = np.outer(present, present), np.outer(without, without), cell**2
    delta = 1e-5 if k == 1 else 1e-4
    epsilon = sampled_gaussian_epsilon(sigma, delta, probability=q, compositions=k)
    assert hockey_stick(present, without, epsilon, cell) <= delta * 1.0001
    assert hockey_stick(present, without, 0.995 * epsilon, cell) > delta


@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_composed_deltas_are_above_the_closed_form(sigma):
    """Nearly everybody is drawn: so many releases are one of sigma, whose delta is known."""
    k = 2052
    almost, each = 1 - 1e-13, sigma * math.sqrt(k)
    for delta in (1e-6, 1e-8, 1e-10):
        epsilon = sampled_gaussian_epsilon(each, delta, probability=almost, compositions=k)
        assert gaussian_delta(sigma, epsilon) <= delta
    assert sampled_gaussian_epsilon(each, 9.9e-11, probability=almost, compositions=k) == math.inf


@settings(max_examples=6)
@given(st.floats(0.7, 4), st.floats(0.01, 1), st.integers(1, 40))
@pytest.mark.slow
def test_sampling_never_costs_and_more_noise_never_harms(sigma, q, k):
    def epsilon(noise, probability, compositions):
        given = {"probability": probability, "compositions": compositions}
        return sampled_gaussian_epsilon(noise, 1e-6, **given)

    here, slack = epsilon(sigma, q, k), 1 + 1e-4
    assert here <= gaussian_epsilon(sigma / math.sqrt(k), 1e-6) * slack
    assert epsilon(1.1 * sigma, q, k) <= here * slack
    assert here <= epsilon(sigma, min(1.0, 1.2 * q), k) * slack
    assert here <= epsilon(sigma, q, k + 5) * slack


@pytest.mark.parametrize(
    ("q", "k", "delta"), [(0.026, 2052, 1e-6), (0.5, 10, 1e-10), (2e-7, 2052, 1e-6)]
)
def test_much_noise_has_a_small_epsilon_and_none_at_last(q, k, delta):
    """It failed from 1e12 on, was 0 at 1e8 where delta(0) is above delta, and took up to 16 seconds
    to be 0.
    """
    began = time.process_time()
    noises = [10.0**i for i in range(2, 10)] + [1e30, 1e300]
    epsilons = [sampled_gaussian_epsilon(z, delta, probability=q, compositions=k) for z in noises]
    assert time.process_time() - began < 20  # 1 on an idle machine
    assert all(more <= less * (1 + 1e-3) for less, more in itertools.pairwise(epsilons))
    assert epsilons[-1] == 0
    # Of so much noise a release is nearly Gaussian, with a mean of q and the same deviation.
    for z, epsilon in zip(noises, epsilons, strict=True):
        if epsilon == 0:
            assert gaussian_delta(z / (q * math.sqrt(k)), 0.0) <= 1.01 * delta


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells and limits what is in use")
def test_an_epsilon_of_almost_nothing_needs_no_finer_grid_than_memory_holds():
    # Ten clients of 50 million: it was asked for a grid of 1e-9, and 58 GiB.
    given = {"probability": 2e-7, "compositions": 2052}
    in_use = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 2 * 10**9, before[1]))
    try:
        epsilon = sampled_gaussian_epsilon.__wrapped__(4.0, 1e-6, **given)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert 0 <= epsilon < 5e-4


@pytest.mark.slow
def test_a_client_that_is_hardly_ever_drawn():
    """Both took minutes: one step of the search took seconds, and where no noise is needed there
    were hundreds.
    """
    many = CyclicPoisson(population=10**9, cohort_size=1)
    with refusal("delta is at least the probability that a given client is ever sampled"):
        sampled(IdentityMechanism(rounds=24), many)  # 24e-9 of 1e-6
    # The total variation bound behind that refusal, and the composition of twice as many releases
    # that needs noise.
    assert sampled_gaussian_epsilon(0.2, 1e-6, probability=1e-9, compositions=1000) == 0
    began = time.process_time()
    sigma = sampled_gaussian_noise_multiplier(2.0, 1e-6, probability=1e-9, compositions=2052)
    assert time.process_time() - began < 60  # 5 on an idle machine
    assert sampled_gaussian_epsilon(sigma, 1e-6, probability=1e-9, compositions=2052) <= 2.0
    # A release without noise tells that the client is there whenever it is drawn: delta is
    # 2.052e-6, not 1e-6.
    assert -math.expm1(2052 * math.log1p(-1e-9)) > 2e-6


def test_search_never_ends_on_the_wrong_side():
    steps = lambda sigma: math.ceil(20 / sigma) / 10  # noqa: E731  jumps, as an accountant's grid makes them
    sigma = least_noise_multiplier(steps, 0.7)
    assert steps(sigma) <= 0.7
    assert sigma <= 20 / 7 * (1 + 1e-4)


# A client, or zeros in its place (Denisov et al. 2022, Def. J.1). What the others contribute
# decides how well a subset of fixed size hides it: all y of these are allowed.
@pytest.mark.parametrize("others", [0.0, 1.0, -1.0])
@pytest.mark.parametrize(("sigma", "part", "size"), [(1.0, 10, 3), (3.0, 4, 2)])
def test_fixed_size_is_above_what_a_concrete_data_set_shows(others, sigma, part, size):
    q, delta = size / part, 1e-5
    x, cell = grid(sigma)
    # One more of the others is drawn in the client's place
    elsewhere = stats.norm.pdf(x, others, sigma)
    present = q * stats.norm.pdf(x, 1, sigma) + (1 - q) * elsewhere
    zeroed = q * stats.norm.pdf(x, 0, sigma) + (1 - q) * elsewhere
    scheme = CyclicFixedSize(population=part, cohort_size=size, partitions=1)
    epsilon = scheme.epsilon(IdentityMechanism(rounds=1), sigma, delta)
    assert hockey_stick(present, zeroed, epsilon, cell) <= delta
    if others == -1.0:  # the control: these show more than a Poisson sample would
        poisson = sampled_gaussian_epsilon(sigma, delta, probability=q, compositions=1)
        assert hockey_stick(zeroed, present, poisson, cell) > delta


def test_group_of_two_is_above_what_two_present_clients_show():
    sigma, q, delta = 2.0, 0.3, 1e-4
    x, cell = grid(sigma)
    without, one, both = (stats.norm.pdf(x, c, sigma) for c in (0, 1, 2))
    present = (1 - q) ** 2 * without + 2 * q * (1 - q) * one + q**2 * both

    def of_one(d):
        return sampled_gaussian_epsilon(sigma, d, probability=q, compositions=1)

    epsilon = group_epsilon(of_one, delta, 2)
    assert epsilon == pytest.approx(group_epsilon(of_one, delta, 2, min_delta=1e-10), rel=1e-5)
    assert hockey_stick(present, without, epsilon, cell) <= delta
    # No delta of one client is small enough.
    assert group_epsilon(lambda d: 0.1, 1e-10, 2, min_delta=1e-10) == math.inf


ONCE = single(24)
FOUR = banded(24, 1.0, 0.6, 0.36, 0.216)
UNEVEN = MECHANISMS["banded, uneven"](24)  # of 4 bands as well
POISSON = CyclicPoisson(population=1000, cohort_size=20)


def sampled(mechanism, sampling, participation=None, **options):
    return fedmf.calibrate(
        mechanism, participation, epsilon=2.0, delta=1e-6, sampling=sampling, **options
    )


def test_the_plan_guarantees_what_the_scheme_keeps_to():
    plan = sampled(UNEVEN, POISSON, ONCE)
    assert plan.participation == epochs(24, 4)
    with refusal("is not the participation of CyclicPoisson", naming=[plan.participation]):
        dataclasses.replace(plan, participation=ONCE)


def test_event_is_that_of_example_f1():
    """Banded paper, Cor. F.1, Example F.1: ceil(n / b) samples at the largest column norm."""
    import dp_accounting

    plan = sampled(UNEVEN, POISSON)
    assert plan.sampling.partitions == 4
    largest = np.linalg.norm(plan.mechanism.encoder(), axis=0).max()
    sigma = plan.stddev / largest
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
def test_calibration_is_never_weaker_than_asked_nor_much_stronger(scheme):
    plan = sampled(FOUR, scheme)
    assert plan.epsilon <= 2.0
    assert dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier * 0.999).epsilon > 2.0
    # No scheme costs more than keeping to it would without secrecy.
    alone = gaussian_noise_multiplier(2.0, 1e-6) * math.sqrt(6)
    assert per_query_noise_multiplier(plan) <= alone * (1 + 1e-6)


SCALES = np.linspace(1.0, 1.5, 11)


@pytest.mark.parametrize(
    ("mechanism", "exact"),
    [
        (banded(16, 1.0, 0.6), True),
        (BandedMechanism(diagonals=banded(11, 1.0, 0.6).diagonals * SCALES[:, None]), False),
    ],
    ids=["even", "uneven"],
)
def test_places_drawn_anew_are_what_a_simulation_sees(mechanism, exact):
    """Both deltas of C x + Z itself, for a client of part 0 that adds 1 in one of 4 rounds of each
    of two epochs, against what queries on its part show (banded paper, Thm. 4, Alg. 7; Cor. F.2,
    with places drawn anew).

    Exact where the columns have one norm and the epochs their full length; otherwise at most what
    is claimed.
    """
    n, epsilon, samples = mechanism.rounds, 0.5, 200_000
    plan = sampled(mechanism, CyclicRandomAllocation(population=160, cohort_size=20))
    assert (plan.sampling.positions, plan.sampling.epochs(n)) == (4, 2)
    rng, noise = np.random.default_rng(1), unit_noise(plan)
    columns = np.pad(
        mechanism.encoder(), ((0, 0), (0, 16 - n))
    )  # rounds beyond the last add nothing
    means = np.array(
        [columns[:, i] + columns[:, j] for i in range(0, 8, 2) for j in range(8, 16, 2)]
    )
    zeroed = noise * rng.standard_normal((samples, n))
    present = means[rng.integers(16, size=samples)] + noise * rng.standard_normal((samples, n))

    def loss(y):
        exponents = (y @ means.T - (means**2).sum(axis=1) / 2) / noise**2
        return special.logsumexp(exponents, axis=1) - math.log(16)

    seen = [np.maximum(0, -np.expm1(epsilon - x)).mean() for x in (loss(present), -loss(zeroed))]
    # Hoeffding: each is further from its mean with probability at most 1e-6
    error = math.sqrt(math.log(2e6) / (2 * samples))
    query = per_query_noise_multiplier(plan)
    claimed, of_eight = (allocation_law(query, places, 2).deltas(epsilon) for places in (4, 8))
    for found, claim, control in zip(seen, claimed, of_eight, strict=True):
        assert found <= claim + error
        if exact:
            assert claim - error <= found * 1.002
            assert control < found - error  # twice the places would claim too little


def test_every_client_every_round_is_no_amplification():
    # App. F.4: with b = m / B the sample is everybody.
    plan = plan_of(None, FOUR, sampling=CyclicPoisson(population=80, cohort_size=20))
    assert plan.sampling.probability == 1
    assert plan.epsilon == pytest.approx(unamplified_epsilon(plan), rel=1e-9)


def test_group_without_sampling_is_the_gaussian_of_a_larger_sensitivity():
    plan = plan_of(ONCE)
    assert plan.group_epsilon(3) == gaussian_epsilon(plan.noise_multiplier / 3, 1e-6)


def test_group_with_sampling_is_above_the_single_client():
    plan = sampled(FOUR, POISSON)
    one, two, three = (plan.group_epsilon(g) for g in (1, 2, 3))
    assert one == pytest.approx(plan.epsilon, rel=1e-9)
    assert 2 * one < two < three <= gaussian_epsilon(plan.noise_multiplier / 3, 1e-6)


@pytest.mark.parametrize(
    ("sigma", "label"), [(0.341, 18.9), (0.682, 8.2), (1.364, 3.7), (2.728, 1.7), (5.456, 0.8)]
)
def test_renyi_accounting_gives_the_labels_of_denisov(sigma, label):
    # Denisov et al. 2022, Sec. 5: labels by RDP with integer orders, rounded; ours has more orders
    # and is at most as large.
    plan = plan_of(ONCE, noise_multiplier=sigma)
    assert label - 0.5 <= rdp_epsilon(plan) <= label + 0.05
    assert plan.epsilon < rdp_epsilon(plan) == event_rdp_epsilon(dp_event(plan), 1e-6)


def test_bands_are_read_from_the_entries():
    class Boasting(IdentityMechanism):
        def banded_rows(self):
            return None

        def toeplitz_coefficients(self):
            return None

        def encoder(self):
            return FOUR.encoder()

    assert Boasting(rounds=24).bands == 1
    assert plan_of(None, Boasting(rounds=24), sampling=POISSON).sampling.partitions == 4
