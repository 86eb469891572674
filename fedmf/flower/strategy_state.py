"""State of a wrapped strategy between rounds: what changed in it, and how a file keeps it.

A strategy is a graph of objects: itself, the objects, functions and classes of its author that it
leads to, and the lists, dicts and arrays that they hold. Each has an address, the names that lead
to it first in a strategy that the program has just made. State is what changed in these objects; it
is put back into the objects at the same addresses, so that whoever shares one goes on sharing it.
"""

import contextlib
import copy
import hashlib
import itertools
import pickle
import types
from collections.abc import Iterator, Mapping, Set
from typing import Any, NamedTuple

import numpy as np
from flwr.serverapp.strategy import Strategy

from fedmf.flower.reach import Reach, is_iterator, is_link, is_tool, link_to_copy, set_attribute
from fedmf.flower.values import (
    Packed,
    Resolve,
    Unkeepable,
    content_of,
    empty_value,
    fill,
    is_immutable,
    is_mutable,
    pack,
    unpack,
)

# The names that lead from the strategy to an object, or to an attribute.
Path = tuple[str, ...]
_DELETED = Packed(["deleted"], [])


class State(NamedTuple):
    """What changed in a strategy since the program made it.

    Attributes:
      attributes: values and references, by the path of the attribute.
      contents: of lists, dicts and arrays that were there at first, by their address.
      new: contents of those that were not.
    """

    attributes: dict[Path, Packed]
    contents: dict[Path, Packed]
    new: list[Packed]

    def to_arrays(self) -> tuple[Any, list[np.ndarray]]:
        """Returns it as JSON and arrays."""
        packed = [*self.attributes.items(), *self.contents.items(), *(((), p) for p in self.new)]
        tree = [[path, value.tree, len(value.arrays)] for path, value in packed]
        counts = [len(self.attributes), len(self.contents)]
        return [counts, tree], [array for _, value in packed for array in value.arrays]

    @classmethod
    def from_arrays(cls, tree: Any, arrays: list[np.ndarray]) -> "State":
        """Inverts `to_arrays`."""
        [num_attributes, num_contents], entries = tree
        array_iterator = iter(arrays)
        packed = [
            (tuple(path), Packed(value, list(itertools.islice(array_iterator, count))))
            for path, value, count in entries
        ]
        end = num_attributes + num_contents
        contents = dict(packed[num_attributes:end])
        return cls(dict(packed[:num_attributes]), contents, [value for _, value in packed[end:]])


EMPTY = State({}, {}, [])


class Changes(NamedTuple):
    """How a strategy differs from the one that the program made.

    Attributes:
      state: what a file keeps of it.
      lost: the type of each value that no file keeps, by its path.
    """

    state: State
    lost: dict[Path, str]


