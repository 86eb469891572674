"""StackOverflow next-word prediction with a Keras model."""

import functools
from collections.abc import Mapping
from typing import Any

from fedmf.federated.task import Task
from fedmf.tasks.stackoverflow import model
from fedmf.tasks.stackoverflow.compiled import compiled_epoch
from fedmf.tasks.stackoverflow.lstm import with_keras_lstm
from fedmf.tasks.stackoverflow.options import StackOverflowOptions
from fedmf.tasks.stackoverflow.preprocessing import SpecialIds


def keras_task(o: StackOverflowOptions, attributes: Mapping[str, Any]) -> Task:
    """Returns the task with a Keras model.

    Args:
      o: options of the task.
      attributes: attributes of the task that do not depend on the framework.
    """
    sizes = o.sizes()
    return Task(
        **attributes,
        build_model=functools.partial(
            model.build_model, sequence_length=o.sequence_length, form=o.model, **sizes
        ),
        loss=model.make_loss(o.loss),
        metrics=functools.partial(model.make_metrics, o.loss, SpecialIds(o.vocabulary_size)),
        export_model=with_keras_lstm,
        compiled_epoch=compiled_epoch(**sizes, form=o.model, loss=o.loss, batch_size=o.batch_size),
    )
