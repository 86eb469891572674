"""Updates that depend on earlier releases lose no more privacy than the plan states, except with
noise of another covariance.
"""

import math

import numpy as np
import pytest
import scipy.linalg

from fedmf.audits.whitening import causal_factor
from fedmf.privacy.gaussian import gaussian_delta
from tests.mechanisms.registry import MECHANISMS
from tests.mechanisms.schemas import every_round
from tests.power import FALSE_POSITIVE_RATE, MISS_RATE
from tests.privacy.plans import plan as plan_of

ROUNDS = 6
EPSILON = 0.5
SIGMA = 1.0
CLAIMED = gaussian_delta(SIGMA, EPSILON)
# By Hoeffding, the error of a mean of numbers in [0, 1] exceeds ERROR at the false-positive rate.
# With a tenth less noise an attained delta would be above it by twice as much.
TRIALS = math.ceil(
    2
    * math.log(1 / min(FALSE_POSITIVE_RATE, MISS_RATE))
    / (gaussian_delta(0.9 * SIGMA, EPSILON) - CLAIMED) ** 2
)
ERROR = math.sqrt(math.log(1 / FALSE_POSITIVE_RATE) / (2 * TRIALS))


def delta_of(losses):
    """Estimates delta at EPSILON from privacy losses of the present client, (trials,)."""
    return float(-np.expm1(np.minimum(0.0, EPSILON - losses)).mean())


def losses(N, stddev, choose, rng):
    """Simulates the privacy losses of releases u_t + (N Z)_t, where u_t in [-1, 1] depends on the
    earlier releases. Rows of N may need later draws. The likelihoods are those of L Z, L
    lower-triangular.
    """
    releases = stddev * N @ rng.standard_normal((N.shape[1], TRIALS))
    u = np.zeros_like(releases)
    for t in range(ROUNDS):
        u[t] = choose(releases[:t])
        releases[t] += u[t]
    mean, output = (
        scipy.linalg.solve_triangular(causal_factor(N), values / stddev, lower=True)
        for values in (u, releases)
    )
    return (mean * output).sum(axis=0) - (mean**2).sum(axis=0) / 2


def sign_of_last_release(releases):
    """Returns the update with the sign of the last release."""
    return np.sign(releases[-1]) if len(releases) else 1.0


@pytest.mark.parametrize("name", ["identity", "banded", "tree full", "fft plain"])
def test_adaptive_updates_lose_no_more_than_the_plan_states(name):
    """Also where N is not causal (Denisov et al. 2022, Thm. 2.1; multi-epoch paper, Thm. 2.2)."""
    mechanism = MECHANISMS[name](ROUNDS)
    everywhere = every_round(ROUNDS)
    plan = plan_of(
        mechanism=mechanism, participation=everywhere, noise_multiplier=SIGMA, clip_norm=1.0
    )
    rng = np.random.default_rng(5)
    delta = delta_of(losses(mechanism.noising(), plan.stddev, sign_of_last_release, rng))
    assert delta <= CLAIMED + ERROR
    if name == "identity":
        # All signs attain its sensitivity.
        assert delta >= CLAIMED - ERROR


@pytest.mark.parametrize("adaptive", [False, True])
def test_noise_whose_covariance_depends_on_a_draw_loses_more(adaptive):
    """The negative control is App. D.1 of Denisov et al.: its second release has little noise along
    the first one. That is private for fixed updates (Denisov et al. 2022, Prop. D.1), and not for
    updates that depend on the first release (Denisov et al. 2022, Prop. D.2).
    """
    d = 5000
    eta = 0.2
    rng = np.random.default_rng(6)
    # An update of norm 1 has this share along the first release, and the remainder has noise 1.
    share = 1.0 if adaptive else rng.beta(0.5, (d - 1) / 2, TRIALS)
    squared_shift = (1.0 - share + share / eta**2) / SIGMA**2
    losses = np.sqrt(squared_shift) * rng.standard_normal(TRIALS) + squared_shift / 2
    assert (delta_of(losses) <= CLAIMED + ERROR) != adaptive
