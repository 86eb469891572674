"""State of a wrapped strategy between rounds: what changed in it, and how a file keeps it."""

import collections
import copy
import dataclasses
import enum
import functools
import logging
import pathlib
import random
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import Strategy

# An attribute of the strategy, or of an object that it holds: the names that lead to it.
Path = tuple[str, ...]
# Kinds of entries that a file without pickles holds.
_ENTRIES = "biufcSUMm"
# What a program makes again when it needs it.
_TOOLS = (
    types.ModuleType,
    type,
    logging.Logger,
    type(threading.Lock()),
    type(threading.RLock()),
)
# Values without a state of their own.
_STATELESS = (
    *_TOOLS,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
    enum.Enum,
    pathlib.PurePath,
)


class _Kind(NamedTuple):
    """How values of one type are taken apart into simpler ones, and put together again."""

    type: type
    apart: Callable[[Any], Any]
    together: Callable[[Any], Any]


def _pairs(mapping: Mapping[Any, Any]) -> list[list[Any]]:
    return [[key, value] for key, value in mapping.items()]


def _generator(state: dict[str, Any]) -> np.random.Generator:
    bits = getattr(np.random, state["bit_generator"])()
    bits.state = state
    return np.random.Generator(bits)


def _random_state(state: dict[str, Any]) -> np.random.RandomState:
    result = np.random.RandomState()
    result.set_state(state)
    return result


def _python_random(state: tuple[Any, ...]) -> random.Random:
    result = random.Random()
    result.setstate(state)
    return result


_FACTORIES = {"int": int, "float": float, "list": list, "dict": dict, "set": set, "NoneType": None}


def _of_default_dict(value: collections.defaultdict[Any, Any]) -> list[Any]:
    name = getattr(value.default_factory, "__name__", "NoneType")
    if _FACTORIES.get(name, value) is not value.default_factory:
        raise Unkeepable(type(value).__name__)
    return [name, _pairs(value)]


_KINDS = {
    kind.type.__name__: kind
    for kind in (
        _Kind(float, float.hex, float.fromhex),
        _Kind(complex, lambda z: [z.real, z.imag], lambda parts: complex(*parts)),
        _Kind(bytes, lambda text: np.frombuffer(text, np.uint8), lambda codes: codes.tobytes()),
        _Kind(tuple, list, tuple),
        _Kind(set, list, set),
        _Kind(frozenset, list, frozenset),
        _Kind(dict, _pairs, dict),
        _Kind(collections.OrderedDict, _pairs, collections.OrderedDict),
        _Kind(collections.Counter, _pairs, lambda pairs: collections.Counter(dict(pairs))),
        _Kind(
            collections.defaultdict,
            _of_default_dict,
            lambda parts: collections.defaultdict(_FACTORIES[parts[0]], parts[1]),
        ),
        _Kind(
            collections.deque,
            lambda queue: [list(queue), queue.maxlen],
            lambda parts: collections.deque(*parts),
        ),
        _Kind(Array, lambda array: array.numpy(), Array),
        _Kind(ArrayRecord, _pairs, lambda pairs: ArrayRecord(dict(pairs))),
        _Kind(MetricRecord, _pairs, lambda pairs: MetricRecord(dict(pairs))),
        _Kind(ConfigRecord, _pairs, lambda pairs: ConfigRecord(dict(pairs))),
        _Kind(np.random.Generator, lambda draws: draws.bit_generator.state, _generator),
        _Kind(np.random.RandomState, lambda draws: draws.get_state(legacy=False), _random_state),
        _Kind(random.Random, random.Random.getstate, _python_random),
    )
}


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
        pairs = zip(self.arrays, packed.arrays, strict=True)
        return all(
            a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
            for a, b in pairs
        )


def pack(value: Any) -> Packed:
    """Takes a value apart; its arrays are copies.

    Raises:
      Unkeepable: it is, or holds, what a file without pickles does not hold.

    >>> pack({"rate": 0.5, "left": [3, None]}).tree
    ['dict', ['list', ['list', 'rate', ['float', '0x1.0000000000000p-1']], ['list', 'left', \
['list', 3, None]]]]
    """
    arrays: list[np.ndarray] = []
    try:
        return Packed(_packed(value, arrays), arrays)
    except RecursionError as error:
        raise Unkeepable(type(value).__name__) from error


def _packed(value: Any, arrays: list[np.ndarray]) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is list:
        return ["list", *(_packed(item, arrays) for item in value)]
    is_scalar = isinstance(value, np.generic)
    if (kind is np.ndarray or is_scalar) and value.dtype.kind in _ENTRIES:
        arrays.append(np.array(value))
        return ["scalar" if is_scalar else "array", len(arrays) - 1]
    if kind.__name__ in _KINDS and _KINDS[kind.__name__].type is kind:
        return [kind.__name__, _packed(_KINDS[kind.__name__].apart(value), arrays)]
    raise Unkeepable(kind.__name__)


def unpack(packed: Packed) -> Any:
    """Puts together what `pack` took apart.

    >>> unpack(pack({"rate": (0.5, 2), "left": [3, None]}))
    {'rate': (0.5, 2), 'left': [3, None]}
    """
    return _unpacked(packed.tree, packed.arrays)


def _unpacked(tree: Any, arrays: list[np.ndarray]) -> Any:
    if not isinstance(tree, list):
        return tree
    name, *parts = tree
    if name == "list":
        return [_unpacked(item, arrays) for item in parts]
    if name in ("array", "scalar"):
        array = np.array(arrays[parts[0]])
        return array[()] if name == "scalar" else array
    return _KINDS[name].together(_unpacked(parts[0], arrays))


