"""Conversion of a Keras model to a pure function of weights and inputs.

With it, many clients with different weights train in one vectorised call.
"""

import functools
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.model_functions import ModelFunctions

# A function of (trainable weights, x) that returns the model's outputs in training, and the losses
# of its regularisers and of add_loss.
StatelessModel = Callable[[Sequence[tf.Tensor], Any], tuple[Any, Sequence[tf.Tensor]]]


def stateless_model(functions: ModelFunctions, seed: int) -> StatelessModel:
    """Returns the task's model as a pure function of weights and inputs, to be called in a graph.

    Each call builds the model again, and a tensor takes the place of every variable when it is
    created: tff.learning.models.functional_model_from_keras does the same, but drops the model's
    own losses.

    Raises:
      ValueError: the model creates other variables than its trainable weights.
    """
    created: list[tf.Variable] = []

    def record(create: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
        created.append(create(**arguments))
        return created[-1]

    # The model is built in the graph of a function, because any other graph would break the
    # add_loss layers of existing Keras models.
    with tf.__internal__.FuncGraph("model").as_default(), tf.variable_creator_scope(record):
        built_model = functions.build_model(seed)
    weight_index = {id(weight): i for i, weight in enumerate(built_model.trainable_variables)}
    if sorted(weight_index) != sorted(map(id, created)):
        raise ValueError(
            f"{functions.name!r} has a model with variables other than its trainable weights"
        )
    creation_order = [weight_index[id(variable)] for variable in created]

    def apply(weights: Sequence[tf.Tensor], x: Any) -> tuple[Any, Sequence[tf.Tensor]]:
        next_weight = iter([weights[i] for i in creation_order])
        with tf.variable_creator_scope(lambda _, **arguments: next(next_weight)):
            rebuilt_model = functions.build_model(seed)
        for layer in rebuilt_model.submodules:
            if _is_plain_convolution(layer):
                layer.convolution_op = functools.partial(_convolution, layer)
        return rebuilt_model(x, training=True), rebuilt_model.losses

    return apply


# Types of operations with which tf.vectorized_map may mix clients. For example, it concatenates the
# arrays of all clients for a roll or a segment sum, so that a negative index of one client reaches
# rows of another one.
_MIXES_CLIENTS = re.compile(r"Roll|.*Segment|(Stateless)?(If|Case)$")
# Types of operations that draw random numbers. A random constant of a layer is drawn once, but a
# stateless model would draw it again in each call, so these operations are refused.
_DRAWS = re.compile(r"Random|ParameterizedTruncatedNormal|TruncatedNormal|Multinomial|Stateful")


def check_clients_stay_separate(function: Any) -> None:
    """Checks that tf.vectorized_map of a function cannot mix data of different clients.

    Args:
      function: a tf.function with a signature.

    Raises:
      ValueError: an operation may mix clients, or draws random numbers.
    """
    operation_types = sorted(operations(function.get_concrete_function()))
    mixing_types = [*filter(_MIXES_CLIENTS.match, operation_types)]
    if mixing_types:
        raise ValueError(f"{', '.join(mixing_types)} would mix clients")
    drawing_types = [*filter(_DRAWS.match, operation_types)]
    if drawing_types:
        raise ValueError(f"{', '.join(drawing_types)} would draw other numbers in each call")


def operations(traced: Any) -> set[str]:
    """Returns the types of all operations in a traced tf.function and the functions it calls."""
    graph_definition = traced.graph.as_graph_def()
    node_lists = [
        graph_definition.node,
        *(function.node_def for function in graph_definition.library.function),
    ]
    return {node.op for node in itertools.chain.from_iterable(node_lists)}


def dense_rows(gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    """Converts a gradient to a tensor if it is tf.IndexedSlices, a sparse form.

    Rows with an index out of range are dropped, so that they cannot reach another client's rows.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    num_rows = gradient.dense_shape[0]
    row_indices = gradient.indices
    end_index = tf.cast(num_rows, row_indices.dtype)
    row_indices = tf.where((row_indices >= 0) & (row_indices < end_index), row_indices, end_index)
    return tf.math.unsorted_segment_sum(gradient.values, row_indices, num_rows + 1)[:-1]


def _is_plain_convolution(layer: tf.keras.layers.Layer) -> bool:
    """Returns whether a layer is Keras's own Conv2D, neither grouped nor dilated."""
    return (
        type(layer) is tf.keras.layers.Conv2D
        and layer.groups == 1
        and layer.dilation_rate == (1, 1)
    )


def _convolution(layer: tf.keras.layers.Conv2D, x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Computes the output of a convolution layer. Its gradient uses the operation that
    tf.vectorized_map vectorises well.

    The gradient is a product of matrices for each position of the kernel. Many clients share such a
    product. TensorFlow's own gradient would run for one client after the other.
    """

    @tf.custom_gradient
    def convolution(x: tf.Tensor, kernel: tf.Tensor) -> Any:
        outputs = type(layer).convolution_op(layer, x, kernel)
        strides = np.array(layer.strides)
        kernel_size = np.array(kernel.shape[:2])
        # Number of rows and columns of the window of x that an entry of the kernel is multiplied
        # with.
        output_spans = (np.array(outputs.shape[1:3]) - 1) * strides + 1
        paddings = np.maximum(output_spans + kernel_size - 1 - x.shape[1:3], 0)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            pad_widths = [[pad // 2, pad - pad // 2] for pad in paddings]
            padded_x = tf.pad(x, [[0, 0], *pad_widths, [0, 0]])
            upstream_rows = tf.reshape(upstream, [-1, kernel.shape[3]])
            kernel_gradients = []
            for i, j in itertools.product(*map(range, kernel_size)):
                x_at_position = padded_x[
                    :, i : i + output_spans[0] : strides[0], j : j + output_spans[1] : strides[1]
                ]
                x_rows = tf.reshape(x_at_position, [-1, kernel.shape[2]])
                kernel_gradients.append(tf.matmul(x_rows, upstream_rows, transpose_a=True))
            gradient_by_x = tf.nn.conv2d_transpose(
                upstream, kernel, tf.shape(x), layer.strides, layer.padding.upper()
            )
            return gradient_by_x, tf.reshape(tf.stack(kernel_gradients), kernel.shape)

        return outputs, gradient

    return convolution(x, kernel)
