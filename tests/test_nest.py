"""Nested structures have the leaves, and the order of leaves, of `tf.nest`."""

import collections
from typing import Any, NamedTuple

import pytest

from fedmf import nest
from tests.refusals import refusal


class Pair(NamedTuple):
    x: Any
    y: Any


STRUCTURES = [
    7,
    None,
    [],
    (),
    {},
    [1, (2, [3]), ()],
    {"b": 1, "a": (2, {"z": 3, "y": [4]})},
    collections.OrderedDict([("b", 1), ("a", 2)]),
    collections.defaultdict(list, {"b": 1, "a": 2}),
    Pair({"q": 1, "p": 2}, [3, None]),
    {2: "two", 1: "one"},
]


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_unflatten_restores_structure_classes_and_order(structure):
    leaves = nest.flatten(structure)
    restored_structure = nest.unflatten(structure, leaves)
    assert restored_structure == structure
    assert type(restored_structure) is type(structure)
    assert nest.has_same_structure(restored_structure, structure)
    if isinstance(structure, dict):
        assert list(restored_structure) == list(structure)
    negated = nest.map_leaves(lambda leaf: (leaf,), structure)
    assert nest.flatten(negated) == leaves


def test_structures_of_other_kinds_keys_or_lengths_differ():
    for first_structure, second_structure in [
        ([1], (1,)),
        ({"a": 1}, {"b": 1}),
        (Pair(1, 2), (1, 2)),
        ([1, 2], [1]),
        ([1], 1),
        ({"a": [1]}, {"a": (1,)}),
    ]:
        assert not nest.has_same_structure(first_structure, second_structure)
    with refusal("3 leaves do not fit a structure of 2"):
        nest.unflatten([1, 2], "abc")


@pytest.mark.tensorflow
@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_the_order_of_leaves_is_that_of_tensorflow(structure):
    tf = pytest.importorskip("tensorflow")
    assert nest.flatten(structure) == tf.nest.flatten(structure)
