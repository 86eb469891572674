"""What every tensor depends on in one round of a TFF process.

Each is followed through TFF's building blocks, and through the TensorFlow graphs in them. Where the
query clips and where it adds noise is read from its `marks`. Any other operation passes on all that
it takes.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from fedmf.federated.tff import building_blocks, tff, transformations
from fedmf.federated.tff.marks import TAKEN, Mark, read

# Intrinsics whose value is their argument, at another place or in another structure.
_MOVES = {
    "federated_broadcast",
    "federated_value_at_clients",
    "federated_value_at_server",
    "federated_zip_at_clients",
    "federated_zip_at_server",
}
_MAPS = {"federated_apply", "federated_map", "federated_map_all_equal"}
_EVALUATES = {"federated_eval_at_clients", "federated_eval_at_server"}

Path = tuple[int, ...]


class Origin(NamedTuple):
    """Something that a tensor depends on.

    Attributes:
      kind: "client", data of the client itself; "record" or "count", of a clipped sample;
        "secured", of a sample in a secure sum; "aggregate", of clients, without noise; "state", of
        the process before the round; "secret", of the noise's state after it;
        "release", with noise.
      key: which one: the path of a state, the index of an aggregate or a release,
        the call that clipped.
    """

    kind: str
    key: Any = None


Origins = frozenset[Origin]


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A tensor.

    Attributes:
      name: of the tensor that it equals, such as ("state", path); None where it was
        computed from others.
      origins: what it depends on.
    """

    name: tuple[Any, ...] | None = None
    origins: Origins = frozenset()


@dataclasses.dataclass(frozen=True)
class Aggregate:
    """An operation that takes values from the clients to the server.

    Attributes:
      operation: TFF's name of it.
      type: of those values, in TFF's notation.
    """

    operation: str
    type: str


@dataclasses.dataclass(frozen=True)
class Clipping:
    """A call of the query's clipping.

    Attributes:
      plan: `plan_mark` of the query.
      size: tensors of a sample.
      params, record: what its arguments depend on.
    """

    plan: str
    size: int
    params: Origins
    record: Origins


@dataclasses.dataclass(frozen=True)
class Release:
    """A call of the query's noise.

    Attributes:
      number: among those of the round.
      clipping: which made the records.
      total: what the sum of samples depends on.
      paths: of the noise's state in that of the process, tensor by tensor.
      roles: of these tensors: "secret", "count" or "public".
    """

    number: int
    clipping: Clipping
    total: Origins
    paths: list[Path]
    roles: list[str]


@dataclasses.dataclass(frozen=True)
class _Function:
    call: Callable[[Any], Any]
    origins: Origins = frozenset()  # of what it refers to besides its argument


