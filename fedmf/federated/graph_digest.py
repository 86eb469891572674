"""The digest of a traced tf.function: what it computes, whatever its nodes are called and in which
process it was traced.
"""

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# Attributes that name things or say how to run them. So do all that begin with an underscore.
_NAMES = {"container", "shared_name", "config", "config_proto", "executor_type", "message"}
# They compute nothing, and what they print names nodes.
_SAYS = {"Assert", "PrintV2"}
_KEYS = (tf.string, tf.int64, tf.int32)
_VALUES = (tf.int64, tf.string, tf.int32, tf.float32, tf.float64, tf.bool)


def graph_digest(traced: Any, trained: Sequence[tf.Variable]) -> str:
    """SHA-256, hexadecimal, of the operations from the arguments to the outputs and effects.

    Values of all that is captured count: of variables and tensors, and the entries of lookup
    tables. Of trained variables their places do.

    Args:
      traced: a ConcreteFunction.
      trained: variables whose values are not part of what is computed.
    """
    graph, definition = traced.graph, traced.graph.as_graph_def()
    functions = {function.signature.name: function for function in definition.library.function}
    given = {tensor.op.name: f"argument {i}" for i, tensor in enumerate(graph.inputs)}
    handles = {id(variable.handle): variable for variable in graph.variables}
    place = {id(variable.handle): i for i, variable in enumerate(trained)}
    for outside, inside in graph.captures:
        where, variable = place.get(id(outside)), handles.get(id(outside))
        value = outside if variable is None else variable
        given[inside.op.name] = _contents(value) if where is None else f"trained {where}"
    roots = [tensor.name for tensor in graph.outputs] + [
        f"^{operation.name}" for operation in graph.control_outputs
    ]
    return _Digests(functions).of_graph(definition.node, given, roots)


def _sha(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _contents(captured: Any) -> str:
    """What a captured variable, tensor or lookup table holds."""
    if captured.dtype not in (tf.resource, tf.variant):
        array = np.asarray(captured)
        return _sha(
            str(array.dtype),
            array.shape,
            array.tolist() if array.dtype == object else array.tobytes(),
        )
    for keys, values in itertools.product(_KEYS, _VALUES):
        try:  # an export of other types would end the process
            tf.raw_ops.LookupTableFindV2(
                table_handle=captured, keys=tf.zeros([0], keys), default_value=tf.zeros([], values)
            )
        except tf.errors.OpError as error:
            # Which values have that are no scalars, of keys and values of these dtypes
            if "Expected shape" not in str(error):
                continue
        entries = tf.raw_ops.LookupTableExportV2(table_handle=captured, Tkeys=keys, Tvalues=values)
        return _sha(sorted(zip(*(part.numpy().tolist() for part in entries), strict=True)))
    return "resource"


class _Digests:
    """Digests of nodes, each of its operation, its attributes and the digests of its inputs.

    Args:
      functions: name -> FunctionDef, of all that are called.
    """

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self._functions = functions
        self._known: dict[str, str] = {}

    def of_graph(self, nodes: Iterable[Any], given: Mapping[str, str], roots: Iterable[str]) -> str:
        """Of the roots, "node:output" or "^node", from what is given for the arguments."""
        by_name = {node.name: node for node in nodes}
        known, roots = dict(given), list(roots)
        waiting = [_node_of(root) for root in roots]
        while waiting:
            node = by_name.get(name := waiting[-1])
            inputs = () if name in known or node is None or node.op in _SAYS else node.input
            unknown = [_node_of(each) for each in inputs if _node_of(each) not in known]
            if unknown:
                waiting.extend(unknown)
                continue
            waiting.pop()
            if name not in known and node is not None:
                known[name] = self._of_node(node, _in_order(inputs, known))
        return _sha(*_in_order(roots, known))

    def _of_node(self, node: Any, inputs: Sequence[Any]) -> str:
        attributes = [
            (name, self._of_attribute(node.attr[name]))
            for name in sorted(node.attr)
            if node.op not in _SAYS and not name.startswith("_") and name not in _NAMES
        ]
        return _sha(node.op, attributes, *inputs)

    def _of_attribute(self, value: Any) -> Any:
        if value.HasField("func"):
            return self._of_function(value.func.name)
        if value.list.func:
            return [self._of_function(function.name) for function in value.list.func]
        return value.SerializeToString(deterministic=True)

    def _of_function(self, name: str) -> str:
        if name not in self._known:
            function = self._functions[name]
            given = {
                argument.name: f"argument {i}"
                for i, argument in enumerate(function.signature.input_arg)
            }
            returned = [function.ret[output.name] for output in function.signature.output_arg]
            effects = [f"^{node}" for node in function.control_ret.values()]
            self._known[name] = self.of_graph(function.node_def, given, [*returned, *effects])
        return self._known[name]


def _node_of(end: str) -> str:
    return end.removeprefix("^").partition(":")[0]


def _in_order(ends: Iterable[str], known: Mapping[str, str]) -> list[Any]:
    """(output, digest of its node) for each end, and the digests of the nodes that only have to
    have run, which have no order.
    """
    ends = list(ends)
    data = [
        (end.partition(":")[2], known.get(_node_of(end), ""))
        for end in ends
        if not end.startswith("^")
    ]
    return [data, sorted(known.get(_node_of(end), "") for end in ends if end.startswith("^"))]
