"""What a Participation says of every client is what its definition says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import fedmf
from fedmf.participation.clients import ClientRounds
from tests.oracles import allowed_sets
from tests.participation.test_participation import participations
from tests.privacy.plans import ledger_of


@given(st.data())
def test_the_clients_that_kept_to_it(data):
    participation = data.draw(participations(most_rounds=8))
    n = participation.rounds
    cohort = st.sets(st.integers(0, 5), max_size=4)
    cohorts = data.draw(st.lists(cohort, min_size=n, max_size=n))
    ledger = ledger_of(map(sorted, cohorts))
    clients, rounds = ledger.clients()
    # From the words of the schemas, client by client.
    allowed = set(allowed_sets(participation))
    came = sorted(set().union(*cohorts))
    taken = [tuple(t for t in range(n) if client in cohorts[t]) for client in came]
    assert clients.tolist() == came
    assert [tuple(rounds.of(i).tolist()) for i in range(len(came))] == taken
    assert rounds.kept(participation).tolist() == [t in allowed for t in taken]
    broke = [c for c, t in zip(came, taken, strict=True) if t not in allowed]
    assert ledger.noncompliant(participation).tolist() == broke


def test_rounds_beyond_the_plan_are_not_kept():
    clients = ClientRounds(rounds=np.array([0, 3, 8]), starts=np.array([0, 2]))
    assert clients.kept(fedmf.Participation(rounds=8, schema="every_round")).tolist() == [
        True,
        False,
    ]