class RoundFlow:
    """One round of a process.

    Args:
      process: built.

    Attributes:
      output: a leaf, or tff.structure.Struct of them, in the structure
        of what process.next returns.
      aggregates, releases: of this round, in their order.

    Raises:
      ValueError: the query's clipping or noise takes what it must not.
    """

    def __init__(self, process: tff.templates.IterativeProcess) -> None:
        self.aggregates: list[Aggregate] = []
        self.releases: list[Release] = []
        self.clippings: dict[str, Clipping] = {}
        self.graphs = 0
        kind = process.next.type_signature.parameter
        state: Path = () if process.state_type.is_equivalent_to(kind) else (0,)

        def argument(path: Path, place: Any) -> Leaf:
            if path[: len(state)] == state:
                return Leaf(name := ("state", path[len(state) :]), frozenset({Origin(*name)}))
            return Leaf(origins=frozenset({Origin("client")} if place is tff.CLIENTS else ()))

        block = transformations.to_call_dominant(process.next.to_building_block())
        self.output = self._value(block, {}).call(_structure(kind, argument))

    def aggregate_in(self, origins: Origins) -> Aggregate | None:
        """The first aggregate among them."""
        keys = [key for kind, key in origins if kind == "aggregate"]
        return self.aggregates[min(keys)] if keys else None

    def _value(self, block: Any, known: dict[str, Any]) -> Any:
        """The leaf, structure of leaves or function that a building block is.

        Args:
          known: the same of the blocks that it may refer to, by name.
        """
        match block:
            case building_blocks.Reference():
                return known[block.name]
            case building_blocks.Selection():
                return self._value(block.source, known)[block.as_index()]
            case building_blocks.Struct():
                parts = tff.structure.iter_elements(block)
                return tff.structure.Struct(
                    [(name, self._value(part, known)) for name, part in parts]
                )
            case building_blocks.Block():
                inside = dict(known)
                for name, part in block.locals:
                    inside[name] = self._value(part, inside)
                return self._value(block.result, inside)
            case building_blocks.Call():
                argument = None if block.argument is None else self._value(block.argument, known)
                return self._value(block.function, known).call(argument)
            case building_blocks.Lambda():
                origins = origins_of(known[name] for name in _names(block.result) if name in known)
                return _Function(
                    lambda value: self._value(block.result, known | {block.parameter_name: value}),
                    origins,
                )
            case building_blocks.Intrinsic():
                return _Function(lambda value: self._intrinsic(block, value))
            case building_blocks.CompiledComputation():
                return _Function(lambda value: self._compiled(block, value))
        return _structure(block.type_signature, lambda *_: Leaf())  # a number in the program

    def _intrinsic(self, block: Any, value: Any) -> Any:
        if block.uri in _MOVES:
            return value
        if block.uri in _MAPS:
            return value[0].call(value[1])
        if block.uri in _EVALUATES:
            return value.call(None)
        kind, origins = block.type_signature, origins_of([value])
        taken = [part.compact_representation() for part in _at(kind.parameter, tff.CLIENTS)]
        if taken and any(_at(kind.result, tff.SERVER)):
            here = frozenset({Origin("aggregate", len(self.aggregates))})
            self.aggregates.append(Aggregate(block.uri, ", ".join(taken)))
            if block.uri == "federated_sum":
                return _each(value, lambda leaf: Leaf(_sum_of(leaf.name), leaf.origins | here))
            origins |= here
        return _structure(kind.result, lambda *_: Leaf(origins=origins))

    def _compiled(self, block: Any, value: Any) -> Any:
        kind, code = block.type_signature, block.proto
        if not code.HasField("tensorflow"):
            return _structure(kind.result, lambda *_: Leaf(origins=origins_of([value])))
        self.graphs += 1
        return _Graph(self, code.tensorflow, value).value(kind.result, code.tensorflow.result)


