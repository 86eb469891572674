"""Fingerprint of a TensorFlow task's program: layers, loss and weights.

A resumed run compares it, so that the rounds of a run are of one program; no guarantee rests on it.
It has the names of functions and not their bodies, which can differ unseen.
"""

import json
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.model_functions import ModelFunctions
from fedmf.fields import flat
from fedmf.training.examples import digest

# Entries of a configuration that are left out: Keras numbers names over all layers that a process
# builds, and stores a function as its bytecode.
_IGNORED_KEYS = ("name", "function", "build_config", "registered_name", "module")


def fingerprint(functions: ModelFunctions, model: Any) -> dict[str, str]:
    """Returns a text for each component of the task's program.

    Args:
      functions: the task's functions.
      model: the result of its `build_model`.
    """
    texts = {"model": _qualified_name(type(model))}
    texts |= _component_texts("loss", functions.loss)
    if isinstance(model, tf.keras.Model):
        for i, layer in enumerate(_nested_layers(model)):
            texts |= _component_texts(f"layer {i}", layer)
    frozen = [np.asarray(weight) for weight in getattr(model, "non_trainable_variables", ())]
    trained = [np.asarray(weight) for weight in model.trainable_variables]
    texts["frozen weights"] = digest(frozen)
    texts["initial weights"] = digest(trained)
    return texts


def _nested_layers(model: Any) -> list[Any]:
    """Returns the layers of a model, and the layers of the models among them."""
    layers = []
    for layer in getattr(model, "layers", ()):
        layers += [layer, *_nested_layers(layer)]
    return layers


def _component_texts(name: str, component: Any) -> dict[str, str]:
    """Returns the class of a layer or a loss and its configuration, entry by entry.

    A layer without a configuration has the shapes of its weights instead, and a function its name.
    """
    if not isinstance(component, tf.keras.layers.Layer | tf.keras.losses.Loss):
        return {name: _qualified_name(component)}
    try:
        config = component.get_config()
    except NotImplementedError:
        config = {"weights": [tuple(weight.shape) for weight in getattr(component, "weights", ())]}
    entries = flat(_reproducible(config), ".")
    texts = {name: _qualified_name(type(component))}
    for key, entry in entries.items():
        texts[f"{name} {key}"] = json.dumps(entry, default=_qualified_name)
    return texts


def _reproducible(value: Any) -> Any:
    """Returns a configuration without the entries that differ between two builds of one layer."""
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
    """Returns a text itself, or the qualified name of a class, a function or an object's class."""
    if value is None or isinstance(value, str):
        return str(value)
    definition = value if hasattr(value, "__qualname__") else type(value)
    return f"{definition.__module__}.{definition.__qualname__}"
