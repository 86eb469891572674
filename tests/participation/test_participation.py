"""Participation schemas: allowed sets, eligibility, limits, copies and pickles."""

import copy
import dataclasses
import itertools
import pickle

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.participation.schema import SCHEMAS, Participation
from tests.mechanisms.schemas import epochs, every_round, separated, single
from tests.oracles import allowed_sets, maximal_sets


@st.composite
def participations(draw, max_rounds=9):
    rounds = draw(st.integers(1, max_rounds))
    schema = draw(st.sampled_from(["single", "fixed_epoch", "min_sep", "every_round"]))
    if schema in ("single", "every_round"):
        return Participation(rounds=rounds, schema=schema)
    min_sep = draw(st.integers(1, rounds))
    limits = st.one_of(st.none(), st.integers(1, -(-rounds // min_sep)))
    return Participation(
        rounds=rounds, schema=schema, min_sep=min_sep, max_participations=draw(limits)
    )


@given(participations())
def test_allows_exactly_the_sets_of_the_definition(participation):
    """Compares with the definitions, such as banded paper, Def. 1, for min_sep."""
    allowed_round_sets = set(allowed_sets(participation))
    for size in range(1, participation.rounds + 1):
        for rounds in itertools.combinations(range(participation.rounds), size):
            assert participation.allows(reversed(rounds)) == (rounds in allowed_round_sets)


@given(participations())
def test_patterns_are_the_maximal_sets(participation):
    patterns = list(participation.patterns())
    assert len(set(patterns)) == len(patterns)
    assert sorted(patterns) == maximal_sets(participation)


@given(participations())
def test_limits_are_ints_and_attained(participation):
    assert type(participation.min_sep) is int
    assert type(participation.max_participations) is int
    longest = max(map(len, participation.patterns()))
    assert longest == participation.max_participations
    assert dataclasses.replace(participation) == participation


@given(participations(), st.data())
@settings(max_examples=50)
def test_a_client_is_eligible_if_its_rounds_with_the_new_one_are_allowed(participation, data):
    history = participation.new_history(1)
    history.grow(3)
    rounds_by_client = [[], [], []]
    for t in range(participation.rounds):
        eligible = participation.is_eligible(t, history, np.arange(3))
        assert eligible.tolist() == [
            participation.allows([*rounds, t]) for rounds in rounds_by_client
        ]
        assert eligible.tolist() == participation.is_eligible(t, history, slice(0, 3)).tolist()
        clients = data.draw(st.sets(st.sampled_from(range(3))))
        clients &= set(np.flatnonzero(eligible).tolist())
        history.record(t, np.array(sorted(clients), np.int64))
        for client in clients:
            rounds_by_client[client].append(t)


@given(participations(max_rounds=7))
def test_the_default_patterns_are_the_maximal_sets(participation):
    patterns = list(Participation.patterns(participation))
    assert sorted(patterns) == maximal_sets(participation)


@given(participations())
def test_construction_copies_and_replacement_keep_the_schema_class(participation):
    assert type(participation) is SCHEMAS[participation.schema]
    limits = participation.limits()
    assert participation == type(participation)(**limits) == Participation(**limits)
    decoded = msgspec.json.decode(msgspec.json.encode(participation), type=Participation)
    for twin in (copy.deepcopy(participation), pickle.loads(pickle.dumps(participation)), decoded):
        assert type(twin) is type(participation)
        assert twin == participation
        assert hash(twin) == hash(participation)
        assert repr(twin) == repr(participation)
    rounds = participation.rounds
    changed_participation = dataclasses.replace(
        participation, schema="single", min_sep=None, max_participations=None
    )
    assert changed_participation == Participation(rounds=rounds, schema="single")


def test_pickles_from_before_schema_classes_load():
    text = (
        b"\x80\x02cfedmf.participation.schema\nParticipation\nq\x00)\x81q\x01}q\x02(X\x06\x00\x00"
        b"\x00roundsq\x03K\nX\x06\x00\x00\x00schemaq\x04X\x07\x00\x00\x00min_sepq\x05h\x05K\x04X"
        b"\x12\x00\x00\x00max_participationsq\x06K\x03X\x06\x00\x00\x00budgetq\x07Nub."
    )
    assert pickle.loads(text) == separated(10, 4)


def test_schemas_imply_missing_limits():
    schemas = [single(10), every_round(10), epochs(10, 4), separated(10, np.int64(4), 2)]
    limits = [
        (participation.min_sep, participation.max_participations) for participation in schemas
    ]
    assert limits == [(10, 1), (1, 10), (4, 3), (4, 2)]


def test_no_schema_allows_a_round_twice_or_outside_the_run():
    every_round_schema = Participation(rounds=3, schema="every_round")
    assert every_round_schema.allows([])
    assert not any(every_round_schema.allows(rounds) for rounds in ([1, 1], [3], [-1]))
