import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmf.schedule import WarmupCooldown
from tests.paper_figures import BANDED_SCHEDULE


def test_the_papers_schedule():
    figures = BANDED_SCHEDULE
    rates = WarmupCooldown(rounds=figures["rounds"], peak=2.0).learning_rates() / 2.0
    up, down = figures["warmup_rounds"], figures["cooldown_rounds"]
    assert rates.shape == (figures["rounds"],)
    # The first 309 rounds go from 0.05 to 1, both included: steps of one size.
    np.testing.assert_allclose(rates[:up], np.linspace(0.05, 1.0, up), rtol=1e-12)
    # Then level, and the last 513 rounds come down to 0.05, which the last round has.
    assert (rates[up - 1 : -down] == 1.0).all()
    np.testing.assert_allclose(rates[-down - 1 :], np.linspace(1.0, 0.05, down + 1), rtol=1e-12)
    assert rates[-down] < 1.0


@given(
    st.integers(1, 60),
    st.floats(1e-3, 1e3),
    st.floats(0, 0.5),
    st.floats(0, 0.5),
    st.floats(0.01, 1.0),
)
def test_shape(rounds, peak, warmup, cooldown, floor):
    rates = WarmupCooldown(
        rounds=rounds, peak=peak, warmup=warmup, cooldown=cooldown, floor=floor
    ).learning_rates()
    assert rates.shape == (rounds,)
    assert rates.dtype == np.float64
    assert (rates >= floor * peak * (1 - 1e-12)).all()
    assert (rates <= peak).all()
    rises = np.diff(rates) > 1e-12 * peak
    falls = np.diff(rates) < -1e-12 * peak
    # Once it falls it never rises again.
    assert not falls.any() or not rises[falls.argmax() :].any()


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"rounds": 2.5}, TypeError, "rounds=2.5"),
        ({"peak": 0.0}, ValueError, "peak=0.0"),
        ({"floor": 0.0}, ValueError, "floor=0.0"),
        ({"floor": 1.1}, ValueError, "floor=1.1"),
        ({"warmup": -0.1}, ValueError, "warmup=-0.1"),
        ({"cooldown": True}, TypeError, "cooldown=True"),
        ({"warmup": 0.6, "cooldown": 0.5}, ValueError, "warmup=0.6 and cooldown=0.5"),
    ],
)
def test_refused(change, kind, words):
    with pytest.raises(kind, match=words) as caught:
        WarmupCooldown(**{"rounds": 8, "peak": 1.0, **change})
    assert "pass" in str(caught.value)


def test_every_split_into_hundredths_fits():
    # 0.57 + 0.43 and the like must not be refused because their float sum is above 1.
    for percent in range(101):
        rates = WarmupCooldown(
            rounds=100, peak=1.0, warmup=percent / 100, cooldown=(100 - percent) / 100
        ).learning_rates()
        assert rates.shape == (100,)
        assert rates.min() == pytest.approx(0.05)
