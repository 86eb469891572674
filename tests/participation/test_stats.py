"""What statistics say of a Participation is what the definition says of every client."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.participation.ledger import ParticipationLedger
from fedmf.participation.schema import Participation
from fedmf.participation.stats import ParticipationStats
from tests.oracles import allowed_sets


@settings(deadline=None)
@given(
    st.lists(st.sets(st.integers(0, 5), max_size=4), min_size=1, max_size=8),
    st.sampled_from(["single", "min_sep", "fixed_epoch", "every_round"]),
    st.integers(1, 8),
    st.integers(1, 8),
)
def test_keeps_to_and_within(cohorts, schema, b, k):
    n = len(cohorts)
    stats = ParticipationLedger(cohort_size=2, cohorts=[np.array(sorted(c), np.int64) for c in cohorts]).observed()
    limits = {}
    if schema in ("min_sep", "fixed_epoch"):
        b = min(b, n)
        limits = {"min_sep": b, "max_participations": min(k, -(-n // b))}
    participation = Participation(rounds=n, schema=schema, **limits)
    rounds = [tuple(t for t, cohort in enumerate(cohorts) if c in cohort) for c in set().union(*cohorts)]
    # From the words of the schemas, client by client.
    allowed = set(allowed_sets(participation))
    assert stats.keeps_to(participation) == all(taken in allowed for taken in rounds)
    if stats.participations:
        within = stats.within(participation)
        assert all(within.allows(taken) for taken in rounds)
        if stats.keeps_to(participation):
            assert within.max_participations <= participation.max_participations


def test_an_epoch_that_was_missed_counts():
    # Rounds 0 and 8 of an order of 4 rounds: two participations, and yet a window of three epochs.
    stats = ParticipationStats.of_cohorts([np.array([1] * (t in (0, 8)), int) for t in range(12)])
    planned = Participation(rounds=12, schema="fixed_epoch", min_sep=4)
    assert stats.max_participations == 2
    assert stats.within(planned).max_participations == 3
