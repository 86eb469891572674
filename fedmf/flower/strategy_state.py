"""Functions that read the state of a wrapped strategy from its objects, and restore it in them.

A strategy is a graph of objects: itself, objects, functions and classes of its author that it
refers to, and the lists, dicts and arrays that they hold. Each object has an address: the names of
the shortest way to it in a strategy that the program has just made. The state consists of changes
in these objects. It is set in the objects at the same addresses, so that objects which share
another one still share it.
"""

import contextlib
import copy
import types
from collections.abc import Iterator, Mapping, Set
from typing import Any, NamedTuple, NoReturn

import numpy as np
from flwr.serverapp.strategy import Strategy

from fedmf.flower.reach import Reach, is_iterator, is_link, is_tool, link_to_copy, set_attribute
from fedmf.flower.state import EMPTY, AttributePath, State, path_text
from fedmf.flower.values import (
    Packed,
    Resolve,
    Unkeepable,
    content_of,
    empty_value,
    fill,
    is_immutable,
    is_mutable,
    pack_value,
    unpack_value,
)
from fedmf.flower.watch import Watch

_DELETED = Packed(["deleted"], [])


class Changes(NamedTuple):
    """The differences between a strategy now and as the program created it.

    Attributes:
      state: the differences that a file can hold.
      lost: the type of each changed value that no file can hold, by its path.
    """

    state: State
    lost: dict[AttributePath, str]