class _Graph:
    """A TensorFlow computation of a round, and its argument."""

    def __init__(self, flow: RoundFlow, code: Any, value: Any) -> None:
        definition = tf.compat.v1.GraphDef()
        code.graph_def.Unpack(definition)
        with tf.Graph().as_default() as self._graph:
            tf.graph_util.import_graph_def(definition, name="")
        self._flow, self._number = flow, flow.graphs
        self._inputs: dict[str, Leaf] = {}
        if value is not None:
            self._bind(code.parameter, value)
        operations = self._graph.get_operations()
        variables = any(
            tensor.dtype == tf.resource for each in operations for tensor in each.outputs
        )
        # They may carry anything from any input to any output.
        self._through_variables = origins_of(self._inputs.values()) if variables else None
        self._marks = {
            operation.name: mark for operation in operations if (mark := read(operation.name))
        }
        self._returned: dict[str, dict[str, Leaf]] = {}

    def value(self, kind: Any, binding: Any) -> Any:
        """The result, of this type and at these tensors of the graph."""
        if binding.HasField("struct"):
            pairs = zip(tff.structure.iter_elements(kind), binding.struct.element, strict=True)
            return tff.structure.Struct(
                [(name, self.value(part, bound)) for (name, part), bound in pairs]
            )
        if self._through_variables is not None:
            return Leaf(origins=self._through_variables)
        return self._leaf(self._operation(binding))

    def _bind(self, binding: Any, value: Any) -> None:
        if binding.HasField("struct"):
            for bound, part in zip(binding.struct.element, value, strict=True):
                self._bind(bound, part)
        else:
            self._inputs[self._operation(binding).name] = value

    def _operation(self, binding: Any) -> Any:
        tensor = binding.tensor.tensor_name or binding.sequence.variant_tensor_name
        return self._graph.get_operation_by_name(tensor.partition(":")[0])

    def _leaf(self, operation: Any) -> Leaf:
        """The only output of an operation, or all of its outputs."""
        if (known := self._known(operation)) is not None:
            return known
        if operation.type != "Identity":
            return Leaf(origins=self._origins(_before(operation)))
        same = self._leaf(operation.inputs[0].op)
        return Leaf(same.name, same.origins | self._origins(operation.control_inputs))

    def _origins(self, operations: Iterable[Any], stop: Iterable[Any] = ()) -> Origins:
        """What these depend on, besides what comes through `stop`."""
        todo, met, origins = list(operations), {operation.name for operation in stop}, set[Origin]()
        while todo:
            operation = todo.pop()
            if operation.name in met:
                continue
            met.add(operation.name)
            known = self._known(operation)
            if known is None:
                todo += _before(operation)
            else:
                origins |= known.origins
        return frozenset(origins)

    def _known(self, operation: Any) -> Leaf | None:
        """An input, or what a marked call returns; None for all other operations."""
        if operation.name in self._inputs:
            return self._inputs[operation.name]
        mark = self._marks.get(operation.name)
        if mark is None or mark.role in TAKEN:
            return None
        if mark.call not in self._returned:
            self._returned[mark.call] = getattr(self, f"_{mark.kind}")(mark.call, mark.plan)
        return self._returned[mark.call][operation.name]

    def _marked(self, call: str, *roles: str) -> dict[Mark, Any]:
        """The operations with a mark of this call and one of these roles, by number."""
        by_number = sorted(self._marks.items(), key=lambda named: named[1].number)
        return {
            mark: self._graph.get_operation_by_name(name)
            for name, mark in by_number
            if mark.call == call and mark.role in roles
        }

    def _params(self, call: str, plan: str) -> dict[str, Leaf]:
        """What `derive_sample_params` returns."""
        return {
            operation.name: Leaf(("params", plan, mark.number), self._origins(_before(operation)))
            for mark, operation in self._marked(call, "params").items()
        }

    def _clip(self, call: str, plan: str) -> dict[str, Leaf]:
        """What `preprocess_record` returns."""
        given, sample = self._marked(call, "given"), self._marked(call, "record", "count")
        names = [self._leaf(operation).name for operation in given.values()]
        if not names or names != [("params", plan, number) for number in range(len(names))]:
            raise ValueError(
                "process clips by other parameters than its query's: give preprocess_record what "
                "derive_sample_params of the same query returns, unchanged"
            )
        record = self._origins(
            [part for operation in sample.values() for part in _before(operation)], given.values()
        )
        if found := self._flow.aggregate_in(record):
            raise ValueError(
                f"process clips updates that depend on a {found.operation} of {found.type} from "
                "the clients in the same round, without noise: let an update depend on its own "
                "client and on past releases only"
            )
        made = f"{self._number}/{call}"
        self._flow.clippings[made] = Clipping(
            plan, len(sample), self._origins(given.values()), record
        )
        return {
            operation.name: Leaf(
                ("sample", made, mark.number), frozenset({Origin(mark.role, made)})
            )
            for mark, operation in sample.items()
        }

    def _parts(self, call: str, plan: str) -> dict[str, Leaf]:
        """What goes into a secure sum."""
        returned = {}
        for mark, operation in self._marked(call, "record", "count").items():
            leaf = self._leaf(operation.inputs[0].op)
            if leaf.name is not None and leaf.name[::2] == ("sample", mark.number):
                leaf = Leaf(origins=frozenset({Origin("secured", leaf.name[1])}))
            returned[operation.name] = leaf
        return returned

    def _whole(self, call: str, plan: str) -> dict[str, Leaf]:
        """What a secure sum returns."""
        parts = self._marked(call, "record", "count")
        origins = self._origins(
            [part for operation in parts.values() for part in _before(operation)]
        )
        aggregates = frozenset(origin for origin in origins if origin.kind == "aggregate")
        [*made] = origins - aggregates
        operations = {self._flow.aggregates[origin.key].operation for origin in aggregates}
        if [origin.kind for origin in made] != ["secured"] or operations != {
            "federated_secure_sum_bitwidth"
        }:
            return {operation.name: Leaf(origins=origins) for operation in parts.values()}
        return {
            operation.name: Leaf(
                ("sum", made[0].key, mark.number), aggregates | {Origin(mark.role, made[0].key)}
            )
            for mark, operation in parts.items()
        }

    def _noise(self, call: str, plan: str) -> dict[str, Leaf]:
        """What `get_noised_result` returns."""
        total = [self._leaf(operation) for operation in self._marked(call, "sum").values()]
        made = total[0].name[1] if total and total[0].name else None
        clipping = self._flow.clippings.get(made or "")
        expected = [("sum", made, number) for number in range(len(total))]
        if (
            clipping is None
            or len(total) != clipping.size
            or [leaf.name for leaf in total] != expected
        ):
            raise ValueError(
                "process adds its noise to something else than the federated_sum of its clipped "
                "updates: let nothing stand between clipping and the one sum, as "
                "dp_aggregator(...) and DifferentiallyPrivateFactory(query) do"
            )
        state = [self._leaf(operation) for operation in self._marked(call, "state").values()]
        paths = [leaf.name[1] for leaf in state if leaf.name and leaf.name[0] == "state"]
        after = self._marked(call, "secret", "count", "public")
        if len(paths) != len(after) or len({*paths}) != len(after) or clipping.plan != plan:
            raise ValueError(
                "process adds noise by another state than it keeps, or of another plan than its "
                "clipping's: give get_noised_result of the query that clips the state that it "
                "returned in the round before"
            )
        number, kept = len(self._flow.releases), origins_of(total)
        counts = frozenset(origin for origin in kept if origin.kind != "record")
        roles = [mark.role for mark in after]
        self._flow.releases.append(Release(number, clipping, kept, paths, roles))
        release = frozenset({Origin("release", number)})
        origins = {
            "public": release,
            "secret": frozenset({Origin("secret", number)}),
            "count": counts,
        }
        return {
            operation.name: Leaf(("next", number, mark.number), origins[mark.role])
            for mark, operation in after.items()
        } | {
            operation.name: Leaf(origins=release)
            for operation in self._marked(call, "result").values()
        }


