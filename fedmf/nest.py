"""Structures of arrays: dicts, lists, tuples and named tuples in each other, whose leaves have an
order.

The leaves of a dict come in the order of its sorted keys, as those of `tf.nest` do. Whatever is no
dict, list or tuple is a leaf, None too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


def is_nested(structure: Any) -> bool:
    """Returns whether a structure is none that consists of a single leaf."""
    return isinstance(structure, Mapping | list | tuple)


def flatten(structure: Any) -> list[Any]:
    """Returns the leaves.

    Raises:
      TypeError: a dict has keys that cannot be sorted.

    >>> flatten(({"y": 3, "x": [1, 2]}, 4))
    [1, 2, 3, 4]
    """
    if not is_nested(structure):
        return [structure]
    return [leaf for part in _parts(structure) for leaf in flatten(part)]


def pack(structure: Any, leaves: Sequence[Any]) -> Any:
    """Returns these leaves in the structure of another one.

    Raises:
      ValueError: the structure has another number of leaves.

    >>> pack(({"y": 3, "x": [1, 2]}, 4), "abcd")
    ({'y': 'c', 'x': ['a', 'b']}, 'd')
    """
    if not is_nested(structure):
        [leaf] = leaves
        return leaf
    expected = len(flatten(structure))
    if len(leaves) != expected:
        raise ValueError(f"there are {len(leaves)} leaves, and the structure has {expected}")
    return _packed(structure, iter(leaves))


def map_leaves(function: Callable[..., Any], structure: Any, *others: Any) -> Any:
    """Returns the structure with what a function makes of each leaf, and of the leaves at the same
    place of the others.

    Raises:
      ValueError: the structures differ.

    >>> map_leaves(max, {"a": 1, "b": 5}, {"a": 2, "b": 3})
    {'a': 2, 'b': 5}
    """
    if not all(has_same_structure(other, structure) for other in others):
        raise ValueError("the structures differ: give all the same dicts, lists and tuples")
    columns = [flatten(each) for each in (structure, *others)]
    return pack(structure, [function(*leaves) for leaves in zip(*columns, strict=True)])


def has_same_structure(structure: Any, expected: Any) -> bool:
    """Returns whether two structures are equal but for their leaves.

    Dicts of any class count as the same, and so do named tuples of one name and the same fields.

    >>> has_same_structure({"a": (1, 2)}, {"a": (3, 4)}), has_same_structure([1, 2], (1, 2))
    (True, False)
    """
    if not is_nested(structure) or not is_nested(expected):
        return is_nested(structure) == is_nested(expected)
    if _kind(structure) != _kind(expected) or len(structure) != len(expected):
        return False
    pairs = zip(_parts(structure), _parts(expected), strict=True)
    return all(has_same_structure(part, other) for part, other in pairs)


def _kind(structure: Any) -> Any:
    """Returns what two structures of the same kind have equal."""
    if isinstance(structure, Mapping):
        return set(structure)
    if hasattr(structure, "_fields"):
        return type(structure).__name__, structure._fields
    return list if isinstance(structure, list) else tuple


def _parts(structure: Any) -> list[Any]:
    """Returns what a dict, list or tuple holds, in the order of the leaves."""
    if isinstance(structure, Mapping):
        return [structure[key] for key in sorted(structure)]
    return list(structure)


def _packed(structure: Any, leaves: Iterator[Any]) -> Any:
    """Returns the structure with the next leaves."""
    if not is_nested(structure):
        return next(leaves)
    if isinstance(structure, Mapping):
        packed = {key: _packed(structure[key], leaves) for key in sorted(structure)}
        in_order = [(key, packed[key]) for key in structure]
        make: Any = type(structure)
        if hasattr(structure, "default_factory"):
            return make(structure.default_factory, in_order)
        return make(in_order)
    parts = [_packed(part, leaves) for part in structure]
    if hasattr(structure, "_fields"):
        return type(structure)(*parts)
    return type(structure)(parts)
