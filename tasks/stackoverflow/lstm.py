"""An LSTM layer whose backward pass adds up the recurrent gradient in one matrix product.

Keras's LSTM computes the gradient of the recurrent kernel step by step: `length` products of (units
x batch) by (batch x 4 units) and as many additions of the whole (units x 4 units) matrix. With the
small batches of federated clients these additions cost more than the products. Here the steps only
carry the gradient of the gates; the kernel's gradient is one product over all steps.
"""

from typing import Any

import tensorflow as tf


def _recurrence(gates: Any, kernel: Any) -> Any:
    """The hidden states of an LSTM that starts at zero.

    Args:
      gates: (length, batch, 4 units) float32, each step's input to the gates, in Keras's order:
        input, forget, cell, output.
      kernel: (units, 4 units) float32.

    Returns:
      (length, batch, units) float32.
    """

    units = kernel.shape[0]

    @tf.custom_gradient
    def run(gates: Any, kernel: Any) -> Any:
        steps = tf.unstack(gates)
        state = cell = tf.zeros_like(steps[0][:, :units])
        cells, states = [cell], [state]
        squashed: list[Any] = []
        candidates: list[Any] = []
        openings: list[Any] = []
        for step in steps:
            total = step + tf.matmul(state, kernel) if squashed else step
            # One sigmoid for all four, though the third is not used: at these sizes an operation
            # costs more than its numbers.
            opening = tf.sigmoid(total)
            update, forget, _, output = tf.split(opening, 4, axis=1)
            candidates.append(tf.tanh(total[:, 2 * units : 3 * units]))
            cell = forget * cell + update * candidates[-1]
            squashed.append(tf.tanh(cell))
            state = output * squashed[-1]
            openings.append(opening)
            cells.append(cell)
            states.append(state)

        def gradient(upstream: Any) -> Any:
            upstream = tf.unstack(upstream)
            opening = tf.stack(openings)
            candidate = tf.stack(candidates)
            squash = tf.stack(squashed)
            update, forget, _, output = tf.split(opening, 4, axis=2)
            slope = opening * (1.0 - opening)
            # How each gate's input moves the cell (first three) and the state (the last), for all
            # steps at once.
            to_cell = tf.unstack(output * (1.0 - squash * squash))
            factors = tf.unstack(
                tf.concat(
                    [
                        candidate * slope[:, :, :units],
                        tf.stack(cells[:-1]) * slope[:, :, units : 2 * units],
                        update * (1.0 - candidate * candidate),
                        squash * slope[:, :, 3 * units :],
                    ],
                    axis=2,
                )
            )
            forgets = tf.unstack(forget)
            # A third of the time of a product with transpose_b; of two halves, because the graph's
            # optimiser would fold a single transposition back into the products.
            halves = tf.split(kernel, 2, axis=1)
            transposed = tf.concat([tf.transpose(half) for half in halves], axis=0)
            d_gates: list[Any] = []
            d_state = d_cell = None
            for step in reversed(range(len(steps))):
                d_state = upstream[step] if d_state is None else upstream[step] + d_state
                through = d_state * to_cell[step]
                d_cell = through if d_cell is None else through + d_cell
                d_gates.append(tf.concat([d_cell, d_cell, d_cell, d_state], axis=1) * factors[step])
                if step:
                    d_cell = d_cell * forgets[step]
                    d_state = tf.matmul(d_gates[-1], transposed)
            d_gates.reverse()
            d_kernel = tf.matmul(tf.concat(states[:-1], 0), tf.concat(d_gates, 0), transpose_a=True)
            return tf.stack(d_gates), d_kernel

        return tf.stack(states[1:]), gradient

    return run(gates, kernel)


def with_keras_lstm(model: Any) -> Any:
    """The same model, of the same weights, with Keras's own LSTM layer in place of ours."""

    def own(layer: Any) -> Any:
        kind = tf.keras.layers.LSTM if isinstance(layer, UnrolledLSTM) else type(layer)
        return kind.from_config(layer.get_config())

    copy = tf.keras.models.clone_model(model, clone_function=own)
    copy.set_weights(model.get_weights())
    return copy


class UnrolledLSTM(tf.keras.layers.LSTM):
    """tf.keras.layers.LSTM with the same weights and outputs, for whole sequences of a fixed length
    whose mask, if there is one, leaves out nothing but their ends.
    """

    def call(
        self, inputs: Any, mask: Any = None, training: Any = None, initial_state: Any = None
    ) -> Any:
        """(batch, length, features) float32 to (batch, length, units) float32,
        starting from a zero state; behind the mask the last output before it, or 0.
        """
        del training, initial_state
        gates = (
            tf.tensordot(tf.transpose(inputs, [1, 0, 2]), self.cell.kernel, axes=1) + self.cell.bias
        )
        states = tf.transpose(
            _recurrence(gates, tf.convert_to_tensor(self.cell.recurrent_kernel)), [1, 0, 2]
        )
        if mask is None:
            return states
        places = tf.reduce_sum(tf.cast(mask, tf.int32), axis=1) - 1
        last = tf.one_hot(places, states.shape[1], dtype=states.dtype)  # all 0 for no word at all
        kept = tf.reduce_sum(states * last[:, :, None], axis=1, keepdims=True)
        return tf.where(mask[:, :, None], states, kept)
