import warnings

import numpy as np
import pytest
import scipy.stats

import fedmf
from fedmf.cohorts.availability import Independent
from fedmf.cohorts.devices import DeviceBehavior
from tests.cohorts.controllers import rounds_of_clients
from tests.mechanisms.schemas import separated
from tests.power import FALSE_POSITIVE_RATE, MISS_RATE, counted, missed_by_chi_square
from tests.refusals import refusal

PARTICIPATION = separated(60, 12, 4)
# Below and above cohort_draws.SMALL: cohorts are found in two ways.
SIZES = {"everybody asked": (400, 20), "picked at random": (20_000, 1000)}


def controller_of(size=(400, 20), participation=PARTICIPATION, seed=3, **more):
    return fedmf.ParticipationController(
        participation, population=size[0], cohort_size=size[1], seed=seed, **more
    )


def finished(controller):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fedmf.PoolRanDryWarning)
        for t in range(controller.participation.rounds):
            controller.cohort(t)
    return controller


class TestDropout:
    @pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
    def test_planned_and_achieved(self, size):
        controller = finished(controller_of(size, behavior=DeviceBehavior(dropout=0.3, seed=5)))
        ledger = controller.ledger
        planned, achieved = ledger.planned().observed(), ledger.observed()
        assert planned.short_rounds == 0
        assert planned.participations == 60 * size[1]
        for t in range(60):
            assert set(ledger.cohort(t)) < set(ledger.selected(t))
        assert counted(achieved.participations, planned.participations, 0.7, departure=0.5)

    def test_the_timer_starts_all_the_same(self):
        # Planned and not only achieved rounds are min_sep apart, and count towards the limit.
        ledger = finished(controller_of(behavior=DeviceBehavior(dropout=0.5, seed=5))).ledger
        planned, achieved = ledger.planned(), ledger.observed()
        assert planned.observed().participations - achieved.participations > 400
        for rounds in rounds_of_clients(planned).values():
            assert PARTICIPATION.allows(rounds)


class TestDisobedience:
    behavior = DeviceBehavior(noncompliant_fraction=0.1, seed=7)

    @pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
    def test_harms_nobody_else(self, size):
        ledger = finished(controller_of(size, behavior=self.behavior)).ledger
        away = ledger.noncompliant()
        assert len(away) > 0.05 * size[0]
        assert self.behavior.noncompliant(away).all()
        rest = ledger.compliant()
        for client, rounds in rounds_of_clients(rest).items():
            assert client not in away
            assert PARTICIPATION.allows(rounds)
        observed = rest.observed()
        assert (observed.min_separation, observed.max_participations) == (12, 4)
        # And those who deviate do come too soon and too often, or this would show nothing.
        everybody = ledger.observed()
        assert everybody.min_separation == 1
        assert everybody.max_participations > 4
        assert rest.observed().participations < everybody.participations


class TestEarlyTimers:
    @pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
    def test_by_so_many_rounds_at_most(self, size):
        # The pool is small, so that clients come back as soon as they may.
        participation = separated(80, 18)
        controller = controller_of(
            size, participation, behavior=DeviceBehavior(timer_jitter=3, seed=2)
        )
        observed = finished(controller).ledger.observed()
        assert observed.min_separation == 15
        # The limit is kept although more rounds would fit.
        assert observed.max_participations <= participation.max_participations

    def test_every_wait_is_drawn_anew(self):
        behavior = DeviceBehavior(timer_jitter=3, seed=2)
        clients = np.repeat(np.arange(300), 40)
        early = behavior.rounds_early(clients, np.tile(np.arange(40), 300))
        # One wait in four that is a fifth too frequent would be seen.
        departure = (0.05**2 + 3 * (0.05 / 3) ** 2) / 0.25
        assert missed_by_chi_square(len(early) * departure, 3) <= MISS_RATE
        assert scipy.stats.chisquare(np.bincount(early, minlength=4)).pvalue > FALSE_POSITIVE_RATE
        assert (np.ptp(early.reshape(300, 40), axis=1) == 3).all()


class TestResume:
    everything = DeviceBehavior(dropout=0.2, noncompliant_fraction=0.05, timer_jitter=2, seed=11)

    @pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
    def test_goes_on_from_the_first_rounds_of_a_ledger(self, size):
        given = {"behavior": self.everything, "availability": Independent(probability=0.8, seed=1)}
        whole = finished(controller_of(size, **given)).ledger
        again = controller_of(size, **given)
        again.resume_from(whole.first(31))
        again = finished(again).ledger
        for t in range(60):
            assert (again.selected(t) == whole.selected(t)).all()
            assert (again.cohort(t) == whole.cohort(t)).all()
        assert (again.noncompliant() == whole.noncompliant()).all()

    def test_a_ledger_of_the_disobedient_is_refused_by_those_who_know_of_none(self):
        ledger = finished(controller_of(behavior=DeviceBehavior(noncompliant_fraction=0.2))).ledger
        with refusal("who may not take part then"):
            controller_of().resume_from(ledger)
