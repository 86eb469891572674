"""Nested structures of arrays, that is dicts, lists, tuples and named tuples with ordered leaves.

As in `tf.nest`, the leaves of a dict come in the order of its sorted keys. Everything that is not a
dict, list or tuple is a leaf, including None.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


def is_nested(structure: Any) -> bool:
    """Returns whether a structure is a dict, list or tuple, and not a single leaf."""
    return isinstance(structure, Mapping | list | tuple)


def flatten(structure: Any) -> list[Any]:
    """Returns the leaves of a structure as a list.

    Raises:
      TypeError: a dict has keys that cannot be sorted.

    >>> flatten(({"y": 3, "x": [1, 2]}, 4))
    [1, 2, 3, 4]
    """
    if not is_nested(structure):
        return [structure]
    leaves: list[Any] = []
    for child in _children(structure):
        leaves.extend(flatten(child))
    return leaves


def unflatten(structure: Any, leaves: Sequence[Any]) -> Any:
    """Returns a structure of the same form as `structure` with other leaves, which are given in the
    order of `flatten`.

    Raises:
      ValueError: the structure has another number of leaves.

    >>> unflatten(({"y": 3, "x": [1, 2]}, 4), "abcd")
    ({'y': 'c', 'x': ['a', 'b']}, 'd')
    """
    if not is_nested(structure):
        [leaf] = leaves
        return leaf
    num_leaves = len(flatten(structure))
    if len(leaves) != num_leaves:
        raise ValueError(
            f"{len(leaves)} leaves do not fit a structure of {num_leaves}: pass one for each"
        )
    return _unflatten_next(structure, iter(leaves))


def map_leaves(function: Callable[..., Any], structure: Any, *others: Any) -> Any:
    """Calls a function for each leaf of a structure, and returns the results in a structure of the
    same form.

    The function's arguments are a leaf of `structure` and the leaves at the same position in
    `others`.

    Raises:
      ValueError: the structures differ in more than their leaves.

    >>> map_leaves(max, {"a": 1, "b": 5}, {"a": 2, "b": 3})
    {'a': 2, 'b': 5}
    """
    if not all(has_same_structure(nested, structure) for nested in others):
        raise ValueError("the structures differ: give all the same dicts, lists and tuples")
    flat_structures = [flatten(nested) for nested in (structure, *others)]
    mapped_leaves = [function(*leaves) for leaves in zip(*flat_structures, strict=True)]
    return unflatten(structure, mapped_leaves)


def has_same_structure(structure: Any, expected: Any) -> bool:
    """Returns whether two structures are equal except for their leaves.

    Dicts of different classes count as equal if their keys are, and so do named tuples if their
    names and fields are.

    >>> has_same_structure({"a": (1, 2)}, {"a": (3, 4)}), has_same_structure([1, 2], (1, 2))
    (True, False)
    """
    if not is_nested(structure) or not is_nested(expected):
        return is_nested(structure) == is_nested(expected)
    if _signature(structure) != _signature(expected) or len(structure) != len(expected):
        return False
    child_pairs = zip(_children(structure), _children(expected), strict=True)
    return all(has_same_structure(child, expected_child) for child, expected_child in child_pairs)


def _signature(structure: Any) -> Any:
    """Returns a value that is equal for two structures if both have the same kind (dict, list or
    tuple) and the same keys or named fields.
    """
    if isinstance(structure, Mapping):
        return set(structure)
    if hasattr(structure, "_fields"):
        return type(structure).__name__, structure._fields
    return list if isinstance(structure, list) else tuple


def _children(structure: Any) -> list[Any]:
    """Returns the entries of a dict, list or tuple. The entries of a dict are in the order of its
    sorted keys.
    """
    if isinstance(structure, Mapping):
        return [structure[key] for key in sorted(structure)]
    return list(structure)


def _unflatten_next(structure: Any, leaves: Iterator[Any]) -> Any:
    """Returns a structure of the same form as `structure`, with the next leaves of an iterator."""
    if not is_nested(structure):
        return next(leaves)
    if isinstance(structure, Mapping):
        child_by_key = {key: _unflatten_next(structure[key], leaves) for key in sorted(structure)}
        # The new dict has the keys in the order of the old dict, which may not be sorted.
        sorted_items = [(key, child_by_key[key]) for key in structure]
        dict_class: Any = type(structure)
        if hasattr(structure, "default_factory"):
            return dict_class(structure.default_factory, sorted_items)
        return dict_class(sorted_items)
    children = [_unflatten_next(child, leaves) for child in structure]
    if hasattr(structure, "_fields"):
        return type(structure)(*children)
    return type(structure)(children)