def origins_of(values: Iterable[Any]) -> Origins:
    """What leaves, functions and structures of them depend on."""
    origins: Origins = frozenset()
    for value in values:
        origins |= origins_of(value) if isinstance(value, tff.structure.Struct) else value.origins
    return origins


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Leaf]]:
    """The leaves of a structure with their paths, in their order."""
    if isinstance(value, tff.structure.Struct):
        for index, part in enumerate(value):
            yield from leaves(part, (*path, index))
    else:
        yield path, value


def _structure(
    kind: Any, leaf: Callable[[Path, Any], Leaf], path: Path = (), place: Any = None
) -> Any:
    """What is of this type: `leaf(path, placement)` for every tensor and sequence in it."""
    if isinstance(kind, tff.FederatedType):
        return _structure(kind.member, leaf, path, kind.placement)
    if isinstance(kind, tff.StructType):
        parts = enumerate(tff.structure.iter_elements(kind))
        return tff.structure.Struct(
            [(name, _structure(part, leaf, (*path, n), place)) for n, (name, part) in parts]
        )
    return leaf(path, place)


def _each(value: Any, change: Callable[[Leaf], Leaf]) -> Any:
    if isinstance(value, tff.structure.Struct):
        return tff.structure.Struct(
            [(name, _each(part, change)) for name, part in tff.structure.iter_elements(value)]
        )
    return change(value)


def _sum_of(name: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    return ("sum", *name[1:]) if name and name[0] == "sample" else None


def _at(kind: Any, place: Any) -> Iterator[Any]:
    """The parts of a type that are at this place."""
    if isinstance(kind, tff.FederatedType):
        yield from [kind] if kind.placement is place else []
    elif isinstance(kind, tff.StructType):
        for part in kind:
            yield from _at(part, place)


def _names(block: Any) -> set[str]:
    """Of all references in a building block."""
    if isinstance(block, building_blocks.Reference):
        return {block.name}
    return {name for part in block.children() for name in _names(part)}


def _before(operation: Any) -> list[Any]:
    return [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
