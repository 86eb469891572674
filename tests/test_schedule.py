"""Learning-rate schedules: the paper's, steps, shares, files and refusals."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmf.schedule import CustomSchedule, WarmupCooldown, schedule_text
from tests.paper_figures import BANDED_SCHEDULE
from tests.refusals import assert_refused, named


def test_the_default_schedule_is_that_of_the_banded_paper():
    figures = BANDED_SCHEDULE
    rates = WarmupCooldown(rounds=figures["rounds"], peak=2.0).learning_rates() / 2.0
    up = figures["warmup_rounds"]
    down = figures["cooldown_rounds"]
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
def test_rates_rise_to_the_peak_and_fall_once(rounds, peak, warmup, cooldown, floor):
    rates = WarmupCooldown(
        rounds=rounds, peak=peak, warmup=warmup, cooldown=cooldown, floor=floor
    ).learning_rates()
    assert rates.shape == (rounds,)
    assert rates.dtype == np.float64
    assert (rates >= floor * peak * (1 - 1e-12)).all()
    assert (rates <= peak).all()
    rises = np.diff(rates) > 1e-12 * peak
    falls = np.diff(rates) < -1e-12 * peak
    # After the first fall the rate never rises.
    assert not falls.any() or not rises[falls.argmax() :].any()


def test_shares_that_add_up_to_1_are_accepted():
    # The float sum of shares such as 0.57 + 0.43 can exceed 1.
    for percent in range(101):
        rates = WarmupCooldown(
            rounds=100, peak=1.0, warmup=percent / 100, cooldown=(100 - percent) / 100
        ).learning_rates()
        assert rates.shape == (100,)
        assert rates.min() == pytest.approx(0.05)


@given(st.dictionaries(st.integers(0, 29), st.floats(1e-9, 1e9), min_size=1))
def test_steps_and_shares_for_each_round_have_the_same_rates(steps):
    share = 1.0
    shares = []
    for t in range(30):
        share = steps.get(t, share)
        shares.append(share)
    in_steps = schedule_text("schedule", ", ".join(f"{t}:{steps[t]!r}" for t in sorted(steps)))
    for text in (in_steps, schedule_text("schedule", shares)):
        assert schedule_text("schedule", text) == text
        rates = CustomSchedule(rounds=30, peak=3.0, shares=text).learning_rates()
        np.testing.assert_array_equal(rates, 3.0 * np.array(shares))


@pytest.mark.parametrize("content", ["1\n1\n0.5\n", "[1, 1,0.5]"])
def test_schedule_text_contains_the_content_of_a_file(tmp_path, content):
    path = tmp_path / "rates.csv"
    path.write_text(content)
    for value in (path, str(path)):
        assert schedule_text("schedule", value) == "1.0 1.0 0.5"


warmup_schedule = functools.partial(WarmupCooldown, rounds=8, peak=1.0)
share_schedule = functools.partial(CustomSchedule, rounds=4, peak=1.0)
parse = functools.partial(schedule_text, "schedule")


NO_SCHEDULES = [
    "none-such.csv", "3:0.5 2:0.1", "3:0.5 3:0.1", "-1:0.5", "1 2:0.5", "1 0", "1 nan", "1 inf",
    "x" * 5000,
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        *named(TypeError, warmup_schedule, rounds=[2.5], cooldown=[True]),
        *named(ValueError, warmup_schedule, peak=[0.0], floor=[0.0, 1.1], warmup=[-0.1]),
        (
            lambda: warmup_schedule(warmup=0.6, cooldown=0.5),
            ValueError,
            "warmup=0.6 and cooldown=0.5",
        ),
        (
            lambda: share_schedule(shares="1 1 1"),
            ValueError,
            "schedule=1 1 1 has 3 shares for 4 rounds",
        ),
        (
            lambda: share_schedule(shares="4:0.5"),
            ValueError,
            "schedule=4:0.5 .*last of 4 rounds is 3",
        ),
        (lambda: parse(0.5), TypeError, "schedule=0.5.*give a positive share"),
        *(
            (lambda value=value: parse(value), ValueError, "schedule=.{,300}give a positive share")
            for value in NO_SCHEDULES
        ),
    ],
)
def test_wrong_schedules_are_refused(call, kind, words):
    assert_refused(call, kind, words)
