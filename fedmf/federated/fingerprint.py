"""Fingerprints of the program of a TensorFlow task, which has layers, a loss and initial weights.

A resumed run compares them with those of its start, so that all rounds run the same program. No
guarantee rests on them: they contain the names of functions, and not their bodies.
"""

import json
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.model_functions import ModelFunctions
from fedmf.fields import flat
from fedmf.training.examples import digest

# These entries of a layer's configuration are left out, because they differ between processes. For
# example, Keras numbers the names of all layers that a process builds, and stores a function as its
# bytecode.
_IGNORED_KEYS = ("name", "function", "build_config", "registered_name", "module")


def fingerprint(functions: ModelFunctions, model: Any) -> dict[str, str]:
    """Returns a text for each layer, the loss and the weights, which changes if these change.

    Args:
      functions: the task's functions.
      model: the result of its `build_model`.
    """
    text_by_component = {"model": _qualified_name(type(model))}
    text_by_component |= _component_texts("loss", functions.loss)
    if isinstance(model, tf.keras.Model):
        for i, layer in enumerate(_nested_layers(model)):
            text_by_component |= _component_texts(f"layer {i}", layer)
    frozen: list[np.ndarray] = []
    for variable in getattr(model, "non_trainable_variables", ()):
        frozen += _arrays_of(variable)
    trained_weights = [np.asarray(weight) for weight in model.trainable_variables]
    text_by_component["frozen weights"] = digest(frozen)
    text_by_component["initial weights"] = digest(trained_weights)
    return text_by_component


def _arrays_of(variable: Any) -> list[np.ndarray]:
    """Returns the values of a variable of a model.

    The words of an adapted layer, such as StringLookup, are several tensors behind one handler.
    """
    variable_tensors = variable.get_tensors() if hasattr(variable, "get_tensors") else [variable]
    return [np.asarray(tensor) for tensor in variable_tensors]


def _nested_layers(model: Any) -> list[Any]:
    """Returns all layers of a model, including the layers of models that it contains."""
    all_layers = []
    for layer in getattr(model, "layers", ()):
        all_layers += [layer, *_nested_layers(layer)]
    return all_layers


def _component_texts(name: str, component: Any) -> dict[str, str]:
    """Returns texts that describe a layer or a loss, with one for its class, and one for each entry
    of its configuration.

    A layer without a configuration has the shapes of its weights instead, and a function its name.
    """
    if not isinstance(component, tf.keras.layers.Layer | tf.keras.losses.Loss):
        return {name: _qualified_name(component)}
    try:
        component_config = component.get_config()
    except NotImplementedError:
        component_config = {
            "weights": [tuple(weight.shape) for weight in getattr(component, "weights", ())]
        }
    entry_by_name = flat(_reproducible(component_config), ".")
    text_by_name = {name: _qualified_name(type(component))}
    for key, entry in entry_by_name.items():
        text_by_name[f"{name} {key}"] = json.dumps(entry, default=_qualified_name)
    return text_by_name


def _reproducible(value: Any) -> Any:
    """Returns a configuration without the entries that change when a layer is built again."""
    if isinstance(value, dict):
        return {
            key: _reproducible(entry)
            for key, entry in value.items()
            if key not in _IGNORED_KEYS and not key.endswith("_layers") and key != "layers"
        }
    if isinstance(value, list | tuple):
        return [_reproducible(entry) for entry in value]
    if isinstance(value, np.ndarray):
        return digest(value)
    return value


def _qualified_name(value: Any) -> str:
    """Returns the qualified name of a class or function, or of an object's class.

    A text is returned as it is.
    """
    if value is None or isinstance(value, str):
        return str(value)
    named_object = value if hasattr(value, "__qualname__") else type(value)
    return f"{named_object.__module__}.{named_object.__qualname__}"
