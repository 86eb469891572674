"""What a Participation says of every client is what its definition says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedmf.participation.clients import ClientRounds
from tests.mechanisms.schemas import every_round
from tests.oracles import allowed_sets
from tests.participation.test_participation import participations
from tests.privacy.plans import ledger_of


@given(
    participations(most_rounds=8),
    st.lists(st.sets(st.integers(0, 5), max_size=4), min_size=8, max_size=8),
)
def test_the_clients_that_kept_to_it(participation, cohorts):
    cohorts = cohorts[: participation.rounds]
    ledger = ledger_of([sorted(cohort) for cohort in cohorts])
    clients, rounds = ledger.clients()
    # From the words of the schemas, client by client.
    allowed = set(allowed_sets(participation))
    taken = {
        c: tuple(t for t, cohort in enumerate(cohorts) if c in cohort) for c in clients.tolist()
    }
    assert clients.tolist() == sorted(set().union(*cohorts))
    assert [tuple(rounds.of(i).tolist()) for i in range(len(clients))] == list(taken.values())
    assert participation.allows_each(rounds).tolist() == [t in allowed for t in taken.values()]
    outside = [c for c, t in taken.items() if t not in allowed]
    assert ledger.noncompliant(participation).tolist() == outside


def test_rounds_beyond_the_plan_are_not_kept():
    clients = ClientRounds(rounds=np.array([0, 3, 8]), starts=np.array([0, 2]))
    assert every_round(8).allows_each(clients).tolist() == [True, False]