class StrategyState:
    """The objects that a strategy leads to, and what they hold at first.

    Only what changed is state: a learning rate that rounds leave alone is the program's own, also
    where the program gives another one when it is started again.

    Args:
      strategy: as the program made it.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._reach = Reach(strategy)
        self._strategy = strategy
        self._objects: dict[Path, Any] = {}
        self._addresses: dict[int, Path] = {}
        for path, value in self._walk():
            self._objects[path] = value
            self._addresses[id(value)] = path
        self._attributes: dict[Path, dict[str, Packed]] = {}
        self._contents: dict[Path, Packed] = {}
        self._unseen: set[Path] = set()
        for path, value in list(self._objects.items()):
            if self._reach.is_holder(value):
                holds = self._reach.attributes(value).items()
                self._attributes[path] = {
                    n: self._first(path, n, attribute) for n, attribute in holds
                }
            elif is_mutable(value):
                try:
                    self._contents[path] = content_of(value, self._address_of).copied()
                except Unkeepable:
                    self._unseen.add(path)

    @property
    def opaque(self) -> dict[Path, str]:
        """The type of each object whose state, if it has one, cannot be seen or kept."""
        opaque = self._opaque_objects()
        return {path: type(value).__name__ for path, value in opaque.items()}

    def watch(self) -> "Watch":
        """Returns a watch of the objects whose state cannot be seen."""
        return Watch(self._opaque_objects())

    def changes(self) -> Changes:
        """Returns what changed since the strategy was made."""
        return _Comparison(self).changes()

    def restore(self, state: State = EMPTY) -> None:
        """Gives the strategy this state; without one that in which the program made it.

        Raises:
          ValueError: the strategy has no object of an address: it is another one.
        """
        self._put(state)

    def rewind(self, state: State) -> None:
        """Gives the strategy a state that it had in this process.

        What no file keeps stays as it is: it is nearer to what it was than what it was at first.
        """
        self._put(state, lost=self.changes().lost.keys())

    @contextlib.contextmanager
    def restored(self) -> Iterator["Watch | None"]:
        """Lets something be tried, and gives the strategy back what the program made.

        Objects whose state cannot be seen have copies in their place meanwhile.

        Yields:
          A watch of the copies; None where one cannot be copied, and nothing is to be tried.
        """
        opaque = self._opaque_objects()
        links = {path: value for path, value in self._objects.items() if is_link(value)}
        originals = opaque | links
        # Whatever is seen stays itself, also where a copy holds it.
        seen_paths = self._objects.keys() - originals.keys()
        memo = {id(self._objects[path]): self._objects[path] for path in seen_paths}
        try:
            copies = dict(zip(opaque, copy.deepcopy(list(opaque.values()), memo), strict=True))
            for path, value in links.items():
                memo[id(value)] = copies[path] = link_to_copy(value, memo)
        except Exception:  # whatever a lock, a file or a connection raises
            yield None
            return
        try:
            self._replace(copies)
            yield Watch({path: copies[path] for path in opaque})
        finally:
            self._replace(originals)

    def _replace(self, objects: Mapping[Path, Any]) -> None:
        """Gives the strategy what it was made with, with these objects at their addresses."""
        self._objects |= objects
        self._addresses |= {id(value): path for path, value in objects.items()}
        self._put(EMPTY, anew=objects.keys())

    def _first(self, path: Path, name: str, value: Any) -> Packed:
        """Returns the value of an attribute at first, or a reference to what cannot be packed."""
        try:
            return pack(value, self._address_of).copied()
        except Unkeepable:
            address = (*path, name, "")
            self._objects[address] = value
            self._unseen.add(address)
            return Packed(["at", *address], [])

    def is_as_at_first(self, path: Path, value: Any) -> bool:
        """Says whether an attribute that cannot be packed is the object that it was at first."""
        return (*path, "") in self._unseen and self._objects[(*path, "")] is value

    def _opaque_objects(self) -> dict[Path, Any]:
        return {
            path: value
            for path, value in self._objects.items()
            if path in self._unseen or self._reach.is_opaque(value)
        }

    def _walk(self) -> Iterator[tuple[Path, Any]]:
        """Yields each object that the strategy leads to, the nearest first, with its address."""
        seen: dict[int, Any] = {}  # the values too, so that no id is given anew meanwhile
        addresses: set[Path] = set()
        todo: list[tuple[Path, Any]] = [((), self._strategy)]
        while todo:
            level, todo = todo, []
            for path, value in level:
                if id(value) in seen:
                    continue
                if not is_immutable(value):
                    seen[id(value)] = value
                    while path in addresses:  # two classes of one name
                        path = (*path[:-1], f"{path[-1]}'")
                    addresses.add(path)
                    yield path, value
                for name, child in self._reach.children(value):
                    todo.append(((name,) if name.startswith("@") else (*path, name), child))

    def _address_of(self, value: Any) -> Any:
        path = self._addresses.get(id(value))
        if path is None:
            raise Unkeepable(type(value).__name__)
        return ["at", *path]

    def _put(
        self, state: State, *, anew: Set[Path] = frozenset(), lost: Set[Path] = frozenset()
    ) -> None:
        """Gives the strategy a state, but for the paths `lost`; what refers to the addresses `anew`
        is set in any case.
        """
        new = [empty_value(content) for content in state.new]

        def resolve(tree: list[Any]) -> Any:
            kind, *where = tree
            if kind == "new":
                return new[where[0]]
            if kind == "method":
                function, owner = (resolve(subtree) for subtree in where)
                return types.MethodType(function, owner)
            if tuple(where) not in self._objects:
                raise self._has_no(tuple(where))
            return self._objects[tuple(where)]

        for value, packed in zip(new, state.new, strict=True):
            fill(value, packed, resolve)
        by_holder: dict[Path, dict[str, Packed]] = {}
        for path, packed in state.attributes.items():
            by_holder.setdefault(path[:-1], {})[path[-1]] = packed
            if path[:-1] not in self._attributes:
                raise self._has_no(path)
        for path in state.contents.keys() - self._contents.keys():
            raise self._has_no(path)
        for path, packed in (self._contents | state.contents).items():
            if path in lost:
                continue
            refers = not anew.isdisjoint(_references(packed.tree))
            is_there = not refers and packed.same_as(self._present(self._objects[path]))
            if not is_there and not fill(self._objects[path], packed, resolve):
                raise self._has_no(path)
        for path, attributes in self._attributes.items():
            target = attributes | by_holder.get(path, {})
            lost_names = {name for *holder, name in lost if tuple(holder) == path}
            self._put_attributes(self._objects[path], target, lost_names, resolve)

    def _put_attributes(
        self, holder: Any, target: Mapping[str, Packed], lost: Set[str], resolve: Resolve
    ) -> None:
        present = self._reach.attributes(holder)
        for name in present.keys() - target.keys() - lost:
            if not is_tool(present[name]):
                set_attribute(holder, name)
        for name, packed in target.items():
            if name in lost:
                continue
            if packed.same_as(_DELETED):
                if name in present:
                    set_attribute(holder, name)
                continue
            value = unpack(packed, resolve)
            if name not in present or not _is_same(present[name], value):
                set_attribute(holder, name, value)

    def _present(self, value: Any) -> Packed | None:
        """Returns what a list, a dict or an array holds now; None where it holds new objects."""
        try:
            return content_of(value, self._address_of)
        except Unkeepable:
            return None

    def _has_no(self, path: Path) -> ValueError:
        return ValueError(
            f"the folder keeps strategy.{shown_path(path)}, which "
            f"strategy={type(self._strategy).__name__} has no place for: wrap the strategy that "
            "the folder was begun with"
        )


class _Comparison:
    """One comparison of a strategy with what it was at first."""

    def __init__(self, first: StrategyState) -> None:
        self._first = first
        self._new: dict[int, int] = {}
        self._values: list[Any] = []  # the new objects, which keep their ids while they are here
        self._paths: list[Path] = []  # where each was met
        self._here: Path = ()

    def changes(self) -> Changes:
        first = self._first
        lost: dict[Path, str] = {}
        attributes: dict[Path, Packed] = {}
        contents: dict[Path, Packed] = {}
        for path, value in first._objects.items():
            if path in first._attributes:
                attributes_of_holder, unkeepable = self._attributes_of(path, value)
                attributes |= attributes_of_holder
                lost |= unkeepable
            elif path in first._contents:
                self._here = path
                try:
                    content = content_of(value, self._refer)
                except Unkeepable as error:
                    lost[path] = str(error)
                    continue
                first_content = first._contents[path]
                if not content.same_as(first_content):
                    contents[path] = content.copied()
                if _shape(content) != _shape(first_content):
                    lost[path] = "an array of another shape"
        new: list[Packed] = []
        for value in self._values:  # which grows meanwhile
            self._here = self._paths[len(new)]
            try:
                new.append(content_of(value, self._refer).copied())
            except Unkeepable as error:
                lost[self._here] = str(error)
                new.append(Packed(["list"], []))
        lost |= self._overlaps()
        return Changes(State(attributes, contents, new), lost)

    def _attributes_of(self, path: Path, holder: Any) -> tuple[dict[Path, Packed], dict[Path, str]]:
        first_values = self._first._attributes[path]
        changed: dict[Path, Packed] = {}
        lost: dict[Path, str] = {}
        present = self._first._reach.attributes(holder)
        for name, value in present.items():
            self._here = (*path, name)
            try:
                packed = pack(value, self._refer)
            except Unkeepable as error:
                if not is_tool(value) and not self._first.is_as_at_first(self._here, value):
                    lost[self._here] = str(error)
                continue
            if not packed.same_as(first_values.get(name)):
                changed[self._here] = packed.copied()
        for name in first_values.keys() - present.keys():
            changed[(*path, name)] = _DELETED
        return changed, lost

    def _refer(self, value: Any) -> Any:
        path = self._first._addresses.get(id(value))
        if path is not None:
            return ["at", *path]
        if id(value) in self._new:
            return ["new", self._new[id(value)]]
        if is_mutable(value):
            self._new[id(value)] = len(self._values)
            self._values.append(value)
            self._paths.append(self._here)
            return ["new", len(self._values) - 1]
        if isinstance(value, types.MethodType):
            return ["method", self._refer(value.__func__), self._refer(value.__self__)]
        raise Unkeepable(type(value).__name__)

    def _overlaps(self) -> dict[Path, str]:
        """Returns new arrays that share their memory with another array, as views do."""
        arrays = [
            (path, value)
            for path, value in zip(self._paths, self._values, strict=True)
            if isinstance(value, np.ndarray)
        ]
        by_memory: dict[int, list[np.ndarray]] = {}
        for value in self._first._objects.values():
            if isinstance(value, np.ndarray):
                by_memory.setdefault(_memory_of(value), []).append(value)
        lost = {}
        for path, value in arrays:
            neighbours = by_memory.setdefault(_memory_of(value), [])
            if any(np.may_share_memory(value, neighbour) for neighbour in neighbours):
                lost[path] = "an array that shares the memory of another"
            neighbours.append(value)
        return lost


class Watch:
    """Objects whose state cannot be seen, and whether their pickles change.

    Args:
      objects: by their addresses.
    """

    def __init__(self, objects: Mapping[Path, Any]) -> None:
        self._objects = objects
        self._digests = {path: _pickle_digest(value) for path, value in objects.items()}

    def changed(self) -> dict[Path, str]:
        """Returns the type of each object that is not as it was, as far as that can be told."""
        return {
            path: type(value).__name__
            for path, value in self._objects.items()
            if self._digests[path] != _pickle_digest(value)
        }


def iterators_of(state: StrategyState) -> dict[Path, str]:
    """Returns the type of each generator and iterator, which every use moves on."""
    opaque = state._opaque_objects()
    return {path: type(value).__name__ for path, value in opaque.items() if is_iterator(value)}


def shown_path(path: Path) -> str:
    """Returns the names that lead to an attribute, for a sentence.

    >>> shown_path(("optimizers", "[0]", "rate"))
    'optimizers[0].rate'
    """
    return ".".join(path).replace(".[", "[").replace("@", "")


def _memory_of(array: np.ndarray) -> int:
    """Returns the id of the object whose memory an array uses."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return id(array) if array.base is None else id(array.base)