class Changes(NamedTuple):
    """Attributes of a strategy that are not as they were at first.

    Attributes:
      kept: those that a file keeps.
      lost: the type of each that no file keeps.
    """

    kept: dict[Path, Packed]
    lost: dict[Path, str]


class StrategyState:
    """Attributes of a strategy and of the objects that it holds, beside those it began with.

    Only what changed is state: a learning rate that rounds leave alone is the program's own, also
    where the program gives another one when it is started again.

    Args:
      strategy: as the program made it.
    """

    def __init__(self, strategy: Strategy) -> None:
        # Objects that a wrapper or the author of the strategy made are looked into, and no others:
        # what a library keeps inside of its objects is not to be set from outside.
        self._modules = {kind.__module__ for kind in type(strategy).__mro__[:-1]}
        self._holders: dict[Path, type] = {(): type(strategy)}
        self._initial: dict[Path, Packed] = {}
        self._unpacked: dict[Path, Any] = {}
        for path, value in self._attributes(strategy, first=True):
            try:
                self._initial[path] = pack(value)
            except Unkeepable:
                self._unpacked[path] = value

    @property
    def opaque(self) -> dict[Path, str]:
        """The type of each attribute whose state, if it has one, cannot be seen or kept."""
        return {
            path: type(value).__name__
            for path, value in self._unpacked.items()
            if not isinstance(value, _STATELESS)
        }

    def initial(self, paths: Iterable[Path]) -> dict[Path, Packed]:
        """Returns the values that attributes had at first."""
        return {path: self._initial[path] for path in paths if path in self._initial}

    def changes(self, strategy: Strategy) -> Changes:
        """Compares the strategy with what it was at first."""
        kept: dict[Path, Packed] = {}
        lost: dict[Path, str] = {}
        paths = set()
        for path, value in self._attributes(strategy, first=False):
            paths.add(path)
            try:
                packed = pack(value)
            except Unkeepable as error:
                is_as_before = path in self._unpacked and self._unpacked[path] is value
                if not is_as_before and not isinstance(value, _TOOLS):
                    lost[path] = str(error)
                continue
            if not packed.same_as(self._initial.get(path)):
                kept[path] = packed
        for path in {*self._initial, *self._unpacked} - paths:
            if not any(path[:length] in paths for length in range(1, len(path))):
                lost[path] = "deleted"
        return Changes(kept, lost)

    def undo(self, strategy: Strategy) -> None:
        """Gives the strategy the attributes that it had at first."""
        kept, lost = self.changes(strategy)
        changed = {*kept, *lost}
        restore(strategy, self.initial(changed))
        for path in changed - set(self._initial):
            holder = holder_of(strategy, path)
            if path in self._unpacked:
                vars(holder)[path[-1]] = self._unpacked[path]
            else:
                del vars(holder)[path[-1]]

    def _attributes(
        self, holder: Any, path: Path = (), inside: frozenset[int] = frozenset(), *, first: bool
    ) -> Iterator[tuple[Path, Any]]:
        """Yields the attributes of an object and of the objects that it holds."""
        inside |= {id(holder)}
        for name, value in list(vars(holder).items()):
            here = (*path, name)
            if first and self._is_holder(value):
                self._holders[here] = type(value)
            if self._holders.get(here) is not type(value):
                yield here, value
            elif id(value) not in inside:
                yield from self._attributes(value, here, inside, first=first)

    def _is_holder(self, value: Any) -> bool:
        if not hasattr(value, "__dict__") or isinstance(value, _STATELESS):
            return False
        is_own = type(value).__module__ in self._modules and type(value).__name__ not in _KINDS
        return isinstance(value, Strategy) or dataclasses.is_dataclass(value) or is_own


def round_state(state: StrategyState, strategy: Strategy, before: Mapping[Path, Packed]) -> Changes:
    """Returns what changed in the strategy since `before`, and what of it no file keeps.

    Args:
      state: of the strategy, as it was at first.
      strategy: as it is now.
      before: its changes at an earlier time.
    """
    kept, lost = state.changes(strategy)
    # What is again as it was at first has changed, too.
    kept |= state.initial(before.keys() - kept.keys())
    changed = {path: value for path, value in kept.items() if not value.same_as(before.get(path))}
    return Changes(changed, lost)


def restore(strategy: Strategy, kept: Mapping[Path, Packed]) -> None:
    """Gives a strategy the attributes that were kept.

    Raises:
      ValueError: the strategy has no object of this path: it is another one.
    """
    for path, packed in kept.items():
        holder = holder_of(strategy, path)
        if not hasattr(holder, "__dict__"):
            raise ValueError(
                f"the folder keeps strategy.{'.'.join(path)}, which "
                f"strategy={type(strategy).__name__} has no place for: wrap the strategy that the "
                "folder was begun with"
            )
        vars(holder)[path[-1]] = unpack(packed)


def holder_of(strategy: Strategy, path: Path) -> Any:
    """Returns the object that has the last attribute of a path; None where there is none."""
    holder: Any = strategy
    for name in path[:-1]:
        holder = getattr(holder, name, None)
    return holder


def duplicate(strategy: Strategy, memo: dict[int, Any] | None = None) -> Strategy:
    """Returns a copy to try things with; what cannot be copied is shared."""
    memo = {} if memo is None else memo
    twin: Strategy = object.__new__(type(strategy))
    memo[id(strategy)] = twin
    for name, value in vars(strategy).items():
        try:
            copied = copy.deepcopy(value, memo)
        except Exception:  # whatever a lock, a file or a connection raises
            copied = duplicate(value, memo) if isinstance(value, Strategy) else value
        vars(twin)[name] = copied
    return twin
