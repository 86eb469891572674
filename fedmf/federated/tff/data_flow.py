"""Data-flow analysis of one round of a TFF process.

It finds the origins of every tensor: the values of clients, state or noise that it depends on.
Origins are followed through TFF's building blocks, and through the TensorFlow graphs in them. The
tags of `graph_tags` say where the query clips and where it adds noise. The outputs of any other
operation have all origins of its inputs.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from fedmf.federated.tff import building_blocks, tff, transformations
from fedmf.federated.tff.graph_flow import GraphFlow
from fedmf.federated.tff.origins import (
    Aggregate,
    Leaf,
    Origin,
    Origins,
    Path,
    RoundCalls,
    origins_of,
)

# Intrinsics of TFF that return their argument unchanged, except for its placement or its structure.
_MOVES = {
    "federated_broadcast",
    "federated_value_at_clients",
    "federated_value_at_server",
    "federated_zip_at_clients",
    "federated_zip_at_server",
}
_MAPS = {"federated_apply", "federated_map", "federated_map_all_equal"}
_EVALUATES = {"federated_eval_at_clients", "federated_eval_at_server"}


@dataclasses.dataclass(frozen=True)
class _Function:
    """A function among TFF's building blocks, which is applied to the origins of tensors in place
    of tensors.

    Attributes:
      call: leaf or structure of leaves of the argument -> those of the result.
      origins: origins of the values that it refers to besides its argument.
    """

    call: Callable[[Any], Any]
    origins: Origins = frozenset()


class RoundFlow:
    """The data flow of one round of a TFF process.

    Args:
      process: a built process.

    Attributes:
      output: a leaf, or tff.structure.Struct of them, in the structure of the result of
        process.next.
      calls: the calls of the round that aggregate, clip or add noise.

    Raises:
      ValueError: the query's clipping or noise has an argument that it must not have.
    """

    def __init__(self, process: tff.templates.IterativeProcess) -> None:
        self.calls = RoundCalls()
        self._num_graphs = 0
        parameter_type = process.next.type_signature.parameter
        has_state_only = process.state_type.is_equivalent_to(parameter_type)
        state_path: Path = () if has_state_only else (0,)

        def argument_leaf(path: Path, placement: Any) -> Leaf:
            if path[: len(state_path)] == state_path:
                state_origin = Origin("state", path[len(state_path) :])
                return Leaf(tuple(state_origin), frozenset({state_origin}))
            if placement is tff.CLIENTS:
                return Leaf(origins=frozenset({Origin("client")}))
            return Leaf()

        round_block = transformations.to_call_dominant(process.next.to_building_block())
        self.output = self._value(round_block, {}).call(_structure(parameter_type, argument_leaf))

    def _value(self, block: Any, values: dict[str, Any]) -> Any:
        """Returns the value of a building block, which is a leaf, a structure of leaves or a
        function.

        Args:
          block: the building block.
          values: by name, the values of the blocks that it may refer to.
        """
        match block:
            case building_blocks.Reference():
                return values[block.name]
            case building_blocks.Selection():
                return self._value(block.source, values)[block.as_index()]
            case building_blocks.Struct():
                block_elements = tff.structure.iter_elements(block)
                return tff.structure.Struct(
                    [(name, self._value(element, values)) for name, element in block_elements]
                )
            case building_blocks.Block():
                inner_values = dict(values)
                for name, local in block.locals:
                    inner_values[name] = self._value(local, inner_values)
                return self._value(block.result, inner_values)
            case building_blocks.Call():
                argument_value = None
                if block.argument is not None:
                    argument_value = self._value(block.argument, values)
                return self._value(block.function, values).call(argument_value)
            case building_blocks.Lambda():
                captured_names = _reference_names(block.result) & values.keys()
                return _Function(
                    lambda value: self._value(block.result, values | {block.parameter_name: value}),
                    origins_of(values[name] for name in captured_names),
                )
            case building_blocks.Intrinsic():
                return _Function(lambda value: self._intrinsic(block, value))
            case building_blocks.CompiledComputation():
                return _Function(lambda value: self._compiled(block, value))
        # A block of any other type is a constant of the program, which does not depend on any
        # input.
        return _structure(block.type_signature, lambda *_: Leaf())

    def _intrinsic(self, block: Any, value: Any) -> Any:
        """Returns the result of a TFF intrinsic, such as federated_sum, for this argument."""
        if block.uri in _MOVES:
            return value
        if block.uri in _MAPS:
            function, argument = value
            return function.call(argument)
        if block.uri in _EVALUATES:
            return value.call(None)
        block_signature = block.type_signature
        value_origins = origins_of([value])
        client_types = [
            client_type.compact_representation()
            for client_type in _types_at(block_signature.parameter, tff.CLIENTS)
        ]
        if client_types and any(_types_at(block_signature.result, tff.SERVER)):
            aggregate_origin = frozenset({Origin("aggregate", len(self.calls.aggregates))})
            self.calls.aggregates.append(Aggregate(block.uri, ", ".join(client_types)))
            if block.uri == "federated_sum":
                return _map_leaves(
                    value, lambda leaf: Leaf(_name_of_sum(leaf), leaf.origins | aggregate_origin)
                )
            value_origins |= aggregate_origin
        return _structure(block_signature.result, lambda *_: Leaf(origins=value_origins))

    def _compiled(self, block: Any, value: Any) -> Any:
        """Returns the result of a TensorFlow computation in the process, for this argument."""
        result_type = block.type_signature.result
        computation_proto = block.proto
        if not computation_proto.HasField("tensorflow"):
            value_origins = origins_of([value])
            return _structure(result_type, lambda *_: Leaf(origins=value_origins))
        self._num_graphs += 1
        graph_flow = GraphFlow(self.calls, self._num_graphs, computation_proto.tensorflow, value)
        return graph_flow.value(result_type, computation_proto.tensorflow.result)


def _structure(
    tff_type: Any, make_leaf: Callable[[Path, Any], Leaf], path: Path = (), placement: Any = None
) -> Any:
    """Returns a structure of a TFF type, with `make_leaf(path, placement)` for each tensor."""
    if isinstance(tff_type, tff.FederatedType):
        return _structure(tff_type.member, make_leaf, path, tff_type.placement)
    if isinstance(tff_type, tff.StructType):
        element_structures = []
        for index, (name, element_type) in enumerate(tff.structure.iter_elements(tff_type)):
            element_structure = _structure(element_type, make_leaf, (*path, index), placement)
            element_structures.append((name, element_structure))
        return tff.structure.Struct(element_structures)
    return make_leaf(path, placement)


def _map_leaves(value: Any, change: Callable[[Leaf], Leaf]) -> Any:
    """Applies a function to each leaf of a structure, and returns the structure of results."""
    if isinstance(value, tff.structure.Struct):
        named_elements = tff.structure.iter_elements(value)
        return tff.structure.Struct(
            [(name, _map_leaves(element, change)) for name, element in named_elements]
        )
    return change(value)


def _name_of_sum(leaf: Leaf) -> tuple[Any, ...] | None:
    """Returns the name of the sum of a leaf over all clients.

    It is None unless the leaf is part of a clipped sample.
    """
    if leaf.name is None or leaf.name[0] != "sample":
        return None
    return ("sum", *leaf.name[1:])


def _types_at(tff_type: Any, placement: Any) -> Iterator[Any]:
    """Yields all federated types inside a TFF type that have this placement."""
    if isinstance(tff_type, tff.FederatedType):
        if tff_type.placement is placement:
            yield tff_type
    elif isinstance(tff_type, tff.StructType):
        for element_type in tff_type:
            yield from _types_at(element_type, placement)


def _reference_names(block: Any) -> set[str]:
    """Returns the names of all values that a building block refers to."""
    if isinstance(block, building_blocks.Reference):
        return {block.name}
    names: set[str] = set()
    for child in block.children():
        names |= _reference_names(child)
    return names
