"""Data-flow analysis of a single TensorFlow graph in a TFF process."""

import itertools
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from fedmf.federated.tff import tff
from fedmf.federated.tff.graph_tags import ARGUMENT_ROLES, GraphTag, parse_tag
from fedmf.federated.tff.origins import (
    ClippingCall,
    Leaf,
    NoiseCall,
    Origin,
    Origins,
    RoundCalls,
    origins_of,
)


class GraphFlow:
    """The data flow of one TensorFlow computation in a round, for a given argument.

    Args:
      calls: the calls of the round, to which those of the graph are added.
      number: number of the computation in the round.
      code: TFF's message of the computation.
      value: the argument; None for a computation without one.
    """

    def __init__(self, calls: RoundCalls, number: int, code: Any, value: Any) -> None:
        graph_definition = tf.compat.v1.GraphDef()
        code.graph_def.Unpack(graph_definition)
        with tf.Graph().as_default() as self._graph:
            tf.graph_util.import_graph_def(graph_definition, name="")
        self._calls = calls
        self._number = number
        self._inputs: dict[str, Leaf] = {}
        if value is not None:
            self._bind(code.parameter, value)
        self._tags: dict[str, GraphTag] = {}
        has_variables = False
        for operation in self._graph.get_operations():
            has_variables |= any(tensor.dtype == tf.resource for tensor in operation.outputs)
            tag = parse_tag(operation.name)
            if tag is not None:
                self._tags[operation.name] = tag
        # A variable may carry a value from any input of the graph to any output. So if the graph
        # has variables, every result is assumed to depend on all inputs.
        self._variable_origins = origins_of(self._inputs.values()) if has_variables else None
        self._results_by_call: dict[str, dict[str, Leaf]] = {}

    def value(self, result_type: Any, binding: Any) -> Any:
        """Returns the result of the computation, given its type and its tensors in the graph."""
        if binding.HasField("struct"):
            type_elements = tff.structure.iter_elements(result_type)
            element_pairs = zip(type_elements, binding.struct.element, strict=True)
            return tff.structure.Struct(
                [
                    (name, self.value(element_type, element_binding))
                    for (name, element_type), element_binding in element_pairs
                ]
            )
        if self._variable_origins is not None:
            return Leaf(origins=self._variable_origins)
        return self._leaf(self._operation(binding))

    def _bind(self, binding: Any, value: Any) -> None:
        """Records each leaf of the argument as the value of an input of the graph."""
        if binding.HasField("struct"):
            for element_binding, element in zip(binding.struct.element, value, strict=True):
                self._bind(element_binding, element)
        else:
            self._inputs[self._operation(binding).name] = value

    def _operation(self, binding: Any) -> Any:
        """Returns the graph operation that computes the tensor of a binding."""
        tensor_name = binding.tensor.tensor_name or binding.sequence.variant_tensor_name
        return self._graph.get_operation_by_name(tensor_name.partition(":")[0])

    def _leaf(self, operation: Any) -> Leaf:
        """Returns a leaf with the name and origins of an operation's outputs."""
        known_leaf = self._known_leaf(operation)
        if known_leaf is not None:
            return known_leaf
        if operation.type != "Identity":
            return Leaf(origins=self._origins(_input_operations(operation)))
        input_leaf = self._leaf(operation.inputs[0].op)
        origins = input_leaf.origins | self._origins(operation.control_inputs)
        return Leaf(input_leaf.name, origins)

    def _origins(self, operations: Iterable[Any], excluded: Iterable[Any] = ()) -> Origins:
        """Returns the origins of operations, except those that they have only through `excluded`
        operations.
        """
        pending_operations = list(operations)
        visited_names = {next_operation.name for next_operation in excluded}
        origins: Origins = frozenset()
        while pending_operations:
            next_operation = pending_operations.pop()
            if next_operation.name in visited_names:
                continue
            visited_names.add(next_operation.name)
            leaf = self._known_leaf(next_operation)
            if leaf is None:
                pending_operations += _input_operations(next_operation)
            else:
                origins |= leaf.origins
        return origins

    def _origins_of_inputs(
        self, operations: Iterable[Any], excluded: Iterable[Any] = ()
    ) -> Origins:
        """Returns the origins of the inputs of operations.

        Origins that come through `excluded` operations are left out.
        """
        input_operations = itertools.chain.from_iterable(map(_input_operations, operations))
        return self._origins(input_operations, excluded)

    def _known_leaf(self, operation: Any) -> Leaf | None:
        """Returns the leaf of an input or of a tagged result; None for all other operations."""
        if operation.name in self._inputs:
            return self._inputs[operation.name]
        tag = self._tags.get(operation.name)
        if tag is None or tag.role in ARGUMENT_ROLES:
            return None
        if tag.call not in self._results_by_call:
            self._results_by_call[tag.call] = self._results(tag)
        return self._results_by_call[tag.call][operation.name]

    def _results(self, tag: GraphTag) -> dict[str, Leaf]:
        """Returns the results of the call to which a tag belongs, by the names of their
        operations.
        """
        match tag.kind:
            case "params":
                return self._params_results(tag.call, tag.plan)
            case "clip":
                return self._clipping_results(tag.call, tag.plan)
            case "noise":
                return self._noise_results(tag.call, tag.plan)
            case "parts":
                return self._secure_sum_arguments(tag.call)
        return self._secure_sum_results(tag.call)

    def _tagged(self, call: str, *roles: str) -> dict[GraphTag, Any]:
        """Returns the operations that a call has tagged with these roles, sorted by tag number."""
        names_by_number = sorted(self._tags.items(), key=lambda item: item[1].number)
        return {
            tag: self._graph.get_operation_by_name(name)
            for name, tag in names_by_number
            if tag.call == call and tag.role in roles
        }

    def _params_results(self, call: str, plan: str) -> dict[str, Leaf]:
        """Returns the leaves of the result of a `derive_sample_params` call."""
        return {
            operation.name: Leaf(("params", plan, tag.number), self._origins_of_inputs([operation]))
            for tag, operation in self._tagged(call, "params").items()
        }

    def _clipping_results(self, call: str, plan: str) -> dict[str, Leaf]:
        """Checks a call of `preprocess_record`, and returns the leaves of its result.

        Raises:
          ValueError: its params are not those of the same query, or its record depends on an
            aggregate of the round.
        """
        params_operations = self._tagged(call, "argument")
        sample_operations = self._tagged(call, "record", "count")
        params_names = [self._leaf(operation).name for operation in params_operations.values()]
        expected_names = [("params", plan, number) for number in range(len(params_names))]
        if not params_names or params_names != expected_names:
            raise ValueError(
                "process clips by other parameters than its query's: give preprocess_record what "
                "derive_sample_params of the same query returns, unchanged"
            )
        record_origins = self._origins_of_inputs(
            sample_operations.values(), excluded=params_operations.values()
        )
        first_aggregate = self._calls.aggregate_in(record_origins)
        if first_aggregate is not None:
            raise ValueError(
                f"process clips updates that depend on a {first_aggregate.operation} of "
                f"{first_aggregate.type} from the clients in the same round, without noise: let an "
                "update depend on its own client and on past releases only"
            )
        clipping_name = f"{self._number}/{call}"
        self._calls.clipping_calls[clipping_name] = ClippingCall(
            plan, len(sample_operations), self._origins(params_operations.values()), record_origins
        )
        return {
            operation.name: Leaf(
                ("sample", clipping_name, tag.number), frozenset({Origin(tag.role, clipping_name)})
            )
            for tag, operation in sample_operations.items()
        }

    def _secure_sum_arguments(self, call: str) -> dict[str, Leaf]:
        """Returns the leaves of the clipped samples that a secure sum adds up."""
        leaf_by_name = {}
        for tag, operation in self._tagged(call, "record", "count").items():
            leaf = self._leaf(operation.inputs[0].op)
            if leaf.name is not None:
                kind, key, *numbers = leaf.name
                if kind == "sample" and numbers == [tag.number]:
                    leaf = Leaf(origins=frozenset({Origin("secured", key)}))
            leaf_by_name[operation.name] = leaf
        return leaf_by_name

    def _secure_sum_results(self, call: str) -> dict[str, Leaf]:
        """Returns the leaves of the result of a secure sum."""
        result_operations = self._tagged(call, "record", "count")
        origins = self._origins_of_inputs(result_operations.values())
        aggregates = frozenset(origin for origin in origins if origin.kind == "aggregate")
        sum_operations = {self._calls.aggregates[origin.key].operation for origin in aggregates}
        secured_origins = list(origins - aggregates)
        has_one_source = [origin.kind for origin in secured_origins] == ["secured"]
        is_secure_sum = has_one_source and sum_operations == {"federated_secure_sum_bitwidth"}
        if not is_secure_sum:
            return {
                operation.name: Leaf(origins=origins) for operation in result_operations.values()
            }
        [clipping_name] = [origin.key for origin in secured_origins]
        return {
            operation.name: Leaf(
                ("sum", clipping_name, tag.number), aggregates | {Origin(tag.role, clipping_name)}
            )
            for tag, operation in result_operations.items()
        }

    def _noise_results(self, call: str, plan: str) -> dict[str, Leaf]:
        """Checks a call of `get_noised_result`, and returns the leaves of its results.

        Raises:
          ValueError: its sum or its state are not those of the query that clips.
        """
        sum_leaves = [self._leaf(operation) for operation in self._tagged(call, "sum").values()]
        clipping_call = self._clipping_of(sum_leaves)
        state_leaves = [self._leaf(operation) for operation in self._tagged(call, "state").values()]
        next_state_operations = self._tagged(call, "secret", "count", "public")
        state_paths = [
            leaf.name[1] for leaf in state_leaves if leaf.name and leaf.name[0] == "state"
        ]
        is_whole_state = len(state_paths) == len(set(state_paths)) == len(next_state_operations)
        if not is_whole_state or clipping_call.plan != plan:
            raise ValueError(
                "process adds noise by another state than it keeps, or of another plan than its "
                "clipping's: give get_noised_result of the query that clips the state that it "
                "returned in the round before"
            )
        call_index = len(self._calls.noise_calls)
        total_origins = origins_of(sum_leaves)
        next_state_roles = [tag.role for tag in next_state_operations]
        self._calls.noise_calls.append(
            NoiseCall(call_index, clipping_call, total_origins, state_paths, next_state_roles)
        )
        release_origin = frozenset({Origin("release", call_index)})
        origins_by_role = {
            "public": release_origin,
            "secret": frozenset({Origin("secret", call_index)}),
            "count": frozenset(origin for origin in total_origins if origin.kind != "record"),
        }
        leaf_by_operation = {
            operation.name: Leaf(origins=release_origin)
            for operation in self._tagged(call, "result").values()
        }
        for tag, operation in next_state_operations.items():
            leaf_name = ("next", call_index, tag.number)
            leaf_by_operation[operation.name] = Leaf(leaf_name, origins_by_role[tag.role])
        return leaf_by_operation

    def _clipping_of(self, total: list[Leaf]) -> ClippingCall:
        """Returns the call that clipped the records of a sum.

        Raises:
          ValueError: the leaves are not the sum of one call's results.
        """
        clipping_name = total[0].name[1] if total and total[0].name else None
        clipping_call = self._calls.clipping_calls.get(clipping_name or "")
        expected_names = [("sum", clipping_name, number) for number in range(len(total))]
        has_expected_names = [leaf.name for leaf in total] == expected_names
        if clipping_call is None or len(total) != clipping_call.size or not has_expected_names:
            raise ValueError(
                "process adds its noise to something else than the federated_sum of its clipped "
                "updates: let nothing stand between clipping and the one sum, as "
                "dp_aggregator(...) and DifferentiallyPrivateFactory(query) do"
            )
        return clipping_call


def _input_operations(operation: Any) -> list[Any]:
    """Returns the operations that compute an operation's inputs and control inputs."""
    return [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
