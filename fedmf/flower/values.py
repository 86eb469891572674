"""Conversion of a strategy's attributes to JSON and arrays, which a file without pickles can hold.

An immutable value is packed by itself. Of a mutable value the content is packed once, and all
objects that hold it pack references to it: objects that share a dict still share it afterwards.
"""

import collections
import collections.abc
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

# Kinds of numpy dtypes that a file without pickles can hold.
_ENTRIES = "biufcSUMm"
_BLOCK = 1 << 20  # Number of bytes that are compared at a time.

# The type of a function that returns a JSON reference to an object, or raises Unkeepable.
Refer = Callable[[Any], Any]


class Unkeepable(TypeError):
    """The error for a value that a file without pickles cannot hold. Its text is the value's
    type.
    """


class Packed(NamedTuple):
    """A value as a JSON tree and a list of arrays. An entry such as `["scalar", i]` in the tree
    stands for array i.
    """

    tree: Any
    arrays: list[np.ndarray]

    def same_as(self, packed: "Packed | None") -> bool:
        """Returns whether another packed value is bitwise identical to this one."""
        if packed is None or self.tree != packed.tree:
            return False
        return all(map(_same_bits, self.arrays, packed.arrays))

    def copied(self) -> "Packed":
        """Returns a copy of the packed value that shares no arrays with it."""
        return Packed(self.tree, [array.copy() for array in self.arrays])


def _same_bits(first: np.ndarray, second: np.ndarray) -> bool:
    """Returns whether two arrays are bitwise identical."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    first_bytes = bytes_of(first)
    second_bytes = bytes_of(second)
    byte_ranges = (slice(start, start + _BLOCK) for start in range(0, len(first_bytes), _BLOCK))
    return all(np.array_equal(first_bytes[block], second_bytes[block]) for block in byte_ranges)


def bytes_of(array: np.ndarray) -> np.ndarray:
    """Returns the bytes of an array as a flat uint8 array, which is a view if possible."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class _Kind(NamedTuple):
    """The conversion of values of one type to a list of items and back.

    Attributes:
      type: type of the values.
      items: returns the items of a value.
      empty: returns a value without the items that may refer to it.
      fill: gives a value its items; None of an immutable type, where `empty` has done so.
    """

    type: type
    items: Callable[[Any], Iterable[Any]]
    empty: Callable[[list[Any]], Any]
    fill: Callable[[Any, list[Any]], None] | None = None


def _frozen(value: Any) -> Any:
    """Converts dicts and arrays in a random generator's state to tuples, because tuples can be
    packed.
    """
    if isinstance(value, dict):
        return ("dict", *((name, _frozen(item)) for name, item in value.items()))
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.str, *value.tolist())
    return value


def _thawed(value: Any) -> Any:
    """Converts the tuples of `_frozen` back to dicts and arrays."""
    if isinstance(value, tuple) and value[0] == "dict":
        return {name: _thawed(item) for name, item in value[1:]}
    if isinstance(value, tuple):
        return np.array(value[2:], value[1])
    return value


def _generator(items: list[Any]) -> np.random.Generator:
    """Returns a new random generator of the kind that a packed state names."""
    generator_state = _thawed(items[0])
    return np.random.Generator(getattr(np.random, generator_state["bit_generator"])())


_FACTORIES = {"int": int, "float": float, "list": list, "dict": dict, "set": set, "NoneType": None}


def _factory_of(value: collections.defaultdict[Any, Any]) -> Any:
    """Returns the name of a defaultdict's factory if it is a built-in type, and otherwise the
    factory itself.
    """
    factory_name = getattr(value.default_factory, "__name__", "NoneType")
    is_built_in = _FACTORIES.get(factory_name, value) is value.default_factory
    return factory_name if is_built_in else value.default_factory


def _fill_default_dict(value: collections.defaultdict[Any, Any], items: list[Any]) -> None:
    """Sets the factory and the entries of a defaultdict."""
    factory, *entries = items
    value.default_factory = _FACTORIES[factory] if isinstance(factory, str) else factory
    _fill_mapping(value, entries)


def _items(mapping: Mapping[Any, Any]) -> list[Any]:
    """Returns a list in which each key of a mapping is followed by its value."""
    return list(itertools.chain.from_iterable(mapping.items()))


def _fill_list(value: Any, items: list[Any]) -> None:
    """Replaces the items of a list or a deque."""
    value.clear()
    value.extend(items)


