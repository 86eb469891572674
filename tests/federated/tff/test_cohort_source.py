"""Our cohorts in TFF's programs: stopped and started again they are the same clients.

tests/federated/test_pages.py runs such programs.
"""

import copy

import numpy as np

import fedmf
from fedmf import federated
from fedmf.cohorts.availability import Independent
from fedmf.cohorts.devices import DeviceBehavior
from tests.federated.linear_regression import client_data
from tests.refusals import refusal

ROUNDS, COHORT = 6, 3


def source_of(seed=1, min_sep=3, population=12, **options):
    participation = fedmf.Participation(rounds=ROUNDS, schema="min_sep", min_sep=min_sep)
    controller = fedmf.ParticipationController(
        participation, population=population, cohort_size=COHORT, seed=seed, **options
    )
    return federated.CohortDataSource(controller, client_data)


def cohorts(source):
    return [
        source.controller.ledger.cohort(t).tolist() for t in range(len(source.controller.ledger))
    ]


def restored(source, saved):
    """An iterator of a source, where another one was saved."""
    return type(source.iterator()).from_bytes(saved.to_bytes())


def test_an_iterator_restores_the_ledger_also_of_clients_that_dropped_out():
    away = {"behavior": DeviceBehavior(dropout=0.4, seed=5)}
    whole, first, later = source_of(**away), source_of(**away), source_of(**away)
    passes = whole.iterator(), first.iterator()
    for _ in range(4):
        for one in passes:
            one.select(COHORT)
    again = copy.deepcopy(passes[0])  # of a round that is discarded
    for one in (passes[0], restored(later, passes[1]), again):
        one.select()
    assert cohorts(later) == cohorts(whole)
    assert {len(cohort) for cohort in cohorts(whole)} != {COHORT}
    selected, found = (
        [source.controller.ledger.selected(t).tolist() for t in range(5)]
        for source in (whole, later)
    )
    assert found == selected


def test_refusals():
    source, other = source_of(), source_of()
    with refusal(f"k=2 .*cohort_size={COHORT}"):
        source.iterator().select(2)
    one = source.iterator()
    other.controller.ledger.append(np.array([0, 1, 2]))  # from outside
    for words in ("belongs to another run", "go on from a new one"):
        one.select()
        with refusal(words):
            restored(other, one)
    for changed, later in {
        "seed": source_of(seed=2),
        "population": source_of(population=13),
        "participation": source_of(min_sep=4),
        "behavior": source_of(behavior=DeviceBehavior(dropout=0.1)),
        "availability": source_of(availability=Independent(probability=0.9, seed=1)),
    }.items():
        for saved in (source.iterator(), one):  # before the first round, too
            with refusal(f"a controller of another {changed}"):
                restored(later, saved)
        assert len(later.controller.ledger) == 0
    with refusal("client_data gave 0 for client 0", TypeError):
        federated.CohortDataSource(source.controller, lambda index: index)
