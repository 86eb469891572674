"""Conversion between the state_dict of a module and the list of arrays that a `fedmf.Server`
takes.
"""

import reprlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from fedmf.pytorch.module_tensors import as_array


def arrays_of_state(state: Mapping[str, torch.Tensor]) -> list[np.ndarray]:
    """Returns copies of the float tensors of a state_dict as arrays, in its order.

    Counters, such as `num_batches_tracked`, and other tensors of whole numbers are left out,
    because no clip norm bounds them. Half precision becomes float32.

    >>> arrays_of_state(torch.nn.BatchNorm1d(2).state_dict())[0]
    array([1., 1.], dtype=float32)
    >>> len(arrays_of_state(torch.nn.BatchNorm1d(2).state_dict()))
    4

    Args:
      state: state_dict of a module.

    Raises:
      TypeError: it is no state_dict, or holds complex numbers.
    """
    return [as_array(tensor) for tensor in _float_tensors(state).values()]


def state_of_arrays(
    arrays: Sequence[np.ndarray], state: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Returns a state_dict with the values of arrays, for `Module.load_state_dict`. Tensors that
    `arrays_of_state` leaves out are those of `state`.

    >>> module = torch.nn.Linear(2, 1)
    >>> arrays = arrays_of_state(module.state_dict())
    >>> module.load_state_dict(state_of_arrays(arrays, module.state_dict()))
    <All keys matched successfully>

    Args:
      arrays: one array for each float tensor of `state`, in its order.
      state: state_dict of the same module.

    Raises:
      TypeError: `state` is no state_dict, or holds complex numbers.
      ValueError: the arrays have other shapes than the tensors.
    """
    float_tensors = _float_tensors(state)
    array_shapes = [np.shape(array) for array in arrays]
    tensor_shapes = [tuple(tensor.shape) for tensor in float_tensors.values()]
    if array_shapes != tensor_shapes:
        raise ValueError(
            f"arrays have the shapes {array_shapes} and the float tensors of the state "
            f"{tensor_shapes}: give one array for each, in the order of arrays_of_state"
        )
    array_pairs = zip(float_tensors.items(), arrays, strict=True)
    new_tensors = {
        name: torch.tensor(np.asarray(array), dtype=tensor.dtype, device=tensor.device)
        for (name, tensor), array in array_pairs
    }
    return {**state, **new_tensors}


def _float_tensors(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the float tensors of a state_dict by name, after a check."""
    hint = "pass module.state_dict()"
    if not isinstance(state, Mapping):
        raise TypeError(f"state is a {type(state).__name__}: {hint}")
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"state holds {name!r}: {reprlib.repr(tensor)}, no tensor: {hint}")
        if tensor.is_complex():
            raise TypeError(
                f"state holds complex numbers in {name!r}, which no clip norm bounds: store real "
                "and imaginary parts as two real parameters"
            )
    return {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
