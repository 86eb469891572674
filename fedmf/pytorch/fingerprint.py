"""Fingerprints of the program of a PyTorch task, which has a module, a loss and weights.

A resumed run compares them with those of its start, so that all rounds run the same program. No
guarantee rests on them: they contain the names of functions, and not their bodies.
"""

import torch

from fedmf.pytorch.module_functions import ModuleFunctions
from fedmf.pytorch.module_tensors import as_array, frozen_tensors, trained_parameters
from fedmf.training.examples import digest
from fedmf.training.learner import function_text


def module_fingerprint(functions: ModuleFunctions, module: torch.nn.Module) -> dict[str, str]:
    """Returns a text for each submodule, the loss and the weights, which changes if these change.

    Args:
      functions: the task's functions.
      module: the result of its `build_model`.
    """
    text_by_component = {}
    for name, submodule in module.named_modules():
        component_name = f"module {name}" if name else "model"
        text_by_component[component_name] = _module_text(submodule)
    text_by_component["trained parameters"] = ", ".join(
        f"{name} {tuple(parameter.shape)}" for name, parameter in trained_parameters(module).items()
    )
    text_by_component["loss"] = _function_text(functions.loss)
    text_by_component["frozen weights"] = frozen_digest(module)
    trained_weights = [as_array(parameter) for parameter in trained_parameters(module).values()]
    text_by_component["initial weights"] = digest(trained_weights)
    return text_by_component


def frozen_digest(module: torch.nn.Module) -> str:
    """Returns a digest of the parameters without gradients and the buffers of a module."""
    return digest({name: as_array(tensor) for name, tensor in frozen_tensors(module).items()})


def _module_text(module: torch.nn.Module) -> str:
    """Returns the class of a module, with the arguments that it shows."""
    return f"{type(module).__module__}.{type(module).__qualname__}({module.extra_repr()})"


def _function_text(function: object) -> str:
    """Returns the name of a function, or the class of a module with its arguments."""
    if isinstance(function, torch.nn.Module):
        return _module_text(function)
    return function_text(function)
