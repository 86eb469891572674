"""Values of a strategy's attributes as JSON and arrays, which a file without pickles holds.

An immutable value is packed as it is. A mutable one is packed as its content, and everything that
holds it packs a reference in its place: two that share a dict still share it when they are put
together again.
"""

import collections
import collections.abc
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

# Kinds of entries that a file without pickles holds.
_ENTRIES = "biufcSUMm"
_BLOCK = 1 << 20  # bytes that are compared at once, of arrays of any size
# Returns the reference that stands for an object, as JSON; raises Unkeepable.
Refer = Callable[[Any], Any]


class Unkeepable(TypeError):
    """A value that a file without pickles does not hold; its text is the value's type."""


class Packed(NamedTuple):
    """A value as JSON and arrays: `["array", i]` in the JSON stands for array i."""

    tree: Any
    arrays: list[np.ndarray]

    def same_as(self, packed: "Packed | None") -> bool:
        """Says whether both are of equal values, to the bit."""
        if packed is None or self.tree != packed.tree:
            return False
        return all(map(_same_bits, self.arrays, packed.arrays))

    def copied(self) -> "Packed":
        """Returns the same with arrays that nobody else can change."""
        return Packed(self.tree, [array.copy() for array in self.arrays])


def _same_bits(first: np.ndarray, second: np.ndarray) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    sides = bytes_of(first), bytes_of(second)
    blocks = (slice(at, at + _BLOCK) for at in range(0, len(sides[0]), _BLOCK))
    return all(np.array_equal(sides[0][block], sides[1][block]) for block in blocks)


def bytes_of(array: np.ndarray) -> np.ndarray:
    """Returns the bytes of an array's entries, of one axis; a view where it can be one."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class _Kind(NamedTuple):
    """How values of one type are taken apart, and put together again.

    Attributes:
      type: of the values.
      apart: returns the parts of a value.
      empty: returns a value for parts, without those that may refer to it.
      fill: gives a value its parts; None where `empty` has done so, of an immutable value.
    """

    type: type
    apart: Callable[[Any], Iterable[Any]]
    empty: Callable[[list[Any]], Any]
    fill: Callable[[Any, list[Any]], None] | None = None


def _frozen(value: Any) -> Any:
    """Returns dicts and arrays of a random generator's state as tuples."""
    if isinstance(value, dict):
        return ("dict", *((name, _frozen(item)) for name, item in value.items()))
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.str, *value.tolist())
    return value


def _thawed(value: Any) -> Any:
    """Inverts `_frozen`."""
    if isinstance(value, tuple) and value[0] == "dict":
        return {name: _thawed(item) for name, item in value[1:]}
    if isinstance(value, tuple):
        return np.array(value[2:], value[1])
    return value


def _generator(parts: list[Any]) -> np.random.Generator:
    state = _thawed(parts[0])
    return np.random.Generator(getattr(np.random, state["bit_generator"])())


_FACTORIES = {"int": int, "float": float, "list": list, "dict": dict, "set": set, "NoneType": None}


def _factory_of(value: collections.defaultdict[Any, Any]) -> Any:
    """Returns the name of a usual factory, and another one itself."""
    name = getattr(value.default_factory, "__name__", "NoneType")
    is_usual = _FACTORIES.get(name, value) is value.default_factory
    return name if is_usual else value.default_factory


def _fill_default_dict(value: collections.defaultdict[Any, Any], parts: list[Any]) -> None:
    factory, *items = parts
    value.default_factory = _FACTORIES[factory] if isinstance(factory, str) else factory
    _fill_mapping(value, items)


def _items(mapping: Mapping[Any, Any]) -> list[Any]:
    return [item for pair in mapping.items() for item in pair]


def _fill_list(value: Any, parts: list[Any]) -> None:
    value.clear()
    value.extend(parts)


def _fill_set(value: set[Any], parts: list[Any]) -> None:
    value.clear()
    value.update(parts)


def _fill_mapping(value: Any, parts: list[Any]) -> None:
    for key in list(value):
        del value[key]
    for key, item in zip(parts[::2], parts[1::2], strict=True):
        value[key] = item


def _mapping(kind: type) -> _Kind:
    return _Kind(kind, _items, lambda parts: kind(), _fill_mapping)


_IMMUTABLE = (
    _Kind(bool, lambda flag: [int(flag)], lambda parts: bool(parts[0])),
    _Kind(float, lambda x: [x.hex()], lambda parts: float.fromhex(parts[0])),
    _Kind(complex, lambda z: [z.real, z.imag], lambda parts: complex(*parts)),
    _Kind(bytes, lambda text: [text.hex()], lambda parts: bytes.fromhex(parts[0])),
    _Kind(tuple, list, tuple),
    _Kind(frozenset, list, frozenset),
    _Kind(slice, lambda s: [s.start, s.stop, s.step], lambda parts: slice(*parts)),
    _Kind(range, lambda r: [r.start, r.stop, r.step], lambda parts: range(*parts)),
)
_MUTABLE = (
    _Kind(list, list, lambda parts: [], _fill_list),
    _Kind(set, list, lambda parts: set(), _fill_set),
    *map(_mapping, (dict, collections.OrderedDict, collections.Counter)),
    *map(_mapping, (ArrayRecord, MetricRecord, ConfigRecord)),
    _Kind(
        collections.defaultdict,
        lambda value: [_factory_of(value), *_items(value)],
        lambda parts: collections.defaultdict(),
        _fill_default_dict,
    ),
    _Kind(
        collections.deque,
        lambda queue: [queue.maxlen, *queue],
        lambda parts: collections.deque(maxlen=parts[0]),
        lambda queue, parts: _fill_list(queue, parts[1:]),
    ),
    _Kind(
        np.random.Generator,
        lambda draws: [_frozen(draws.bit_generator.state)],
        _generator,
        lambda draws, parts: setattr(draws.bit_generator, "state", _thawed(parts[0])),
    ),
    _Kind(
        np.random.RandomState,
        lambda draws: [_frozen(draws.get_state(legacy=False))],
        lambda parts: np.random.RandomState(),
        lambda draws, parts: draws.set_state(_thawed(parts[0])),
    ),
    _Kind(
        random.Random,
        lambda draws: [draws.getstate()],
        lambda parts: random.Random(),
        lambda draws, parts: draws.setstate(parts[0]),
    ),
)
_KINDS = {kind.type: kind for kind in (*_IMMUTABLE, *_MUTABLE)}
_NAMES = {kind.__name__: kind for kind in _KINDS}
_PLAIN = (type(None), int, str)


