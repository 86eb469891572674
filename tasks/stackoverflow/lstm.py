"""LSTM layer whose backward pass computes the recurrent kernel's gradient in one matrix product.

Keras's LSTM computes the gradient of the recurrent kernel step by step: `length` products of (units
x batch) by (batch x 4 units) and as many additions of the whole (units x 4 units) matrix. With the
small batches of federated clients these additions cost more than the products. Here the steps only
pass on the gradient of the gates, and the kernel's gradient is one product over all steps.
"""

from typing import Any, NamedTuple

import tensorflow as tf


def _recurrence(gates: Any, kernel: Any) -> Any:
    """Computes the hidden states of an LSTM whose initial state is zero.

    Args:
      gates: (length, batch, 4 units) float32, each step's input to the gates, in Keras's order:
        input, forget, cell, output.
      kernel: (units, 4 units) float32.

    Returns:
      (length, batch, units) float32.
    """

    @tf.custom_gradient
    def run(gates: Any, kernel: Any) -> Any:
        """Returns the hidden states, and the function that computes their gradient."""
        forward_trace = _forward(gates, kernel)

        def gradient(upstream: Any) -> Any:
            """Returns the gradients with respect to the gates' inputs and the kernel."""
            return _backward(forward_trace, kernel, upstream)

        return tf.stack(forward_trace.states[1:]), gradient

    return run(gates, kernel)


class _Trace(NamedTuple):
    """Values of a forward pass that the backward pass needs, as one tensor (batch, ...) for each
    step.

    `states` and `cells` have the initial zero in front. `openings` are the sigmoids of the four
    gates, `candidates` the tanh of the cell gate, and `squashed` the tanh of the cells.
    """

    states: list[Any]
    cells: list[Any]
    openings: list[Any]
    candidates: list[Any]
    squashed: list[Any]


def _forward(gates: Any, kernel: Any) -> _Trace:
    """Runs the steps of an LSTM, and records the values that the backward pass needs."""
    num_units = kernel.shape[0]
    step_inputs = tf.unstack(gates)
    hidden_state = tf.zeros_like(step_inputs[0][:, :num_units])
    cell_state = hidden_state
    trace = _Trace([hidden_state], [cell_state], [], [], [])
    for index, step in enumerate(step_inputs):
        gate_inputs = step + tf.matmul(hidden_state, kernel) if index else step
        # One sigmoid is computed for the inputs of all four LSTM gates, although the third gate
        # does not use it. At these sizes, the additional arithmetic costs less than one more
        # operation.
        gate_openings = tf.sigmoid(gate_inputs)
        update, forget, _, output = tf.split(gate_openings, 4, axis=1)
        candidate = tf.tanh(gate_inputs[:, 2 * num_units : 3 * num_units])
        cell_state = forget * cell_state + update * candidate
        squashed_cell = tf.tanh(cell_state)
        hidden_state = output * squashed_cell
        trace.candidates.append(candidate)
        trace.squashed.append(squashed_cell)
        trace.openings.append(gate_openings)
        trace.cells.append(cell_state)
        trace.states.append(hidden_state)
    return trace


def _backward(trace: _Trace, kernel: Any, upstream: Any) -> tuple[Any, Any]:
    """Computes the gradients of the gates' inputs and the kernel from the gradient of the
    states.
    """
    num_units = kernel.shape[0]
    d_outputs = tf.unstack(upstream)
    gate_openings = tf.stack(trace.openings)
    candidate = tf.stack(trace.candidates)
    squashed = tf.stack(trace.squashed)
    update, forget, _, output = tf.split(gate_openings, 4, axis=2)
    sigmoid_slopes = gate_openings * (1.0 - gate_openings)
    # Derivatives for all steps at once. The first three are those of the cell with respect to the
    # inputs of the first three gates, and the last one is that of the state with respect to the
    # output gate's input.
    state_to_cell = tf.unstack(output * (1.0 - squashed * squashed))
    gate_derivatives = tf.unstack(
        tf.concat(
            [
                candidate * sigmoid_slopes[:, :, :num_units],
                tf.stack(trace.cells[:-1]) * sigmoid_slopes[:, :, num_units : 2 * num_units],
                update * (1.0 - candidate * candidate),
                squashed * sigmoid_slopes[:, :, 3 * num_units :],
            ],
            axis=2,
        )
    )
    forget_gates = tf.unstack(forget)
    # Multiplying by a transposed copy takes a third of the time of matmul with transpose_b. The
    # copy consists of two halves, because TensorFlow would undo a single transposition when it
    # optimises the graph.
    kernel_halves = tf.split(kernel, 2, axis=1)
    transposed_weights = tf.concat([tf.transpose(half) for half in kernel_halves], axis=0)
    d_gates: list[Any] = []
    d_state = None
    d_cell = None
    for step in reversed(range(len(d_outputs))):
        d_state = d_outputs[step] if d_state is None else d_outputs[step] + d_state
        through_state = d_state * state_to_cell[step]
        d_cell = through_state if d_cell is None else through_state + d_cell
        d_gates.append(
            tf.concat([d_cell, d_cell, d_cell, d_state], axis=1) * gate_derivatives[step]
        )
        if step:
            d_cell = d_cell * forget_gates[step]
            d_state = tf.matmul(d_gates[-1], transposed_weights)
    d_gates.reverse()
    states_before = tf.concat(trace.states[:-1], 0)
    d_kernel = tf.matmul(states_before, tf.concat(d_gates, 0), transpose_a=True)
    return tf.stack(d_gates), d_kernel


def with_keras_lstm(model: Any) -> Any:
    """Copies a model, with Keras's own LSTM layer in place of `UnrolledLSTM`."""

    def copy_layer(layer: Any) -> Any:
        """Copies a layer without its weights, where an `UnrolledLSTM` becomes Keras's LSTM."""
        is_unrolled = isinstance(layer, UnrolledLSTM)
        layer_type = tf.keras.layers.LSTM if is_unrolled else type(layer)
        return layer_type.from_config(layer.get_config())

    model_copy = tf.keras.models.clone_model(model, clone_function=copy_layer)
    model_copy.set_weights(model.get_weights())
    return model_copy


class UnrolledLSTM(tf.keras.layers.LSTM):
    """Layer with the weights and outputs of tf.keras.layers.LSTM, for sequences of a fixed length.

    A mask may leave out only the ends of sequences.
    """

    def call(
        self, inputs: Any, mask: Any = None, training: Any = None, initial_state: Any = None
    ) -> Any:
        """Computes outputs of shape (batch, length, units) from inputs (batch, length, features),
        float32.

        The state starts at zero. At masked positions the last output before them is repeated, or 0
        if there is none.
        """
        del training, initial_state
        step_inputs = tf.transpose(inputs, [1, 0, 2])
        gates = tf.tensordot(step_inputs, self.cell.kernel, axes=1) + self.cell.bias
        hidden_states = _recurrence(gates, tf.convert_to_tensor(self.cell.recurrent_kernel))
        hidden_states = tf.transpose(hidden_states, [1, 0, 2])
        if mask is None:
            return hidden_states
        last_position = tf.reduce_sum(tf.cast(mask, tf.int32), axis=1) - 1
        # A sequence without words has last_position -1, for which the row of `is_last` is 0.
        is_last = tf.one_hot(last_position, hidden_states.shape[1], dtype=hidden_states.dtype)
        last_state = tf.reduce_sum(hidden_states * is_last[:, :, None], axis=1, keepdims=True)
        return tf.where(mask[:, :, None], hidden_states, last_state)