def _shape(content: Packed) -> Any:
    is_array = content.tree == ["ndarray"]
    return (content.arrays[0].dtype, content.arrays[0].shape) if is_array else None


def _is_same(present: Any, value: Any) -> bool:
    """Says whether an attribute has this value already."""
    if present is value:
        return True
    return type(present) is type(value) and is_immutable(value) and _equal(present, value)


def _equal(present: Any, value: Any) -> bool:
    try:
        packed = [pack(side, _no_reference) for side in (present, value)]
    except Unkeepable:
        return False
    return packed[0].same_as(packed[1])


def _no_reference(value: Any) -> Any:
    raise Unkeepable(type(value).__name__)


def _references(tree: Any) -> Iterator[Path]:
    """Yields the addresses that a value refers to."""
    if isinstance(tree, list):
        if tree[:1] == ["at"]:
            yield tuple(tree[1:])
        else:
            for subtree in tree:
                yield from _references(subtree)


class _Digest:
    """A file of which only the digest stays: objects may be as large as a data set."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def write(self, content: Any) -> None:
        self.digest.update(content)


def _pickle_digest(value: Any) -> bytes | None:
    file = _Digest()
    try:
        pickle.Pickler(file).dump(value)
        return file.digest.digest()
    except Exception:  # whatever a lock, a file or a connection raises
        return None
