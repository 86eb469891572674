"""Plans: the noise of a target, the epsilon of a noise, and simulations of larger cohorts."""

import dataclasses
import itertools
import json
import math
import re
import time

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmf
from fedmf.mechanisms import BandedMechanism, DenseMechanism, IdentityMechanism
from fedmf.privacy.describe import plan_summary, statement_values
from fedmf.privacy.gaussian import gaussian_delta, gaussian_epsilon
from fedmf.privacy.plan import cohort_scale, dp_event, rdp_epsilon
from tests.mechanisms.schemas import separated, single
from tests.privacy import plans
from tests.refusals import refusal

SINGLE = single(4)
ONE = IdentityMechanism(rounds=4)
TWICE = separated(4, 2)
UNEVEN = BandedMechanism(diagonals=[[2.0, 0.0], [1.0, 0.5], [1.0, 0.5], [3.0, 0.5]])
NAN = float("nan")
INF = float("inf")

# (epsilon, delta) over the whole range that people ask for, and beyond.
TARGETS = [
    *itertools.product((0.01, 0.3, 1.0, 8.0), (1e-12, 1e-6, 0.1)),
    (1e-5, 1e-6),
    (30.0, 1e-12),
    (50.0, 0.1),
]


def oracle_delta(noise_multiplier, epsilon):
    """Computes delta of a Gaussian with sensitivity 1 to 60 digits (Balle and Wang 2018, Theorem
    8).
    """
    with mpmath.workdps(60):
        sigma = mpmath.mpf(noise_multiplier)
        eps = mpmath.mpf(epsilon)
        return mpmath.ncdf(1 / (2 * sigma) - eps * sigma) - mpmath.exp(eps) * mpmath.ncdf(
            -1 / (2 * sigma) - eps * sigma
        )


def oracle_noise_multiplier(epsilon, delta):
    """Computes the least noise for (epsilon, delta) by bisection."""
    with mpmath.workdps(60):
        low = mpmath.mpf("1e-3")
        high = mpmath.mpf("1e7")
        for _ in range(60):
            middle = mpmath.sqrt(low * high)
            if oracle_delta(middle, epsilon) > delta:
                low = middle
            else:
                high = middle
        return high


def plan(**changes):
    """Returns a plan of the identity with two participations."""
    return plans.plan(**{"participation": TWICE, "mechanism": ONE, **changes})


def test_rho_follows_from_the_largest_column():
    """zCDP (Denisov et al. 2022, Def. J.2; Bun and Steinke 2016, Prop. 1.6): noise of variance
    gamma^2 zeta^2 / (2 rho) (Denisov et al. 2022, Thm. 3.1).
    """
    uneven_plan = plan(mechanism=UNEVEN, participation=SINGLE, noise_multiplier=0.7, clip_norm=3.0)
    gamma = np.linalg.norm(UNEVEN.encoder(), axis=0).max()
    variance = gamma**2 * 3.0**2 / (2 * uneven_plan.rho)
    assert uneven_plan.stddev**2 == pytest.approx(variance, rel=1e-12)


class TestClosedForm:
    @settings(max_examples=300)
    @given(st.floats(-2.5, 4).map(lambda x: 10**x), st.floats(0, 300))
    def test_delta_agrees_with_sixty_digits(self, sigma, epsilon):
        expected = float(oracle_delta(sigma, epsilon))
        # The two terms of the difference are each good to 1e-15 and at most 1; log_ndtr and exp
        # lose as many digits again as their exponent has.
        rounding = 4e-16 * (4 + (epsilon * sigma) ** 2 + 1 / sigma**2 + epsilon)
        first_term = float(mpmath.ncdf(1 / (2 * mpmath.mpf(sigma)) - mpmath.mpf(epsilon) * sigma))
        assert gaussian_delta(sigma, epsilon) == pytest.approx(
            expected, rel=0, abs=rounding * first_term + 1e-300
        )

    def test_the_tolerance_excludes_a_wrong_sign(self):
        # Negative control: a one-sided tail alone, without the subtraction, is far outside.
        sigma = 1.0
        epsilon = 1.0
        one_sided = float(mpmath.ncdf(1 / (2 * sigma) - epsilon * sigma))
        assert one_sided > 2 * gaussian_delta(sigma, epsilon)


