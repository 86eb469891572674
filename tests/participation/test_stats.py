"""Participation statistics of clients agree with the definitions of the schemas."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedmf.participation.clients import ClientRounds
from tests.mechanisms.schemas import every_round
from tests.oracles import allowed_sets
from tests.participation.test_participation import participations
from tests.privacy.plans import ledger_of


@given(
    participations(max_rounds=8),
    st.lists(st.sets(st.integers(0, 5), max_size=4), min_size=8, max_size=8),
)
def test_allows_each_finds_the_clients_whose_rounds_are_allowed(participation, cohorts):
    cohorts = cohorts[: participation.rounds]
    ledger = ledger_of([sorted(cohort) for cohort in cohorts])
    clients, rounds = ledger.clients()
    # The definitions of the schemas, client by client.
    allowed_round_sets = set(allowed_sets(participation))
    rounds_by_client = {
        client: tuple(t for t, cohort in enumerate(cohorts) if client in cohort)
        for client in clients.tolist()
    }
    assert clients.tolist() == sorted(set().union(*cohorts))
    expected_rounds = list(rounds_by_client.values())
    assert [tuple(rounds.of(i).tolist()) for i in range(len(clients))] == expected_rounds
    assert participation.allows_each(rounds).tolist() == [
        t in allowed_round_sets for t in expected_rounds
    ]
    noncompliant_clients = [
        client for client, t in rounds_by_client.items() if t not in allowed_round_sets
    ]
    assert ledger.noncompliant(participation).tolist() == noncompliant_clients


def test_allows_each_refuses_rounds_after_the_last_one():
    clients = ClientRounds(rounds=np.array([0, 3, 8]), starts=np.array([0, 2]))
    assert every_round(8).allows_each(clients).tolist() == [True, False]
