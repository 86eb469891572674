"""Checks that the metrics of a task fit its model, and that they can be made private."""

import re
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.client_training.stateless_model import operations
from fedmf.federated.evaluation import update_metric
from fedmf.federated.forbidden_operations import DRAWS, PYTHON, stateful_operations
from fedmf.federated.model_functions import ModelFunctions, tensor_specs
from fedmf.federated.tensorflow_errors import error_reason
from fedmf.federated.tff_models import TffModel
from fedmf.training.examples import Examples
from fedmf.training.learner import TaskData


def check_metrics(
    functions: ModelFunctions, task: TaskData, model: Any, examples: Examples
) -> None:
    """Raises ValueError if a metric fails on the model's outputs or has no scalar result.

    Two metrics with the same name are an error as well.
    """
    if functions.metrics is None:
        return
    # Reading `task.headline` raises an error if one of the metrics is not a Keras metric.
    _ = task.headline
    metrics = list(functions.metrics())
    x, y = tf.nest.map_structure(tf.constant, examples)
    metric_names = [metric.name for metric in metrics]
    for metric in metrics:
        if metric_names.count(metric.name) > 1:
            raise ValueError(
                f"metric {metric.name!r} of task {task.name!r} is there twice: give one of them "
                "another name"
            )
        try:
            update_metric(metric, y, model(x, training=False))
            result_shape = np.asarray(metric.result()).shape
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise ValueError(
                f"metric {metric.name!r} of task {task.name!r} fails on its validation split: "
                f"make it fit outputs and labels ({error_reason(error)})"
            ) from error
        if result_shape:
            raise ValueError(
                f"metric {metric.name!r} of task {task.name!r} has a result of shape "
                f"{result_shape}: give one number"
            )


def check_private_metrics(
    functions: ModelFunctions, task: TaskData, model: Any, examples: Examples
) -> None:
    """Raises ValueError if a client's metrics may depend on more than the client's own examples.

    The sum of private metrics would then be more sensitive than the plan says.
    """
    error_beginning = f"private_metrics do not go with task {task.name!r}"
    if isinstance(model, TffModel) or functions.metrics is None:
        raise ValueError(f"{error_beginning}: give it a Keras model, and a metric between 0 and 1")
    metrics = list(functions.metrics())

    def update(x: Any, y: Any) -> None:
        for metric in metrics:
            update_metric(metric, y, model(x, training=False))

    impure_operations = _impure_operations(task, model, update)
    if impure_operations:
        raise ValueError(
            f"{error_beginning}, whose evaluation keeps a state, draws random numbers or calls "
            f"Python ({', '.join(impure_operations)}): evaluate by a pure function"
        )
    initial_states = [np.copy(value) for metric in metrics for value in metric.get_weights()]
    update(*tf.nest.map_structure(tf.constant, examples))
    headline_metric = next(metric for metric in metrics if metric.name == task.headline)
    if not 0 <= float(headline_metric.result()) <= 1:
        raise ValueError(
            f"{error_beginning}, whose {task.headline} is not between 0 and 1: put a metric first "
            "that is"
        )
    for metric in metrics:
        metric.reset_state()
    reset_states = [value for metric in metrics for value in metric.get_weights()]
    if not all(map(np.array_equal, initial_states, reset_states)):
        raise ValueError(
            f"{error_beginning}, which has a metric that is not in its first state after "
            "`reset_state`: reset all of its variables there"
        )


def _impure_operations(task: TaskData, model: Any, update_metrics: Any) -> list[str]:
    """Returns the operations of an evaluation that keep a state, draw randomly or call Python."""
    x_specs, y_specs = tensor_specs(task.spec)
    forward_pass = tf.function(lambda x: model(x, training=False))
    impure_names = set(stateful_operations(operations(forward_pass.get_concrete_function(x_specs))))
    traced_update = tf.function(update_metrics).get_concrete_function(x_specs, y_specs)
    # Metrics may write variables, because they keep their counts in variables.
    forbidden_pattern = re.compile(f"{DRAWS.pattern}|{PYTHON.pattern}")
    impure_names |= set(filter(forbidden_pattern.match, operations(traced_update)))
    return sorted(impure_names)
