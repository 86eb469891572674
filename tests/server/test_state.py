"""Plans that a source cannot serve."""

import pytest
import scipy.stats

from fedmf.mechanisms import IdentityMechanism
from fedmf.server.source import LARGEST
from fedmf.server.state import check_tail
from tests.server.plans import plan_of


@pytest.mark.parametrize("noise_multiplier", [0.2, 0.4, 1.0, 5.0])
def test_a_delta_that_the_end_of_the_tail_would_break_is_refused(noise_multiplier):
    """The chance that the noise with the client's shift passes the largest noise there is, from the definition."""
    excess = scipy.stats.norm(loc=1 / noise_multiplier).sf(9.49)
    for delta in (max(1e-15, 11 * excess), 1e-6):
        if delta > 10 * excess:
            check_tail(plan_of(IdentityMechanism(rounds=4), noise_multiplier=noise_multiplier, delta=delta), 9.49)
    low = plan_of(IdentityMechanism(rounds=4), noise_multiplier=noise_multiplier, delta=max(1e-15, 9 * excess))
    if low.delta < 10 * excess:
        with pytest.raises(ValueError, match="no draw passes 9.49 standard deviations"):
            check_tail(low, 9.49)
    else:
        assert noise_multiplier >= 1


def test_the_host_serves_every_plan_that_protects_anybody():
    for delta, noise_multiplier in ((1e-15, 0.3), (1e-10, 0.2), (1e-6, 0.16)):
        plan = plan_of(IdentityMechanism(rounds=4), noise_multiplier=noise_multiplier, delta=delta)
        assert plan.epsilon > 30
        check_tail(plan, LARGEST)