class StrategyState:
    """The objects of a wrapped strategy, with their contents when the program created it.

    Only changes are state: a learning rate that rounds do not change is the program's, which may
    set another one when it is started again.

    Args:
      strategy: strategy as the program made it.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._reach = Reach(strategy)
        self._strategy = strategy
        self._objects: dict[AttributePath, Any] = {}
        self._addresses: dict[int, AttributePath] = {}
        for path, value in self._walk():
            self._objects[path] = value
            self._addresses[id(value)] = path
        self._attributes: dict[AttributePath, dict[str, Packed]] = {}
        self._contents: dict[AttributePath, Packed] = {}
        self._unpacked: set[AttributePath] = set()
        for path, value in list(self._objects.items()):
            if self._reach.is_holder(value):
                attributes = self._reach.attributes(value).items()
                self._attributes[path] = {
                    name: self._initial_value(path, name, attribute)
                    for name, attribute in attributes
                }
            elif is_mutable(value):
                try:
                    self._contents[path] = content_of(value, self._address_of).copied()
                except Unkeepable:
                    self._unpacked.add(path)

    @property
    def opaque(self) -> dict[AttributePath, str]:
        """The types of the objects whose state, if they have one, cannot be read or stored. They
        are listed by the path that leads to each object.
        """
        opaque_objects = self._opaque_objects()
        return {path: type(value).__name__ for path, value in opaque_objects.items()}

    def watch(self) -> "Watch":
        """Returns a watch that detects changes in objects whose state cannot be read."""
        return Watch(self._opaque_objects())

    def changes(self) -> Changes:
        """Returns all changes in the strategy since the program created it."""
        return _Comparison(self).changes()

    def restore(self, state: State = EMPTY) -> None:
        """Sets the strategy to a state, by default to the state in which the program created it.

        Raises:
          ValueError: the strategy has no object at an address of the state, which belongs to
            another strategy.
        """
        self._set(state)

    def rewind(self, state: State) -> None:
        """Sets the strategy back to a state that it had earlier in this process.

        Values that no file can hold stay as they are, which is closer to that state than their
        initial contents.
        """
        self._set(state, lost=self.changes().lost.keys())

    @contextlib.contextmanager
    def restored(self) -> Iterator["Watch | None"]:
        """Tries the strategy inside the block, and restores its initial state at the end of the
        block.

        During the trial, objects whose state cannot be read are replaced by copies.

        Yields:
          A watch of the copies; None where one cannot be copied, and no trial is possible.
        """
        opaque_objects = self._opaque_objects()
        method_links = {path: value for path, value in self._objects.items() if is_link(value)}
        original_objects = opaque_objects | method_links
        # Objects whose state can be read are not copied, because their state can be restored at the
        # end of the block.
        readable_paths = self._objects.keys() - original_objects.keys()
        replacement_by_id = {
            id(self._objects[path]): self._objects[path] for path in readable_paths
        }
        try:
            copy_by_path = dict(
                zip(
                    opaque_objects,
                    copy.deepcopy(list(opaque_objects.values()), replacement_by_id),
                    strict=True,
                )
            )
            for path, value in method_links.items():
                replacement_by_id[id(value)] = copy_by_path[path] = link_to_copy(
                    value, replacement_by_id
                )
        # The copy fails for objects such as locks, files and connections.
        except Exception:
            yield None
            return
        try:
            self._replace(copy_by_path)
            yield Watch({path: copy_by_path[path] for path in opaque_objects})
        finally:
            self._replace(original_objects)

    def _replace(self, objects: Mapping[AttributePath, Any]) -> None:
        """Replaces the strategy's objects at these paths, and sets the initial state in the new
        objects.
        """
        self._objects |= objects
        self._addresses |= {id(value): path for path, value in objects.items()}
        self._set(EMPTY, replaced=objects.keys())

    def _initial_value(self, path: AttributePath, name: str, value: Any) -> Packed:
        """Returns the packed initial value of an attribute, or a reference if the value cannot be
        packed.
        """
        try:
            return pack_value(value, self._address_of).copied()
        except Unkeepable:
            value_address = (*path, name, "")
            self._objects[value_address] = value
            self._unpacked.add(value_address)
            return Packed(["at", *value_address], [])

    def is_initial_object(self, path: AttributePath, value: Any) -> bool:
        """Returns whether an attribute that cannot be packed still has its initial object."""
        return (*path, "") in self._unpacked and self._objects[(*path, "")] is value

    def _opaque_objects(self) -> dict[AttributePath, Any]:
        """Returns the objects whose state cannot be read or stored, by the path that leads to
        each.
        """
        return {
            path: value
            for path, value in self._objects.items()
            if path in self._unpacked or self._reach.is_opaque(value)
        }

    def _walk(self) -> Iterator[tuple[AttributePath, Any]]:
        """Yields each object that the strategy refers to, with the path that leads to it. The
        nearest objects come first.
        """
        visited: dict[
            int, Any
        ] = {}  # The dict of values keeps them alive, so that Python does not reuse their ids.
        used_addresses: set[AttributePath] = set()
        next_level: list[tuple[AttributePath, Any]] = [((), self._strategy)]
        while next_level:
            current_level = next_level
            next_level = []
            for object_path, value in current_level:
                if id(value) in visited:
                    continue
                if not is_immutable(value):
                    visited[id(value)] = value
                    # Two classes with the same name need different paths.
                    while object_path in used_addresses:
                        object_path = (*object_path[:-1], f"{object_path[-1]}'")
                    used_addresses.add(object_path)
                    yield object_path, value
                for name, child in self._reach.children(value):
                    child_path = (name,) if name.startswith("@") else (*object_path, name)
                    next_level.append((child_path, child))

    def _address_of(self, value: Any) -> Any:
        """Returns a reference in JSON to an object that the program created.

        Raises:
          Unkeepable: it is a new object.
        """
        object_path = self._addresses.get(id(value))
        if object_path is None:
            raise Unkeepable(type(value).__name__)
        return ["at", *object_path]

    def _set(
        self,
        state: State,
        *,
        replaced: Set[AttributePath] = frozenset(),
        lost: Set[AttributePath] = frozenset(),
    ) -> None:
        """Sets the attributes and the contents of the strategy's objects to those of a state.

        Args:
          state: state of this strategy.
          replaced: addresses whose references are set also where they seem unchanged.
          lost: paths whose values stay as they are.
        """
        new_values = [empty_value(content) for content in state.new]

        def resolve(tree: list[Any]) -> Any:
            reference_kind, *address = tree
            if reference_kind == "new":
                return new_values[address[0]]
            if reference_kind == "method":
                function, method_owner = (resolve(subtree) for subtree in address)
                return types.MethodType(function, method_owner)
            if tuple(address) not in self._objects:
                raise self._misses(tuple(address))
            return self._objects[tuple(address)]

        for value, packed in zip(new_values, state.new, strict=True):
            fill(value, packed, resolve)
        by_holder: dict[AttributePath, dict[str, Packed]] = {}
        for path, packed in state.attributes.items():
            by_holder.setdefault(path[:-1], {})[path[-1]] = packed
            if path[:-1] not in self._attributes:
                raise self._misses(path)
        for path in state.contents.keys() - self._contents.keys():
            raise self._misses(path)
        for path, packed in (self._contents | state.contents).items():
            if path in lost:
                continue
            is_current = packed.same_as(self._present(self._objects[path]))
            if is_current and replaced.isdisjoint(_references(packed.tree)):
                continue
            if not fill(self._objects[path], packed, resolve):
                raise self._misses(path)
        for path, attributes in self._attributes.items():
            target_values = attributes | by_holder.get(path, {})
            lost_names = {name for *holder, name in lost if tuple(holder) == path}
            self._set_attributes(self._objects[path], target_values, lost_names, resolve)

    def _set_attributes(
        self, holder: Any, target: Mapping[str, Packed], lost: Set[str], resolve: Resolve
    ) -> None:
        """Sets these attributes of an object and removes all others, except those whose names are
        in `lost`.
        """
        present_values = self._reach.attributes(holder)
        for name in present_values.keys() - target.keys() - lost:
            if not is_tool(present_values[name]):
                set_attribute(holder, name)
        for name, packed in target.items():
            if name in lost:
                continue
            if packed.same_as(_DELETED):
                if name in present_values:
                    set_attribute(holder, name)
                continue
            attribute_value = unpack_value(packed, resolve)
            if name not in present_values or not _is_same(present_values[name], attribute_value):
                set_attribute(holder, name, attribute_value)

    def _present(self, value: Any) -> Packed | None:
        """Returns the packed current content of a list, dict or array, or None if it refers to new
        objects.
        """
        try:
            return content_of(value, self._address_of)
        except Unkeepable:
            return None

    def _misses(self, path: AttributePath) -> ValueError:
        """Returns the error for a state that belongs to another strategy."""
        return ValueError(
            f"the folder keeps strategy.{path_text(path)}, which "
            f"strategy={type(self._strategy).__name__} has no place for: wrap the strategy that "
            "the folder was begun with"
        )


class _Comparison:
    """A comparison of a strategy with its initial state.

    Args:
      initial: initial state of the strategy.
    """

    def __init__(self, initial: StrategyState) -> None:
        self._initial = initial
        self._new_index_by_id: dict[int, int] = {}
        self._new_values: list[
            Any
        ] = []  # The list keeps the new values alive, so that Python does not reuse their ids.
        self._new_paths: list[AttributePath] = []
        self._current_path: AttributePath = ()

    def changes(self) -> Changes:
        """Returns all differences from the initial state."""
        initial_state = self._initial
        lost_types: dict[AttributePath, str] = {}
        attributes: dict[AttributePath, Packed] = {}
        contents: dict[AttributePath, Packed] = {}
        for path, value in initial_state._objects.items():
            if path in initial_state._attributes:
                changed_attributes, lost_attributes = self._attributes_of(path, value)
                attributes |= changed_attributes
                lost_types |= lost_attributes
            elif path in initial_state._contents:
                self._current_path = path
                try:
                    current_content = content_of(value, self._refer)
                except Unkeepable as error:
                    lost_types[path] = str(error)
                    continue
                initial_content = initial_state._contents[path]
                if not current_content.same_as(initial_content):
                    contents[path] = current_content.copied()
                if _shape(current_content) != _shape(initial_content):
                    lost_types[path] = "an array of another shape"
        new_contents: list[Packed] = []
        for (
            value
        ) in self._new_values:  # The loop also visits the values that `_refer` appends to the list.
            self._current_path = self._new_paths[len(new_contents)]
            try:
                new_contents.append(content_of(value, self._refer).copied())
            except Unkeepable as error:
                lost_types[self._current_path] = str(error)
                new_contents.append(Packed(["list"], []))
        lost_types |= self._overlaps()
        return Changes(State(attributes, contents, new_contents), lost_types)

    def _attributes_of(
        self, path: AttributePath, holder: Any
    ) -> tuple[dict[AttributePath, Packed], dict[AttributePath, str]]:
        """Returns the changed attributes of an object, and the types of those that no file can
        hold.
        """
        initial_values = self._initial._attributes[path]
        changed_values: dict[AttributePath, Packed] = {}
        lost_types: dict[AttributePath, str] = {}
        present_values = self._initial._reach.attributes(holder)
        for name, value in present_values.items():
            self._current_path = (*path, name)
            try:
                packed_value = pack_value(value, self._refer)
            except Unkeepable as error:
                is_initial = self._initial.is_initial_object(self._current_path, value)
                if not is_initial and not is_tool(value):
                    lost_types[self._current_path] = str(error)
                continue
            if not packed_value.same_as(initial_values.get(name)):
                changed_values[self._current_path] = packed_value.copied()
        for name in initial_values.keys() - present_values.keys():
            changed_values[(*path, name)] = _DELETED
        return changed_values, lost_types

    def _refer(self, value: Any) -> Any:
        """Returns a reference in JSON to an object. New objects are numbered as they are met.

        Raises:
          Unkeepable: a new object that no file can hold.
        """
        object_path = self._initial._addresses.get(id(value))
        if object_path is not None:
            return ["at", *object_path]
        if id(value) in self._new_index_by_id:
            return ["new", self._new_index_by_id[id(value)]]
        if is_mutable(value):
            self._new_index_by_id[id(value)] = len(self._new_values)
            self._new_values.append(value)
            self._new_paths.append(self._current_path)
            return ["new", len(self._new_values) - 1]
        if isinstance(value, types.MethodType):
            return ["method", self._refer(value.__func__), self._refer(value.__self__)]
        raise Unkeepable(type(value).__name__)

    def _overlaps(self) -> dict[AttributePath, str]:
        """Returns the paths of new arrays that share memory with another array, as views do."""
        new_arrays = [
            (path, value)
            for path, value in zip(self._new_paths, self._new_values, strict=True)
            if isinstance(value, np.ndarray)
        ]
        by_memory: dict[int, list[np.ndarray]] = {}
        for value in self._initial._objects.values():
            if isinstance(value, np.ndarray):
                by_memory.setdefault(_memory_of(value), []).append(value)
        lost_types = {}
        for path, value in new_arrays:
            sharing_arrays = by_memory.setdefault(_memory_of(value), [])
            if any(np.may_share_memory(value, neighbour) for neighbour in sharing_arrays):
                lost_types[path] = "an array that shares the memory of another"
            sharing_arrays.append(value)
        return lost_types


def iterators_of(state: StrategyState) -> dict[AttributePath, str]:
    """Returns the types of the generators and iterators in a strategy, by the path that leads to
    each. A trial would advance them.
    """
    opaque_objects = state._opaque_objects()
    return {
        path: type(value).__name__ for path, value in opaque_objects.items() if is_iterator(value)
    }


def _memory_of(array: np.ndarray) -> int:
    """Returns the id of the object that owns the memory of an array."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return id(array) if array.base is None else id(array.base)


def _shape(content: Packed) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    """Returns the dtype and shape of a packed array, or None for any other content."""
    if content.tree != ["ndarray"]:
        return None
    [array] = content.arrays
    return array.dtype, array.shape


def _is_same(present: Any, value: Any) -> bool:
    """Returns whether an attribute already has this value."""
    if present is value:
        return True
    return type(present) is type(value) and is_immutable(value) and _equal(present, value)


def _equal(present: Any, value: Any) -> bool:
    """Returns whether two values that hold no references are bitwise identical."""
    try:
        packed_sides = [pack_value(side, _no_reference) for side in (present, value)]
    except Unkeepable:
        return False
    return packed_sides[0].same_as(packed_sides[1])


def _no_reference(value: Any) -> NoReturn:
    """Raises Unkeepable for any object, since the packed value may not contain references."""
    raise Unkeepable(type(value).__name__)


def _references(tree: Any) -> Iterator[AttributePath]:
    """Yields the path of each object to which a packed value refers."""
    if isinstance(tree, list):
        if tree[:1] == ["at"]:
            yield tuple(tree[1:])
        else:
            for subtree in tree:
                yield from _references(subtree)
