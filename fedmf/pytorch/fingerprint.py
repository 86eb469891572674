"""Fingerprints of the program of a PyTorch task, which has a module, a loss and weights.

A resumed run compares them with those of its start, so that all rounds run the same program. No
guarantee rests on them: they contain the names of functions, and not their bodies.
"""

import torch

from fedmf.pytorch.module_copies import attribute_texts, without_addresses
from fedmf.pytorch.module_functions import ModuleFunctions
from fedmf.pytorch.module_tensors import as_array, frozen_tensors, trained_parameters
from fedmf.training.examples import digest
from fedmf.training.learner import function_text


def module_fingerprint(functions: ModuleFunctions, module: torch.nn.Module) -> dict[str, str]:
    """Returns a text for each submodule, its attributes, the loss and the weights, which changes if
    these change.

    Args:
      functions: the task's functions.
      module: the result of its `build_model`.
    """
    text_by_component = {}
    for name, submodule in module.named_modules():
        component_name = f"module {name}" if name else "model"
        text_by_component[component_name] = _shown_text(submodule)
    text_by_component |= {
        f"attribute {name}": text for name, text in attribute_texts(module).items()
    }
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


def _function_text(function: object) -> str:
    """Returns the name of a function, or the class of a module with its arguments."""
    if not isinstance(function, torch.nn.Module):
        return function_text(function)
    texts = [f"{name}={text}" for name, text in attribute_texts(function).items()]
    tensors = dict(function.named_parameters()) | dict(function.named_buffers())
    texts += [f"{name}={digest([as_array(tensor)])}" for name, tensor in tensors.items()]
    return f"{_class_name(function)}({', '.join(texts)})"


def _shown_text(module: torch.nn.Module) -> str:
    """Returns the class of a module, with its settings as `extra_repr` prints them."""
    return f"{_class_name(module)}({without_addresses(module.extra_repr())})"


def _class_name(value: object) -> str:
    """Returns the name of an object's class with its module."""
    return f"{type(value).__module__}.{type(value).__qualname__}"
