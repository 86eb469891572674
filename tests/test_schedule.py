import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmf.schedule import GivenSchedule, WarmupCooldown, schedule_text
from tests.paper_figures import BANDED_SCHEDULE
from tests.refusals import assert_refused, named


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


def test_every_split_into_hundredths_fits():
    # 0.57 + 0.43 and the like must not be refused because their float sum is above 1.
    for percent in range(101):
        rates = WarmupCooldown(
            rounds=100, peak=1.0, warmup=percent / 100, cooldown=(100 - percent) / 100
        ).learning_rates()
        assert rates.shape == (100,)
        assert rates.min() == pytest.approx(0.05)


@given(st.dictionaries(st.integers(0, 29), st.floats(1e-9, 1e9), min_size=1))
def test_steps_and_shares_for_each_round_are_the_same_rates(steps):
    share, shares = 1.0, []
    for t in range(30):
        share = steps.get(t, share)
        shares.append(share)
    in_steps = schedule_text("schedule", ", ".join(f"{t}:{steps[t]!r}" for t in sorted(steps)))
    for text in (in_steps, schedule_text("schedule", shares)):
        assert schedule_text("schedule", text) == text
        made = GivenSchedule(rounds=30, peak=3.0, shares=text).learning_rates()
        np.testing.assert_array_equal(made, 3.0 * np.array(shares))


@pytest.mark.parametrize("held", ["1\n1\n0.5\n", "[1, 1,0.5]"])
def test_a_file_is_read_when_it_is_named(tmp_path, held):
    path = tmp_path / "rates.csv"
    path.write_text(held)
    for named_so in (path, str(path)):
        assert schedule_text("schedule", named_so) == "1.0 1.0 0.5"


warmed = functools.partial(WarmupCooldown, rounds=8, peak=1.0)
of_shares = functools.partial(GivenSchedule, rounds=4, peak=1.0)
read = functools.partial(schedule_text, "schedule")


NO_SCHEDULES = [
    "none-such.csv", "3:0.5 2:0.1", "3:0.5 3:0.1", "-1:0.5", "1 2:0.5", "1 0", "1 nan", "1 inf",
    "x" * 5000,
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        *named(TypeError, warmed, rounds=[2.5], cooldown=[True]),
        *named(ValueError, warmed, peak=[0.0], floor=[0.0, 1.1], warmup=[-0.1]),
        (lambda: warmed(warmup=0.6, cooldown=0.5), ValueError, "warmup=0.6 and cooldown=0.5"),
        (lambda: of_shares(shares="1 1 1"), ValueError, "schedule=1 1 1 has 3 shares for 4 rounds"),
        (lambda: of_shares(shares="4:0.5"), ValueError, "schedule=4:0.5 .*last of 4 rounds is 3"),
        (lambda: read(0.5), TypeError, "schedule=0.5.*give a positive share"),
        *(
            (lambda value=value: read(value), ValueError, "schedule=.{,300}give a positive share")
            for value in NO_SCHEDULES
        ),
    ],
)
def test_refused_in_one_sentence(call, kind, words):
    assert_refused(call, kind, words)
