"""LSTM in PyTorch with the weights of Keras's layer.

For stacked clients, the steps are matrix products, which torch.vmap turns into batched products
over clients. Their backward pass computes the recurrent kernel's gradient in one product, as
`fedmf.tasks.stackoverflow.lstm` does in TensorFlow.
"""

from typing import Any

import torch


class _Recurrence(torch.autograd.Function):
    """The hidden states of an LSTM as a function of its gates' inputs and its recurrent kernel.

    Its further outputs are values that the backward pass reads; they have no gradients.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(gates: torch.Tensor, kernel: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the hidden states, the openings and candidates of the gates, the cells, and their
        tanh, each (length, batch, ...).
        """
        num_units = kernel.shape[0]
        states: list[torch.Tensor] = []
        cells: list[torch.Tensor] = []
        openings: list[torch.Tensor] = []
        candidates: list[torch.Tensor] = []
        squashed_cells: list[torch.Tensor] = []
        for step_input in gates.unbind(0):
            gate_inputs = step_input + states[-1] @ kernel if states else step_input
            # One sigmoid is computed for all four gates, although the third gate does not use it.
            gate_openings = torch.sigmoid(gate_inputs)
            update, forget, _, output = gate_openings.split(num_units, 1)
            candidate = torch.tanh(gate_inputs[:, 2 * num_units : 3 * num_units])
            cell = update * candidate
            if cells:
                cell = cell + forget * cells[-1]
            squashed_cell = torch.tanh(cell)
            states.append(output * squashed_cell)
            cells.append(cell)
            openings.append(gate_openings)
            candidates.append(candidate)
            squashed_cells.append(squashed_cell)
        return tuple(
            torch.stack(values) for values in (states, openings, candidates, cells, squashed_cells)
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Saves what the backward pass reads."""
        _, kernel = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(kernel, *output)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the gradients of the gates' inputs and of the kernel."""
        kernel, states, openings, candidates, cells, squashed = ctx.saved_tensors
        num_units = kernel.shape[0]
        update, forget, _, output = openings.split(num_units, 2)
        slopes = openings * (1.0 - openings)
        cells_before = torch.cat([torch.zeros_like(cells[:1]), cells[:-1]])
        # Derivatives for all steps at once. The first three are those of the cell with respect to
        # the inputs of the first three gates, and the last one is that of the state with respect to
        # the output gate's input.
        gate_derivatives = torch.cat(
            [
                candidates * slopes[:, :, :num_units],
                cells_before * slopes[:, :, num_units : 2 * num_units],
                update * (1.0 - candidates.square()),
                squashed * slopes[:, :, 3 * num_units :],
            ],
            2,
        )
        state_to_cell = output * (1.0 - squashed.square())
        transposed_kernel = kernel.t()
        d_gates: list[torch.Tensor] = []
        d_state = upstream[-1]
        d_cell = d_state * state_to_cell[-1]
        for step in range(len(upstream) - 1, -1, -1):
            d_openings = torch.cat([d_cell, d_cell, d_cell, d_state], 1)
            d_gates.append(d_openings * gate_derivatives[step])
            if step:
                d_state = upstream[step - 1] + d_gates[-1] @ transposed_kernel
                d_cell = d_cell * forget[step] + d_state * state_to_cell[step - 1]
        d_gates.reverse()
        gate_gradients = torch.stack(d_gates)
        states_before = states[:-1].flatten(0, 1)
        kernel_gradient = states_before.t() @ gate_gradients[1:].flatten(0, 1)
        return gate_gradients, kernel_gradient


def hidden_states(
    inputs: torch.Tensor, kernel: torch.Tensor, recurrent_kernel: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Computes the hidden states of an LSTM whose initial state is zero, (length, batch, units).

    Clients that torch.vmap stacks are computed by matrix products, and single ones by the LSTM of
    PyTorch, which is faster: a client of the published model took 0.8 of the time on a processor,
    and stacked ones 2.3 times as long.

    Args:
      inputs: (length, batch, features).
      kernel: (features, 4 units), of the gates in the order of Keras and PyTorch: input, forget,
        cell, output.
      recurrent_kernel: (units, 4 units).
      bias: (4 units,).
    """
    if torch._C._functorch.is_functorch_wrapped_tensor(kernel):
        return recurrence(inputs @ kernel + bias, recurrent_kernel)
    initial_state = inputs.new_zeros(1, inputs.shape[1], recurrent_kernel.shape[0])
    # PyTorch has a second bias, which is 0 here.
    parameters = [kernel.t(), recurrent_kernel.t(), bias, torch.zeros_like(bias)]
    states: torch.Tensor = torch._VF.lstm(
        inputs, (initial_state, initial_state), parameters, True, 1, 0.0, True, False, False
    )[0]
    return states


def recurrence(gates: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """Computes the hidden states of an LSTM by matrix products, (length, batch, units).

    Args:
      gates: (length, batch, 4 units), each step's input to the gates.
      kernel: recurrent kernel, (units, 4 units).
    """
    states: torch.Tensor = _Recurrence.apply(gates, kernel)[0]
    return states