def is_mutable(value: Any) -> bool:
    """Says whether this is a mutable value whose content a file holds."""
    kind = _KINDS.get(type(value))
    return _is_array(value) or (kind is not None and kind.fill is not None)


def _is_array(value: Any) -> bool:
    return type(value) is np.ndarray and value.dtype.kind in _ENTRIES


def is_immutable(value: Any) -> bool:
    """Says whether this is packed as it is, with references to the mutable values that it holds."""
    kind = type(value)
    is_of_kind = kind in _KINDS and _KINDS[kind].fill is None
    return kind in _PLAIN or is_of_kind or kind is Array or isinstance(value, np.generic)


def items_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the values that a list, a dict or another value of these kinds holds, with names."""
    if isinstance(value, collections.abc.Mapping) and type(value) in _KINDS:
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


def pack(value: Any, refer: Refer) -> Packed:
    """Returns an immutable value, or the reference that stands for another one.

    Raises:
      Unkeepable: it is, or holds, what a file without pickles does not hold.
    """
    arrays: list[np.ndarray] = []
    try:
        return Packed(_packed(value, arrays, refer), arrays)
    except RecursionError as error:
        raise Unkeepable(type(value).__name__) from error


def _packed(value: Any, arrays: list[np.ndarray], refer: Refer) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, np.generic) and value.dtype.kind in _ENTRIES:
        arrays.append(np.array(value))
        return ["scalar", len(arrays) - 1]
    if kind is Array:
        arrays.append(_array_of(value))
        return ["Array", len(arrays) - 1]
    if is_immutable(value) and kind in _KINDS:
        items = (_packed(item, arrays, refer) for item in _KINDS[kind].apart(value))
        return [kind.__name__, *items]
    return refer(value)


def _array_of(value: Array) -> np.ndarray:
    try:
        return value.numpy()
    except Exception as error:  # of whatever its bytes are
        raise Unkeepable("Array") from error


def content_of(value: Any, refer: Refer) -> Packed:
    """Returns what a mutable value holds; its array is the value's own, and no copy.

    Raises:
      Unkeepable: it holds what a file without pickles does not hold.
    """
    if _is_array(value):
        return Packed(["ndarray"], [value])
    kind = _KINDS[type(value)]
    arrays: list[np.ndarray] = []
    items = [_packed(item, arrays, refer) for item in kind.apart(value)]
    return Packed([kind.type.__name__, *items], arrays)


Resolve = Callable[[list[Any]], Any]


def unpack(packed: Packed, resolve: Resolve) -> Any:
    """Puts together what `pack` took apart; `resolve` returns the object of a reference."""
    return _unpacked(packed.tree, packed.arrays, resolve)


def _unpacked(tree: Any, arrays: list[np.ndarray], resolve: Resolve) -> Any:
    if not isinstance(tree, list):
        return tree
    name, *items = tree
    if name == "scalar":
        return np.array(arrays[items[0]])[()]
    if name == "Array":
        return Array(np.array(arrays[items[0]]))
    if name in _NAMES:
        values = [_unpacked(item, arrays, resolve) for item in items]
        return _KINDS[_NAMES[name]].empty(values)
    return resolve(tree)


def empty_value(packed: Packed) -> Any:
    """Returns a mutable value of this content's type, for `fill`."""
    name, *items = packed.tree
    if name == "ndarray":
        return np.empty_like(packed.arrays[0])
    first = [_unpacked(item, packed.arrays, _nothing) for item in items[:1]]
    return _KINDS[_NAMES[name]].empty(first)


def _nothing(tree: list[Any]) -> None:
    """Stands for references where only a maxlen or the kind of a generator is asked for."""


def fill(value: Any, packed: Packed, resolve: Resolve) -> bool:
    """Gives a mutable value this content; returns whether it is of a type and shape for it."""
    name, *items = packed.tree
    if name == "ndarray":
        [content] = packed.arrays
        fits = _is_array(value) and (value.dtype, value.shape) == (content.dtype, content.shape)
        if fits and not _same_bits(value, content):
            value[...] = content
        return fits
    kind = _KINDS[_NAMES[name]]
    if type(value) is not kind.type or kind.fill is None:
        return False
    kind.fill(value, [_unpacked(item, packed.arrays, resolve) for item in items])
    return True
