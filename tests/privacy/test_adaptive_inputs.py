"""Inputs that are chosen from earlier releases show no more than the plan says; of other noise they
do.
"""

import math

import numpy as np
import pytest
import scipy.linalg

from fedmf.audits.noise import causal_factor
from fedmf.privacy.gaussian import gaussian_delta
from tests.mechanisms.registry import MECHANISMS
from tests.mechanisms.schemas import every_round
from tests.power import FALSE_POSITIVE_RATE, MISS_RATE
from tests.privacy.plans import plan as plan_of

ROUNDS, EPSILON, SIGMA = 6, 0.5, 1.0
CLAIMED = gaussian_delta(SIGMA, EPSILON)
# Hoeffding: a mean of numbers in [0, 1] is further off than ERROR with the rate of false positives.
# With a tenth less noise a delta that was attained would be twice as far above it.
TRIALS = math.ceil(
    2
    * math.log(1 / min(FALSE_POSITIVE_RATE, MISS_RATE))
    / (gaussian_delta(0.9 * SIGMA, EPSILON) - CLAIMED) ** 2
)
ERROR = math.sqrt(math.log(1 / FALSE_POSITIVE_RATE) / (2 * TRIALS))


def delta_of(losses):
    """Of EPSILON, from privacy losses of the present client, (trials,)."""
    return float(-np.expm1(np.minimum(0.0, EPSILON - losses)).mean())


def losses(N, stddev, choose, rng):
    """Of releases u_t + (N Z)_t, u_t in [-1, 1] by the releases before; rows of N may need later
    draws. Their likelihoods are those of L Z, L lower-triangular.
    """
    releases = stddev * N @ rng.standard_normal((N.shape[1], TRIALS))
    u = np.zeros_like(releases)
    for t in range(ROUNDS):
        u[t] = choose(releases[:t])
        releases[t] += u[t]
    mean, seen = (
        scipy.linalg.solve_triangular(causal_factor(N), each / stddev, lower=True)
        for each in (u, releases)
    )
    return (mean * seen).sum(axis=0) - (mean**2).sum(axis=0) / 2


def against_the_last(releases):
    """A sign that is drawn by nobody: that of the last release."""
    return np.sign(releases[-1]) if len(releases) else 1.0


@pytest.mark.parametrize("name", ["identity", "banded", "tree full", "fft plain"])
def test_adaptive_inputs_show_no_more_than_the_plan_says(name):
    """Also where N is not causal (Denisov et al. 2022, Thm. 2.1; multi-epoch paper, Thm. 2.2)."""
    mechanism = MECHANISMS[name](ROUNDS)
    everywhere = every_round(ROUNDS)
    plan = plan_of(
        mechanism=mechanism, participation=everywhere, noise_multiplier=SIGMA, clip_norm=1.0
    )
    rng = np.random.default_rng(5)
    found = delta_of(losses(mechanism.noising(), plan.stddev, against_the_last, rng))
    assert found <= CLAIMED + ERROR
    if name == "identity":  # whose sensitivity all signs attain
        assert found >= CLAIMED - ERROR


@pytest.mark.parametrize("adaptive", [False, True])
def test_noise_whose_covariance_depends_on_a_draw_shows_more(adaptive):
    """The control, App. D.1 of Denisov et al.: its second release has little noise along the first
    one. That is private for inputs that are fixed (Denisov et al. 2022, Prop. D.1), and not for
    those that follow the first release (Denisov et al. 2022, Prop. D.2).
    """
    d, eta, rng = 5000, 0.2, np.random.default_rng(6)
    # Of an input of norm 1 with a share along the first release: the rest has noise 1.
    share = 1.0 if adaptive else rng.beta(0.5, (d - 1) / 2, TRIALS)
    squared = (1.0 - share + share / eta**2) / SIGMA**2
    losses = np.sqrt(squared) * rng.standard_normal(TRIALS) + squared / 2
    assert (delta_of(losses) <= CLAIMED + ERROR) != adaptive
