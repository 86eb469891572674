import dataclasses
import re
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.cohorts.availability import Independent
from fedmf.cohorts.controller import ParticipationController, PoolRanDryWarning
from fedmf.participation.ledger import ParticipationLedger
from fedmf.participation.schema import Participation
from tests.cohorts.controllers import (
    WhoComes,
    controllers_that_work,
    min_sep_controller,
    refusal,
    run,
    settings_of_controllers,
)
from tests.mechanisms.schemas import epochs, separated
from tests.oracles import allowed_sets


class TestCohorts:
    @given(controllers_that_work(), st.sampled_from([None, 0.9, 0.4, 0.0]))
    def test_nothing_the_participation_forbids(self, given, probability):
        availability = None if probability is None else Independent(probability=probability)
        controller = ParticipationController(**given, availability=availability)
        cohorts = run(controller)
        # From the words of the schema, not from `allows`
        allowed = set(allowed_sets(given["participation"]))
        for client in range(given["population"]):
            rounds = tuple(t for t, cohort in enumerate(cohorts) if client in cohort)
            assert not rounds or rounds in allowed
            assert given["participation"].allows(rounds)
        for t, cohort in enumerate(cohorts):
            assert len(set(cohort)) == len(cohort) <= given["cohort_size"]
            assert all(0 <= client < given["population"] for client in cohort)
            if availability is not None:
                assert availability.available(t, np.array(cohort, np.int64)).all()

    @given(controllers_that_work())
    def test_the_full_cohort_always_where_only_separation_binds(self, given):
        # With the default max_participations nothing but separation keeps clients away, and
        # construction checked that.
        p = given["participation"]
        given["participation"] = Participation(
            rounds=p.rounds,
            schema=p.schema,
            min_sep=None if p.schema in ("single", "every_round") else p.min_sep,
        )
        controller = ParticipationController(**given)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sizes = {len(controller.cohort(t)) for t in range(p.rounds)}
        assert sizes == {given["cohort_size"]}

    def test_fixed_epoch_keeps_one_order(self):
        fixed = epochs(17, 5)
        cohorts = run(min_sep_controller(participation=fixed))
        assert all(cohorts[t] == cohorts[t - 5] for t in range(5, 17))
        seen = sorted(client for cohort in cohorts[:5] for client in cohort)
        assert len(set(seen)) == 20
        # Not simply in the order of the indices.
        assert cohorts[0] != [0, 1, 2, 3]

    def test_a_client_of_the_fixed_order_who_misses_an_epoch_comes_back_in_its_turn(self):
        fixed = epochs(15, 5)
        everyone = run(min_sep_controller(participation=fixed))
        away = everyone[2][0]

        availability = WhoComes(lambda t, clients: (clients != away) | (t != 7))
        cohorts = run(min_sep_controller(participation=fixed, availability=availability))
        assert [t for t, cohort in enumerate(cohorts) if away in cohort] == [2, 12]
        assert len(cohorts[7]) == 3  # nobody out of turn replaces it


class TestPurity:
    @given(controllers_that_work(), st.integers(0, 10), st.booleans())
    def test_a_new_controller_continues_from_the_ledger(self, given, stop, some_away):
        availability = Independent(probability=0.7) if some_away else None
        whole = run(ParticipationController(**given, availability=availability))
        stop = min(stop, len(whole))
        first = ParticipationController(**given, availability=availability)
        if stop:
            assert run(first, stop) == whole[:stop]
        again = ParticipationLedger.from_csv(
            first.ledger.to_csv(), rounds=stop, cohort_size=given["cohort_size"]
        )
        later = ParticipationController(**given, availability=availability)
        later.resume_from(again)
        assert run(later) == whole
        if stop:
            with pytest.raises(ValueError, match="rounds of its own"):
                first.resume_from(again)

    def test_old_rounds_come_from_the_ledger(self):
        controller = min_sep_controller()
        whole = run(controller)
        assert [controller.cohort(t).tolist() for t in reversed(range(20))] == whole[::-1]
        assert len(controller.ledger) == 20
        # From the ledger, and not drawn again: with another seed they are the same.
        other = min_sep_controller(seed=99)
        other.resume_from(controller.ledger)
        assert run(other) == whole

    def test_a_round_beyond_the_last_says_that_the_plan_is_over(self):
        controller = min_sep_controller()
        run(controller)
        with pytest.raises(ValueError, match="t=20 is beyond the last, 19: the plan .* is over"):
            controller.cohort(20)
        with pytest.raises(ValueError, match="t=5 cannot be drawn: the next round is 0 of 20"):
            min_sep_controller().cohort(5)

    def test_rounds_recorded_from_outside_count(self):
        # A deployment records who really came; the next draw must respect that.
        controller = min_sep_controller(population=20)
        controller.ledger.append(np.array([0, 1, 2, 3]))
        cohorts = run(controller, 5)
        assert sorted(client for cohort in cohorts for client in cohort) == list(range(20))


