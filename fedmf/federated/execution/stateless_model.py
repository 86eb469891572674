"""A Keras model as a function of weights and inputs, for clients that are trained side by side with weights of their own."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fedmf.federated.task import Task

# (trainable weights, x) -> outputs in training, and the model's own losses.
StatelessModel = Callable[[Sequence[Any], Any], tuple[Any, Sequence[Any]]]


def stateless_model(task: Task, seed: int) -> StatelessModel:
    """The task's model without variables; to be called in a graph.

    Each call builds the model again, and a tensor takes the place of every variable when it is created: tff.learning.models
    .functional_model_from_keras does the same, but drops the model's own losses.

    Raises:
      ValueError: the model creates other variables than its trainable weights.
    """
    created: list[Any] = []

    def record(create: Callable[..., Any], **arguments: Any) -> Any:
        created.append(create(**arguments))
        return created[-1]

    with tf.Graph().as_default(), tf.variable_creator_scope(record):
        variables = task.build_model(seed).trainable_variables
    place = {id(variable): i for i, variable in enumerate(variables)}
    if sorted(place) != sorted(map(id, created)):
        raise ValueError(f"{task.name!r} has a model with variables other than its trainable weights")
    order = [place[id(variable)] for variable in created]

    def apply(weights: Sequence[Any], x: Any) -> tuple[Any, Sequence[Any]]:
        in_order = iter([weights[i] for i in order])
        with tf.variable_creator_scope(lambda _, **arguments: next(in_order)):
            model = task.build_model(seed)
        return model(x, training=True), model.losses

    return apply


# Operations of which tf.vectorized_map lays the clients end to end in one array, and an index or axis of one client can reach the next
# one's part: segment sums (of a negative index, which alone is dropped) and tf.roll (of a negative axis). Read in TensorFlow 2.14.
_MIXES_CLIENTS = re.compile(r"Roll|.*Segment")


def check_apart(function: Any) -> None:
    """Checks that tf.vectorized_map of a tf.function with a signature keeps its clients apart, whatever their data.

    Raises:
      ValueError: it has an operation that may mix them.
    """
    mixing = sorted(filter(_MIXES_CLIENTS.match, operations(function.get_concrete_function())))
    if mixing:
        raise ValueError(f"{', '.join(mixing)} would mix clients")


def operations(traced: Any) -> set[str]:
    """The operations of a traced tf.function and of all functions that it calls."""
    graph = traced.graph.as_graph_def()
    return {node.op for nodes in (graph.node, *(f.node_def for f in graph.library.function)) for node in nodes}


def dense_rows(gradient: Any) -> Any:
    """A gradient that may be tf.IndexedSlices as a tensor. Rows of indices out of range are left out, and reach no other client's."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, index = gradient.dense_shape[0], gradient.indices
    inside = tf.where((index >= 0) & (index < tf.cast(rows, index.dtype)), index, tf.cast(rows, index.dtype))
    return tf.math.unsorted_segment_sum(gradient.values, inside, rows + 1)[:-1]
