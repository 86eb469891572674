import dataclasses
import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedmf.participation.schema import Participation
from tests.mechanisms.schemas import epochs, every_round, separated, single
from tests.oracles import allowed_sets, maximal_sets


@st.composite
def participations(draw, most_rounds=9):
    rounds = draw(st.integers(1, most_rounds))
    schema = draw(st.sampled_from(["single", "fixed_epoch", "min_sep", "every_round"]))
    if schema in ("single", "every_round"):
        return Participation(rounds=rounds, schema=schema)
    min_sep = draw(st.integers(1, rounds))
    most = draw(st.one_of(st.none(), st.integers(1, -(-rounds // min_sep))))
    return Participation(rounds=rounds, schema=schema, min_sep=min_sep, max_participations=most)


@given(participations())
def test_allows_exactly_the_sets_of_the_definition(participation):
    """Of min_sep: banded paper, Def. 1."""
    allowed = set(allowed_sets(participation))
    for size in range(1, participation.rounds + 1):
        for taken in itertools.combinations(range(participation.rounds), size):
            assert participation.allows(reversed(taken)) == (taken in allowed)


@given(participations())
def test_patterns_are_the_maximal_sets(participation):
    patterns = list(participation.patterns())
    assert len(set(patterns)) == len(patterns)
    assert sorted(patterns) == maximal_sets(participation)


@given(participations())
def test_the_limits_are_ints_and_reached(participation):
    assert type(participation.min_sep) is int
    assert type(participation.max_participations) is int
    longest = max(map(len, participation.patterns()))
    assert longest == participation.max_participations
    assert dataclasses.replace(participation) == participation


def test_schemas_fill_in_their_limits():
    filled = [single(10), every_round(10), epochs(10, 4), separated(10, np.int64(4), 2)]
    limits = [(p.min_sep, p.max_participations) for p in filled]
    assert limits == [(10, 1), (1, 10), (4, 3), (4, 2)]


def test_nobody_takes_part_twice_in_a_round_or_outside_the_run():
    everything = Participation(rounds=3, schema="every_round")
    assert everything.allows([])
    assert not any(everything.allows(rounds) for rounds in ([1, 1], [3], [-1]))
