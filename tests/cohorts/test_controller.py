"""Cohorts of the controller satisfy the participation, and depend on seed and ledger only."""

import dataclasses
import math
import re
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.cohorts.availability import Independent
from fedmf.cohorts.controller import ParticipationController
from fedmf.cohorts.draws import PoolRanDryWarning
from fedmf.participation.ledger import ParticipationLedger
from fedmf.participation.schema import Participation
from tests.cohorts.controllers import (
    FunctionAvailability,
    cohorts_of_run,
    construction_error,
    controller_arguments,
    min_sep_controller,
    valid_controller_arguments,
)
from tests.mechanisms.schemas import epochs, separated
from tests.oracles import allowed_sets


class TestCohorts:
    @given(valid_controller_arguments(), st.sampled_from([None, 0.9, 0.4, 0.0]))
    def test_cohorts_satisfy_the_participation(self, arguments, probability):
        availability = None if probability is None else Independent(probability=probability)
        controller = ParticipationController(**arguments, availability=availability)
        cohorts = cohorts_of_run(controller)
        # These sets follow from the definition of the schema, without `allows`.
        allowed_round_sets = set(allowed_sets(arguments["participation"]))
        for client in range(arguments["population"]):
            rounds = tuple(t for t, cohort in enumerate(cohorts) if client in cohort)
            assert not rounds or rounds in allowed_round_sets
            assert arguments["participation"].allows(rounds)
        for t, cohort in enumerate(cohorts):
            assert len(set(cohort)) == len(cohort) <= arguments["cohort_size"]
            assert all(0 <= client < arguments["population"] for client in cohort)
            if availability is not None:
                assert availability.available(t, np.array(cohort, np.int64)).all()

    @given(valid_controller_arguments())
    def test_cohorts_are_full_if_only_the_separation_binds(self, arguments):
        # With the default max_participations only the separation makes clients ineligible, and the
        # constructor checks that enough are eligible.
        participation = arguments["participation"]
        limits = {"min_sep": participation.min_sep}
        if participation.schema in ("single", "every_round"):
            limits = {}
        arguments["participation"] = Participation(
            rounds=participation.rounds, schema=participation.schema, **limits
        )
        controller = ParticipationController(**arguments)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sizes = {len(controller.cohort(t)) for t in range(participation.rounds)}
        assert sizes == {arguments["cohort_size"]}

    def test_fixed_epoch_repeats_one_order(self):
        participation = epochs(17, 5)
        cohorts = cohorts_of_run(min_sep_controller(participation=participation))
        assert all(cohorts[t] == cohorts[t - 5] for t in range(5, 17))
        clients = np.concatenate(cohorts[:5])
        assert len(set(clients.tolist())) == 20
        # The order is not that of the indices.
        assert cohorts[0] != [0, 1, 2, 3]

    def test_a_client_that_misses_an_epoch_returns_in_its_position(self):
        participation = epochs(15, 5)
        cohorts = cohorts_of_run(min_sep_controller(participation=participation))
        missing = cohorts[2][0]

        availability = FunctionAvailability(lambda t, clients: (clients != missing) | (t != 7))
        cohorts = cohorts_of_run(
            min_sep_controller(participation=participation, availability=availability)
        )
        assert [t for t, cohort in enumerate(cohorts) if missing in cohort] == [2, 12]
        assert len(cohorts[7]) == 3  # No client of another position replaces it.


class TestPurity:
    @given(valid_controller_arguments(), st.integers(0, 10), st.booleans())
    def test_a_new_controller_resumes_from_the_ledger(self, arguments, stop, some_unavailable):
        availability = Independent(probability=0.7) if some_unavailable else None
        all_cohorts = cohorts_of_run(
            ParticipationController(**arguments, availability=availability)
        )
        stop = min(stop, len(all_cohorts))
        first_controller = ParticipationController(**arguments, availability=availability)
        if stop:
            assert cohorts_of_run(first_controller, stop) == all_cohorts[:stop]
        ledger = ParticipationLedger.from_csv(
            first_controller.ledger.to_csv(), rounds=stop, cohort_size=arguments["cohort_size"]
        )
        resumed_controller = ParticipationController(**arguments, availability=availability)
        resumed_controller.resume_from(ledger)
        assert cohorts_of_run(resumed_controller) == all_cohorts
        if stop:
            with pytest.raises(ValueError, match="rounds of its own"):
                first_controller.resume_from(ledger)

    def test_earlier_rounds_come_from_the_ledger(self):
        controller = min_sep_controller()
        all_cohorts = cohorts_of_run(controller)
        assert [controller.cohort(t).tolist() for t in reversed(range(20))] == all_cohorts[::-1]
        assert len(controller.ledger) == 20
        # A controller with another seed returns the recorded cohorts too.
        resumed_controller = min_sep_controller(seed=99)
        resumed_controller.resume_from(controller.ledger)
        assert cohorts_of_run(resumed_controller) == all_cohorts

    def test_a_round_after_the_last_one_is_refused_as_the_plan_is_over(self):
        controller = min_sep_controller()
        cohorts_of_run(controller)
        with pytest.raises(ValueError, match="t=20 is beyond the last, 19: the plan .* is over"):
            controller.cohort(20)
        with pytest.raises(ValueError, match="t=5 cannot be drawn: the next round is 0 of 20"):
            min_sep_controller().cohort(5)

    def test_rounds_appended_to_the_ledger_make_clients_ineligible(self):
        # A deployment appends the actual cohorts, which the next sample must take into account.
        controller = min_sep_controller(population=20)
        controller.ledger.append(np.array([0, 1, 2, 3]))
        cohorts = cohorts_of_run(controller, 5)
        assert sorted(client for cohort in cohorts for client in cohort) == list(range(20))


