"""StackOverflow next-word prediction with a PyTorch model."""

import functools
from collections.abc import Mapping
from typing import Any

from fedmf.pytorch import Task
from fedmf.tasks.stackoverflow import torch_model
from fedmf.tasks.stackoverflow.options import StackOverflowOptions
from fedmf.tasks.stackoverflow.preprocessing import SpecialIds


def torch_task(o: StackOverflowOptions, attributes: Mapping[str, Any]) -> Task:
    """Returns the task with a PyTorch model.

    Args:
      o: options of the task.
      attributes: attributes of the task that do not depend on the framework.

    Raises:
      ValueError: the loss is the masked one, which is no mean over examples.
    """
    if o.loss != "published":
        raise ValueError(
            f"loss={o.loss!r} divides by the words of a batch, and the loss of a PyTorch task is a "
            "mean over its sentences: take loss='published', or framework='tensorflow'"
        )
    return Task(
        **attributes,
        build_model=functools.partial(torch_model.NextWord, form=o.model, **o.sizes()),
        loss=torch_model.mean_cross_entropy,
        metrics=torch_model.make_metrics(SpecialIds(o.vocabulary_size)),
    )
