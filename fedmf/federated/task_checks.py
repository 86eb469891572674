"""Checks of the functions that a user passes to `Task`, such as model, loss and metrics."""

import types
from typing import Any

import tensorflow as tf

from fedmf import checks
from fedmf.federated.tensorflow_import import keras3_note

# Keras 2 has modules of these names: "keras" in TensorFlow 2.14, and "tf_keras" where it is
# installed beside a newer TensorFlow.
KERAS_MODULES = ("keras.", "tf_keras.")
# The optional functions of a task. Each attribute name maps to the number of arguments of the
# function, and to a hint for the error if it is something else.
_FUNCTIONS = {
    "metrics": (0, "pass a function that makes the list, such as lambda: [...]"),
    "compiled_epoch": (0, "pass a function that makes a CompiledEpoch, or None"),
    "export_model": (1, "pass a function: a model -> a model, or None"),
}


def check_functions(task: Any) -> None:
    """Checks the functions of a task without calling them.

    Raises:
      TypeError: an attribute is no function of as many arguments, or is made for Keras 3.
      ValueError: only one of loss and metrics is given, or the loss is none that clients can use.
    """
    for name in ("loss", "metrics"):
        if note := keras3_note(getattr(task, name)):
            raise TypeError(f"{name} of task {task.name!r} is{note}")
    check_model_function("build_model", task.build_model, num_arguments=1)
    for name, (num_arguments, hint) in _FUNCTIONS.items():
        task_function = getattr(task, name)
        if task_function is not None:
            checks.function(name, task_function, num_arguments=num_arguments, hint=hint)
    if task.loss is not None:
        _check_loss(task.loss)
    if (task.loss is None) != (task.metrics is None):
        raise ValueError(
            f"task {task.name!r} has only one of loss and metrics: give both, or neither for a "
            "TFF model with its own"
        )


def check_model_function(name: str, value: Any, *, num_arguments: int) -> None:
    """Raises TypeError unless a value is a function that builds a model."""
    hint = "pass a function that builds the model"
    if note := keras3_note(value):
        raise TypeError(f"{name} is{note}")
    if isinstance(value, tf.keras.layers.Layer):
        raise TypeError(f"{name} is the model {value!r}: {hint}")
    checks.function(name, value, num_arguments=num_arguments, hint=hint)


def _check_loss(loss: Any) -> None:
    """Raises TypeError unless a loss takes (labels, outputs, example_weights)."""
    hint = (
        "pass a tf.keras.losses.Loss, such as MeanSquaredError(), or a function (labels, outputs, "
        "example_weights)"
    )
    # Keras's own loss functions take labels and outputs only, and so no example weights.
    is_function = isinstance(loss, types.FunctionType)
    if is_function and loss.__module__.startswith(KERAS_MODULES):
        raise TypeError(f"loss={loss!r} is a function of Keras, which takes no weights: {hint}")
    checks.function("loss", loss, num_arguments=3, hint=hint)