def _fill_set(value: set[Any], items: list[Any]) -> None:
    """Replaces the items of a set."""
    value.clear()
    value.update(items)


def _fill_mapping(value: Any, items: list[Any]) -> None:
    """Replaces the entries of a mapping by those in a list of `_items`."""
    for key in list(value):
        del value[key]
    for key, item in zip(items[::2], items[1::2], strict=True):
        value[key] = item


def _mapping(kind: type) -> _Kind:
    """Returns the conversion for one type of mapping."""
    return _Kind(kind, _items, lambda items: kind(), _fill_mapping)


_IMMUTABLE = (
    _Kind(bool, lambda flag: [int(flag)], lambda items: bool(items[0])),
    _Kind(float, lambda x: [x.hex()], lambda items: float.fromhex(items[0])),
    _Kind(complex, lambda z: [z.real, z.imag], lambda items: complex(*items)),
    _Kind(bytes, lambda text: [text.hex()], lambda items: bytes.fromhex(items[0])),
    _Kind(tuple, list, tuple),
    _Kind(frozenset, list, frozenset),
    _Kind(slice, lambda s: [s.start, s.stop, s.step], lambda items: slice(*items)),
    _Kind(range, lambda r: [r.start, r.stop, r.step], lambda items: range(*items)),
)
_MUTABLE = (
    _Kind(list, list, lambda items: [], _fill_list),
    _Kind(set, list, lambda items: set(), _fill_set),
    *map(_mapping, (dict, collections.OrderedDict, collections.Counter)),
    *map(_mapping, (ArrayRecord, MetricRecord, ConfigRecord)),
    _Kind(
        collections.defaultdict,
        lambda value: [_factory_of(value), *_items(value)],
        lambda items: collections.defaultdict(),
        _fill_default_dict,
    ),
    _Kind(
        collections.deque,
        lambda queue: [queue.maxlen, *queue],
        lambda items: collections.deque(maxlen=items[0]),
        lambda queue, items: _fill_list(queue, items[1:]),
    ),
    _Kind(
        np.random.Generator,
        lambda generator: [_frozen(generator.bit_generator.state)],
        _generator,
        lambda generator, items: setattr(generator.bit_generator, "state", _thawed(items[0])),
    ),
    _Kind(
        np.random.RandomState,
        lambda generator: [_frozen(generator.get_state(legacy=False))],
        lambda items: np.random.RandomState(),
        lambda generator, items: generator.set_state(_thawed(items[0])),
    ),
    _Kind(
        random.Random,
        lambda generator: [generator.getstate()],
        lambda items: random.Random(),
        lambda generator, items: generator.setstate(items[0]),
    ),
)
_KIND_BY_TYPE = {kind.type: kind for kind in (*_IMMUTABLE, *_MUTABLE)}
_TYPE_BY_NAME = {kind.__name__: kind for kind in _KIND_BY_TYPE}
_PLAIN = (type(None), int, str)


def is_mutable(value: Any) -> bool:
    """Returns whether a value is mutable, and a file can hold its content."""
    conversion = _KIND_BY_TYPE.get(type(value))
    return _is_array(value) or (conversion is not None and conversion.fill is not None)


def _is_array(value: Any) -> bool:
    """Returns whether a value is a numpy array that a file can hold."""
    return type(value) is np.ndarray and value.dtype.kind in _ENTRIES


def is_immutable(value: Any) -> bool:
    """Returns whether a value is immutable. Such a value is packed with references to the mutable
    values that it holds.
    """
    value_type = type(value)
    is_of_kind = value_type in _KIND_BY_TYPE and _KIND_BY_TYPE[value_type].fill is None
    return (
        value_type in _PLAIN or is_of_kind or value_type is Array or isinstance(value, np.generic)
    )


