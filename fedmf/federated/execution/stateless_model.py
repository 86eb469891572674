"""A Keras model as a function of weights and inputs, for clients that are trained side by side with
weights of their own.
"""

import functools
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.model_functions import ModelFunctions

# (trainable weights, x) -> outputs in training, and the model's own losses.
StatelessModel = Callable[[Sequence[Any], Any], tuple[Any, Sequence[Any]]]


def stateless_model(functions: ModelFunctions, seed: int) -> StatelessModel:
    """The task's model without variables; to be called in a graph.

    Each call builds the model again, and a tensor takes the place of every variable when it is
    created: tff.learning.models .functional_model_from_keras does the same, but drops the model's
    own losses.

    Raises:
      ValueError: the model creates other variables than its trainable weights.
    """
    created: list[Any] = []

    def record(create: Callable[..., Any], **arguments: Any) -> Any:
        created.append(create(**arguments))
        return created[-1]

    # A graph of a function: any other invalidates Keras's layers of add_loss in models that are
    # there already. Eagerly, initializers make variables of their own.
    with tf.__internal__.FuncGraph("model").as_default(), tf.variable_creator_scope(record):
        built = functions.build_model(seed)
    variables = built.trainable_variables
    place = {id(variable): i for i, variable in enumerate(variables)}
    if sorted(place) != sorted(map(id, created)):
        raise ValueError(
            f"{functions.name!r} has a model with variables other than its trainable weights"
        )
    order = [place[id(variable)] for variable in created]

    def apply(weights: Sequence[Any], x: Any) -> tuple[Any, Sequence[Any]]:
        in_order = iter([weights[i] for i in order])
        with tf.variable_creator_scope(lambda _, **arguments: next(in_order)):
            model = functions.build_model(seed)
        for layer in model.submodules:
            if (
                type(layer) is tf.keras.layers.Conv2D
                and layer.groups == 1
                and layer.dilation_rate == (1, 1)
            ):
                layer.convolution_op = functools.partial(_convolution, layer)
        return model(x, training=True), model.losses

    return apply


# Operations of which tf.vectorized_map lays the clients end to end in one array, and an index or
# axis of one client can reach the next one's part: segment sums (of a negative index, which alone
# is dropped; newer releases drop it here too) and tf.roll (of a negative axis). Read in TensorFlow
# 2.14 and 2.21.
_MIXES_CLIENTS = re.compile(r"Roll|.*Segment")
# A random constant of a layer, which is drawn once where the model is built, would be drawn anew in
# each call of the graph.
_DRAWS = re.compile(r"Random|ParameterizedTruncatedNormal|TruncatedNormal|Multinomial|Stateful")


def check_apart(function: Any) -> None:
    """Checks that tf.vectorized_map of a tf.function with a signature keeps its clients apart,
    whatever their data, and draws nothing.

    Raises:
      ValueError: it has an operation that may mix them, or one that draws random numbers.
    """
    found = sorted(operations(function.get_concrete_function()))
    if mixing := [*filter(_MIXES_CLIENTS.match, found)]:
        raise ValueError(f"{', '.join(mixing)} would mix clients")
    if drawing := [*filter(_DRAWS.match, found)]:
        raise ValueError(f"{', '.join(drawing)} would draw other numbers in each call")


def operations(traced: Any) -> set[str]:
    """The operations of a traced tf.function and of all functions that it calls."""
    graph = traced.graph.as_graph_def()
    return {
        node.op
        for nodes in (graph.node, *(f.node_def for f in graph.library.function))
        for node in nodes
    }


def dense_rows(gradient: Any) -> Any:
    """A gradient that may be tf.IndexedSlices as a tensor.

    Rows of indices out of range are left out, and reach no other client's.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, index = gradient.dense_shape[0], gradient.indices
    end = tf.cast(rows, index.dtype)
    inside = tf.where((index >= 0) & (index < end), index, end)
    return tf.math.unsorted_segment_sum(gradient.values, inside, rows + 1)[:-1]


def _convolution(layer: Any, x: Any, kernel: Any) -> Any:
    """The layer's `convolution_op`, whose gradient by the kernel is a product of matrices for each
    of the kernel's places.

    Many clients share such a product. TensorFlow's own gradient would run for one after the other.
    """

    @tf.custom_gradient
    def convolution(x: Any, kernel: Any) -> Any:
        outputs = type(layer).convolution_op(layer, x, kernel)
        strides, sizes = np.array(layer.strides), np.array(kernel.shape[:2])
        # Rows and columns that one place of the kernel sees.
        spans = (np.array(outputs.shape[1:3]) - 1) * strides + 1
        missing = np.maximum(spans + sizes - 1 - x.shape[1:3], 0)

        def gradient(upstream: Any) -> Any:
            padded = tf.pad(x, [[0, 0], *([pad // 2, pad - pad // 2] for pad in missing), [0, 0]])
            flat = tf.reshape(upstream, [-1, kernel.shape[3]])
            products = []
            for i, j in itertools.product(*map(range, sizes)):
                seen = padded[:, i : i + spans[0] : strides[0], j : j + spans[1] : strides[1]]
                products.append(
                    tf.matmul(tf.reshape(seen, [-1, kernel.shape[2]]), flat, transpose_a=True)
                )
            by_x = tf.nn.conv2d_transpose(
                upstream, kernel, tf.shape(x), layer.strides, layer.padding.upper()
            )
            return by_x, tf.reshape(tf.stack(products), kernel.shape)

        return outputs, gradient

    return convolution(x, kernel)
