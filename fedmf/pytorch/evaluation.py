"""Evaluation of a module, which returns its loss and metrics on examples."""

import concurrent.futures
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fedmf.pytorch.batches import as_tensors, example_losses, without_weights
from fedmf.pytorch.module_copies import copied
from fedmf.pytorch.module_functions import ModuleFunctions, TensorFunction
from fedmf.pytorch.module_tensors import copy_arrays, trained_parameters
from fedmf.pytorch.torch_settings import process_settings
from fedmf.training.client_work import cores
from fedmf.training.examples import Examples, count, take
from fedmf.training.learner import ClientSettings, Evaluation

MAX_BATCH_EXAMPLES = 256
# Largest number of bytes for the outputs of one batch.
MAX_OUTPUT_BYTES = 2**25


class _WeightedSum(NamedTuple):
    """The sum of a metric over the examples of a batch, and the sum of their weights."""

    total: float
    weight: float


class _EvaluatedFunctions(NamedTuple):
    """A module in evaluation mode, with metrics by name and the loss."""

    module: torch.nn.Module
    metrics: dict[str, TensorFunction]
    loss: TensorFunction


class ModuleEvaluator:
    """A function of weights and examples that evaluates a module, an `Evaluate`.

    Batches are evaluated in parallel, each with one thread, and added up in their order.

    Args:
      functions: the task's functions.
      settings: settings of the run.
    """

    def __init__(self, functions: ModuleFunctions, settings: ClientSettings) -> None:
        self._functions = functions
        self._module = functions.build(settings.seed)
        self._module.eval()
        self._parameters = list(trained_parameters(self._module).values())
        self._device = torch.device("cpu")
        self._pool = concurrent.futures.ThreadPoolExecutor(cores(), "evaluation")
        self._batch_size = 0

    def __call__(self, weights: Sequence[np.ndarray], examples: Examples) -> Evaluation:
        """Returns the loss and the metrics of the module with these weights, as means over
        examples. A metric that is NaN is undefined.
        """
        examples = without_weights(examples)
        num_examples = count(examples)
        copy_arrays(weights, self._parameters)
        with process_settings(self._device):
            self._batch_size = self._batch_size or self._affordable_batch_size(examples)
            batches = (
                take(examples, slice(start, start + self._batch_size))
                for start in range(0, num_examples, self._batch_size)
            )
            sums_of_batches = list(self._pool.map(self._evaluate, batches))
        means = [_mean(sums) for sums in zip(*sums_of_batches, strict=True)]
        names = ["loss", *(name for name in self._functions.metrics if name != "loss")]
        value_by_name = dict(zip(names, means, strict=True))
        undefined_names = (name for name, value in value_by_name.items() if math.isnan(value))
        return Evaluation(value_by_name, frozenset(undefined_names))

    def _evaluate(self, batch: Examples) -> list[_WeightedSum]:
        """Returns the loss and the metrics of a batch, each summed over its examples."""
        torch.set_num_threads(1)
        with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
            x, labels = as_tensors(batch, self._device)
            module, metrics, loss_function = self._copies()
            outputs = module(x)
            loss_metric = metrics.pop("loss", None)
            if loss_metric is None:
                losses = example_losses(loss_function, outputs, labels)
                loss = _WeightedSum(float(losses.double().sum()), count(batch))
            else:
                loss = _sum_over_examples("loss", loss_metric, outputs, labels, count(batch))
            metric_sums = [
                _sum_over_examples(name, function, outputs, labels, count(batch))
                for name, function in metrics.items()
            ]
        return [loss, *metric_sums]

    def _copies(self) -> _EvaluatedFunctions:
        """Returns copies of module, metrics and loss for one batch, so that nothing that they
        change reaches another batch.
        """
        originals = _EvaluatedFunctions(
            self._module, dict(self._functions.metrics), self._functions.loss
        )
        copies: _EvaluatedFunctions = copied(originals)
        return copies

    def _affordable_batch_size(self, examples: Examples) -> int:
        """Returns a batch size for the evaluation, a power of two, with outputs of at most
        MAX_OUTPUT_BYTES.
        """
        with torch.no_grad():
            x, _ = as_tensors(take(examples, slice(0, 1)), self._device)
            module, _, _ = self._copies()
            outputs = module(x)
        output_leaves = pytree.tree_leaves(outputs)
        output_bytes = sum(output.numel() * output.element_size() for output in output_leaves)
        max_examples = MAX_OUTPUT_BYTES // max(1, output_bytes)
        return min(MAX_BATCH_EXAMPLES, 1 << max(0, max_examples.bit_length() - 1))


def _mean(sums: Sequence[_WeightedSum]) -> float:
    """Returns the mean over all examples of a metric; NaN if their weights are 0."""
    weight = math.fsum(batch_sum.weight for batch_sum in sums)
    if not weight:
        return math.nan
    return math.fsum(batch_sum.total for batch_sum in sums) / weight


def _sum_over_examples(
    name: str, metric: TensorFunction, outputs: Any, labels: Any, num_examples: int
) -> _WeightedSum:
    """Returns a metric of a batch, summed over its examples.

    Raises:
      ValueError: the metric has neither one number for each example nor one for all.
    """
    # A metric may write to what it gets.
    own_outputs, own_labels = pytree.tree_map(torch.clone, (outputs, labels))
    result = metric(own_outputs, own_labels)
    weight = float(num_examples)
    if isinstance(result, tuple):
        result, weights = result
        weight = _sum_of_examples(name, weights, num_examples)
    elif torch.as_tensor(result).numel() == 1:
        return _WeightedSum(float(result) * num_examples, weight)
    return _WeightedSum(_sum_of_examples(name, result, num_examples), weight)


def _sum_of_examples(name: str, values: Any, num_examples: int) -> float:
    """Returns the sum of a result of a metric, which has one number for each example."""
    values = torch.as_tensor(values).double()
    if values.shape == (num_examples,):
        return float(values.sum())
    raise ValueError(
        f"metric {name!r} returns the shape {tuple(values.shape)} for {num_examples} examples: "
        "return one number for each example, or their mean"
    )
