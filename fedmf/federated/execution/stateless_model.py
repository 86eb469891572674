"""A Keras model as a function of weights and inputs, for clients that are trained side by side with weights of their own."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fedmf.federated.task import Task
from fedmf.federated.tff_models import TffModel

# (trainable weights, x) -> outputs in training, and the model's own losses.
StatelessModel = Callable[[Sequence[Any], Any], tuple[Any, Sequence[Any]]]


def stateless_model(task: Task, seed: int) -> StatelessModel:
    """The task's model without variables; to be called in a graph.

    Each call builds the model again, and a tensor takes the place of every variable when it is created: tff.learning.models
    .functional_model_from_keras does the same, but drops the model's own losses.

    Raises:
      ValueError: the model creates other variables than its trainable weights, or is one of TFF that is to be trained in batches, whose
        loss knows no weights of examples and needs each client's own number of them.
    """
    created: list[Any] = []

    def record(create: Callable[..., Any], **arguments: Any) -> Any:
        created.append(create(**arguments))
        return created[-1]

    with tf.Graph().as_default(), tf.variable_creator_scope(record):
        built = task.build_model(seed)
    variables = built.trainable_variables
    if isinstance(built, TffModel) and task.batch_size > 1:
        raise ValueError(f"{task.name!r} has a {built.kind} of TFF, whose clients of several examples train in turn")
    place = {id(variable): i for i, variable in enumerate(variables)}
    if sorted(place) != sorted(map(id, created)):
        raise ValueError(f"{task.name!r} has a model with variables other than its trainable weights")
    order = [place[id(variable)] for variable in created]

    def apply(weights: Sequence[Any], x: Any) -> tuple[Any, Sequence[Any]]:
        in_order = iter([weights[i] for i in order])
        with tf.variable_creator_scope(lambda _, **arguments: next(in_order)):
            model = task.build_model(seed)
        return model(x, training=True), model.losses

    return apply
