"""Plans that a source cannot serve."""

import numpy as np
import pytest
import scipy.stats

from fedmf.mechanisms import IdentityMechanism
from fedmf.server.source import LARGEST
from fedmf.server.state import check_tail
from tests.refusals import refusal
from tests.server.plans import plan_of


def plan(noise_multiplier, delta):
    return plan_of(IdentityMechanism(rounds=4), noise_multiplier=noise_multiplier, delta=delta)


def chance(noise_multiplier, end, draws=2_000_000):
    """That a pair with the client's shift is further out than `end`: a mean over angles of the
    radius's tail.
    """
    a, angle = 1 / noise_multiplier, (np.arange(draws) + 0.5) * np.pi / draws
    # Along a ray at this angle the density integrates to a Gaussian's tail and a boundary term.
    along, across = a * np.cos(angle), a * np.sin(angle)
    tail = np.exp(-((end - along) ** 2) / 2) + np.sqrt(2 * np.pi) * along * scipy.stats.norm.sf(
        end - along
    )
    return float(np.mean(np.exp(-(across**2) / 2) * tail))


@pytest.mark.parametrize("noise_multiplier", [0.2, 0.3, 0.5])
def test_a_delta_that_the_end_of_the_tail_would_break_is_refused(noise_multiplier):
    end = 9.49
    exact = chance(noise_multiplier, end)
    # Of an entry alone it would be too little.
    assert exact > 1.2 * scipy.stats.norm.sf(end - 1 / noise_multiplier)
    # The bound is twice that of one pair.
    check_tail(plan(noise_multiplier, 20.01 * exact), end, entries=2)
    with refusal("no draw passes 9.49 standard deviations"):
        check_tail(plan(noise_multiplier, max(1e-15, 9.99 * exact)), end, entries=2)


def test_a_shift_that_is_spread_over_many_draws_counts():
    check_tail(plan(1.0, 1e-15), 9.49, entries=1000)
    with refusal("delta=1e-15"):
        check_tail(plan(1.0, 1e-15), 9.49, entries=4_000_000 * 2000)


def test_the_host_serves_every_plan_that_protects_anybody():
    for delta, noise_multiplier in ((1e-15, 0.3), (1e-10, 0.2), (1e-6, 0.16)):
        assert plan(noise_multiplier, delta).epsilon > 30
        check_tail(plan(noise_multiplier, delta), LARGEST, entries=10**12)