def test_ten_million_clients_take_three_bytes_each():
    participation = separated(1000, 500)
    arguments = {"population": 10**7, "cohort_size": 6500, "seed": 5}
    tracemalloc.start()
    try:
        controller = ParticipationController(
            participation, availability=Independent(probability=0.3, seed=1), **arguments
        )
        memory_after_construction = tracemalloc.get_traced_memory()[0]
        for t in range(3):
            controller.cohort(t)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert memory_after_construction < 3.1 * 10**7
    # A mask and a list of all clients would take 9 bytes per client.
    assert peak < memory_after_construction + 2 * 10**7


class TestDryPool:
    def test_a_dry_pool_warns_and_returns_a_smaller_cohort(self):
        controller = min_sep_controller(
            availability=FunctionAvailability(lambda t, clients: clients < {1: 2, 3: 0}.get(t, 30))
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
    @given(controller_arguments())
    def test_the_numbers_that_an_error_suggests_work(self, arguments):
        message = construction_error(arguments)
        if not message:
            return
        suggestions = re.findall(
            r"(?:lower|raise|use) (?:the )?`?(\w+)`?(?: to at most | to |=)(\d+)", message
        )
        assert suggestions, message
        for name, number in suggestions:
            changed_arguments = dict(arguments)
            participation = arguments["participation"]
            # All other arguments stay as they were, except limits that do not fit any more.
            if name in ("population", "cohort_size"):
                changed_arguments[name] = int(number)
            elif name == "max_participations":
                changed_arguments["participation"] = dataclasses.replace(
                    participation, max_participations=int(number)
                )
            elif name == "min_sep":
                changed_arguments["participation"] = Participation(
                    rounds=participation.rounds, schema=participation.schema, min_sep=int(number)
                )
            else:
                assert (name, participation.schema) == ("rounds", "single")
                changed_arguments["participation"] = Participation(
                    rounds=int(number), schema="single"
                )
            second_error = construction_error(changed_arguments)
            if second_error:
                # The change can conflict with max_participations, which was set explicitly.
                num_epochs = math.ceil(participation.rounds / participation.min_sep)
                assert participation.max_participations < num_epochs, (message, second_error)
                assert "max_participations" in second_error

    @settings(max_examples=300)
    @given(controller_arguments())
    def test_arguments_are_refused_if_and_only_if_they_cannot_work(self, arguments):
        participation = arguments["participation"]
        size = arguments["cohort_size"]
        population = arguments["population"]
        by_separation = size * participation.min_sep <= population
        by_count = size * participation.rounds <= population * participation.max_participations
        num_epochs = math.ceil(participation.rounds / participation.min_sep)
        has_all_epochs = participation.max_participations == num_epochs
        whole_order = participation.schema != "fixed_epoch" or has_all_epochs
        assert (not construction_error(arguments)) == (by_separation and by_count and whole_order)

    def test_resume_refuses_a_fixed_order_of_another_seed(self):
        # Clients would return in other positions, which nothing would notice later.
        participation = epochs(20, 5)
        first_controller = min_sep_controller(participation=participation)
        cohorts_of_run(first_controller, 3)
        with pytest.raises(ValueError, match="another run"):
            min_sep_controller(participation=participation, seed=4).resume_from(
                first_controller.ledger
            )

    def test_resume_accepts_a_ledger_completely_or_not_at_all(self):
        controller = min_sep_controller()
        all_cohorts = cohorts_of_run(min_sep_controller())
        ledger = controller.ledger
        # The clients of round 1 take part in round 2 again, too early.
        cohorts = [np.array(cohort) for cohort in (*all_cohorts[:2], all_cohorts[1])]
        with pytest.raises(ValueError, match="ledger's round 2 has client"):
            controller.resume_from(ParticipationLedger(cohort_size=4, cohorts=cohorts))
        assert controller.ledger is ledger
        assert len(ledger) == 0
        controller.resume_from(ParticipationLedger(cohort_size=4, cohorts=cohorts[:2]))
        assert cohorts_of_run(controller) == all_cohorts
