"""The parameters and buffers of a module, and which of them a run trains."""

from collections.abc import Sequence

import numpy as np
import torch


def trained_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Returns the parameters that a run trains, by name. A shared parameter occurs once."""
    return {
        name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad
    }


def frozen_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the parameters without gradients and all buffers, by name. A run does not change
    them.
    """
    frozen_parameters = {
        name: parameter
        for name, parameter in module.named_parameters()
        if not parameter.requires_grad
    }
    return frozen_parameters | dict(module.named_buffers())


def saved_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the tensors of a module's state_dict, by name. A shared tensor occurs once, under its
    first name.
    """
    tensor_by_name: dict[str, torch.Tensor] = {}
    seen_ids: set[int] = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        if not isinstance(tensor, torch.Tensor) or id(tensor) in seen_ids:
            continue
        seen_ids.add(id(tensor))
        tensor_by_name[name] = tensor
    return tensor_by_name


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Returns a copy of a tensor as an array. Half precision becomes float32, which has all its
    values.
    """
    tensor = tensor.detach().cpu()
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    return np.array(tensor.numpy())


def copy_arrays(arrays: Sequence[np.ndarray], tensors: Sequence[torch.Tensor]) -> None:
    """Copies arrays into the tensors of a module, which have the same shapes."""
    with torch.no_grad():
        for array, tensor in zip(arrays, tensors, strict=True):
            tensor.copy_(torch.tensor(array))
