"""Availability models: pure functions of client and round with the stated probabilities."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.cohorts.availability import (
    Always,
    Diurnal,
    Independent,
    Window,
    availability_from_text,
)
from tests.power import (
    FALSE_POSITIVE_RATE,
    MISS_RATE,
    has_distribution,
    has_share,
    is_uncorrelated,
    missed_by_chi_square,
)

CLIENTS = np.arange(20_000)
NEVER_OUT = Window(start=0, end=24, inside=1, outside=0)
MODELS = {
    "always": Always(),
    "independent": Independent(probability=0.4, seed=3),
    "diurnal": Diurnal(seed=3),
    "one zone": Diurnal(rounds_per_day=24, time_zones=((0, 1.0),), phase_hours=0, seed=4),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
class TestEveryModel:
    @settings(max_examples=20)
    @given(st.integers(0, 5000), st.lists(st.integers(0, 2**31), max_size=40))
    def test_the_result_for_a_client_does_not_depend_on_the_other_clients(self, model, t, clients):
        clients = np.array(clients, np.int64)
        result_together = model.available(t, clients)
        assert result_together.dtype == bool
        assert result_together.shape == clients.shape
        result_alone = [
            bool(model.available(t, clients[i : i + 1])[0]) for i in range(len(clients))
        ]
        assert result_together.tolist() == result_alone
        assert (model.available(t, clients[::-1]) == result_together[::-1]).all()


class TestIndependent:
    def test_clients_and_rounds_are_independent(self):
        is_available = np.stack(
            [Independent(probability=0.4, seed=3).available(t, CLIENTS[:2000]) for t in range(200)]
        )
        assert has_share(is_available.sum(), is_available.size, 0.4, departure=0.41)
        for axis in (0, 1):
            trials = is_available.shape[axis]
            groups = is_available.shape[1 - axis]
            statistic = ((is_available.sum(axis=axis) - 0.4 * trials) ** 2).sum() / (trials * 0.24)
            # The test would detect clients, or rounds, of which half are available with probability
            # 0.45 and half with 0.35.
            assert missed_by_chi_square(is_available.size * 0.05**2 / 0.24, groups) <= MISS_RATE
            assert scipy.stats.chi2.sf(statistic, groups) > FALSE_POSITIVE_RATE
            assert scipy.stats.chi2.cdf(statistic, groups) > FALSE_POSITIVE_RATE


class TestDiurnal:
    def test_probabilities_follow_the_windows(self):
        # With one zone and no phase all three windows are open at 3 in the morning, none at noon,
        # and one at 20 hours.
        model = MODELS["one zone"]
        for hour, expected in (
            (3, 0.7 * 0.8 * 0.85),
            (12, 0.35 * 0.6 * 0.55),
            (20, 0.35 * 0.6 * 0.85),
        ):
            shares = model.available(24 + hour, CLIENTS)
            assert has_share(shares.sum(), len(CLIENTS), expected, departure=1.2 * expected)

    def test_a_window_that_contains_midnight_has_one_coin(self):
        # In all windows a client stays available, or unavailable, from before midnight to the
        # morning. The next night is independent.
        model = MODELS["one zone"]
        hours = [model.available(24 + hour, CLIENTS) for hour in (23, 24, 26, 30)]
        assert all((later_hour == hours[0]).all() for later_hour in hours[1:])
        next_night = model.available(48 + 23, CLIENTS)
        assert is_uncorrelated(hours[0], next_night, departure=0.07)
        assert not is_uncorrelated(
            hours[0], np.where(CLIENTS % 8, next_night, hours[0]), departure=0.07
        )

    def test_local_hours_follow_time_zones_and_phases(self):
        zones = ((-8, 0.25), (0, 0.5), (5.5, 0.25))
        model = Diurnal(time_zones=zones, phase_hours=1, rounds_per_day=48, start_hour=6, seed=5)
        hours = model.local_hours(4, CLIENTS)  # 8 hours UTC
        for offset, share in zones:
            is_in_zone = np.abs(hours - 8 - offset) <= 1
            assert has_share(is_in_zone.sum(), len(CLIENTS), share, departure=1.15 * share)
            phases = (hours[is_in_zone] - 8 - offset + 1) / 2
            assert has_distribution(phases, "uniform", departure=0.08)
        assert np.allclose(model.local_hours(10, CLIENTS), hours + 3)

    def test_windows_of_24_hours_contain_every_round_and_empty_ones_none(self):
        always_available = Diurnal(charging=NEVER_OUT, idle=NEVER_OUT, unmetered=NEVER_OUT)
        never_available = Diurnal(charging=Window(start=5, end=5, inside=1, outside=0))
        for t in range(0, 96, 7):
            assert always_available.available(t, CLIENTS).all()
            assert not never_available.available(t, CLIENTS).any()


class TestTexts:
    @pytest.mark.parametrize(
        ("text", "model"),
        [
            ("always", Always()),
            ("independent:0.3,seed=4", Independent(probability=0.3, seed=4)),
            ("independent:probability=1,seed=4", Independent(probability=1.0, seed=4)),
            ("diurnal", Diurnal()),
            (
                "diurnal:rounds_per_day=24,phase_hours=2.5,start_hour=6,seed=1",
                Diurnal(rounds_per_day=24, phase_hours=2.5, start_hour=6, seed=1),
            ),
        ],
    )
    def test_availability_from_text_returns_the_model(self, text, model):
        assert availability_from_text(text) == model