class TestCalibration:
    @pytest.mark.parametrize(("epsilon", "delta"), TARGETS)
    def test_calibration_meets_the_target_with_little_excess_noise(self, epsilon, delta):
        calibrated = fedmf.calibrate(ONE, TWICE, epsilon=epsilon, delta=delta, clip_norm=3.0)
        assert calibrated.clip_norm == 3.0
        assert calibrated.epsilon <= epsilon
        sigma = calibrated.noise_multiplier
        # gaussian_delta, which ends the search, has a relative error of about 1e-13 here.
        assert oracle_delta(sigma, epsilon) <= delta * (1 + 1e-12)
        excess = float(sigma / oracle_noise_multiplier(epsilon, delta) - 1)
        assert excess < (1e-4 if epsilon >= 0.01 else 1e-3)
        # In return, this noise has the target as its epsilon.
        assert gaussian_epsilon(sigma, delta) == pytest.approx(epsilon, rel=2e-4)

    @pytest.mark.parametrize(
        ("epsilon", "delta"), [(50.0, 1e-10), (300.0, 1e-12), (300.0, 0.1), (4900.0, 1e-6)]
    )
    def test_noise_that_no_source_can_draw_is_refused(self, epsilon, delta):
        once = fedmf.Participation(rounds=ONE.rounds, schema="single")
        with refusal("draws of at most 12.06 standard deviations"):
            fedmf.calibrate(ONE, once, epsilon=epsilon, delta=delta)


class TestEpsilon:
    @pytest.mark.parametrize("delta", [1e-15, 1e-6, 0.9])
    @pytest.mark.parametrize(
        "sigma",
        [0.0, 5e-324, 1e-200, 1e-3, 0.011, 0.05, 0.3, 3.0, 1e3, 1e6, 1e12, 1e150, 1e200, 1e308],
    )
    def test_epsilon_of_extreme_noise_is_an_upper_bound_within_seconds(self, sigma, delta):
        start_time = time.perf_counter()
        epsilon = gaussian_epsilon(sigma, delta)
        assert time.perf_counter() - start_time < 15
        assert epsilon >= 0
        if math.isfinite(epsilon):
            # The pair (epsilon, delta) is met. 1e-9 of epsilon is the accountant's own rounding.
            assert oracle_delta(sigma, epsilon * (1 + 1e-9)) <= delta
        else:
            assert sigma < 0.011

    def test_epsilon_without_noise_is_infinite(self):
        noiseless = plan(noise_multiplier=-0.0)
        assert math.copysign(1, noiseless.noise_multiplier) == 1
        assert (noiseless.epsilon, noiseless.rho, noiseless.stddev) == (INF, INF, 0)
        assert type(dp_event(noiseless)).__name__ == "NonPrivateDpEvent"
        assert plan_summary(noiseless)["epsilon"] is plan_summary(noiseless)["rho"] is None
        assert {plan(noise_multiplier=sigma).rho for sigma in (5e-324, 1e-200)} == {INF}
        assert {plan(noise_multiplier=sigma).rho for sigma in (1e200, 1e308)} == {0.0}


