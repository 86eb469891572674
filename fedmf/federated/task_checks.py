"""Checks of the attributes of a `Task`: what cannot work is refused when the task is made."""

import collections
import types
from collections.abc import Hashable
from typing import Any

import tensorflow as tf

from fedmf import checks, fields
from fedmf.federated.tensorflow_import import keras3_note
from fedmf.identifiers import check_clients
from fedmf.runs.vocabulary import RunVocabulary

KERAS = ("keras.", "tf_keras.")  # modules of Keras 2, in TensorFlow 2.14 and beside newer ones
_TEXTS = ("description", "made_clients", "headline_metric", "metric_note", "data_version")
# Functions: how many arguments they are called with, and what to pass.
_FUNCTIONS = {
    "client_examples": (1, "pass a function: client id -> (x, y)"),
    "evaluation_examples": (1, 'pass a function: "validation" or "test" -> (x, y)'),
    "metrics": (0, "pass a function that makes the list, such as lambda: [...]"),
    "sample_weight": (1, "pass a function: client id -> weights, or use Task.from_arrays"),
    "compiled_epoch": (0, "pass a function that makes a CompiledEpoch, or None"),
    "export_model": (1, "pass a function: a model -> a model, or None"),
}
_OPTIONAL = ("metrics", "sample_weight", "compiled_epoch", "export_model")


def checked_attributes(task: Any) -> dict[str, Any]:
    """Returns the attributes of a task that are kept in a type of their own.

    Raises:
      TypeError, ValueError: naming the attribute and what to do instead.
    """
    name = fields.plain_text("name", task.name)
    if not name:
        raise ValueError("name='' is empty: give the task a short name, such as digits")
    for text in _TEXTS:
        fields.plain_text(text, getattr(task, text))
    client_ids = _client_ids(f"client_ids of task {name!r}", task.client_ids)
    hint = "use a positive whole number"
    batch_size = task.batch_size
    batch_size = checks.integer("batch_size", batch_size, low=1, high=fields.MAX_COUNT, hint=hint)
    _check_functions(task)
    if task.vocabulary is not None:
        fields.instance(RunVocabulary)("vocabulary", task.vocabulary)
    return {"client_ids": client_ids, "batch_size": batch_size}


def _client_ids(name: str, value: Any) -> tuple[Any, ...]:
    client_ids = tuple(checks.entries(name, value, hint="give a list of ids"))
    if not client_ids:
        raise ValueError(f"{name} is empty: a task needs at least one training client")
    if not all(isinstance(client_id, Hashable) for client_id in client_ids):
        raise TypeError(f"{name} has arrays or lists: give one id for each client")
    check_clients(name, client_ids)
    [(repeated_id, times)] = collections.Counter(client_ids).most_common(1)
    if times > 1:
        raise ValueError(
            f"{name} has {repeated_id!r} more than once: the guarantee is for each client, so "
            "every one needs an id of its own"
        )
    return client_ids


def _check_functions(task: Any) -> None:
    for name in ("loss", "metrics"):
        if note := keras3_note(getattr(task, name)):
            raise TypeError(f"{name} of task {task.name!r} is{note}")
    check_model_function("build_model", task.build_model, num_arguments=1)
    for name, (num_arguments, hint) in _FUNCTIONS.items():
        function = getattr(task, name)
        if function is not None or name not in _OPTIONAL:
            checks.function(name, function, num_arguments=num_arguments, hint=hint)
    if task.loss is not None:
        _check_loss(task.loss)
    if (task.loss is None) != (task.metrics is None):
        raise ValueError(
            f"task {task.name!r} has only one of loss and metrics: give both, or neither for a "
            "TFF model with its own"
        )


def check_model_function(name: str, value: Any, *, num_arguments: int) -> None:
    """Refuses what is no function that builds a model: TypeError."""
    hint = "pass a function that builds the model"
    if note := keras3_note(value):
        raise TypeError(f"{name} is{note}")
    if isinstance(value, tf.keras.layers.Layer):
        raise TypeError(f"{name} is the model {value!r}: {hint}")
    checks.function(name, value, num_arguments=num_arguments, hint=hint)


def _check_loss(loss: Any) -> None:
    hint = (
        "pass a tf.keras.losses.Loss, such as MeanSquaredError(), or a function (labels, outputs, "
        "example_weights)"
    )
    # A class, or a function of labels and outputs only.
    is_of_keras = isinstance(loss, types.FunctionType) and loss.__module__.startswith(KERAS)
    if is_of_keras:
        raise TypeError(f"loss={loss!r} is a function of Keras, which takes no weights: {hint}")
    checks.function("loss", loss, num_arguments=3, hint=hint)
