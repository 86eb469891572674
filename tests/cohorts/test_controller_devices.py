"""Simulated devices: dropout, noncompliant clients, early timers, and resumes with them."""

import warnings

import numpy as np
import pytest
import scipy.stats

import fedmf
from fedmf.cohorts.availability import Independent
from fedmf.cohorts.devices import DeviceBehavior
from tests.cohorts.controllers import rounds_of_clients
from tests.mechanisms.schemas import separated
from tests.power import FALSE_POSITIVE_RATE, MISS_RATE, has_share, missed_by_chi_square
from tests.refusals import refusal

PARTICIPATION = separated(60, 12, 4)
# Sizes below and above draws.SMALL, for which cohorts are sampled in two ways.
SIZES = {"all clients scanned": (400, 20), "picked at random": (20_000, 1000)}


def controller_of(size=(400, 20), participation=PARTICIPATION, seed=3, **options):
    return fedmf.ParticipationController(
        participation, population=size[0], cohort_size=size[1], seed=seed, **options
    )


def run_all_rounds(controller):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fedmf.PoolRanDryWarning)
        for t in range(controller.participation.rounds):
            controller.cohort(t)
    return controller


class TestDropout:
    @pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
    def test_the_ledger_holds_selected_clients_and_those_that_took_part(self, size):
        controller = run_all_rounds(
            controller_of(size, behavior=DeviceBehavior(dropout=0.3, seed=5))
        )
        ledger = controller.ledger
        planned_stats = ledger.planned().observed()
        achieved_stats = ledger.observed()
        assert planned_stats.short_rounds == 0
        assert planned_stats.participations == 60 * size[1]
        for t in range(60):
            assert set(ledger.cohort(t)) < set(ledger.selected(t))
        assert has_share(
            achieved_stats.participations, planned_stats.participations, 0.7, departure=0.5
        )

    def test_the_timer_of_a_dropped_client_starts(self):
        # Planned rounds, and not only achieved ones, are min_sep apart, and count towards the
        # limit.
        ledger = run_all_rounds(controller_of(behavior=DeviceBehavior(dropout=0.5, seed=5))).ledger
        planned_ledger = ledger.planned()
        achieved_stats = ledger.observed()
        assert planned_ledger.observed().participations - achieved_stats.participations > 400
        for rounds in rounds_of_clients(planned_ledger).values():
            assert PARTICIPATION.allows(rounds)


class TestNoncompliance:
    behavior = DeviceBehavior(noncompliant_fraction=0.1, seed=7)

    @pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
    def test_compliant_clients_satisfy_the_participation(self, size):
        ledger = run_all_rounds(controller_of(size, behavior=self.behavior)).ledger
        noncompliant_clients = ledger.noncompliant()
        assert len(noncompliant_clients) > 0.05 * size[0]
        assert self.behavior.noncompliant(noncompliant_clients).all()
        compliant_ledger = ledger.compliant()
        for client, rounds in rounds_of_clients(compliant_ledger).items():
            assert client not in noncompliant_clients
            assert PARTICIPATION.allows(rounds)
        observed_stats = compliant_ledger.observed()
        assert (observed_stats.min_separation, observed_stats.max_participations) == (12, 4)
        # Negative control: noncompliant clients take part too early and too often.
        observed_of_all = ledger.observed()
        assert observed_of_all.min_separation == 1
        assert observed_of_all.max_participations > 4
        assert observed_stats.participations < observed_of_all.participations


class TestEarlyTimers:
    @pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
    def test_timers_fire_early_by_timer_jitter_at_most(self, size):
        # The pool is small, so that clients return as soon as they are eligible.
        participation = separated(80, 18)
        controller = controller_of(
            size, participation, behavior=DeviceBehavior(timer_jitter=3, seed=2)
        )
        observed_stats = run_all_rounds(controller).ledger.observed()
        assert observed_stats.min_separation == 15
        # The limit holds although more rounds would fit.
        assert observed_stats.max_participations <= participation.max_participations

    def test_every_ineligible_period_is_drawn_independently(self):
        behavior = DeviceBehavior(timer_jitter=3, seed=2)
        clients = np.repeat(np.arange(300), 40)
        early = behavior.rounds_early(clients, np.tile(np.arange(40), 300))
        # The test would detect one of the four lengths being a fifth too frequent.
        departure = (0.05**2 + 3 * (0.05 / 3) ** 2) / 0.25
        assert missed_by_chi_square(len(early) * departure, 3) <= MISS_RATE
        assert scipy.stats.chisquare(np.bincount(early, minlength=4)).pvalue > FALSE_POSITIVE_RATE
        assert (np.ptp(early.reshape(300, 40), axis=1) == 3).all()


class TestResume:
    behavior = DeviceBehavior(dropout=0.2, noncompliant_fraction=0.05, timer_jitter=2, seed=11)

    @pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
    def test_resume_from_the_first_rounds_of_a_ledger_repeats_the_later_rounds(self, size):
        arguments = {
            "behavior": self.behavior,
            "availability": Independent(probability=0.8, seed=1),
        }
        whole_ledger = run_all_rounds(controller_of(size, **arguments)).ledger
        controller = controller_of(size, **arguments)
        controller.resume_from(whole_ledger.first(31))
        resumed_ledger = run_all_rounds(controller).ledger
        for t in range(60):
            assert (resumed_ledger.selected(t) == whole_ledger.selected(t)).all()
            assert (resumed_ledger.cohort(t) == whole_ledger.cohort(t)).all()
        assert (resumed_ledger.noncompliant() == whole_ledger.noncompliant()).all()

    def test_resume_refuses_noncompliant_clients_unless_they_are_simulated(self):
        ledger = run_all_rounds(
            controller_of(behavior=DeviceBehavior(noncompliant_fraction=0.2))
        ).ledger
        with refusal("who may not take part then"):
            controller_of().resume_from(ledger)