class TestPlan:
    # Sensitivities by hand: the largest two columns, two rounds apart.
    @pytest.mark.parametrize(
        ("mechanism", "expected"),
        [
            (ONE, math.sqrt(2)),
            (UNEVEN, math.sqrt(4.25 + 9.0)),
        ],
        ids=["identity", "banded"],
    )
    def test_stddev_is_the_product_of_multiplier_sensitivity_and_clip_norm(
        self, mechanism, expected
    ):
        scaled_plan = plan(mechanism=mechanism, noise_multiplier=0.7, clip_norm=3.0)
        assert scaled_plan.sensitivity.value == pytest.approx(expected, rel=1e-14)
        assert scaled_plan.stddev == pytest.approx(0.7 * expected * 3.0, rel=1e-14)
        assert dp_event(scaled_plan).noise_multiplier == 0.7

    def test_a_simulation_has_the_noise_and_the_guarantee_of_the_claimed_cohort(self):
        claimed_plan = plan()
        simulating_plan = claimed_plan.simulating(simulated=np.int64(10), claimed=100)
        assert simulating_plan.stddev == pytest.approx(claimed_plan.stddev / 10, rel=1e-14)
        # The noise on the mean is that of the claimed cohort.
        assert simulating_plan.stddev / 10 == pytest.approx(claimed_plan.stddev / 100, rel=1e-14)
        assert simulating_plan.noise_multiplier == 2.0
        assert (simulating_plan.epsilon, simulating_plan.rho) == (
            claimed_plan.epsilon,
            claimed_plan.rho,
        )
        summary = json.loads(json.dumps(plan_summary(simulating_plan), allow_nan=False))
        assert (summary["simulated_cohort"], summary["claimed_cohort"]) == (10, 100)
        assert summary["stddev"] == simulating_plan.stddev
        assert summary["sensitivity"]["value"] == claimed_plan.sensitivity.value
        assert summary["neighbouring_relation"] == "zero-out"
        assert type(simulating_plan.simulation.simulated) is int
        assert cohort_scale(claimed_plan) == 1
        assert claimed_plan.simulation is None

    def test_a_simulation_with_a_budget_states_the_clients_that_it_needs(self):
        # A budget of two rounds: nobody is in more than 2 of 8.
        budget = fedmf.Participation(rounds=8, schema="budget", budget=2**0.5)
        claimed_plan = plan(participation=budget, mechanism=IdentityMechanism(rounds=8))
        simulating_plan = claimed_plan.simulating(simulated=10, claimed=100)
        simulation = statement_values(simulating_plan, population=300)["simulation"]
        assert simulation["population_needed"] == 400

    @pytest.mark.parametrize(
        ("scale", "clip_norm", "sigma"),
        [
            # Of an encoder of 1e46 N has rows of 1e-46: TensorFlow would make them 0.
            (1e-31, 0.5, 2.0),
            (1e31, 0.5, 2.0),
            (1, 1e-30, 1e-10),
            (1, 1e30, 1e10),
            (1, 5e-324, 0.65),
            (1e25, 1e-20, 1e-20),
            # Two clients of 2e38 are infinite, and of noise of 1e-37 nearly every draw is below
            # what float32 holds to its full precision.
            (1, 1e38, 0.5),
            (1, 1e30, 0.5),
            (1, 1e-31, 0.5),
        ],
    )
    def test_noise_that_float32_cannot_hold_is_refused(self, scale, clip_norm, sigma):
        extreme_plan = plan(
            mechanism=DenseMechanism(matrix=np.eye(4) * scale),
            clip_norm=clip_norm,
            noise_multiplier=sigma,
        )
        words = f"clip_norm={re.escape(str(clip_norm))}, noise_multiplier={sigma} and"
        with refusal(f"{words}.*float32.*rescale the updates.*or divide the encoder"):
            _ = extreme_plan.stddev
        assert dataclasses.replace(extreme_plan, noise_multiplier=0.0).stddev == 0

    @pytest.mark.parametrize("noise", [1e30, 1e200, 1e308])
    def test_much_noise_has_an_epsilon_of_0(self, noise):
        noisy_plan = plan(noise_multiplier=noise)
        assert noisy_plan.epsilon == 0
        assert rdp_epsilon(noisy_plan) == 0
        assert noisy_plan.group_epsilon(3) == 0

    @pytest.mark.parametrize("scale", [1e-29, 1e29])
    def test_a_scaled_encoder_needs_the_same_noise(self, scale):
        """The noise added to the sum is N Z times stddev."""
        C = np.tril(np.ones((4, 4)))
        unscaled = plan(mechanism=DenseMechanism(matrix=C))
        scaled_plan = plan(mechanism=DenseMechanism(matrix=C * scale))
        # Some kernels round entries that are 0 to 1e-16.
        noise = unscaled.mechanism.noising() * unscaled.stddev
        np.testing.assert_allclose(
            scaled_plan.mechanism.noising() * scaled_plan.stddev, noise, rtol=1e-12, atol=1e-12
        )


POISSON = fedmf.CyclicPoisson(population=100_000, cohort_size=100)


def test_a_sampled_simulation_is_accounted_for_the_claimed_cohort():
    """With the sampling of the small cohort the epsilon of the claimed one came out several times
    too small.
    """
    claimed_scheme = dataclasses.replace(POISSON, cohort_size=1000)
    claimed_plan = plan(participation=None, sampling=claimed_scheme)
    simulating_plan = claimed_plan.simulating(simulated=100, claimed=1000)
    assert simulating_plan.epsilon == claimed_plan.epsilon
    assert simulating_plan.epsilon > 3 * plan(participation=None, sampling=POISSON).epsilon