def test_ten_million_clients_take_three_bytes_each_and_are_not_listed():
    participation = separated(1000, 500)
    given = {"population": 10**7, "cohort_size": 6500, "seed": 5}
    tracemalloc.start()
    try:
        controller = ParticipationController(
            participation, availability=Independent(probability=0.3, seed=1), **given
        )
        kept = tracemalloc.get_traced_memory()[0]
        for t in range(3):
            controller.cohort(t)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert kept < 3.1 * 10**7
    assert peak < kept + 2 * 10**7  # a mask and a list of everybody take 9 bytes a client


class TestDryPool:
    def test_warns_and_returns_fewer(self):
        controller = min_sep_controller(
            availability=WhoComes(lambda t, clients: clients < {1: 2, 3: 0}.get(t, 30))
        )
        assert len(controller.cohort(0)) == 4
        with pytest.warns(PoolRanDryWarning, match="round 1: only [012] of cohort_size=4"):
            assert len(controller.cohort(1)) <= 2
        assert len(controller.cohort(2)) == 4
        assert controller.ledger.observed().short_rounds == 1
        with pytest.warns(PoolRanDryWarning, match="only 0 of"):
            assert controller.cohort(3).tolist() == []


class TestRefusals:
    @settings(max_examples=300)
    @given(settings_of_controllers())
    def test_every_number_suggested_works(self, given):
        message = refusal(given)
        if not message:
            return
        ways = re.findall(
            r"(?:lower|raise|use) (?:the )?`?(\w+)`?(?: to at most | to |=)(\d+)", message
        )
        assert ways, message
        for name, number in ways:
            changed = dict(given)
            p = given["participation"]
            # Not counting on defaults: everything else stays as it was, except limits that no
            # longer fit.
            if name in ("population", "cohort_size"):
                changed[name] = int(number)
            elif name == "max_participations":
                changed["participation"] = dataclasses.replace(p, max_participations=int(number))
            elif name == "min_sep":
                changed["participation"] = Participation(
                    rounds=p.rounds, schema=p.schema, min_sep=int(number)
                )
            else:
                assert (name, p.schema) == ("rounds", "single")
                changed["participation"] = Participation(rounds=int(number), schema="single")
            second = refusal(changed)
            if second:
                # One change can bring up the other limit, max_participations,
                # which was given on purpose.
                assert p.max_participations < -(-p.rounds // p.min_sep), (
                    message,
                    name,
                    number,
                    second,
                )
                assert "max_participations" in second

    @settings(max_examples=300)
    @given(settings_of_controllers())
    def test_refused_exactly_when_it_cannot_work(self, given):
        p, size, population = given["participation"], given["cohort_size"], given["population"]
        by_separation = size * p.min_sep <= population
        by_count = size * p.rounds <= population * p.max_participations
        whole_order = p.schema != "fixed_epoch" or p.max_participations == -(-p.rounds // p.min_sep)
        assert (not refusal(given)) == (by_separation and by_count and whole_order)

    def test_a_fixed_order_of_another_seed(self):
        # Going on from it would bring clients back in another than their turn, which nothing later
        # would notice.
        fixed = epochs(20, 5)
        first = min_sep_controller(participation=fixed)
        run(first, 3)
        with pytest.raises(ValueError, match="another run"):
            min_sep_controller(participation=fixed, seed=4).resume_from(first.ledger)

    def test_a_ledger_is_taken_over_whole_or_not_at_all(self):
        controller, whole = min_sep_controller(), run(min_sep_controller())
        ledger = controller.ledger
        # Clients of round 1 come back at once
        cohorts = [np.array(cohort) for cohort in (*whole[:2], whole[1])]
        with pytest.raises(ValueError, match="ledger's round 2 has client"):
            controller.resume_from(ParticipationLedger(cohort_size=4, cohorts=cohorts))
        assert controller.ledger is ledger
        assert len(ledger) == 0
        controller.resume_from(ParticipationLedger(cohort_size=4, cohorts=cohorts[:2]))
        assert run(controller) == whole
