"""What a Participation says of every client is what its definition says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import fedmf
from fedmf.participation.clients import ClientRounds
from tests.oracles import allowed_sets


@given(
    st.lists(st.sets(st.integers(0, 5), max_size=4), min_size=1, max_size=8),
    st.sampled_from(["single", "min_sep", "fixed_epoch", "every_round"]),
    st.integers(1, 8),
    st.integers(1, 8),
)
def test_the_clients_that_kept_to_it(cohorts, schema, b, k):
    n = len(cohorts)
    ledger = fedmf.ParticipationLedger(
        cohort_size=2, cohorts=[np.array(sorted(c), np.int64) for c in cohorts]
    )
    limits = {}
    if schema in ("min_sep", "fixed_epoch"):
        b = min(b, n)
        limits = {"min_sep": b, "max_participations": min(k, -(-n // b))}
    participation = fedmf.Participation(rounds=n, schema=schema, **limits)
    clients, rounds = ledger.clients()
    # From the words of the schemas, client by client.
    allowed = set(allowed_sets(participation))
    taken = {
        c: tuple(t for t, cohort in enumerate(cohorts) if c in cohort) for c in clients.tolist()
    }
    assert clients.tolist() == sorted(set().union(*cohorts))
    assert [tuple(rounds.of(i).tolist()) for i in range(len(clients))] == list(taken.values())
    assert rounds.kept(participation).tolist() == [t in allowed for t in taken.values()]
    assert rounds.kept(participation).tolist() == [participation.allows(t) for t in taken.values()]
    assert ledger.noncompliant(participation).tolist() == [
        c for c, t in taken.items() if t not in allowed
    ]


def test_rounds_beyond_the_plan_are_not_kept():
    clients = ClientRounds(rounds=np.array([0, 3, 8]), starts=np.array([0, 2]))
    assert clients.kept(fedmf.Participation(rounds=8, schema="every_round")).tolist() == [
        True,
        False,
    ]
