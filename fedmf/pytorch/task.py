"""The data, the PyTorch model and the loss of a federated learning task."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fedmf import checks, fields
from fedmf.pytorch.learner import TorchLearner
from fedmf.pytorch.module_functions import TensorFunction, seeded_module
from fedmf.training.model_task import ModelTask

# Losses whose mean over a batch is divided by the sum of the weights of the labels' classes.
_WEIGHTED_MEANS = (torch.nn.functional.cross_entropy, torch.nn.functional.nll_loss)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(ModelTask):
    """A federated learning task, with the clients' examples, a PyTorch module, its loss and
    metrics.

    `from_arrays` makes one of arrays in memory; the run's seed determines the weights of its
    `model` by the default generators of PyTorch, numpy and Python. The constructor takes functions.
    A task has all attributes of `training.Task` but `learner`, and these:

    Attributes:
      build_model: seed -> an untrained torch.nn.Module, which is called with x as a tensor, or a
        structure of tensors. The same seed gives the same weights. In training it must be a
        function of weights and inputs alone: no dropout, no batch normalisation. Parameters that
        require no gradient are not trained, sent or noised.
      loss: (outputs, labels) -> the loss, such as torch.nn.functional.cross_entropy. It is called
        on each example with a batch axis of 1, by torch.vmap, so that it may contain no `.item()`
        and no decision on values. A client minimises the mean over the examples of a batch of the
        weight times the loss, with weight 1 unless the task has sample_weight or class_weight.
        Labels that are whole numbers are int64.
      metrics: name -> (outputs, labels) -> a number for each example of a batch, or their mean. A
        metric may also return a pair of such numbers, and is then the sum of the first over the sum
        of the second, such as right words over all words. Reports show the first metric. One may be
        named "loss"; otherwise the loss is reported as the mean over examples.

    Raises:
      TypeError: an attribute is not of its type, or no function of as many arguments.
      ValueError: as `training.Task`.

    Example:
      >>> import numpy as np
      >>> examples = (np.zeros((2, 3), np.float32), np.zeros(2, np.int64))
      >>> task = Task(
      ...     name="toy", client_ids=["ann", "bo"], client_examples=lambda client_id: examples,
      ...     evaluation_examples=lambda split: examples, batch_size=2,
      ...     build_model=lambda seed: torch.nn.Linear(3, 2),
      ...     loss=torch.nn.functional.cross_entropy,
      ...     metrics={"accuracy": lambda outputs, labels: outputs.argmax(1) == labels},
      ... )
      >>> task.client_ids, task.headline
      (('ann', 'bo'), 'accuracy')
      >>> rng = np.random.default_rng(0)
      >>> x, y = rng.normal(size=(60, 3)).astype(np.float32), rng.integers(0, 2, 60)
      >>> task = Task.from_arrays(
      ...     name="table", x=x, y=y, client_ids=np.arange(60) % 12, batch_size=5,
      ...     validation=(x, y), test=(x, y), model=lambda: torch.nn.Linear(3, 2),
      ...     loss=torch.nn.functional.cross_entropy,
      ...     metrics={"accuracy": lambda outputs, labels: outputs.argmax(1) == labels},
      ... )
      >>> len(task.client_ids), len(task.examples_of("7")[0])
      (12, 5)
    """

    build_model: Callable[[int], torch.nn.Module]
    loss: TensorFunction
    metrics: Mapping[str, TensorFunction] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_functions(self)
        learner = TorchLearner(
            name=self.name,
            build_model=self.build_model,
            loss=self.loss,
            metrics=dict(self.metrics),
        )
        fields.set_fields(self, {"learner": learner})
        super().__post_init__()

    @staticmethod
    def _seeded(model: Callable[[], torch.nn.Module]) -> Callable[[int], torch.nn.Module]:
        """Returns a function of a seed, as `build_model` is, from a function without arguments."""
        return seeded_module(model)


def _check_functions(task: Task) -> None:
    """Checks the functions of a task without calling them.

    Raises:
      TypeError: an attribute is no function of as many arguments.
    """
    if isinstance(task.build_model, torch.nn.Module):
        raise TypeError(
            f"build_model is the module {type(task.build_model).__name__}: pass a function of a "
            "seed that builds it"
        )
    hint = "pass a function: seed -> a torch.nn.Module"
    checks.function("build_model", task.build_model, num_arguments=1, hint=hint)
    hint = "pass a function (outputs, labels), such as torch.nn.functional.cross_entropy"
    _check_function("loss", task.loss, hint)
    if _divides_by_weights(task.loss):
        raise ValueError(
            f"loss of task {task.name!r} has a weight for each class and divides by it, so that it "
            "has no effect on single examples: leave it out, and give the task a class_weight"
        )
    if _has_trained_parameters(task.loss):
        raise ValueError(
            f"loss of task {task.name!r} has parameters that require gradients, which no run would "
            "train: make them parameters of the model, or buffers"
        )
    if not isinstance(task.metrics, Mapping):
        raise TypeError(
            f"metrics of task {task.name!r} is a {type(task.metrics).__name__}: give a dict, such "
            'as {"accuracy": accuracy}'
        )
    for name, metric in task.metrics.items():
        fields.plain_text("the name of a metric", name)
        _check_function(f"metric {name!r}", metric, "pass a function (outputs, labels)")


def _divides_by_weights(loss: Any) -> bool:
    """Returns whether a loss has class weights and is the mean over the weights of the labels."""
    if isinstance(loss, torch.nn.NLLLoss | torch.nn.CrossEntropyLoss):
        return loss.weight is not None and loss.reduction == "mean"
    if not isinstance(loss, functools.partial):
        return False
    is_weighted = loss.keywords.get("weight") is not None
    has_mean = loss.keywords.get("reduction", "mean") == "mean"
    return loss.func in _WEIGHTED_MEANS and is_weighted and has_mean


def _has_trained_parameters(loss: Any) -> bool:
    """Returns whether a loss is a module with parameters that require gradients."""
    if not isinstance(loss, torch.nn.Module):
        return False
    return any(parameter.requires_grad for parameter in loss.parameters())


def _check_function(name: str, value: Any, hint: str) -> None:
    """Raises a TypeError unless a value can be called with outputs and labels."""
    if isinstance(value, type):
        raise TypeError(f"{name} is the class {value.__name__}: {hint}, or an object of the class")
    checks.function(name, value, num_arguments=2, hint=hint)