def items_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields name and value of each item that a container holds, such as a list or a dict."""
    if isinstance(value, collections.abc.Mapping) and type(value) in _KIND_BY_TYPE:
        yield "default_factory", getattr(value, "default_factory", None)
        for i, (key, item) in enumerate(value.items()):
            if is_immutable(key):
                yield f"[{key!r}]", item
            else:
                yield f"[key {i}]", key
                yield f"[{i}]", item
    elif isinstance(value, list | tuple | set | frozenset | collections.deque):
        for i, item in enumerate(value):
            yield f"[{i}]", item


def pack_value(value: Any, refer: Refer) -> Packed:
    """Packs an immutable value. For any other value it packs a reference.

    Raises:
      Unkeepable: a file without pickles cannot hold it, or a value in it.
    """
    arrays: list[np.ndarray] = []
    try:
        return Packed(_packed(value, arrays, refer), arrays)
    except RecursionError as error:
        raise Unkeepable(type(value).__name__) from error


def _packed(value: Any, arrays: list[np.ndarray], refer: Refer) -> Any:
    """Returns a value as a JSON tree, and appends its arrays to `arrays`."""
    value_type = type(value)
    if value_type in _PLAIN:
        return value
    if isinstance(value, np.generic) and value.dtype.kind in _ENTRIES:
        arrays.append(np.array(value))
        return ["scalar", len(arrays) - 1]
    if value_type is Array:
        arrays.append(_array_of(value))
        return ["Array", len(arrays) - 1]
    if is_immutable(value) and value_type in _KIND_BY_TYPE:
        packed_items = (
            _packed(item, arrays, refer) for item in _KIND_BY_TYPE[value_type].items(value)
        )
        return [value_type.__name__, *packed_items]
    return refer(value)


def _array_of(value: Array) -> np.ndarray:
    """Converts an Array of Flower to a numpy array.

    Raises:
      Unkeepable: the bytes are no array.
    """
    try:
        return value.numpy()
    # Any error is caught, because invalid bytes may raise errors of any type.
    except Exception as error:
        raise Unkeepable("Array") from error


def content_of(value: Any, refer: Refer) -> Packed:
    """Packs the content of a mutable value. Arrays are not copied.

    Raises:
      Unkeepable: a file without pickles cannot hold a value in it.
    """
    if _is_array(value):
        return Packed(["ndarray"], [value])
    conversion = _KIND_BY_TYPE[type(value)]
    arrays: list[np.ndarray] = []
    packed_items = [_packed(item, arrays, refer) for item in conversion.items(value)]
    return Packed([conversion.type.__name__, *packed_items], arrays)


Resolve = Callable[[list[Any]], Any]


def unpack_value(packed: Packed, resolve: Resolve) -> Any:
    """Restores a value that `pack_value` packed. `resolve` returns the object of a reference."""
    return _unpacked(packed.tree, packed.arrays, resolve)


def _unpacked(tree: Any, arrays: list[np.ndarray], resolve: Resolve) -> Any:
    """Restores a value from its JSON tree and its arrays."""
    if not isinstance(tree, list):
        return tree
    name, *items = tree
    if name == "scalar":
        return np.array(arrays[items[0]])[()]
    if name == "Array":
        return Array(np.array(arrays[items[0]]))
    if name in _TYPE_BY_NAME:
        unpacked_values = [_unpacked(item, arrays, resolve) for item in items]
        return _KIND_BY_TYPE[_TYPE_BY_NAME[name]].empty(unpacked_values)
    return resolve(tree)


def empty_value(packed: Packed) -> Any:
    """Returns an empty mutable value of the type of a packed content, which `fill` then fills."""
    name, *items = packed.tree
    if name == "ndarray":
        return np.empty_like(packed.arrays[0])
    # The first item may be the maxlen of a deque or the kind of a generator. References in it are
    # not needed to create the empty value.
    first_items = [_unpacked(item, packed.arrays, _resolve_to_none) for item in items[:1]]
    return _KIND_BY_TYPE[_TYPE_BY_NAME[name]].empty(first_items)


def _resolve_to_none(tree: list[Any]) -> None:
    """Returns None for any reference to an object."""


def fill(value: Any, packed: Packed, resolve: Resolve) -> bool:
    """Replaces the content of a mutable value by a packed content. Returns False if its type or
    shape does not allow that.
    """
    name, *items = packed.tree
    if name == "ndarray":
        [content] = packed.arrays
        has_same_layout = _is_array(value) and (value.dtype, value.shape) == (
            content.dtype,
            content.shape,
        )
        if has_same_layout and not _same_bits(value, content):
            value[...] = content
        return has_same_layout
    conversion = _KIND_BY_TYPE[_TYPE_BY_NAME[name]]
    if type(value) is not conversion.type or conversion.fill is None:
        return False
    conversion.fill(value, [_unpacked(item, packed.arrays, resolve) for item in items])
    return True
