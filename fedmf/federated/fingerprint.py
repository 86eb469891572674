"""What a resumed run compares of a TensorFlow task's program: layers, loss and frozen weights.

It is about curves that mean something: no guarantee rests on it. Of functions it has the names, so
that their bodies can differ unseen.
"""

import json
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.model_functions import ModelFunctions
from fedmf.fields import flat
from fedmf.training.examples import digest

# Keras numbers names over all that a process has built, and keeps a function as its bytecode.
_LEFT_OUT = ("name", "function", "build_config", "registered_name", "module")


def fingerprint(functions: ModelFunctions, model: Any) -> dict[str, str]:
    """Returns a text for each part of the task's program.

    Args:
      functions: of the task.
      model: what its `build_model` returned.
    """
    parts = {"model": _name_of(type(model))} | _described("loss", functions.loss)
    if isinstance(model, tf.keras.Model):
        for i, layer in enumerate(_layers_of(model)):
            parts |= _described(f"layer {i}", layer)
    frozen = [np.asarray(weight) for weight in getattr(model, "non_trainable_variables", ())]
    trained = [np.asarray(weight) for weight in model.trainable_variables]
    parts["frozen weights"] = digest(frozen)
    parts["initial weights"] = digest(trained)
    return parts


def _layers_of(model: Any) -> list[Any]:
    """Returns the layers of a model, and of the models among them."""
    layers = []
    for layer in getattr(model, "layers", ()):
        layers += [layer, *_layers_of(layer)]
    return layers


def _described(name: str, part: Any) -> dict[str, str]:
    """Returns the class of a layer or a loss, and each entry of its configuration; of a layer that
    has none, the shapes of its weights; of a function its name.
    """
    if not isinstance(part, tf.keras.layers.Layer | tf.keras.losses.Loss):
        return {name: _name_of(part)}
    try:
        config = part.get_config()
    except NotImplementedError:
        config = {"weights": [tuple(weight.shape) for weight in getattr(part, "weights", ())]}
    entries = flat(_plain(config), ".")
    texts = {f"{name} {key}": json.dumps(entries[key], default=_name_of) for key in entries}
    return {name: _name_of(type(part))} | texts


def _plain(value: Any) -> Any:
    """Returns a configuration without what differs between two builds of one layer."""
    if isinstance(value, dict):
        return {
            key: _plain(entry)
            for key, entry in value.items()
            if key not in _LEFT_OUT and not key.endswith("_layers") and key != "layers"
        }
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.ndarray):
        return digest(value)
    return value


def _name_of(value: Any) -> str:
    """Returns a text itself, or the qualified name of a class, a function or an object's class."""
    if value is None or isinstance(value, str):
        return str(value)
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"
